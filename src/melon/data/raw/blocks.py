"""One raw file is read into a block of events, good and bad, each bad one with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from melon.data.raw import times
from melon.data.raw.columns import first_line
from melon.data.raw.idcolumn import IdColumn
from melon.data.raw.sources import EXAMPLES, BadRow, RawFile, repaired_json
from melon.data.raw.times import Clock, Notation
from melon.errors import DataError
from melon.types import Ints

SAMPLE = 2_000
LARGEST = 9.2e18  # what still fits 64 bits

GOOD, NO_USER, NO_ITEM, NO_TIME, UNPARSABLE, NOT_A_NUMBER, NEGATIVE, TOO_LATE = range(8)
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class BadRows:
    """The raw rows that were left out for one reason: how many, and the first few."""

    reason: str
    count: int
    examples: tuple[BadRow, ...]


@dataclass(frozen=True)
class Block:
    """The events of one file, in its order, with a reason for each."""

    file: RawFile
    frame: pl.DataFrame
    ticks: Ints
    clock: Clock
    reasons: Codes

    def bad_rows(self) -> list[BadRows]:
        """How many rows are bad for each reason, and the first of them with their line numbers."""
        said = {
            NO_USER: "missing user",
            NO_ITEM: self.file.layout.missing_item,
            NO_TIME: times.MISSING,
            UNPARSABLE: times.UNPARSABLE,
            NOT_A_NUMBER: times.NOT_A_NUMBER,
            NEGATIVE: times.NEGATIVE,
            TOO_LATE: times.TOO_LATE,
        }
        found = []
        for code, reason in said.items():
            positions = np.flatnonzero(self.reasons == code)
            if not len(positions):
                continue
            shown = self.file.locate(positions[:EXAMPLES].tolist(), reason)
            found.append(BadRows(reason, len(positions), tuple(shown)))
        for reason, count in self.file.malformed.items():
            examples = [row for row in self.file.malformed_examples if row.reason == reason]
            found.append(BadRows(reason, count, tuple(examples)))
        return found


def read_block(file: RawFile, people: pl.Categories, things: pl.Categories, unit: str | None, scratch: Path) -> Block:
    """Read an opened file; JSON lines that turn out to be malformed are set apart and counted."""
    try:
        return _read_scan(file, people, things, unit)
    except pl.exceptions.PolarsError as error:
        if file.layout.kind != "jsonl" or file.malformed:
            raise DataError(f"{file.name} cannot be read: {first_line(error)}") from error
    mended = repaired_json(file, scratch)
    try:
        return _read_scan(mended, people, things, unit)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file.name} cannot be read: {first_line(error)}") from error


def _read_scan(file: RawFile, people: pl.Categories, things: pl.Categories, unit: str | None) -> Block:
    schema = file.scan.collect_schema()
    ids = [IdColumn(file, "user", people, schema["user"]), IdColumn(file, "item", things, schema["item"])]
    sample = file.scan.head(SAMPLE).collect()
    text = schema["time"] == pl.String
    notation: Notation
    if text:
        notation = times.notation_of(sample["time"])
        quick = _quick(notation, sample["time"])
    else:
        quick, notation = times.ticks_of_typed("time", schema["time"], file.name)
    frame = file.scan.select(*(each.quick(sample) for each in ids), ticks=quick).collect(engine="streaming")
    frame = frame.with_columns(each.checked(frame) for each in ids)
    left = frame["ticks"].is_null()
    reasons = np.full(len(frame), GOOD, dtype=np.uint8)
    values = frame["ticks"].fill_null(0).to_numpy()
    if left.any():
        where = np.flatnonzero(left.to_numpy())
        reasons[where] = NO_TIME
        if text:
            notation, values = _careful(file, quick, notation, where, values, reasons)
    if notation == "decimal":
        reasons[np.isnan(values)] = NOT_A_NUMBER
        reasons[np.isinf(values)] = UNPARSABLE
        values = np.where(np.isfinite(values), values, 0.0)
    ticks, clock = _clocked(values, notation, reasons, unit)
    for column, code in (("item", NO_ITEM), ("user", NO_USER)):
        reasons[frame[column].is_null().to_numpy()] = code
    return Block(file, frame, ticks, clock, reasons)


def _clocked(
    values: npt.NDArray[np.generic], notation: Notation, reasons: Codes, unit: str | None
) -> tuple[Ints, Clock]:
    good = values[reasons == GOOD]
    clock = Clock("us", "dates") if notation == "date" else times.clock_for(good[good >= 0], unit)
    late = values > times.LAST_SECOND * clock.per_second  # type: ignore[operator]
    early = values < 0  # type: ignore[operator]
    reasons[late & (reasons == GOOD)] = TOO_LATE
    reasons[early & (reasons == GOOD)] = NEGATIVE
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
    reasons: Codes,
) -> tuple[Notation, npt.NDArray[np.generic]]:
    # The few times that the column's own notation did not read are looked at one by one for what they are.
    texts = file.scan.filter(quick.is_null()).select("time").collect(engine="streaming").to_series()
    texts = texts.str.strip_chars()
    given = (texts.is_not_null() & (texts != "")).to_numpy()
    reasons[where[given]] = UNPARSABLE
    if notation == "date":
        found = times.any_date_ticks(texts)
    else:
        found = texts.cast(pl.Float64, strict=False)
        finite = found.is_finite().fill_null(value=False)
        if notation == "integer" and bool((finite & (found != found.floor())).any()):
            notation, values = "decimal", values.astype(np.float64)
        reasons[where[found.is_nan().fill_null(value=False).to_numpy()]] = NOT_A_NUMBER
        found = found.set(~finite, None).clip(-LARGEST, LARGEST)
    read = found.is_not_null().to_numpy()
    reasons[where[read]] = GOOD
    values = values.copy()
    values[where[read]] = found.drop_nulls().to_numpy().astype(values.dtype)
    return notation, values
