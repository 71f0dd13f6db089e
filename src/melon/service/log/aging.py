"""What leaves a log with age: event ids after `dedup_days`, and events beyond `keep_events` or `keep_days`.

Age is the time for which the log was open, and order is that of arrival: no clock that somebody sets expires anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from melon.service.config import ServeSettings
from melon.service.log.files import Database

_DAY = 86_400.0
#: Rows that are changed between two groups of appends.
_AT_ONCE = 1_000


class Aging:
    """Moves two marks forward: up to `expired` events have no id, before `first` there are none (but see `drop`)."""

    def __init__(self, database: Database, settings: ServeSettings) -> None:
        self._db, self._settings = database, settings
        days = [one for one in (settings.dedup_days, settings.keep_days) if one]
        #: Seconds between two notes of how old an offset is.
        self._every = min(3600.0, min(days, default=1.0) * _DAY / 100)
        self._noted = float(self._one("SELECT coalesce(max(age), -1) FROM ages"))

    def advance(self, offset: int, age: float, begin: Callable[[], int]) -> bool:
        """Note how old the log is, and do some of what is due, inside a transaction; whether more is left.

        `begin` is the offset up to which no replay needs events any more.
        """
        given = self._settings
        if offset and (self._noted < 0 or age >= self._noted + self._every):
            self._db.rows("INSERT INTO ages VALUES (?, ?) ON CONFLICT DO NOTHING", (offset, age))
            self._noted = age
        expired = offset if not given.dedup_days else self._reached(age - given.dedup_days * _DAY)
        more = self._expire(expired)
        wanted = max(
            offset - given.keep_events if given.keep_events else 0,
            self._reached(age - given.keep_days * _DAY) if given.keep_days else 0,
        )
        if wanted > self._meta("wanted"):
            self._put("wanted", wanted)  # the learner makes a checkpoint the new beginning, and says so
        last = min(wanted, self._meta("expired"))
        return (last >= self._meta("first") and last > 0 and self._drop(min(last, begin()))) or more

    def _reached(self, age: float) -> int:
        """The last offset that was there when the log was so old."""
        return int(self._one("SELECT coalesce(max(offset), 0) FROM ages WHERE age <= ?", age))

    def _expire(self, last: int) -> bool:
        first = self._meta("expired")
        if last <= first:
            return False
        end = min(last, first + _AT_ONCE)
        self._db.rows(
            "UPDATE events SET event_id = NULL WHERE offset > ? AND offset <= ? AND event_id IS NOT NULL", (first, end)
        )
        self._put("expired", end)
        return end < last

    def _drop(self, last: int) -> bool:
        """Delete old events. Those that hide an item from its user stay: lists still need them."""
        first = max(self._meta("first"), 1)
        if last < first:
            return False
        end = min(last, first + _AT_ONCE - 1)
        self._db.rows("DELETE FROM events WHERE offset BETWEEN ? AND ? AND use != 1", (first, end))
        self._put("first", end + 1)
        return end < last

    def _meta(self, name: str) -> int:
        return int(self._db.meta().get(name, 0))

    def _put(self, name: str, value: int) -> None:
        self._db.note({name: value})

    def _one(self, query: str, *values: Any) -> Any:
        return self._db.rows(query, values)[0][0]
