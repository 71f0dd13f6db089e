"""The log of events and controls: a writer that commits and syncs appends together, and any number of readers."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melon.errors import BusyError, DiskFullError, LogError, StorageError, unknown_name
from melon.service.clock import WallClock, steady
from melon.service.config import MOST_AHEAD_S, USES, ServeSettings
from melon.service.log.aging import Aging
from melon.service.log.base import CONTROLS, Appended, Control, Event, LogId, ProfileKind, StoredEvent
from melon.service.log.erasure import Erasure, pseudonym_of
from melon.service.log.files import BATCHES, EVENTS, Closing, Held, Place, Reader, Reserve, is_full
from melon.service.log.steps import StepReader

FORMAT = 2
logger = logging.getLogger("melon.service")
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value /*any*/) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events(
    offset INTEGER PRIMARY KEY, user /*id*/ NOT NULL, item /*id*/ NOT NULL, time INTEGER NOT NULL,
    type TEXT NOT NULL, event_id TEXT, use INTEGER NOT NULL, recommended INTEGER NOT NULL, recommendation TEXT,
    stamped INTEGER NOT NULL,
    arrived REAL NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS by_event_id ON events(event_id) WHERE event_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_user ON events(user, offset);
CREATE INDEX IF NOT EXISTS hidden ON events(offset) WHERE use = 1;
CREATE TABLE IF NOT EXISTS controls(
    offset INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, arrived REAL NOT NULL,
    erased INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS ages(offset INTEGER PRIMARY KEY, age REAL NOT NULL);
CREATE TABLE IF NOT EXISTS facts(item /*id*/ PRIMARY KEY, version INTEGER NOT NULL, body TEXT);
CREATE INDEX IF NOT EXISTS by_version ON facts(version);
CREATE TABLE IF NOT EXISTS profiles(kind TEXT, id TEXT, body TEXT NOT NULL, PRIMARY KEY(kind, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS retracted(offset INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS aliases(
    previous /*id*/ PRIMARY KEY, user /*id*/ NOT NULL, offset INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_alias ON aliases(user);
"""
#: The names of the user ?1: the own one, and those before it.
_NAMES = "SELECT ?1 UNION ALL SELECT previous FROM aliases WHERE user = ?1"
_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_AT_ONCE = 500
_PROBE_SECONDS = 1.0


@dataclass
class _QueuedWrite:
    work: Callable[[], Any]
    size: int
    future: Future[Any]


