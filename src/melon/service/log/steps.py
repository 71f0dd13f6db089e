"""Steps and deltas: what the learner did with the log, and what it published. The learner alone writes."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from melon.errors import HeldError, LogError
from melon.service.log.base import LoggedStep, Published, Status, StepKind
from melon.service.log.files import BATCHES, DELTAS, Database, Place, Reader

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value /*any*/) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS epochs(number INTEGER PRIMARY KEY, started REAL, about TEXT);
CREATE TABLE IF NOT EXISTS steps(
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    epoch INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT, digest BLOB, planned REAL NOT NULL, done REAL,
    about TEXT NOT NULL, totals TEXT NOT NULL, retried INTEGER);
CREATE INDEX IF NOT EXISTS by_done ON steps(done);
CREATE INDEX IF NOT EXISTS rare ON steps(kind, number) WHERE kind != 'events';
CREATE INDEX IF NOT EXISTS quarantined ON steps(number) WHERE status = 'quarantined' AND retried IS NULL;
"""
_DELTAS = """
CREATE TABLE IF NOT EXISTS deltas(
    number INTEGER PRIMARY KEY, offset INTEGER NOT NULL, kind TEXT NOT NULL, digest BLOB NOT NULL,
    content BLOB NOT NULL, arrived BLOB NOT NULL, published REAL NOT NULL);
"""
_COLUMNS = "number, kind, first, last, epoch, status, reason, digest, planned, done, about, totals"


class StepReader(Reader):
    """What the learner has recorded, read-only; not shared between threads."""

    def __init__(self, place: Place | Path) -> None:
        super().__init__(place, BATCHES)

    def last(self) -> LoggedStep | None:
        """The last step that is done: learned or quarantined."""
        return self._one("done IS NOT NULL ORDER BY number DESC")

    def reached(self) -> int:
        """The last offset that any step has taken, or was about to."""
        return int(self._rows("SELECT coalesce(max(last), 0) FROM steps")[0][0])

    def step(self, number: int) -> LoggedStep | None:
        """One step."""
        return self._one("number = ?", number)

    def at(self, offset: int) -> LoggedStep | None:
        """The last step that ends at or before an offset."""
        return self._one("last <= ? ORDER BY number DESC", offset)

    def done_by(self, moment: float) -> LoggedStep | None:
        """The last step that was done by a moment (seconds)."""
        return self._one("done <= ? ORDER BY done DESC, number DESC", moment)

    def since(self, moment: float) -> LoggedStep | None:
        """The last step done by a moment whose totals are there: they begin a window."""
        return self._one("done <= ? AND totals != '{}' ORDER BY done DESC, number DESC", moment)

    def after(self, number: int) -> Iterator[LoggedStep]:
        """The steps behind a number, in order, planned ones too."""
        while step := self._one("number > ? ORDER BY number", number):
            yield step
            number = step.number

    def retried_by(self, step: LoggedStep) -> LoggedStep | None:
        """The batch that a retry is about, if it was quarantined before."""
        batch = step.about.get("batch")
        if step.kind != "retry" or not isinstance(batch, int) or batch >= step.number:
            return None
        held = self.step(batch)
        return held if held is not None and (held.kind, held.status) == ("events", "quarantined") else None

    def quarantined(self, most: int = 100) -> list[LoggedStep]:
        """The newest batches that were quarantined and not learned since."""
        where = "status = 'quarantined' AND retried IS NULL ORDER BY number DESC LIMIT ?"
        return [_step(row) for row in self._rows(f"SELECT {_COLUMNS} FROM steps WHERE {where}", (most,))]

    def newest(self, most: int) -> list[LoggedStep]:
        """The newest steps that are done, the newest first."""
        where = "done IS NOT NULL ORDER BY number DESC LIMIT ?"
        return [_step(row) for row in self._rows(f"SELECT {_COLUMNS} FROM steps WHERE {where}", (most,))]

    def of_kind(self, kind: StepKind, after: int) -> list[LoggedStep]:
        """Steps of a kind other than `events` behind an offset that are done, in order."""
        # The index of such steps serves only a query that says in so many words that it wants no others.
        where = "kind = ? AND kind != 'events' AND last > ? AND done IS NOT NULL ORDER BY number"
        return [_step(row) for row in self._rows(f"SELECT {_COLUMNS} FROM steps WHERE {where}", (kind, after))]

    def switches(self) -> list[LoggedStep]:
        """Steps from which on another model was served, in order."""
        kinds = ("switch", "promote", "rollback")
        steps = [step for kind in kinds for step in self.of_kind(kind, -1) if step.switched]
        return sorted(steps, key=lambda step: step.number)

    def marked(self, since: float, most: int = 200) -> list[LoggedStep]:
        """Steps done since a moment that are no plain batch, or that were quarantined; the newest first."""
        rare = f"SELECT {_COLUMNS} FROM steps WHERE kind != 'events' AND done >= ?1 ORDER BY number DESC LIMIT ?2"
        steps = [_step(row) for row in self._rows(rare, (since, most))]
        held = [step for step in self.quarantined(most) if step.kind == "events" and (step.done or 0.0) >= since]
        return sorted([*steps, *held], key=lambda step: -step.number)

    def forgotten(self) -> int:
        """The offset up to which forgetting is done and saved: no checkpoint that is kept is older."""
        return int(self.meta().get("forgotten", 0))

    def unlearned(self) -> int:
        """The offset up to which people's events have been unlearned where that was wanted."""
        return int(self.meta().get("unlearned", 0))

    def begin(self) -> int:
        """The offset up to which no replay needs events any more."""
        return int(self.meta().get("begin", 0))

    def bases(self) -> list[int]:
        """The steps whose checkpoints are where exact replays begin: the start, and each model switched to."""
        return list(json.loads(self.meta().get("bases", "[0]")))

    def epochs(self) -> list[dict[str, Any]]:
        """Where and with what the learner ran, each time it was started."""
        rows = self._rows("SELECT number, started, about FROM epochs ORDER BY number")
        return [{"epoch": number, "started": started, **json.loads(about)} for number, started, about in rows]

    def alarms(self) -> list[str]:
        """What an operator should know now, in words."""
        return list(self.named_alarms().values())

    def named_alarms(self) -> dict[str, str]:
        """The same by the alarm's name."""
        alarms = json.loads(self.meta().get("alarms", "{}"))
        return alarms if isinstance(alarms, dict) else {text: text for text in alarms}  # a list: written by 0.1

    def _one(self, where: str, *values: Any) -> LoggedStep | None:
        rows = self._rows(f"SELECT {_COLUMNS} FROM steps WHERE {where} LIMIT 1", values)
        return _step(rows[0]) if rows else None


