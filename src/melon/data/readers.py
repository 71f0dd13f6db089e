"""Raw files of any format are read into one block of events, with every bad row counted by its reason."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from melon.data import times
from melon.data.formats import FRONT_PAGE
from melon.data.sources import EXAMPLES, BadRow, RawFile, open_source, repaired_json
from melon.data.times import Clock, Ints, Notation
from melon.errors import DataError

SAMPLE = 2_000
LARGEST = 9.2e18  # what still fits 64 bits


@dataclass(frozen=True)
class BadRows:
    """The raw rows that were left out for one reason: how many, and the first few."""

    reason: str
    count: int
    examples: tuple[BadRow, ...]


@dataclass(frozen=True)
class RawEvents:
    """Good raw rows in file order: categorical ids, and times in ticks of one clock."""

    users: pl.Series
    items: pl.Series
    ticks: Ints
    clock: Clock
    format: str
    rows_read: int
    bad: tuple[BadRows, ...]
    notes: tuple[str, ...]
    text_users: bool
    text_items: bool


@dataclass(frozen=True)
class _Block:
    """The events of one file, good and bad, with a reason (0: good) for each."""

    file: RawFile
    frame: pl.DataFrame
    ticks: Ints
    clock: Clock
    reasons: npt.NDArray[np.uint8]
    names: tuple[str, ...]

    def bad_rows(self) -> list[BadRows]:
        found = []
        for code in np.unique(self.reasons[self.reasons > 0]).tolist():
            positions = np.flatnonzero(self.reasons == code)
            reason = self.names[code - 1]
            shown = self.file.locate(positions[:EXAMPLES].tolist(), reason)
            found.append(BadRows(reason, len(positions), tuple(shown)))
        for reason, count in self.file.malformed.items():
            examples = [row for row in self.file.malformed_examples if row.reason == reason]
            found.append(BadRows(reason, count, tuple(examples)))
        return found


def read_raw(
    sources: Sequence[Path],
    *,
    form: str | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    time_unit: str | None = None,
    strict: bool = False,
) -> RawEvents:
    """Read raw files of one format, in the order given; `strict` makes the first bad row an error."""
    if not sources:
        raise DataError("no raw file was given; name at least one.")
    asked = {"user": user, "item": item, "time": time}
    people, things = pl.Categories.random(), pl.Categories.random()
    with tempfile.TemporaryDirectory(prefix="melon-") as folder:
        blocks = []
        for given in sources:
            file = open_source(given, Path(folder), form=form, **asked)
            form = form or file.format
            block = _read(file, people, things, time_unit, Path(folder))
            bad = block.bad_rows()
            # A front page is part of its format and says nothing against the file.
            faults = [row for each in bad if each.reason != FRONT_PAGE for row in each.examples]
            if strict and faults:
                first = min(faults, key=lambda row: row.line)
                raise DataError(f"{first}. Mend the file, or leave --strict out to skip and count such rows.")
            blocks.append((block, bad))
    return _together([block for block, _ in blocks], _merged([bad for _, bad in blocks]), form or "")


def _merged(by_file: Sequence[Sequence[BadRows]]) -> tuple[BadRows, ...]:
    merged: dict[str, BadRows] = {}
    for each in (each for bad in by_file for each in bad):
        known = merged.get(each.reason, BadRows(each.reason, 0, ()))
        examples = (known.examples + each.examples)[:EXAMPLES]
        merged[each.reason] = BadRows(each.reason, known.count + each.count, examples)
    return tuple(sorted(merged.values(), key=lambda each: (-each.count, each.reason)))


def _together(blocks: Sequence[_Block], bad: tuple[BadRows, ...], form: str) -> RawEvents:
    clocks = {block.clock.unit for block in blocks}
    unit = clocks.pop() if len(clocks) == 1 else "us"
    users, items, ticks = [], [], []
    for block in blocks:
        good = block.reasons == 0
        kept = block.frame if good.all() else block.frame.filter(pl.Series(good))
        users.append(kept["user"])
        items.append(kept["item"])
        ticks.append(_rescaled(block.ticks if good.all() else block.ticks[good], block.clock.unit, unit))
    notes = [note for block in blocks for note in block.file.notes]
    notes += [f"{Path(block.file.name).name}: times are {block.clock.said}" for block in blocks]
    read = sum(len(block.frame) + sum(block.file.malformed.values()) for block in blocks)
    return RawEvents(
        users=pl.concat(users),
        items=pl.concat(items),
        ticks=np.concatenate(ticks),
        clock=Clock(unit, blocks[0].clock.said),
        format=form,
        rows_read=read,
        bad=bad,
        notes=tuple(notes),
        text_users=any(_has_texts(block.file, "user") for block in blocks),
        text_items=any(_has_texts(block.file, "item") for block in blocks),
    )


def _rescaled(ticks: Ints, unit: str, wanted: str) -> Ints:
    have, want = times.UNITS[unit], times.UNITS[wanted]
    return ticks * (want // have) if want >= have else ticks // (have // want)


def _has_texts(file: RawFile, role: str) -> bool:
    # Only Parquet says whether an id is a text; elsewhere digits are taken for a number.
    return file.layout.kind == "parquet" and file.scan.collect_schema()[role] == pl.String


def _read(file: RawFile, people: pl.Categories, things: pl.Categories, unit: str | None, scratch: Path) -> _Block:
    try:
        return _read_scan(file, people, things, unit)
    except pl.exceptions.PolarsError as error:
        if file.layout.kind != "jsonl" or file.malformed:
            raise DataError(f"{file.name} cannot be read: {error}") from error
    mended = repaired_json(file, scratch)
    try:
        return _read_scan(mended, people, things, unit)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file.name} cannot be read: {error}") from error


def _read_scan(file: RawFile, people: pl.Categories, things: pl.Categories, unit: str | None) -> _Block:
    schema = file.scan.collect_schema()
    columns = file.layout.columns
    ids = [
        _as_text("user", schema["user"], file.name, columns.user).cast(pl.Categorical(people)),
        _as_text("item", schema["item"], file.name, columns.item).cast(pl.Categorical(things)),
    ]
    text = schema["time"] == pl.String
    notation: Notation
    if text:
        sample = file.scan.select("time").head(SAMPLE).collect().to_series()
        notation = times.notation_of(sample)
        quick = _quick(notation, sample)
    else:
        quick, notation = times.ticks_of_typed("time", schema["time"], file.name)
    frame = file.scan.select(*ids, ticks=quick).collect(engine="streaming")
    left = frame["ticks"].is_null()
    names = (
        *("missing user", file.layout.missing_item, times.MISSING, times.UNPARSABLE),
        *(times.NOT_A_NUMBER, times.NEGATIVE, times.TOO_LATE),
    )
    reasons = np.zeros(len(frame), dtype=np.uint8)
    values = frame["ticks"].fill_null(0).to_numpy()
    if left.any():
        where = np.flatnonzero(left.to_numpy())
        reasons[where] = 3
        if text:
            notation, values = _careful(file, quick, notation, where, values, reasons)
    if notation == "decimal":
        odd = ~np.isfinite(values)
        reasons[odd & (reasons == 0)] = 5
        values = np.where(odd, 0.0, values)
    ticks, clock = _clocked(values, notation, reasons, unit)
    for column, code in (("item", 2), ("user", 1)):
        reasons[frame[column].is_null().to_numpy()] = code
    return _Block(file, frame, ticks, clock, reasons, names)


def _clocked(
    values: npt.NDArray[np.generic], notation: Notation, reasons: npt.NDArray[np.uint8], unit: str | None
) -> tuple[Ints, Clock]:
    good = values[reasons == 0]
    if notation == "date":
        clock = Clock("us", "dates")
    else:
        clock = times.clock_for(good[good >= 0], unit)
    late = values > times.LAST_SECOND * clock.per_second  # type: ignore[operator]
    early = values < 0  # type: ignore[operator]
    reasons[late & (reasons == 0)] = 7
    reasons[early & (reasons == 0)] = 6
    if notation == "decimal":
        return times.decimal_ticks(np.where(late | early, 0.0, values), clock)
    return values.astype(np.int64), clock


def _quick(notation: Notation, sample: pl.Series) -> pl.Expr:
    time = pl.col("time")
    if notation == "integer":
        return time.cast(pl.Int64, strict=False)
    if notation == "decimal":
        return time.cast(pl.Float64, strict=False)
    return times.date_ticks(time, times.date_notation(sample))


def _careful(
    file: RawFile,
    quick: pl.Expr,
    notation: Notation,
    where: npt.NDArray[np.intp],
    values: npt.NDArray[np.generic],
    reasons: npt.NDArray[np.uint8],
) -> tuple[Notation, npt.NDArray[np.generic]]:
    # The few times that the column's own notation did not read are looked at one by one for what they are.
    texts = file.scan.filter(quick.is_null()).select("time").collect(engine="streaming").to_series()
    texts = texts.str.strip_chars()
    given = (texts.is_not_null() & (texts != "")).to_numpy()
    reasons[where[given]] = 4
    if notation == "date":
        found = times.any_date_ticks(texts)
    else:
        found = texts.cast(pl.Float64, strict=False)
        finite = found.is_finite().fill_null(value=False)
        if notation == "integer" and bool((finite & (found != found.floor())).any()):
            notation, values = "decimal", values.astype(np.float64)
        reasons[where[found.is_nan().fill_null(value=False).to_numpy()]] = 5
        found = found.set(~finite, None).clip(-LARGEST, LARGEST)
    read = found.is_not_null().to_numpy()
    reasons[where[read]] = 0
    values = values.copy()
    values[where[read]] = found.drop_nulls().to_numpy().astype(values.dtype)
    return notation, values


def _as_text(role: str, dtype: pl.DataType, place: str, column: str) -> pl.Expr:
    expr = pl.col(role)
    if dtype.is_integer():
        return expr.cast(pl.String)
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        expr = expr.cast(pl.String)
        return pl.when(expr.str.len_bytes() > 0).then(expr)
    if dtype.is_float():
        # A column of whole numbers with gaps often comes as floats; what is not whole is no id.
        whole = expr.is_finite() & (expr == expr.floor())
        return pl.when(whole).then(expr).cast(pl.Int64, strict=False).cast(pl.String)
    raise DataError(
        f"{place}: column {column!r} has type {dtype} and cannot be the {role}; ids are integers or texts. "
        f"Name another column with --{role}."
    )
