"""The one writer of `events.db`: appends are committed together, synced, and answered after that."""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import apsw

from melon.errors import BusyError, DiskFullError, LogError
from melon.service.config import USES
from melon.service.log.base import Appended, ControlKind, Event, LogId
from melon.service.log.erasing import erasable, erase, expire_ids, pseudonym_of
from melon.service.log.files import EVENTS, Closing, Held, Reserve, is_full, open_writer, transaction, trouble

FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events(
    offset INTEGER PRIMARY KEY, user NOT NULL, item NOT NULL, time INTEGER NOT NULL, type TEXT NOT NULL, event_id TEXT,
    use INTEGER NOT NULL, recommended INTEGER NOT NULL, recommendation TEXT, stamped INTEGER NOT NULL,
    arrived REAL NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS by_event_id ON events(event_id) WHERE event_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_user ON events(user, offset);
CREATE INDEX IF NOT EXISTS hidden ON events(offset) WHERE use = 1;
CREATE TABLE IF NOT EXISTS controls(
    offset INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, arrived REAL NOT NULL,
    erased INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS facts(item PRIMARY KEY, version INTEGER NOT NULL, body TEXT);
CREATE INDEX IF NOT EXISTS by_version ON facts(version);
"""
_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_AT_ONCE = 500
_PROBE_SECONDS = 1.0
_DAY = 86_400.0


@dataclass(frozen=True)
class LogSettings:
    """How the log is written.

    Args:
        most_waiting: at most this many events may wait for their commit; more are refused with `BusyError`.
        reserve: bytes that are set aside on disk, and given up when it is full, so that the learner can go on.
        keep_ids_days: how long event ids are remembered.
    """

    most_waiting: int = 50_000
    reserve: int = 16 << 20
    keep_ids_days: float = 30.0


@dataclass
class _QueuedWrite:
    work: Callable[[], Any]
    size: int
    future: Future[Any]


class EventLog(Closing):
    """The log of one service, open for writing. One process at a time may hold it; a second one is refused.

    One thread commits everything that waits as one transaction; while it syncs, the next group gathers.
    """

    def __init__(self, folder: Path, settings: LogSettings | None = None) -> None:
        self.folder, self.settings = folder, settings or LogSettings()
        self._held = Held(folder, "writer")
        try:
            self._connection = open_writer(folder / EVENTS, "FULL", _SCHEMA)
            self._meta = self._opened()
        except BaseException:
            self._held.close()
            raise
        self._reserve = Reserve(folder, self.settings.reserve)
        self._full = not self._reserve.make()
        self._offset, self._events = int(self._meta["offset"]), int(self._meta["events"])
        self._arrived = float(self._meta["arrived"])
        self._facts = int(self._meta["facts"])
        self._waiting, self._guard = 0, threading.Lock()
        self._jobs: queue.SimpleQueue[_QueuedWrite | None] = queue.SimpleQueue()
        self._closed = False
        self._next_probe = self._next_tidy = 0.0
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    @property
    def log_id(self) -> str:
        """What this log is called in checkpoints: random, made once."""
        return str(self._meta["log_id"])

    @property
    def offset(self) -> int:
        """The last offset that is synced."""
        return self._offset

    @property
    def events(self) -> int:
        """How many events are synced."""
        return self._events

    @property
    def writable(self) -> bool:
        """Whether the last write succeeded; after a full disk, whether there is room again."""
        return not self._full and not self._closed

    @property
    def waiting(self) -> int:
        """How many events wait for their commit."""
        return self._waiting

    def announce(self, url: str) -> None:
        """Say where this process takes requests, so that commands which need the log can send theirs there."""
        self._held.announce(url)

    def submit(self, events: Sequence[Event]) -> Future[Appended]:
        """Append events in order; the future is done when they are synced.

        Fails with `BusyError` at once where too many wait, and with `DiskFullError` where there is no room; then
        nothing of the list is stored.
        """
        events = tuple(events)
        return self._put(lambda: self._append(events), len(events))

    def append(self, events: Sequence[Event], timeout: float | None = None) -> Appended:
        """The same, waiting for it."""
        return self.submit(events).result(timeout)

    def control(self, kind: ControlKind, body: Mapping[str, Any]) -> Future[int]:
        """Put a control into the stream; the future holds its offset."""
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
        return self._put(lambda: self._control(kind, text), 1)

    def forget(self, user: LogId, *, unlearn: bool = False) -> Future[int]:
        """Have a person forgotten: a control now; ids leave the log when the learner is past it and has saved.

        With `unlearn` the model is then replayed without the person's events.
        """
        return self.control("forget", {"user": user, "pseudonym": pseudonym_of(user), "unlearn": unlearn})

    def put_facts(self, facts: Sequence[tuple[LogId, Mapping[str, Any] | None]]) -> Future[int]:
        """Store the facts of items, replacing earlier ones (None removes them); the future holds the new version."""
        rows = [(item, None if body is None else json.dumps(body, allow_nan=False)) for item, body in facts]
        return self._put(lambda: self._put_facts(rows), len(rows))

    def close(self) -> None:
        """Commit what waits and close the log."""
        if self._closed:
            return
        with self._guard:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()
        self._connection.close()
        self._held.close()

    # Handing work to the thread.

    def _put(self, work: Callable[[], Any], size: int) -> Future[Any]:
        future: Future[Any] = Future()
        with self._guard:
            if self._closed:
                raise LogError(f"the log in {self.folder} is closed.")
            if self._full:
                raise self._no_room()
            if self._waiting and self._waiting + size > self.settings.most_waiting:
                raise BusyError(f"{self._waiting} events wait to be written; try again in a second.")
            self._waiting += size
            self._jobs.put(_QueuedWrite(work, size, future))
        return future

    def _run(self) -> None:
        stopping = False
        while not stopping:
            group: list[_QueuedWrite] = []
            with suppress(queue.Empty):
                job = self._jobs.get(timeout=_PROBE_SECONDS)
                while job is not None:
                    group.append(job)
                    job = self._jobs.get_nowait()
                stopping = True
            if group:
                self._commit(group)
            if stopping:
                self._next_tidy = 0.0
            self._look_after()

    def _commit(self, group: list[_QueuedWrite]) -> None:
        """Commit jobs as one transaction; where it fails, one by one, so that only the guilty one is refused."""
        before = self._offset, self._events, self._arrived, self._facts
        try:
            with transaction(self._connection):
                results = [job.work() for job in group]
                self._note()
        except BaseException as error:
            self._offset, self._events, self._arrived, self._facts = before
            if isinstance(error, apsw.Error) and is_full(self.folder, error):
                self._full = True
                self._reserve.give_up()
                self._answer(group, [self._no_room()] * len(group))
            elif len(group) > 1:
                for job in group:
                    self._commit([job])
            else:
                known = trouble(self.folder / EVENTS, error) if isinstance(error, apsw.Error) else error
                self._answer(group, [known])
        else:
            self._answer(group, results)

    def _answer(self, group: list[_QueuedWrite], results: Sequence[Any]) -> None:
        with self._guard:
            self._waiting -= sum(job.size for job in group)
        for job, result in zip(group, results, strict=True):
            if not job.future.set_running_or_notify_cancel():
                continue
            if isinstance(result, BaseException):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    # Inside the transaction.

    def _append(self, events: Sequence[Event]) -> Appended:
        now = self._now()
        known = self._known([event.event_id for event in events if event.event_id is not None])
        rows: list[tuple[Any, ...]] = []
        duplicates = conflicting = reached = 0
        for event in events:
            stamped = event.time is None
            moment = int(now) if event.time is None else event.time
            content = (event.user, event.item, event.type, USES.index(event.use), event.recommendation)
            if event.event_id is not None:
                if event.event_id in known:
                    offset, other, when, other_stamped = known[event.event_id]
                    same = other == content and (stamped or other_stamped or when == moment)
                    duplicates, conflicting = duplicates + same, conflicting + (not same)
                    reached = max(reached, offset)
                    continue
                known[event.event_id] = self._offset + len(rows) + 1, content, moment, stamped
            user, item, kind, use, shown = content
            place = self._offset + len(rows) + 1
            row = (place, user, item, moment, kind, event.event_id, use, event.recommended, shown, stamped, now)
            rows.append(row)
        self._connection.executemany(_INSERT, rows)
        self._offset += len(rows)
        self._events += len(rows)
        return Appended(len(rows), duplicates, conflicting, self._offset if rows else reached)

    def _known(self, ids: list[str]) -> dict[str, tuple[int, tuple[Any, ...], int, bool]]:
        """Offset, content and time of the events that have these ids already."""
        known: dict[str, tuple[int, tuple[Any, ...], int, bool]] = {}
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            marks = ",".join("?" * len(some))
            query = (
                "SELECT event_id, offset, user, item, type, use, recommendation, time, stamped FROM events "
                f"WHERE event_id IN ({marks})"
            )
            for name, offset, *content, when, stamped in self._connection.execute(query, some):
                known[cast(str, name)] = cast(int, offset), tuple(content), cast(int, when), bool(stamped)
        return known

    def _control(self, kind: ControlKind, body: str) -> int:
        self._offset += 1
        row = (self._offset, kind, body, self._now())
        self._connection.execute("INSERT INTO controls(offset, kind, body, arrived) VALUES (?, ?, ?, ?)", row)
        return self._offset

    def _put_facts(self, rows: Sequence[tuple[LogId, str | None]]) -> int:
        for item, body in rows:
            self._facts += 1
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (item, self._facts, body))
        return self._facts

    def _now(self) -> float:
        """The time of arrival, which does not run back when the machine's clock does."""
        self._arrived = max(time.time(), self._arrived)
        return self._arrived

    def _note(self) -> None:
        values = {"offset": self._offset, "events": self._events, "arrived": self._arrived, "facts": self._facts}
        self._connection.executemany("UPDATE meta SET value = ? WHERE name = ?", [(v, n) for n, v in values.items()])

    # Between groups.

    def _look_after(self) -> None:
        """Once a second: see whether a full disk has room again, and take forgotten people's ids out."""
        now = time.monotonic()
        if self._full and now >= self._next_probe:
            self._next_probe = now + _PROBE_SECONDS
            with suppress(apsw.Error):
                if self._reserve.make():
                    # Room for a good many events, or the next append would be refused again.
                    with transaction(self._connection):
                        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('probe', zeroblob(262144))")
                    with transaction(self._connection):
                        self._connection.execute("DELETE FROM meta WHERE name = 'probe'")
                    self._full = False
            if self._full:
                self._reserve.give_up()
        if not self._full and now >= self._next_tidy:
            self._next_tidy = now + _PROBE_SECONDS
            with suppress(apsw.Error, LogError):
                self.tidy()

    def tidy(self) -> None:
        """Erase the ids of people whom the learner has forgotten and saved, and event ids that are too old."""
        for offset, body in erasable(self._connection, self.folder):
            with transaction(self._connection):
                self._put_facts(erase(self._connection, offset, body))
                self._note()
            # What was overwritten must not live on in the WAL either.
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        with transaction(self._connection):
            expire_ids(self._connection, max(time.time(), self._arrived) - self.settings.keep_ids_days * _DAY)

    def _opened(self) -> dict[str, Any]:
        """What the log says about itself; a new one is given its name."""
        connection = self._connection
        with transaction(connection):
            start = {"format": FORMAT, "log_id": uuid.uuid4().hex, "offset": 0, "events": 0, "arrived": 0.0, "facts": 0}
            connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", list(start.items()))
        meta: dict[str, Any] = dict(cast(Any, connection.execute("SELECT name, value FROM meta").fetchall()))
        require_format(self.folder, meta["format"])
        return meta

    def _no_room(self) -> DiskFullError:
        return DiskFullError(
            f"the disk of {self.folder} is full, so nothing was stored; make room, and the log takes events again."
        )


def require_format(folder: Path, version: Any) -> None:
    """Refuse a log that a newer melon wrote."""
    if version != FORMAT:
        raise LogError(
            f"the log in {folder} has format {version!r}, and this melon reads {FORMAT}; upgrade melon to read it."
        )