class EventLog(Closing):
    """The log of one service, open for writing. One process at a time may hold a folder; a second one is refused.

    One thread commits everything that waits as one transaction; while it syncs, the next group gathers. A log in
    PostgreSQL may have any number of writers: where the log ends is read inside each transaction.
    """

    def __init__(self, place: Place | Path, settings: ServeSettings | None = None) -> None:
        self.place, self.settings = Place.of(place), settings or ServeSettings()
        self.folder = folder = self.place.folder
        self._held = Held(folder, "writer")
        try:
            self._db = self.place.open(EVENTS, "FULL", SCHEMA)
            self._meta = self._opened()
        except BaseException:
            self._held.close()
            raise
        self.clock = WallClock()
        self._reserve = Reserve(folder, self.settings.reserve_bytes if self.place.url is None else 0)
        #: Why nothing can be written now.
        self._trouble: LogError | None = None if self._reserve.make() else self._no_room()
        self._identity = _identity(self.place)
        self._turned = time.monotonic()
        self._began = steady() - float(self._meta["age"])
        self._aging = Aging(self._db, self.settings)
        self._erasure = Erasure(self._db, self.place)
        self._offset, self._events, self._facts, self._arrived, self._noted_age = 0, 0, 0, 0.0, 0.0
        self._take_head(self._meta)
        self._waiting, self._guard = 0, threading.Lock()
        self._jobs: queue.SimpleQueue[_QueuedWrite | None] = queue.SimpleQueue()
        self._closed = self._more = False
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
        """Whether the last write succeeded; after a failure, whether a probe did since."""
        return self.problem is None and not self._closed

    @property
    def problem(self) -> str | None:
        """Why nothing can be written, in words."""
        if self._trouble is not None:
            return str(self._trouble)
        return None if self._thread.is_alive() or self._closed else "the thread that writes the log has ended"

    @property
    def alarms(self) -> dict[str, str | None]:
        """What an operator should know, by name."""
        return {"log": self.problem, "clock": self.clock.problem, "erasure": self._erasure.problem}

    def beat(self, patience: float = 30.0) -> None:
        """Give a sign of life, unless the thread that writes has ended or stands still."""
        if self._thread.is_alive() and time.monotonic() - self._turned < patience:
            self._held.beat()

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

    def control(self, kind: str, body: Mapping[str, Any]) -> Future[int]:
        """Put a control of one of the `CONTROLS` into the stream; the future holds its offset."""
        if kind not in CONTROLS:
            raise unknown_name("kind of control", kind, CONTROLS)
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
        return self._put(lambda: self._control(kind, text), 1)

    def forget(self, user: LogId, *, unlearn: bool = False) -> Future[int]:
        """Have a person forgotten: a control now; ids leave the log when the learner is past it and has saved.

        With `unlearn` the model is then replayed without the person's events. A wish that is repeated before that,
        and without new events of the person, is one control.
        """
        return self._put(lambda: self._forget(user, unlearn), 1)

    def retract(self, user: LogId, item: LogId, kind: str | None = None) -> Future[tuple[int, int]]:
        """Take a user's events of an item (of one type) out of histories; the future holds how many, and an offset.

        The events stay in the log, so that replays are exact, and what was learned from them stays in the model. Their
        ids are free again.
        """
        return self._put(lambda: self._retract(user, item, kind), 1)

    def alias(self, previous: LogId, user: LogId) -> Future[int]:
        """Let a visitor be a user from here on: the past of the one becomes the other's; the future holds an offset."""
        return self._put(lambda: self._alias(previous, user), 1)

    def put_profiles(
        self, kind: ProfileKind, profiles: Mapping[str, Mapping[str, Any] | None], *, replace: bool = True
    ) -> Future[int]:
        """Store what clients say of users or items, as they said it (None removes it); the future holds how many.

        Without `replace`, only those of whom nothing is stored.
        """
        rule = "UPDATE SET body = excluded.body" if replace else "NOTHING"
        rows = [(kind, one, json.dumps(body)) for one, body in profiles.items() if body is not None]
        gone = [(kind, one) for one, body in profiles.items() if body is None]
        find = "SELECT 1 FROM profiles WHERE kind = ? AND id = ?"

        def work() -> int:
            known = {one for one in profiles if self._db.rows(find, (kind, one))}
            self._db.many(f"INSERT INTO profiles VALUES (?, ?, ?) ON CONFLICT(kind, id) DO {rule}", rows)
            self._db.many("DELETE FROM profiles WHERE kind = ? AND id = ?", gone)
            return len(profiles.keys() - known if not replace else [*rows, *(one for _, one in gone if one in known)])

        return self._put(work, len(profiles))

    def put_facts(self, facts: Sequence[tuple[LogId, Mapping[str, Any] | None]]) -> Future[int]:
        """Store the facts of items, replacing earlier ones (None removes them); the future holds the new version."""
        rows = [(item, None if body is None else json.dumps(body, allow_nan=False)) for item, body in facts]
        return self._put(lambda: self._put_facts(rows), len(rows))

    def change_facts(
        self, item: LogId, change: Callable[[dict[str, Any] | None], Mapping[str, Any]]
    ) -> Future[tuple[int, Mapping[str, Any]]]:
        """Change the facts of an item from what they are now; the future holds their version and the new facts."""

        def work() -> tuple[int, Mapping[str, Any]]:
            rows = self._db.rows("SELECT body FROM facts WHERE item = ?", (self._db.key(item),))
            body = change(json.loads(rows[0][0]) if rows and rows[0][0] is not None else None)
            return self._put_facts([(item, json.dumps(body, allow_nan=False))]), body

        return self._put(work, 1)

    def close(self) -> None:
        """Commit what waits and close the log."""
        if self._closed:
            return
        with self._guard:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()
        self._erasure.close()
        self._db.close()
        self._held.close()

    # Handing work to the thread.

    def _put(self, work: Callable[[], Any], size: int) -> Future[Any]:
        future: Future[Any] = Future()
        with self._guard:
            if self._closed:
                raise LogError(f"the log in {self.place} is closed.")
            if self._trouble is not None:
                raise self._trouble
            if not self._thread.is_alive():
                raise LogError(f"the thread that writes the log in {self.place} has ended; restart the service.")
            if self._waiting and self._waiting + size > self.settings.queue_events:
                raise BusyError(f"{self._waiting} events wait to be written; try again in a second.")
            self._waiting += size
            self._jobs.put(_QueuedWrite(work, size, future))
        return future

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._turned = time.monotonic()
            group: list[_QueuedWrite] = []
            with suppress(queue.Empty):
                job = self._jobs.get(timeout=0.001 if self._more else _PROBE_SECONDS)
                while job is not None:
                    group.append(job)
                    job = self._jobs.get_nowait()
                stopping = True
            if group:
                self._commit(group)
            if stopping:
                self._next_tidy = 0.0
            try:
                self._look_after()
            except Exception:  # nothing that goes wrong between two groups may end the thread
                logger.exception("looking after the log failed")
                self._next_tidy = time.monotonic() + 10 * _PROBE_SECONDS

    def _commit(self, group: list[_QueuedWrite]) -> None:
        """Commit jobs as one transaction; where it fails, one by one, so that only the guilty one is refused."""
        before = self._offset, self._events, self._arrived, self._facts
        try:
            with self._db.transaction():
                self._take_head(self._db.meta())
                results = [job.work() for job in group]
                self._note()
        except BaseException as error:
            self._offset, self._events, self._arrived, self._facts = before
            if isinstance(error, StorageError | DiskFullError | OSError):
                self._failed(error)
                self._answer(group, [self._trouble] * len(group))
            elif len(group) > 1:
                for job in group:
                    self._commit([job])
            else:
                self._answer(group, [error])
        else:
            self._answer(group, results)

    def _failed(self, error: BaseException) -> None:
        """Take nothing more until a probe succeeds."""
        if self.place.url is None and (isinstance(error, DiskFullError) or is_full(self.folder, error)):
            self._trouble = self._no_room()
            self._reserve.give_up()
        elif isinstance(error, LogError):
            self._trouble = error
        else:
            self._trouble = LogError(f"{self.place.named(EVENTS)} cannot be written: {error}.")
        logger.error("%s", self._trouble)

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
            row = (
                place, self._db.key(user), self._db.key(item), moment, kind, event.event_id, use,
                int(event.recommended), shown, int(stamped), now,
            )  # fmt: skip
            rows.append(row)
        self._db.many(_INSERT, rows)
        self._offset += len(rows)
        self._events += len(rows)
        return Appended(len(rows), duplicates, conflicting, self._offset if rows else reached)

    def _known(self, names: list[str]) -> dict[str, tuple[int, tuple[Any, ...], int, bool]]:
        """Offset, content and time of the events that have these ids already."""
        known: dict[str, tuple[int, tuple[Any, ...], int, bool]] = {}
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            marks = ",".join("?" * len(some))
            query = (
                "SELECT event_id, offset, user, item, type, use, recommendation, time, stamped FROM events "
                f"WHERE event_id IN ({marks})"
            )
            for name, offset, user, item, *content, when, stamped in self._db.rows(query, some):
                ids = self._db.id(user), self._db.id(item)
                known[name] = offset, (*ids, *content), when, bool(stamped)
        return known

    def _control(self, kind: str, body: str) -> int:
        self._offset += 1
        row = (self._offset, kind, body, self._now())
        self._db.rows("INSERT INTO controls(offset, kind, body, arrived) VALUES (?, ?, ?, ?)", row)
        return self._offset

    def _forget(self, user: LogId, unlearn: bool) -> int:
        self._db.rows("DELETE FROM profiles WHERE kind = ? AND id = ?", ("user", str(user)))
        wishes = self._db.rows("SELECT offset, body FROM controls WHERE kind = 'forget' AND erased = 0 ORDER BY offset")
        same = [offset for offset, body in wishes if _is_same_wish(json.loads(body), user, unlearn)]
        later = "SELECT 1 FROM events WHERE user = ? AND offset > ? LIMIT 1"
        if same and not self._db.rows(later, (self._db.key(user), same[-1])):
            return int(same[-1])
        visitors = self._db.rows("SELECT previous FROM aliases WHERE user = ?", (self._db.key(user),))
        self._db.rows("DELETE FROM aliases WHERE ?1 IN (previous, user)", (self._db.key(user),))
        for (visitor,) in visitors:  # what the user did before having this name
            self._forget(self._db.id(visitor), unlearn)
        body = {"user": user, "pseudonym": pseudonym_of(user), "unlearn": unlearn}
        return self._control("forget", json.dumps(body, ensure_ascii=False, allow_nan=False))

    def _retract(self, user: LogId, item: LogId, kind: str | None) -> tuple[int, int]:
        key, find = self._db.key, self._db.rows
        names = f"user IN ({_NAMES}) AND item = ?2 AND offset NOT IN (SELECT offset FROM retracted)"
        query = f"SELECT offset FROM events WHERE {names} AND type = coalesce(?3, type) ORDER BY offset"
        found = find(query, (key(user), key(item), kind))
        if not found:
            return 0, self._offset
        self._db.many("INSERT INTO retracted VALUES (?)", found)
        self._db.many("UPDATE events SET event_id = NULL WHERE offset = ?", found)
        left = find(f"SELECT use FROM events WHERE {names}", (key(user), key(item)))
        # The pair is still one of the past where another event of it is; decided here, so that replays decide the same.
        body = {"user": user, "item": item, "gone": (USES.index("learn"),) not in left}
        return len(found), self._control("retract", json.dumps(body, ensure_ascii=False, allow_nan=False))

    def _alias(self, previous: LogId, user: LogId) -> int:
        find, before, after = self._db.rows, self._db.key(previous), self._db.key(user)
        rows = find("SELECT offset FROM aliases WHERE previous = ? AND user = ?", (before, after))
        known = rows[0][0] if rows else None
        later = "SELECT 1 FROM events WHERE user = ? AND offset > ? LIMIT 1"
        if previous == user or (known and not find(later, (before, known))):
            return int(known or self._offset)
        body = {"previous": previous, "user": user}
        offset = self._control("alias", json.dumps(body, ensure_ascii=False, allow_nan=False))
        find("DELETE FROM aliases WHERE previous IN (?, ?)", (after, before))
        find("UPDATE aliases SET user = ? WHERE user = ?", (after, before))
        find("INSERT INTO aliases VALUES (?, ?, ?)", (before, after, offset))
        return offset

    def _put_facts(self, rows: Sequence[tuple[LogId, str | None]]) -> int:
        for item, body in rows:
            self._facts += 1
            self._db.rows(
                "INSERT INTO facts VALUES (?, ?, ?) ON CONFLICT(item) DO UPDATE SET version = excluded.version, "
                "body = excluded.body",
                (self._db.key(item), self._facts, body),
            )
        return self._facts

    def _now(self) -> float:
        """The time of arrival. It does not run back by a little, and does not stay ahead once a clock was."""
        now = self.clock.now()
        self._arrived = now if self._arrived > now + MOST_AHEAD_S else max(now, self._arrived)
        return self._arrived

    @property
    def _age(self) -> float:
        """Seconds for which this log has been open in all: how old its events are, whatever clocks say."""
        return steady() - self._began

    def _note(self) -> None:
        age = max(self._age, self._noted_age)
        head = {"offset": self._offset, "events": self._events, "arrived": self._arrived, "facts": self._facts}
        self._db.note({**head, "age": age})

    def _take_head(self, meta: Mapping[str, Any]) -> None:
        """Where the log ends, as the last transaction of any writer has left it."""
        self._offset, self._events = int(meta["offset"]), int(meta["events"])
        self._arrived, self._facts = float(meta["arrived"]), int(meta["facts"])
        self._noted_age = float(meta["age"])

    # Between groups.

    def _look_after(self) -> None:
        """Once a second: see whether the log can be written (again), and tidy up; more often while ids expire."""
        now = time.monotonic()
        if now >= self._next_probe:
            self._next_probe = now + _PROBE_SECONDS
            if _identity(self.place) != self._identity:
                self._trouble = LogError(
                    f"{self.place.named(EVENTS)} was moved or removed while the service runs; put it back, or restart."
                )
            elif self._trouble is not None:
                self._probe()
        if self._trouble is None and now >= self._next_tidy:
            self._more, self._next_tidy = False, now + _PROBE_SECONDS
            with suppress(LogError):
                self._more = self.tidy()
                self._next_tidy = now + (0.0 if self._more else _PROBE_SECONDS)

    def _probe(self) -> None:
        """Try to write what takes room for a good many events, or the next append would be refused again."""
        try:
            if self._reserve.make():
                with self._db.transaction():
                    self._db.note({"probe": "0" * 262_144})
                with self._db.transaction():
                    self._db.rows("DELETE FROM meta WHERE name = 'probe'")
                self._trouble = None
                return
        except (LogError, OSError) as error:
            logger.info("the log still cannot be written: %s", error)
        self._reserve.give_up()

    def tidy(self) -> bool:
        """Erase ids of people whom the learner has forgotten and saved, expire old event ids, drop old events.

        Whether more of it waits than was done at once.
        """
        for offset, body in self._erasure.due():
            with self._db.transaction():
                self._take_head(self._db.meta())
                self._put_facts(self._erasure.erase(offset, body))
                self._note()
        self._erasure.verify()
        with self._db.transaction():
            self._take_head(self._db.meta())
            more = self._aging.advance(self._offset, self._age, self._begin)
            if more:
                self._note()
        return more

    def _begin(self) -> int:
        """The offset of the checkpoint that the learner has made the beginning of replays."""
        if not self.place.exists(BATCHES):
            return 0
        with StepReader(self.place) as steps:
            return steps.begin()

    def _opened(self) -> dict[str, Any]:
        """What the log says about itself; a new one is given its name."""
        with self._db.transaction():
            if not self._db.meta():
                head = {"offset": 0, "events": 0, "arrived": 0.0, "facts": 0, "age": 0.0}
                self._db.note({"format": FORMAT, "log_id": uuid.uuid4().hex, **head})
            meta = self._db.meta()
        require_format(self.place, meta["format"])
        return meta

    def _no_room(self) -> DiskFullError:
        return DiskFullError(
            f"the disk of {self.folder} is full, so nothing was stored; make room, and the log accepts events again."
        )


