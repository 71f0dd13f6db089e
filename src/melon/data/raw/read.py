"""Raw files of any format are read as one run of events, with every bad row counted by its reason."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from melon.data.columns import first_line
from melon.data.ids import MOST_EXACT_FLOAT
from melon.data.raw.formats import FRONT_PAGE
from melon.data.raw.layout import ReadOptions
from melon.data.raw.open import EXAMPLES, BadRow, BadRows, RawFile, Reasons, open_raw
from melon.data.raw.times import UNITS, TimeColumn, TimeScale
from melon.errors import DataError
from melon.types import Ints

SAMPLE = 2_000
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


def read_raw(sources: Sequence[Path], options: ReadOptions) -> RawEvents:
    """Read raw files of one format, in the order given; with `strict` the first bad row is an error."""
    if not sources:
        raise DataError("no raw file was given; name at least one.")
    categories = {role: pl.Categories.random() for role in ("user", "item")}
    blocks, bad = [], []
    with _scratch_folder() as scratch:
        for given in sources:
            try:
                file = open_raw(given, scratch, options)
                try:
                    block = _read_file(file, options, categories)
                except pl.exceptions.PolarsError:
                    # JSON lines may turn out to be malformed; these are set apart and counted.
                    if file.layout.kind != "jsonl" or file.malformed:
                        raise
                    block = _read_file(file.repaired(scratch), options, categories)
                bad.append(block.bad_rows())
            except pl.exceptions.PolarsError as error:
                raise DataError(f"{given} cannot be read: {first_line(error)}") from error
            if options.strict:
                _require_clean(bad[-1])
            options = replace(options, format=block.file.format)
            blocks.append(block)
    return _together(blocks, chain(*bad))


@dataclass(frozen=True)
class _FileEvents:
    """The events of one file, in its order, with a reason for each that is none."""

    file: RawFile
    users: pl.Series
    items: pl.Series
    ticks: Ints
    clock: TimeScale
    reasons: Reasons
    notes: tuple[str, ...]
    text_users: bool
    text_items: bool

    def bad_rows(self) -> list[BadRows]:
        """How many rows are bad for each reason, and the first of them with their line numbers."""
        where = {reason: self.reasons.where(reason) for reason in self.reasons.names}
        first = {reason: rows[:EXAMPLES].tolist() for reason, rows in where.items() if len(rows)}
        located = self.file.locate(list(chain(*first.values()))) if first else {}
        bad = []
        for reason, rows in first.items():
            examples = tuple(BadRow(str(self.file.plain.given), *located[row], reason=reason) for row in rows)
            bad.append(BadRows(reason, len(where[reason]), examples))
        return [*bad, *self.file.malformed]


def _read_file(file: RawFile, options: ReadOptions, categories: dict[str, pl.Categories]) -> _FileEvents:
    schema = file.scan.collect_schema()
    sample = file.scan.head(SAMPLE).collect()
    user, item = (_IdColumn(file, role, categories[role], schema[role], sample) for role in ("user", "item"))
    time = TimeColumn(file, schema["time"], sample["time"], options)
    frame = file.scan.select(user.quick, item.quick, time=time.quick).collect(engine="streaming")
    reasons = Reasons(len(frame))
    ticks, clock = time.ticks(frame["time"], reasons)
    items = item.checked(frame["item"], reasons)
    users = user.checked(frame["user"], reasons)
    name, notes = file.plain.given.name, (*user.notes, *item.notes, f"times are {clock.reason}")
    notes = file.notes + tuple(f"{name}: {note}" for note in notes)
    return _FileEvents(file, users, items, ticks, clock, reasons, notes, user.typed_texts, item.typed_texts)


class _IdColumn:
    """A raw column of ids: integers where all are, which is quick, and else texts behind small codes."""

    def __init__(
        self, file: RawFile, role: str, categories: pl.Categories, dtype: pl.DataType, sample: pl.DataFrame
    ) -> None:
        self.file, self.role, self.dtype = file, role, dtype
        self.notes: tuple[str, ...] = ()
        self._missing = list(file.layout.missing)
        self._written = self._texts()
        present = self._written
        if self._missing:
            present = pl.when(~self._written.is_in(self._missing)).then(self._written)
        self._present = present
        self._category = pl.Categorical(categories)
        # Only Parquet says whether an id is a text; elsewhere digits are taken for a number.
        self.typed_texts = file.layout.kind == "parquet" and not dtype.is_numeric()
        texts = sample.select(present).to_series().drop_nulls()
        decimal = file.layout.kind != "parquet" and texts.str.contains(r"^-?[0-9]+\.0$").all()
        self._decimals = bool(len(texts)) and decimal
        if self.typed_texts or self._has_others(sample.lazy()):
            self.quick = present.cast(self._category)
        else:
            self.quick = self._numbers()
            if self._decimals:
                self.notes = (f"{role} ids are whole numbers with a decimal point (27.0), read as integers (27)",)

    def checked(self, column: pl.Series, reasons: Reasons) -> pl.Series:
        """The column, read again as texts if an id is no integer; rows without an id get their reasons."""
        if not column.null_count():
            return column
        if column.dtype == pl.Int64 and self._has_others(self.file.scan):
            self.notes = ()
            column = self.file.scan.select(self._present.cast(self._category)).collect(engine="streaming").to_series()
        tokens = self._rows(self._written.is_in(self._missing))
        # In quotes, NaN and similar words are texts like any other.
        position = self.file.layout.columns.positions[0 if self.role == "user" else 1]
        quoted = tokens.filter(pl.col("row").is_in(self.file.quoted(tokens["row"].to_list(), position)))
        if len(quoted):
            column = column.cast(pl.String).scatter(quoted["row"], quoted["id"]).cast(self._category)
        missing = self.file.layout.missing_item if self.role == "item" else f"missing {self.role}"
        reasons.set(column.is_null().to_numpy(), missing)
        if self.dtype.is_float():
            fraction = pl.col(self.role).is_finite() & self._written.is_null()
            reasons.set(self._rows(fraction)["row"].to_numpy(), f"{self.role} is not a whole number")
        written = tokens.join(quoted, on="row", how="anti")
        for (token,), rows in written.group_by("id", maintain_order=True):
            reasons.set(rows["row"].to_numpy(), f"missing {self.role} (written {token})")
        return column

    def _texts(self) -> pl.Expr:
        """The ids as texts; null where there is none."""
        expr = pl.col(self.role)
        if self.dtype.is_integer():
            return expr.cast(pl.String)
        if self.dtype in (pl.String, pl.Categorical, pl.Enum):
            expr = expr.cast(pl.String)
            return pl.when(expr.str.len_bytes() > 0).then(expr)
        if self.dtype.is_float():
            # A column of whole numbers with gaps often comes as floats; what is not whole is no id.
            whole = expr.is_finite() & (expr == expr.floor()) & (expr.abs() <= MOST_EXACT_FLOAT)
            return pl.when(whole).then(expr).cast(pl.Int64, strict=False).cast(pl.String)
        column = getattr(self.file.layout.columns, self.role)
        raise DataError(
            f"{self.file.plain.given}: column {column!r} has type {self.dtype} and cannot be the {self.role}; "
            f"ids are integers or texts. Name another column with --{self.role}."
        )

    def _numbers(self) -> pl.Expr:
        """The ids as integers; null where one is not written in the plain way, as "07" or "+7" are not."""
        # Texts that mean "missing" are rarely integers; leaving them to the cast is quicker.
        text = self._present if any(token.strip("-").isdigit() for token in self._missing) else self._written
        if self._decimals:
            text = pl.when(text.str.ends_with(".0")).then(text.str.strip_suffix(".0"))
        padded = text.str.starts_with("0") & (text.str.len_bytes() > 1)
        odd = padded | text.str.starts_with("+") | text.str.starts_with("-0")
        return pl.when(~odd).then(text.cast(pl.Int64, strict=False))

    def _has_others(self, frame: pl.LazyFrame) -> bool:
        other = (self._present.is_not_null() & self._numbers().is_null()).any()
        return bool(frame.select(other).collect(engine="streaming").item())

    def _rows(self, condition: pl.Expr) -> pl.DataFrame:
        """Row numbers at which a condition holds, and the ids there."""
        rows = self.file.scan.with_row_index("row").filter(condition)
        return rows.select("row", id=self._written).collect(engine="streaming")


def _require_clean(bad: Sequence[BadRows]) -> None:
    # A front page is part of its format and says nothing against the file.
    rows = [row for one in bad if one.reason != FRONT_PAGE for row in one.examples]
    if rows:
        first = min(rows, key=lambda row: row.line)
        raise DataError(f"{first}. Mend the file, or leave --strict out to skip and count such rows.")


def _together(blocks: Sequence[_FileEvents], bad: Iterable[BadRows]) -> RawEvents:
    """The good rows of all files on one clock, and the bad ones of all files by their reasons."""
    clocks = {block.clock.tick for block in blocks}
    tick = clocks.pop() if len(clocks) == 1 else "us"
    users, items, ticks = [], [], []
    for block in blocks:
        good = block.reasons.good
        everything = bool(good.all())
        users.append(block.users if everything else block.users.filter(pl.Series(good)))
        items.append(block.items if everything else block.items.filter(pl.Series(good)))
        own, have, want = block.ticks if everything else block.ticks[good], UNITS[block.clock.tick], UNITS[tick]
        ticks.append(own * (want // have) if want >= have else own // (have // want))
    merged: dict[str, BadRows] = {}
    for one in bad:
        before = merged.get(one.reason, BadRows(one.reason, 0, ()))
        examples = (before.examples + one.examples)[:EXAMPLES]
        merged[one.reason] = BadRows(one.reason, before.count + one.count, examples)
    return RawEvents(
        users=_one_kind(users),
        items=_one_kind(items),
        ticks=np.concatenate(ticks),
        clock=replace(blocks[0].clock, tick=tick),
        format=blocks[0].file.format,
        rows_read=sum(len(block.ticks) + sum(one.count for one in block.file.malformed) for block in blocks),
        bad=tuple(sorted(merged.values(), key=lambda one: (-one.count, one.reason))),
        notes=tuple(note for block in blocks for note in block.notes),
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
