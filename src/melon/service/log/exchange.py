"""The log as lines of JSON, out of it and into another one; and a whole service from one store into another."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Any

from melon.client import Client
from melon.data.ids import HIGHEST, LOWEST, is_unicode
from melon.errors import DataError, LogError
from melon.service.config import USES
from melon.service.log.base import Appended, Event, LogId
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.events import SCHEMA as EVENTS_SCHEMA
from melon.service.log.events import LogReader
from melon.service.log.files import BATCHES, EVENTS, Held, Place
from melon.service.log.steps import SCHEMA as STEPS_SCHEMA

#: What a line may say of an event, and the types it may have.
FIELDS: dict[str, tuple[type, ...]] = {
    "user": (int, str),
    "item": (int, str),
    "time": (int,),
    "type": (str,),
    "event_id": (str,),
    "use": (str,),
    "recommended": (bool,),
    "recommendation": (str,),
}
_KNOWN = {*FIELDS, "offset", "arrived"}
_AT_ONCE, _UNDER_WAY = 10_000, 2
_LONGEST = 256
#: Rows that are copied together.
_COPIED = 5_000


def exported(reader: LogReader, first: int, last: int) -> Iterator[str]:
    """One line for each event from one offset to another; controls are no part of it."""
    gone = reader.retracted()
    for event in reader.events(first, last):
        if event.offset in gone:
            continue
        plain = {name: getattr(event, name) for name in (*FIELDS, "offset", "arrived")}
        yield json.dumps({name: value for name, value in plain.items() if value is not None}, ensure_ascii=False)


def imported(submit: Callable[[list[Event]], Future[Appended]], events: Iterable[Event]) -> Appended:
    """Append events, ten thousand at a time; what was appended before a bad one stays.

    Events that the log knows by their id are not stored again, so an import that was stopped can be repeated. The next
    ones are read while the last ones are synced.
    """
    total, waiting, events = Appended(0, 0, 0, 0), deque[Future[Appended]](), iter(events)
    more = True
    while more or waiting:
        some = list(islice(events, _AT_ONCE)) if more else []
        more = bool(some)
        if some:
            waiting.append(submit(some))
        if waiting and (not more or len(waiting) > _UNDER_WAY):
            done = waiting.popleft().result()
            total = Appended(
                total.accepted + done.accepted,
                total.duplicates + done.duplicates,
                total.conflicting + done.conflicting,
                max(total.offset, done.offset),
            )
    return total


def copied(source: Place, target: Place) -> tuple[int, int]:
    """Copy log, steps and checkpoints of a service that does not run to an empty place; events, and steps.

    Deltas are made again by the learner, and keys stay where they are: each store has its own.
    """
    if target.exists(EVENTS):
        raise LogError(f"{target} has a log already; give an empty folder or another schema (?schema=NAME).")
    for role in ("writer", "learner") if source.url is None else ():
        Held(source.folder, role).close()  # refused while a service runs there
    if source.url is not None and source.exists(BATCHES) and source.runs("learner"):
        raise LogError(f"{source} has a learner that runs; stop the service first.")
    target.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with LogReader(source) as log:
        events = log.last()[1]
    steps = 0
    if source.exists(BATCHES):
        steps = _copy_tables(source, target, BATCHES, STEPS_SCHEMA)
        before, after = Checkpoints(source), Checkpoints(target)
        for number in before.numbers():
            saved = before.load(number)
            after.write(saved.model, saved.position, saved.log_id, saved.extra)
    # The log comes last: a copy that was stopped has none, and is refused by everybody.
    _copy_tables(source, target, EVENTS, EVENTS_SCHEMA)
    return events, steps


#: Tables of log and steps: what orders their rows, and the columns that hold ids.
_TABLES: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    EVENTS: {
        "events": ("offset", (1, 2)),
        "controls": ("offset", ()),
        "ages": ("offset", ()),
        "facts": ("item", (0,)),
        "retracted": ("offset", ()),
        "aliases": ("previous", (0, 1)),
        "profiles": ("kind || '/' || id", ()),
    },
    BATCHES: {"epochs": ("number", ()), "steps": ("number", ())},
}


def _copy_tables(source: Place, target: Place, name: str, schema: str) -> int:
    """Copy the tables of a part in one transaction; the rows of the last one."""
    count = 0
    with source.open(name) as reading, target.open(name, "FULL", schema) as writing, writing.transaction():
        writing.note(reading.meta())
        for table, (order, ids) in _TABLES[name].items():
            count, last = 0, None
            while rows := reading.rows(
                f"SELECT {order}, {table}.* FROM {table} {'' if last is None else f'WHERE {order} > ?'} ORDER BY 1 "
                f"LIMIT {_COPIED}",
                () if last is None else (last,),
            ):
                last, count = rows[-1][0], count + len(rows)
                writing.many(
                    f"INSERT INTO {table} VALUES ({', '.join('?' * (len(rows[0]) - 1))})",
                    [
                        [writing.key(reading.id(value)) if n in ids else value for n, value in enumerate(row[1:])]
                        for row in rows
                    ],
                )
    return count


def over_http(client: Client) -> Callable[[list[Event]], Future[Appended]]:
    """Append to the log of a service that runs; what an event is for follows there from its type."""
    fields = ("user", "item", "time", "type", "event_id", "recommendation")

    def submit(events: list[Event]) -> Future[Appended]:
        given = [{name: getattr(event, name) for name in fields} for event in events]
        done = client.record_many([{name: value for name, value in one.items() if value is not None} for one in given])
        future: Future[Appended] = Future()
        future.set_result(Appended(done.accepted, done.duplicates, done.conflicting, done.offset))
        return future

    return submit


def read_fields(line: str, place: str) -> dict[str, Any]:
    """The fields of an event that a line gives."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON: {error}.") from None
    if not isinstance(values, dict) or not {"user", "item"} <= values.keys():
        raise DataError(f"{place} is not an event: give an object with user and item.")
    for name in () if values.keys() <= _KNOWN else sorted(values.keys() - _KNOWN):
        raise DataError(f"{place}: {name!r} is not a field of an event; the fields are {', '.join(FIELDS)}.")
    given = {name: values[name] for name in FIELDS if values.get(name) is not None}
    for name, value in given.items():
        if type(value) not in FIELDS[name]:
            raise DataError(f"{place}: {name} = {value!r} is a {type(value).__name__}.")
        if not _fits(name, value):
            raise DataError(f"{place}: {name} = {value!r} is out of range.")
    return given


def _fits(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return True
    if name == "use":
        return value in USES
    if isinstance(value, int):
        return (0 if name == "time" else LOWEST) <= value <= HIGHEST
    return 0 < len(value) <= _LONGEST and is_unicode(value) and value.isprintable()


def typed(text: str, reader: LogReader) -> LogId:
    """A user's id from the command line, as the log has ids: an integer where its users are integers."""
    some = next(iter(reader.tail(0, 1)), None)
    return int(text) if some is not None and isinstance(some.user, int) and text.lstrip("-").isdigit() else text


def kinds_of(place: Place) -> dict[str, type | None]:
    """The kind of ids that a log's users and items have; None where it has no events, or is not there."""
    some = None
    if place.exists(EVENTS):
        with LogReader(place) as reader:
            some = next(iter(reader.tail(0, 1)), None)
    return {"user": None if some is None else type(some.user), "item": None if some is None else type(some.item)}
