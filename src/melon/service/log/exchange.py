"""The log as lines of JSON: out of it, and into another one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

from melon.client import Client
from melon.data.ids import HIGHEST, LOWEST, is_unicode
from melon.errors import DataError
from melon.service.config import USES
from melon.service.log.base import Appended, Event, LogId
from melon.service.log.events import LogReader
from melon.service.log.files import EVENTS

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


def read_event(line: str, place: str) -> Event:
    """An event from a line of JSON; anything else is a `DataError` that names the place."""
    return Event(**read_fields(line, place))


def read_fields(line: str, place: str) -> dict[str, Any]:
    """The fields of an event that a line gives."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is no JSON: {error}.") from None
    if not isinstance(values, dict) or not {"user", "item"} <= values.keys():
        raise DataError(f"{place} is no event: an object with user and item is needed.")
    for name in () if values.keys() <= _KNOWN else sorted(values.keys() - _KNOWN):
        raise DataError(f"{place}: {name!r} is no field of an event; the fields are {', '.join(FIELDS)}.")
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


def kinds_of(folder: Path) -> dict[str, type | None]:
    """The kind of ids that a log's users and items have; None where it has no events, or is not there."""
    some = None
    if (folder / EVENTS).exists():
        with LogReader(folder) as reader:
            some = next(iter(reader.tail(0, 1)), None)
    return {"user": None if some is None else type(some.user), "item": None if some is None else type(some.item)}