@contextmanager
def alone(database: Database, place: Place, epoch: int | None) -> Iterator[None]:
    """A transaction of the learner of an epoch; an error where a later one has begun, which then has the log."""
    with database.transaction():
        newest = newest_epoch(database)
        if epoch is not None and newest != epoch:
            raise HeldError(
                f"another learner of {place} has begun (epoch {newest}) after this one (epoch {epoch}); this one ends "
                "and leaves the log to it.",
                None,
            )
        yield


def newest_epoch(database: Database) -> int:
    """The epoch of the learner that began last."""
    return int(database.rows("SELECT coalesce(max(number), 0) FROM epochs")[0][0])


class StepBook(StepReader):
    """The same for the learner, which writes it. Commits are not synced one by one; `sync` does that for all."""

    def __init__(self, place: Place | Path) -> None:
        self.use(place, Place.of(place).open(BATCHES, "NORMAL", SCHEMA))
        #: The epoch of this learner, once it has begun. Nothing is written for one after which another has begun.
        self._epoch: int | None = None

    def _writing(self) -> AbstractContextManager[None]:
        return alone(self._db, self.place, self._epoch)

    def state(self, **values: Any) -> None:
        """Note facts of the whole."""
        with self._writing():
            self._db.note(values)

    def begin_epoch(self, about: Mapping[str, Any]) -> int:
        """A new start of the learner, and what it runs on."""
        with self._db.transaction():
            epoch = newest_epoch(self._db) + 1
            self._rows("INSERT INTO epochs VALUES (?, ?, ?)", (epoch, time.time(), json.dumps(dict(about))))
        self._epoch = epoch
        return epoch

    def plan(self, step: LoggedStep) -> None:
        """Write a boundary before anything is done about it."""
        values = (step.number, step.kind, step.first, step.last, step.epoch, step.planned, json.dumps(step.about))
        with self._writing():
            self._rows(
                "INSERT INTO steps(number, kind, first, last, epoch, status, planned, about, totals) "
                "VALUES (?, ?, ?, ?, ?, 'planned', ?, ?, '{}')",
                values,
            )

    def finish(
        self, step: LoggedStep, status: Status, digest: bytes, about: Mapping[str, Any], totals: Mapping[str, Any],
        reason: str | None = None,
    ) -> LoggedStep:  # fmt: skip
        """Write the outcome of a step."""
        about, when = {**step.about, **about}, step.done or time.time()
        done = replace(step, status=status, digest=digest, done=when, about=about, totals=totals, reason=reason)
        values = (status, reason, digest, done.done, json.dumps(done.about), json.dumps(done.totals), step.number)
        with self._writing():
            self._rows(
                "UPDATE steps SET status = ?, reason = ?, digest = ?, done = ?, about = ?, totals = ? WHERE number = ?",
                values,
            )
            if step.kind == "retry" and status == "learned":
                batch = (step.number, step.about.get("batch"))
                self._rows("UPDATE steps SET retried = ? WHERE number = ?", batch)
        return done

    def thin(self, before: float) -> None:
        """Delete what was measured in batches done before a moment, except for one in each minute.

        Boundaries, outcomes and digests stay: replays need them.
        """
        first = int(self.meta().get("thinned", 0))
        last = self._rows("SELECT max(number) FROM steps WHERE done < ?", (before,))[0][0] or first
        some = "number > ? AND number <= ? AND kind = 'events' AND status = 'learned'"
        newest = f"SELECT max(number) FROM steps WHERE {some} GROUP BY CAST(done / 60 AS INTEGER)"
        with self._writing():
            self._rows(
                f"UPDATE steps SET totals = '{{}}', about = '{{}}' WHERE {some} AND number NOT IN ({newest})",
                (first, last, first, last),
            )
            self._db.note({"thinned": last})

    def drop_before(self, number: int, offset: int) -> None:
        """Delete steps before a number whose events the log has dropped."""
        with self._writing():
            self._rows("DELETE FROM steps WHERE number < ? AND last < ?", (number, offset))

    def drop(self, step: LoggedStep) -> None:
        """Take back a step that was planned and never taken."""
        with self._writing():
            self._rows("DELETE FROM steps WHERE number = ? AND done IS NULL", (step.number,))

    def quarantine(self, step: LoggedStep, reason: str) -> None:
        """Decide, durably, that a batch is passed by."""
        with self._writing():
            self._rows("UPDATE steps SET status = 'quarantined', reason = ? WHERE number = ?", (reason, step.number))
        self.sync()

    def sync(self) -> None:
        """Have everything recorded so far survive a power cut."""
        self._db.sync()


