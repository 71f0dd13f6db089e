"""Events into a log: from lines of JSON, CSV, Parquet and what Gorse exports, or from a query of a database.

An event of a file without an id gets the place where it stands in it, `NAME/ROW`, so that a repeated import adds
nothing. Rows of a query have no fixed places, so each needs an id of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from melon.data.raw.formats import USUAL_NAMES, first_line, plain_name
from melon.errors import DataError, SettingsError
from melon.service.config import MOST_ID_BYTES, Use
from melon.service.gorse import feedback_id, item_profile, moment_of, text_of, user_profile
from melon.service.ids import checked_text
from melon.service.log.base import Event, LogId
from melon.service.log.events import EventLog
from melon.service.log.exchange import read_fields
from melon.service.log.files import masked

TABLES = (".csv", ".tsv", ".parquet")
#: Later seconds than this (the year 2286) are a finer unit.
_LATEST = 10_000_000_000
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_USUAL: Mapping[str, tuple[str, ...]] = {
    **USUAL_NAMES,
    "type": ("type", "eventtype", "feedbacktype", "event", "action"),
    "event_id": ("eventid",),
}
_AT_ONCE = 50_000


@dataclass(frozen=True)
class Reading:
    """How a source is read: its name in event ids, what types are for, columns by role, and the unit of whole times."""

    name: str
    uses: Mapping[str, Use]
    columns: Mapping[str, str] = field(default_factory=dict)
    default_type: str = "view"
    unit: str = "s"
    #: What a database is asked.
    query: str | None = None
    #: The kind that the log's users and items have already.
    kinds: Mapping[str, type | None] = field(default_factory=dict)

    def use_of(self, kind: str, place: str) -> Use:
        if kind not in self.uses:
            raise DataError(
                f"{place}: type {kind[:40]!r} is none of those that are learned, hidden or stored "
                f"({', '.join(self.uses)}); name it in --learn, --hide or --store."
            )
        return self.uses[kind]


def events_of(source: Path | str, reading: Reading) -> Iterator[Event]:
    """The events of a file or query, in its order; the first one that is none is a `DataError` that names its place."""
    if isinstance(source, str):
        yield from _from_query(source, reading)
        return
    try:
        if source.suffix in TABLES:
            yield from _from_table(source, reading)
        else:
            with source.open(encoding="utf-8") as lines:
                yield from _from_lines(source, lines, reading)
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{source} cannot be read: {problem}.") from None
    except pl.exceptions.PolarsError as problem:
        raise DataError(f"{source} cannot be read: {first_line(problem)}.") from None


def _from_lines(source: Path, lines: Iterable[str], reading: Reading) -> Iterator[Event]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{source}, line {number}"
        given = _feedback(line, place) if '"FeedbackType"' in line else read_fields(line, place)
        if "use" not in given:
            given["use"] = reading.use_of(given.get("type", "view"), place)
        yield Event(**{"event_id": f"{reading.name}/{number}", **given})


def _feedback(line: str, place: str) -> dict[str, Any]:
    """The fields of an event from Gorse's feedback.jsonl; its id is the one that the same feedback has over HTTP."""
    try:
        one = json.loads(line)
        kind, user, item = (text_of(one, name) for name in ("FeedbackType", "UserId", "ItemId"))
        moment = moment_of(one)
    except (ValueError, AttributeError, DataError) as problem:
        raise DataError(f"{place} is not feedback of Gorse: {problem}") from None
    seconds = None if moment is None else int(moment)
    return {
        "user": user, "item": item, "time": seconds, "type": kind,
        "event_id": feedback_id(kind, user, item, seconds),
    }  # fmt: skip


def _from_table(source: Path, reading: Reading) -> Iterator[Event]:
    if source.suffix == ".parquet":
        frame = pl.scan_parquet(source)
    else:
        frame = pl.scan_csv(source, separator="\t" if source.suffix == ".tsv" else ",", infer_schema=False)
    wanted = _columns(frame.collect_schema().names(), reading, str(source))
    parts = frame.select(**wanted).collect_batches(chunk_size=_AT_ONCE, maintain_order=True)
    yield from _from_parts(parts, reading, str(source))


