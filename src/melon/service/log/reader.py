"""Reading `events.db`: any process, any number of readers, none of which ever writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from heapq import merge
from pathlib import Path
from typing import Any

from melon.service.config import USES
from melon.service.log.base import Control, LogId, StoredEvent
from melon.service.log.events import require_format
from melon.service.log.files import EVENTS, Reader

_COLUMNS = "offset, user, item, time, type, event_id, use, recommended, recommendation, arrived"
_AT_ONCE = 10_000


class LogReader(Reader):
    """A read-only view of a log; not shared between threads. Everything it shows is committed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / EVENTS)
        meta = self.meta()
        require_format(folder, meta.get("format"))
        self.log_id = str(meta["log_id"])

    def last(self) -> tuple[int, int]:
        """The last offset, and how many events there are."""
        meta = self.meta()
        return int(meta["offset"]), int(meta["events"])

    def counted(self) -> tuple[int, int, int]:
        """Events and controls as they are found, and the last offset of both."""
        (events, last), (controls, later) = (
            self._rows(f"SELECT count(*), coalesce(max(offset), 0) FROM {table}")[0] for table in ("events", "controls")
        )
        return events, controls, max(last, later)

    def tail(self, after: int, most: int) -> list[StoredEvent]:
        """Up to `most` events behind an offset, none of them behind the next control."""
        query = (
            f"SELECT {_COLUMNS} FROM events WHERE offset > ?1 AND offset < "
            "coalesce((SELECT min(offset) FROM controls WHERE offset > ?1), 1 << 62) ORDER BY offset LIMIT ?2"
        )
        return [_stored(row) for row in self._rows(query, (after, most))]

    def control_after(self, after: int, kind: str | None = None) -> Control | None:
        """The first control behind an offset, of one kind or of any."""
        query = "SELECT offset, kind, body, arrived FROM controls WHERE offset > ? AND kind = coalesce(?, kind)"
        rows = self._rows(f"{query} ORDER BY offset LIMIT 1", (after, kind))
        return _control(rows[0]) if rows else None

    def to_unlearn(self) -> list[Control]:
        """Controls that want a person's events unlearned, once the person's ids have left the log; in order."""
        where = "kind = 'forget' AND erased AND body ->> '$.unlearn'"
        rows = self._rows(f"SELECT offset, kind, body, arrived FROM controls WHERE {where} ORDER BY offset")
        return [_control(row) for row in rows]

    def events(self, first: int, last: int) -> Iterator[StoredEvent]:
        """The events from one offset to another, in order."""
        while first <= last:
            query = f"SELECT {_COLUMNS} FROM events WHERE offset BETWEEN ? AND ? ORDER BY offset LIMIT {_AT_ONCE}"
            rows = self._rows(query, (first, last))
            yield from map(_stored, rows)
            first = rows[-1][0] + 1 if rows else last + 1

    def between(self, first: int, last: int) -> Iterator[StoredEvent | Control]:
        """Everything from one offset to another, in order."""
        query = "SELECT offset, kind, body, arrived FROM controls WHERE offset BETWEEN ? AND ? ORDER BY offset"
        controls = map(_control, self._rows(query, (first, last)))
        return merge(self.events(first, last), controls, key=lambda entry: entry.offset)

    def of_user(self, user: LogId, most: int, before: int | None = None) -> list[StoredEvent]:
        """A user's last events, newest first."""
        query = f"SELECT {_COLUMNS} FROM events WHERE user = ? AND offset < ? ORDER BY offset DESC LIMIT ?"
        return [_stored(row) for row in self._rows(query, (user, before or 1 << 62, most))]

    def hidden(self, after: int = 0) -> Iterator[StoredEvent]:
        """The events behind an offset that hide an item from their user, in order."""
        for row in self._rows(f"SELECT {_COLUMNS} FROM events WHERE use = 1 AND offset > ? ORDER BY offset", (after,)):
            yield _stored(row)

    def facts(self, after: int = 0) -> Iterator[tuple[LogId, int, Mapping[str, Any] | None]]:
        """Item, version and facts of everything that changed behind a version of the facts, in order of version."""
        for item, version, body in self._rows("SELECT * FROM facts WHERE version > ? ORDER BY version", (after,)):
            yield item, version, None if body is None else json.loads(body)


def _stored(row: tuple[Any, ...]) -> StoredEvent:
    offset, user, item, time, kind, event_id, use, recommended, shown, arrived = row
    return StoredEvent(offset, user, item, time, kind, event_id, USES[use], bool(recommended), shown, arrived)


def _control(row: tuple[Any, ...]) -> Control:
    offset, kind, body, arrived = row
    return Control(offset, kind, json.loads(body), arrived)
