"""Raw files of any format are read as one run of events, with every bad row counted by its reason."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from melon.data.ids import MOST_EXACT_FLOAT
from melon.data.raw.formats import ReadOptions, first_line
from melon.data.raw.open import EXAMPLES, BadRow, BadRows, RawFile, open_raw
from melon.data.raw.times import (
    LARGEST,
    LAST_SECOND,
    UNITS,
    TimeScale,
    any_date_ticks,
    best_format,
    date_formats,
    date_ticks,
    notation_of,
    ticks_of_typed,
    time_scale_for,
)
from melon.errors import DataError
from melon.types import Flags, Ints

SAMPLE = 2_000
MISSING, NOT_A_NUMBER, UNPARSABLE = "missing time", "NaN time", "unparsable time"
NEGATIVE, TOO_LATE = "negative time", "time after the year 9999"
NO_ZONE = "; without a zone, taken as UTC"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class RawEvents:
    """Good raw rows in file order: integer or categorical ids, and times in ticks of one clock."""

    users: pl.Series
    items: pl.Series
    ticks: Ints
    clock: TimeScale
    format: str
    rows_read: int
    bad: tuple[BadRows, ...]
    notes: tuple[str, ...]
    text_users: bool
    text_items: bool


class Reasons:
    """Why each row is no interaction: a code for each row, 0 where it is one."""

    def __init__(self, rows: int) -> None:
        self.codes = np.zeros(rows, dtype=np.uint8)
        self.names: list[str] = []

    def set(self, where: npt.NDArray[np.integer] | Flags, reason: str) -> None:
        """Give rows a reason, in place of any other."""
        if not (where.any() if where.dtype == bool else len(where)):
            return
        if reason not in self.names:
            self.names.append(reason)
        self.codes[where] = self.names.index(reason) + 1

    @property
    def good(self) -> Flags:
        """Whether each row is an interaction."""
        good: Flags = self.codes == 0
        return good


def read_raw(sources: Sequence[Path], options: ReadOptions) -> RawEvents:
    """Read raw files in the order given; with `strict` the first bad row is an error."""
    if not sources:
        raise DataError("no raw file was given; name at least one.")
    kinds = {role: pl.Categorical(pl.Categories.random()) for role in ("user", "item")}
    blocks = []
    with _scratch_folder() as scratch:
        for given in sources:
            try:
                file = open_raw(given, scratch, options)
                try:
                    block = _read_file(file, options, kinds)
                except pl.exceptions.PolarsError:
                    # JSON lines may turn out to be malformed; these are set apart and counted.
                    if file.layout.kind != "jsonl" or file.malformed:
                        raise
                    block = _read_file(file.repaired(scratch), options, kinds)
            except pl.exceptions.PolarsError as error:
                raise DataError(f"{given} cannot be read: {first_line(error)}") from error
            rows = [row for one in block.bad for row in one.examples]
            if options.strict and rows:
                first = min(rows, key=lambda row: row.line)
                raise DataError(f"{first}. Repair the file, or omit --strict to skip and count such rows.")
            blocks.append(block)
    return _together(blocks)


def _read_file(file: RawFile, options: ReadOptions, kinds: dict[str, pl.Categorical]) -> RawEvents:
    schema, sample = file.scan.collect_schema(), file.scan.head(SAMPLE).collect()
    time = _TimeColumn(file, schema["time"], sample["time"], options)
    user, item = (_IdColumn(file, role, schema[role], sample, kinds[role]) for role in ("user", "item"))
    frame = file.scan.select(user=user.quick, item=item.quick, time=time.quick).collect(engine="streaming")
    reasons = Reasons(len(frame))
    ticks, clock = time.ticks(frame["time"], reasons)
    items, users = item.checked(frame["item"], reasons), user.checked(frame["user"], reasons)
    notes = (f"{file.plain.given.name}: {note}" for note in (*user.notes, *item.notes, f"times are {clock.reason}"))
    good = reasons.good
    return RawEvents(
        users=users if good.all() else users.filter(pl.Series(good)),
        items=items if good.all() else items.filter(pl.Series(good)),
        ticks=ticks if good.all() else ticks[good],
        clock=clock,
        format=file.layout.kind,
        rows_read=len(ticks) + sum(one.count for one in file.malformed),
        bad=(*_bad_rows(file, reasons), *file.malformed),
        notes=(*file.notes, *notes),
        text_users=user.typed_texts,
        text_items=item.typed_texts,
    )


def _bad_rows(file: RawFile, reasons: Reasons) -> list[BadRows]:
    """How many rows are bad for each reason, and the first of them with their line numbers."""
    where = {reason: np.flatnonzero(reasons.codes == n) for n, reason in enumerate(reasons.names, 1)}
    first = {reason: rows[:EXAMPLES].tolist() for reason, rows in where.items() if len(rows)}
    located = file.locate(list(chain(*first.values()))) if first else {}
    name = str(file.plain.given)
    return [
        BadRows(reason, len(where[reason]), tuple(BadRow(name, *located[row], reason=reason) for row in rows))
        for reason, rows in first.items()
    ]


class _IdColumn:
    """A raw column of ids: integers where all are, which is quick, and else texts behind small codes."""

    def __init__(
        self, file: RawFile, role: str, dtype: pl.DataType, sample: pl.DataFrame, kind: pl.Categorical
    ) -> None:
        self.file, self.role, self.dtype, self._kind = file, role, dtype, kind
        self.notes: tuple[str, ...] = ()
        # Only Parquet says whether an id is a text; elsewhere digits are taken for a number.
        self.typed_texts = file.layout.kind == "parquet" and not dtype.is_numeric()
        text, missing = pl.col(role), list(file.layout.missing)
        if dtype.is_float():
            # A column of whole numbers with gaps often comes as floats; what is not whole is no id.
            whole = text.is_finite() & (text == text.floor()) & (text.abs() <= MOST_EXACT_FLOAT)
            text = pl.when(whole).then(text).cast(pl.Int64, strict=False)
        elif not dtype.is_integer() and dtype not in (pl.String, pl.Categorical, pl.Enum):
            column = getattr(file.layout.columns, role)
            raise DataError(
                f"{file.plain.given}: column {column!r} has type {dtype} and cannot be the {role}; "
                f"ids are integers or texts. Name another column with --{role}."
            )
        self._written = text.cast(pl.String)
        self._text = pl.when((self._written != "") & ~self._written.is_in(missing)).then(self._written)
        # Texts that mean "missing" are rarely integers; leaving them to the cast is quicker.
        text = self._text if any(token.strip("-").isdigit() for token in missing) else self._written
        padded = text.str.starts_with("0") & (text.str.len_bytes() > 1)
        odd = padded | text.str.starts_with("+") | text.str.starts_with("-0")
        self._number: pl.Expr = pl.when(~odd).then(text.cast(pl.Int64, strict=False))
        if dtype.is_integer() and dtype not in (pl.UInt64, pl.Int128, pl.UInt128) and not missing:
            self._number = pl.col(role).cast(pl.Int64)
        as_texts = self.typed_texts or self._has_others(sample.lazy())
        self.quick = self._text.cast(kind) if as_texts else self._number

    def checked(self, column: pl.Series, reasons: Reasons) -> pl.Series:
        """The column, read again as texts if an id is no integer; rows without an id get their reasons."""
        if column.dtype == pl.Int64 and column.null_count() and self._has_others(self.file.scan):
            column = self.file.scan.select(self._text.cast(self._kind)).collect(engine="streaming").to_series()
        missing = column.is_null()
        reasons.set(missing.to_numpy(), f"missing {self.role}")
        if self.dtype.is_float() and missing.any():
            finite = self.file.scan.select(pl.col(self.role).is_finite().fill_null(value=False)).collect().to_series()
            reasons.set((finite & missing).to_numpy(), f"{self.role} is not a whole number")
        if column.dtype == pl.Int64 or self.typed_texts:
            return column
        names = column.unique().drop_nulls().cast(pl.String)
        if not len(names) or not names.str.contains(r"^-?[0-9]+\.0$").all():
            return column
        self.notes = (f"{self.role} ids are whole numbers with a decimal point (27.0), read as integers (27)",)
        return column.cast(pl.String).str.strip_suffix(".0").cast(self._kind)

    def _has_others(self, frame: pl.LazyFrame) -> bool:
        other = (self._text.is_not_null() & self._number.is_null()).any()
        return bool(frame.select(other).collect(engine="streaming").item())


class _TimeColumn:
    """A raw column of times: numbers or dates, in a notation that was asked for or guessed from the first rows.

    `quick` reads nearly all of them; `ticks` reads the others.
    """

    def __init__(self, file: RawFile, dtype: pl.DataType, sample: pl.Series, options: ReadOptions) -> None:
        self.file, self.options = file, options
        self._formats: tuple[str, ...] = ()
        self._reason = "dates" + (NO_ZONE if dtype == pl.Date or getattr(dtype, "time_zone", "") is None else "")
        place, pattern = str(file.plain.given), options.time_format
        self._is_text = dtype == pl.String
        if pattern and dtype.is_integer():  # 20241231 is a date if a person says so
            self._is_text, sample = True, sample.cast(pl.String)
        self._text = pl.col("time").cast(pl.String).str.strip_chars()
        if not self._is_text:
            self.quick, self.notation = ticks_of_typed("time", dtype, place)
        elif pattern:
            self.quick, self.notation, self._formats = date_ticks(self._text, pattern), "date", (pattern,)
            self._reason = f"dates, read as {pattern}, as asked{_without_zone(pattern)}"
        elif (notation := notation_of(sample)) != "date":
            number = pl.Int64 if notation == "integer" else pl.Float64
            self.quick, self.notation = self._text.cast(number, strict=False), notation
        else:
            self._formats = date_formats(file.scan, sample, place, "--time-format")
            form = best_format(sample, self._formats)
            self.quick, self.notation = date_ticks(self._text, form), notation
            shown = form.replace("%.f", "").replace("%#z", "%z")
            self._reason = f"dates, read as {shown} (guessed){_without_zone(form)}"

    def ticks(self, column: pl.Series, reasons: Reasons) -> tuple[Ints, TimeScale]:
        """Whole ticks of the clock that is returned, with a reason for each row that has no time."""
        values = column.fill_null(0).to_numpy()
        where = np.flatnonzero(column.is_null().to_numpy())
        if len(where):
            reasons.set(where, MISSING)
            if self._is_text:
                values = self._read_one_by_one(where, values, reasons)
        if self.notation == "decimal":
            reasons.set(np.isnan(values), NOT_A_NUMBER)
            reasons.set(np.isinf(values), UNPARSABLE)
            values = np.where(np.isfinite(values), values, 0.0)
        if self.notation == "date":
            clock = TimeScale("us", "date", self._reason)
        else:
            good = values[reasons.good]
            clock = time_scale_for(good[good >= 0], self.options.time_unit, str(self.file.plain.given))
        late = (values > LAST_SECOND * UNITS[clock.tick]) | (values >= LARGEST)
        early = values < 0
        reasons.set(late & reasons.good, TOO_LATE)
        reasons.set(early & reasons.good, NEGATIVE)
        if self.notation != "decimal":
            return values.astype(np.int64), clock
        # Whole microseconds are the finest that a float holds for today's dates.
        micro = np.round(np.where(late | early, 0.0, values) * (UNITS["us"] / UNITS[clock.tick]))
        return micro.astype(np.int64), replace(clock, tick="us")

    def _read_one_by_one(
        self, where: Ints, values: npt.NDArray[np.generic], reasons: Reasons
    ) -> npt.NDArray[np.generic]:
        """Read the few times that are in another notation than the column's first rows, each for what it is."""
        texts = self.file.scan.filter(self.quick.is_null()).select(self._text).collect(engine="streaming").to_series()
        absent = texts.is_null() | (texts == "") | texts.is_in(list(self.file.layout.missing))
        reasons.set(where[(~absent).to_numpy()], UNPARSABLE)
        if self.notation == "date":
            numbers = any_date_ticks(texts, self._formats)
        else:
            numbers = texts.cast(pl.Float64, strict=False)
            finite = numbers.is_finite().fill_null(value=False)
            if self.notation == "integer" and bool((finite & (numbers != numbers.floor())).any()):
                self.notation, values = "decimal", values.astype(np.float64)
            reasons.set(where[numbers.is_nan().fill_null(value=False).to_numpy()], NOT_A_NUMBER)
            numbers = numbers.set(~finite, None).clip(-LARGEST, LARGEST)
        read = numbers.is_not_null().to_numpy()
        reasons.codes[where[read]] = 0
        values = values.copy()
        values[where[read]] = numbers.drop_nulls().to_numpy().astype(values.dtype)
        return values