class DeltaReader(Reader):
    """The feed of deltas, read-only; not shared between threads."""

    def __init__(self, place: Place | Path) -> None:
        super().__init__(place, DELTAS)

    def after(self, number: int, most: int = 64) -> list[Published]:
        """Deltas behind a step, in order; the first is number + 1, or there is a gap."""
        query = "SELECT number, offset, kind, digest, content, arrived FROM deltas WHERE number > ? ORDER BY number"
        rows = self._rows(f"{query} LIMIT ?", (number, most))
        return [
            Published(n, at, kind, digest, held, tuple(array("d", when))) for n, at, kind, digest, held, when in rows
        ]

    def digest(self, number: int) -> bytes | None:
        """The digest after a step whose delta is there."""
        rows = self._rows("SELECT digest FROM deltas WHERE number = ?", (number,))
        return rows[0][0] if rows else None

    def newest(self) -> int:
        """The number of the newest delta, 0 where there is none."""
        return int(self._rows("SELECT coalesce(max(number), 0) FROM deltas")[0][0])


class DeltaFeed(DeltaReader):
    """The same for the learner. Nothing is synced: a lost feed is made again from the log."""

    def __init__(self, place: Place | Path, *, seconds: float, most_bytes: int) -> None:
        self._seconds, self._most_bytes, place = seconds, most_bytes, Place.of(place)
        try:
            self.use(place, place.open(DELTAS, "OFF", _DELTAS))
            sizes = self._rows("SELECT number, length(content), published FROM deltas ORDER BY number")
        except LogError:
            if place.url is not None:
                raise
            for name in (DELTAS, f"{DELTAS}-wal", f"{DELTAS}-shm"):
                with suppress(FileNotFoundError):
                    (place.folder / name).unlink()
            self.use(place, place.open(DELTAS, "OFF", _DELTAS))
            sizes = []
        self._sizes: dict[int, tuple[int, float]] = {number: (size, when) for number, size, when in sizes}

    def __contains__(self, number: int) -> bool:
        return number in self._sizes

    def publish(self, delta: Published) -> None:
        """Make a delta visible, and delete those that are too old or too many."""
        now = time.time()
        arrived = array("d", delta.arrived).tobytes()
        values = (delta.number, delta.offset, delta.kind, delta.digest, delta.content, arrived, now)
        self._sizes[delta.number] = len(delta.content), now
        held, oldest = sum(size for size, _ in self._sizes.values()), []
        for number, (size, when) in self._sizes.items():
            if (held <= self._most_bytes and when >= now - self._seconds) or number == delta.number:
                break
            oldest.append(number)
            held -= size
        with self._db.transaction():
            self._rows("DELETE FROM deltas WHERE number = ?", (delta.number,))
            self._rows("INSERT INTO deltas VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            if oldest:
                self._rows("DELETE FROM deltas WHERE number <= ?", (oldest[-1],))
        for number in oldest:
            del self._sizes[number]

    def drop(self, *, up_to: int | None = None, above: int | None = None) -> None:
        """Take deltas out: old ones that know a forgotten person, or later ones that are to be made again."""
        gone = [n for n in self._sizes if (up_to is not None and n <= up_to) or (above is not None and n > above)]
        with self._db.transaction():
            self._db.many("DELETE FROM deltas WHERE number = ?", [(number,) for number in gone])
        self._db.scrub(rewrite=up_to is not None)  # nothing of what was dropped stays between rows
        for number in gone:
            del self._sizes[number]


def _step(row: tuple[Any, ...]) -> LoggedStep:
    *start, about, totals = row
    number, kind, first, last, epoch, status, reason, digest, planned, done = start
    kinds: tuple[StepKind, Status] = kind, status
    return LoggedStep(
        number, kinds[0], first, last, epoch, kinds[1], reason, digest, planned, done, json.loads(about),
        json.loads(totals),
    )  # fmt: skip