def require_format(place: Place, version: Any) -> None:
    """Refuse a log of another format."""
    if version != FORMAT:
        raise LogError(
            f"the log in {place} has format {version!r}, and this melon reads {FORMAT}; serve it with the melon that "
            "wrote it, or give an empty folder."
        )


def _is_same_wish(body: Mapping[str, Any], user: LogId, unlearn: bool) -> bool:
    return bool(body["user"] == user and body["unlearn"] >= unlearn)


def _identity(place: Place) -> tuple[int, int] | None:
    """What tells the file of the log from another one of its name."""
    if place.url is not None:
        return None
    try:
        status = os.stat(place.folder / EVENTS)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_COLUMNS = "offset, user, item, time, type, event_id, use, recommended, recommendation, arrived"
_READ_AT_ONCE = 10_000
#: An offset behind all.
_NEVER = 1 << 62


class LogReader(Reader):
    """A read-only view of a log; not shared between threads. Everything it shows is committed."""

    def __init__(self, place: Place | Path) -> None:
        super().__init__(place, EVENTS)
        meta = self.meta()
        require_format(self.place, meta.get("format"))
        self.log_id = str(meta["log_id"])

    def last(self) -> tuple[int, int]:
        """The last offset, and how many events there are."""
        meta = self.meta()
        return int(meta["offset"]), int(meta["events"])

    def wanted(self) -> int:
        """The offset up to which events are to be dropped, once no replay needs them."""
        return int(self.meta().get("wanted", 0))

    def first(self) -> int:
        """The first offset from which on everything is kept."""
        return int(self.meta().get("first", 1))

    def counted(self) -> tuple[int, int, int]:
        """Events and controls from the first kept offset on, as they are found, and the last offset of both."""
        (events, last), (controls, later) = (
            self._rows(f"SELECT count(*), coalesce(max(offset), 0) FROM {table} WHERE offset >= ?", (self.first(),))[0]
            for table in ("events", "controls")
        )
        return events, controls, max(last, later)

    def tail(self, after: int, most: int) -> list[StoredEvent]:
        """Up to `most` events behind an offset, none of them behind the next control."""
        query = (
            f"SELECT {_COLUMNS} FROM events WHERE offset > ?1 AND offset < "
            f"coalesce((SELECT min(offset) FROM controls WHERE offset > ?1), {_NEVER}) ORDER BY offset LIMIT ?2"
        )
        return [self._stored(row) for row in self._rows(query, (after, most))]

    def control_after(self, after: int, kind: str | None = None) -> Control | None:
        """The first control behind an offset, of one kind or of any."""
        query = "SELECT offset, kind, body, arrived, erased FROM controls WHERE offset > ? AND kind = coalesce(?, kind)"
        rows = self._rows(f"{query} ORDER BY offset LIMIT 1", (after, kind))
        return _control(rows[0]) if rows else None

    def controls(self, kind: str, after: int = 0) -> Iterator[Control]:
        """The controls of a kind behind an offset, in order."""
        while (control := self.control_after(after, kind)) is not None:
            yield control
            after = control.offset

    def to_unlearn(self) -> list[Control]:
        """Controls that want a person's events unlearned, once the person's ids have left the log; in order."""
        where = "kind = 'forget' AND erased > 0"
        rows = self._rows(f"SELECT offset, kind, body, arrived, erased FROM controls WHERE {where} ORDER BY offset")
        return [control for control in map(_control, rows) if control.body["unlearn"]]

    def erased(self) -> int:
        """The last control whose person's ids have left the log; 0 where there is none."""
        return int(self._rows("SELECT coalesce(max(offset), 0) FROM controls WHERE erased > 0")[0][0])

    def events(self, first: int, last: int) -> Iterator[StoredEvent]:
        """The events from one offset to another, in order."""
        while first <= last:
            query = f"SELECT {_COLUMNS} FROM events WHERE offset BETWEEN ? AND ? ORDER BY offset LIMIT {_READ_AT_ONCE}"
            rows = self._rows(query, (first, last))
            yield from map(self._stored, rows)
            first = rows[-1][0] + 1 if rows else last + 1

    def of_user(self, user: LogId, most: int, before: int | None = None) -> list[StoredEvent]:
        """A user's last events, newest first."""
        where = f"user IN ({_NAMES}) AND offset < ?2 AND offset NOT IN (SELECT offset FROM retracted)"
        query = f"SELECT {_COLUMNS} FROM events WHERE {where} ORDER BY offset DESC LIMIT ?3"
        return [self._stored(row) for row in self._rows(query, (self._db.key(user), before or _NEVER, most))]

    def page(self, after: int, most: int, kind: str | None = None) -> list[StoredEvent]:
        """Events behind an offset, of one type or of any, without those that were taken out of histories."""
        where = "offset > ?1 AND type = coalesce(?2, type) AND offset NOT IN (SELECT offset FROM retracted)"
        query = f"SELECT {_COLUMNS} FROM events WHERE {where} ORDER BY offset LIMIT ?3"
        return [self._stored(row) for row in self._rows(query, (after, kind, most))]

    def retracted(self) -> frozenset[int]:
        """Offsets of events that were taken out of histories."""
        known = self.has("retracted")  # a log may be older than this table
        return frozenset(offset for (offset,) in self._rows("SELECT offset FROM retracted")) if known else frozenset()

    def users_of(self) -> dict[LogId, LogId]:
        """The user whom each visitor turned out to be, by the visitor's id."""
        rows = self._rows("SELECT previous, user FROM aliases") if self.has("aliases") else []
        return {self._db.id(previous): self._db.id(user) for previous, user in rows}

    def user_of(self, visitor: LogId) -> LogId:
        """The user whom a visitor turned out to be, or the id itself."""
        rows = self._rows("SELECT user FROM aliases WHERE previous = ?", (self._db.key(visitor),))
        return self._db.id(rows[0][0]) if rows else visitor

    def profile(self, kind: ProfileKind, one: str) -> dict[str, Any] | None:
        """What clients said of a user or an item."""
        rows = self._rows("SELECT body FROM profiles WHERE kind = ? AND id = ?", (kind, one))
        return json.loads(rows[0][0]) if rows else None

    def profiles(self, kind: ProfileKind, after: str, most: int, text: str = "") -> list[tuple[str, dict[str, Any]]]:
        """Users or items behind one, in order of their ids; those whose `Comment` or id has a text."""
        query, found = "SELECT id, body FROM profiles WHERE kind = ? AND id > ? ORDER BY id LIMIT ?", list[Any]()
        while len(found) < most and (rows := self._rows(query, (kind, after, max(most, _AT_ONCE)))):
            named = ((one, json.loads(body)) for one, body in rows)
            found += [(one, body) for one, body in named if text.lower() in f"{body.get('Comment') or ''}{one}".lower()]
            after = rows[-1][0]
        return found[:most]

    def taken(self, after: int, last: int) -> dict[LogId, int]:
        """How often each item was taken by learned events behind one offset and up to another."""
        where = f"use = {USES.index('learn')} AND offset > ? AND offset <= ?"
        rows = self._rows(f"SELECT item, count(*) FROM events WHERE {where} GROUP BY item", (after, last))
        return {self._db.id(item): count for item, count in rows}

    def hidden(self, after: int = 0) -> Iterator[StoredEvent]:
        """The events behind an offset that hide an item from their user, in order."""
        gone = self.retracted()
        for row in self._rows(f"SELECT {_COLUMNS} FROM events WHERE use = 1 AND offset > ? ORDER BY offset", (after,)):
            if row[0] not in gone:
                yield self._stored(row)

    def facts(self, after: int = 0) -> Iterator[tuple[LogId, int, Mapping[str, Any] | None]]:
        """Item, version and facts of everything that changed behind a version of the facts, in order of version."""
        for item, version, body in self._rows("SELECT * FROM facts WHERE version > ? ORDER BY version", (after,)):
            yield self._db.id(item), version, None if body is None else json.loads(body)

    def _stored(self, row: tuple[Any, ...]) -> StoredEvent:
        offset, user, item, time, kind, event_id, use, recommended, shown, arrived = row
        user, item = self._db.id(user), self._db.id(item)
        return StoredEvent(offset, user, item, time, kind, event_id, USES[use], bool(recommended), shown, arrived)


def _control(row: tuple[Any, ...]) -> Control:
    offset, kind, body, arrived, erased = row
    return Control(offset, kind, json.loads(body), arrived, erased)