def _from_parts(parts: Iterable[pl.DataFrame], reading: Reading, place: str) -> Iterator[Event]:
    row = 0
    for part in parts:
        yield from _rows(part, reading, row, place)
        row += part.height


def _from_query(address: str, reading: Reading) -> Iterator[Event]:
    kind, _, path = address.partition("://")
    if kind not in ("postgresql", "postgres", "sqlite"):
        raise SettingsError(
            f"{kind}:// is not a source; give a file, postgresql://USER@HOST/DATABASE or sqlite:///FILE. From other "
            "databases, export a .parquet or .csv file."
        )
    if not reading.query:
        raise SettingsError('give the query: --query "SELECT … AS user, … AS item, … AS event_id".')
    if kind == "sqlite":
        path = path.removeprefix("/")
        place, read = f"the query of {path}", _from_sqlite(path, reading.query)
    else:
        from melon.service.log.postgres import answered

        place, read = f"the query of {masked(address)}", answered(address, reading.query, _AT_ONCE)
    try:
        names = next(read)
        wanted = _columns(names, reading, place)
        if "event_id" not in wanted:
            raise DataError(
                f"{place} has no column with ids of events; columns there: {', '.join(names)}. Rows of a query have no "
                "fixed order, so only an id shows what was imported before: name one with --column event_id=NAME."
            )
        frames = (pl.DataFrame(rows, names, orient="row", infer_schema_length=None) for rows in read)
        yield from _from_parts((frame.select(**wanted) for frame in frames), reading, place)
    except (sqlite3.Error, pl.exceptions.PolarsError) as problem:
        raise DataError(f"{place} cannot be read: {first_line(problem)}.") from None


def _from_sqlite(path: str, query: str) -> Iterator[Any]:
    """The names of the columns, then rows; the file is opened to be read only."""
    if not Path(path).is_file():
        raise DataError(
            f"there is no {path}; a relative path is sqlite:///FILE, an absolute one sqlite:////FOLDER/FILE."
        )
    name = f"{Path(path).resolve().as_uri()}?mode=ro"
    # A reading that is given up is closed by whichever thread collects it.
    with contextlib.closing(sqlite3.connect(name, uri=True, check_same_thread=False)) as connection:
        cursor = connection.execute(query)
        yield [column[0] for column in cursor.description or ()]
        while rows := cursor.fetchmany(_AT_ONCE):
            yield rows


def _columns(available: list[str], reading: Reading, place: str) -> dict[str, pl.Expr]:
    """The column of each role that there is."""
    named = {role: _column(available, role, reading.columns.get(role), place) for role in _USUAL}
    return {role: pl.col(name) for role, name in named.items() if name is not None}


def _column(available: list[str], role: str, wanted: str | None, place: str) -> str | None:
    if wanted is not None and wanted not in available:
        raise DataError(
            f"{place}: there is no column {wanted!r} for the {role}; columns there: {', '.join(available)}."
        )
    found = [one for one in available if plain_name(one) in _USUAL[role]]
    if wanted is None and not found and role in ("user", "item"):
        raise DataError(
            f"{place}: no column looks like the {role}; columns there: {', '.join(available)}. Name it with "
            f"--column {role}=NAME."
        )
    return wanted or next(iter(found), None)