def _without_zone(pattern: str) -> str:
    return "" if "z" in pattern.lower() else NO_ZONE


def _together(blocks: Sequence[RawEvents]) -> RawEvents:
    """The events of all files on one clock, and the bad rows of all files by their reasons."""
    clocks = {block.clock.tick for block in blocks}
    tick = clocks.pop() if len(clocks) == 1 else "us"
    ticks = []
    for block in blocks:
        have, want = UNITS[block.clock.tick], UNITS[tick]
        ticks.append(block.ticks * (want // have) if want >= have else block.ticks // (have // want))
    merged: dict[str, BadRows] = {}
    for one in chain(*(block.bad for block in blocks)):
        before = merged.get(one.reason, BadRows(one.reason, 0, ()))
        examples = (before.examples + one.examples)[:EXAMPLES]
        merged[one.reason] = BadRows(one.reason, before.count + one.count, examples)
    return RawEvents(
        users=_one_kind([block.users for block in blocks]),
        items=_one_kind([block.items for block in blocks]),
        ticks=np.concatenate(ticks),
        clock=replace(blocks[0].clock, tick=tick),
        format=", ".join(dict.fromkeys(block.format for block in blocks)),
        rows_read=sum(block.rows_read for block in blocks),
        bad=tuple(sorted(merged.values(), key=lambda one: (-one.count, one.reason))),
        notes=tuple(chain(*(block.notes for block in blocks))),
        text_users=any(block.text_users for block in blocks),
        text_items=any(block.text_items for block in blocks),
    )


def _one_kind(columns: Sequence[pl.Series]) -> pl.Series:
    kind = next((column.dtype for column in columns if column.dtype != pl.Int64), pl.Int64())
    return pl.concat([one if one.dtype == kind else one.cast(pl.String).cast(kind) for one in columns])


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A temporary folder that is removed in every case; when there is no room in it, an error says so."""
    way_out = "set TMPDIR to a folder with more room"
    try:
        with tempfile.TemporaryDirectory(prefix="melon-") as folder:
            yield Path(folder)
    except OSError as error:
        # Polars says the number of the error in its text only.
        full = error.errno or next((code for code in _NO_ROOM if f"(os error {code})" in str(error)), None)
        if full in _NO_ROOM:
            place = tempfile.gettempdir()
            raise DataError(
                f"the folder for temporary files, {place}, is full ({os.strerror(full)}); {way_out}."
            ) from error
        if isinstance(error, FileNotFoundError) and "temporary" in str(error):
            raise DataError(f"there is no folder for temporary files ({error.strerror}); {way_out}.") from error
        raise