def _rows(part: pl.DataFrame, reading: Reading, first: int, place: str) -> Iterator[Event]:
    users, items = (_ids(part[role], reading.kinds.get(role), first, f"{place}: {role}") for role in ("user", "item"))
    times: Iterable[int | None] = itertools.repeat(None)
    if "time" in part.columns:
        times = _seconds(part["time"], reading.unit, first, place)
    types = (
        part["type"].cast(pl.String).fill_null("").to_list()
        if "type" in part.columns
        else [reading.default_type] * part.height
    )
    uses = {kind: reading.use_of(kind, place) for kind in dict.fromkeys(types)}
    places: Iterable[str] = (f"{reading.name}/{number}" for number in range(first + 1, first + part.height + 1))
    if "event_id" in part.columns:
        given = part["event_id"].cast(pl.String).to_list()
        if reading.query and not all(given):
            raise DataError(f"{place}: row {first + given.index(None) + 1} has no event_id.")
        places = [checked_text(one, "event_id") if one else other for one, other in zip(given, places, strict=True)]
    for user, item, time, kind, name in zip(users, items, times, types, places, strict=False):
        yield Event(user, item, time, kind, name, uses[kind])


def _ids(column: pl.Series, kind: type | None, first: int, place: str) -> list[LogId]:
    """Ids as the log has them: integers where its are, texts otherwise."""
    if kind is int or (kind is None and column.dtype.is_integer()):
        read = column.cast(pl.Int64, strict=False)
        bad = read.is_null()
    else:
        read = column.cast(pl.String)
        long = read.str.len_bytes() > MOST_ID_BYTES
        bad = (read.is_null() | (read == "") | long | read.str.contains(r"[\x00-\x1f\x7f-\x9f]")).fill_null(True)
    if bad.any():
        row = int(bad.arg_max() or 0)
        raise DataError(
            f"{place} of row {first + row + 1}, {ascii(column[row])[:60]}, is not a valid id; ids of this log are "
            f"{'integers' if read.dtype.is_integer() else f'texts of 1 to {MOST_ID_BYTES} bytes'}."
        )
    ids: list[LogId] = read.to_list()
    return ids


def _seconds(column: pl.Series, unit: str, first: int, place: str) -> list[int]:
    """Unix seconds: whole numbers and decimals by their unit, dates and ISO texts as what they say (UTC)."""
    if column.dtype == pl.String:
        numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
        column = numbers if not numbers.has_nulls() else column.str.to_datetime(time_zone="UTC", strict=False)
    if column.dtype.is_temporal():
        seconds = column.cast(pl.Datetime("us")).dt.epoch("s")
    else:
        seconds = (column.cast(pl.Float64) / _UNITS[unit]).floor().cast(pl.Int64, strict=False)
    bad = (seconds.is_null() | (seconds < 0) | (seconds > _LATEST)).fill_null(True)
    if bad.any():
        row = int(bad.arg_max() or 0)
        raise DataError(
            f"{place}: the time of row {first + row + 1}, {ascii(column[row])[:60]}, is not a time before 2286; for "
            "other units than seconds give --time-unit ms, us or ns."
        )
    times: list[int] = seconds.to_list()
    return times


def describes(source: Path) -> str | None:
    """Whether a file is Gorse's users.jsonl or items.jsonl ("user", "item"), by its first line."""
    if source.suffix in TABLES or not source.is_file():
        return None
    with source.open(encoding="utf-8", errors="replace") as lines:
        first = next((line for line in lines if line.strip()), "")
    if '"FeedbackType"' in first:
        return None
    return "item" if '"ItemId"' in first else "user" if '"UserId"' in first else None


def import_described(log: EventLog, source: Path, kind: Any) -> int:
    """Store the users or items that Gorse exported; those there already are replaced."""
    count = 0
    with source.open(encoding="utf-8") as file:
        numbered = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        while some := list(itertools.islice(numbered, 1_000)):
            profiles, facts = {}, []
            for number, line in some:
                try:
                    one = json.loads(line)
                    name = text_of(one, "ItemId" if kind == "item" else "UserId")
                    if kind == "item":
                        profiles[name], known = item_profile(one)
                        facts.append((name, known.plain()))
                    else:
                        profiles[name] = user_profile(one)
                except (ValueError, AttributeError, DataError) as problem:
                    raise DataError(f"{source}, line {number}: {problem}") from None
            log.put_facts(facts)
            count += log.put_profiles(kind, profiles).result()
    return count
