"""A raw file of any format is opened: its layout found, its malformed records set apart, the rest scanned lazily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from melon.data.raw.columns import first_line
from melon.data.raw.formats import (
    FORMATS,
    Format,
    Layout,
    format_named,
    guess_format,
    layout_of,
    parquet_layout,
)
from melon.data.raw.records import BLANK, Records, delimited_records, json_records, lines_with_text
from melon.data.raw.unpack import PlainFile, as_utf8, unpack
from melon.errors import DataError

EXAMPLES = 5


@dataclass(frozen=True)
class BadRow:
    """One raw row that is not an interaction: where it stands, and why."""

    file: str
    line: int
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}: {self.text!r}"


@dataclass(frozen=True)
class RawFile:
    """A raw file with its layout: `scan` gives `user`, `item` and `time`, one row per well-formed record."""

    plain: PlainFile
    format: str
    layout: Layout
    scan: pl.LazyFrame
    records: Records | None
    notes: tuple[str, ...] = ()
    malformed: dict[str, int] = field(default_factory=dict)
    malformed_examples: tuple[BadRow, ...] = ()

    @property
    def name(self) -> str:
        """The file as it was given."""
        return str(self.plain.given)

    def locate(self, positions: Sequence[int], reason: str) -> list[BadRow]:
        """The rows at these positions of the scan, with the line numbers of the original file."""
        if not positions:
            return []
        if self.records is None:
            columns = self.layout.columns
            rows = self.scan.with_row_index("row").filter(pl.col("row").is_in(list(positions))).collect()
            return [
                BadRow(self.name, row + 1, reason, f"{columns.user}={u} {columns.item}={i} {columns.time}={t}")
                for row, u, i, t in rows.select("row", "user", "item", "time").iter_rows()
            ]
        found = self.records.locate(positions).select("line", "text").iter_rows()
        return [BadRow(self.name, line, reason, shortened(text)) for line, text in found]


def shortened(text: str) -> str:
    """A raw line, cut where it would fill the screen."""
    return text if len(text) <= 160 else text[:160] + "…"


def open_source(given: Path, scratch: Path, form: str | None, asked: Mapping[str, str | None]) -> RawFile:
    """Open one raw file; without a format, guess it and say so in the notes."""
    if form is not None:
        format_named(form)
    plain = unpack(given, scratch)
    if plain.parquet:
        return _open_parquet(plain, form, asked)
    if form == "parquet":
        raise DataError(f"{given} is not a Parquet file; choose another --format, or none to have it guessed.")
    lines = plain.first_lines()
    notes = plain.notes
    if form is None:
        form, why = guess_format(plain.name, lines)
        notes += (f"{given.name} is read as {form}: {why}",)
    chosen = FORMATS[form]
    layout = layout_of(chosen, lines, str(given), asked)
    if layout.note:
        notes += (layout.note,)
    if layout.kind == "jsonl":
        return _open_json(plain, chosen, layout, notes)
    return _open_delimited(plain, chosen, layout, notes, scratch)


def _open_parquet(plain: PlainFile, form: str | None, asked: Mapping[str, str | None]) -> RawFile:
    notes = plain.notes
    if form is None:
        notes += (f"{plain.given.name} is read as parquet: it begins as Parquet files do",)
    elif form != "parquet":
        raise DataError(f"{plain.given} is a Parquet file, not {form}; read it with --format parquet.")
    try:
        scan = pl.scan_parquet(plain.path, glob=False)
        available = scan.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{plain.given} is a damaged Parquet file ({first_line(error)}); make it again.") from error
    layout = parquet_layout(FORMATS["parquet"], available, str(plain.given), asked)
    return RawFile(plain, "parquet", layout, _three(scan, layout), None, notes)


def _open_json(plain: PlainFile, form: Format, layout: Layout, notes: tuple[str, ...]) -> RawFile:
    return RawFile(plain, form.name, layout, _scan_json(plain.path, layout), lines_with_text(plain.path), notes)


def repaired_json(file: RawFile, scratch: Path) -> RawFile:
    """The same JSON-lines file without the lines that are no JSON objects."""
    path, notes = file.plain.path, file.notes
    try:
        records, counts = _counted(json_records(path))
    except pl.exceptions.ComputeError:
        path = as_utf8(path, scratch)
        notes += (_not_utf8(file.plain),)
        records, counts = _counted(json_records(path))
    copy = _copy(records, scratch)
    examples = _examples(records, counts, file.name)
    counts.pop(BLANK, None)
    return replace(
        file,
        scan=_scan_json(copy, file.layout),
        records=records,
        notes=notes,
        malformed=counts,
        malformed_examples=examples,
    )


def _open_delimited(plain: PlainFile, form: Format, layout: Layout, notes: tuple[str, ...], scratch: Path) -> RawFile:
    path = plain.path
    try:
        records, clean = delimited_records(path, layout)
    except pl.exceptions.ComputeError:
        path = as_utf8(path, scratch)
        notes += (_not_utf8(plain),)
        records, clean = delimited_records(path, layout)
    counts: dict[str, int] = {}
    examples: tuple[BadRow, ...] = ()
    if not clean:
        records, counts = _counted(records)
        if counts:
            examples = _examples(records, counts, str(plain.given))
            path = _copy(records, scratch)
            counts.pop(BLANK, None)
    names = [f"f{number}" for number in range(len(layout.fields))]
    scan = pl.scan_csv(
        path,
        has_header=False,
        skip_lines=int(layout.header),
        separator=layout.separator,
        quote_char=layout.quote,
        schema=dict.fromkeys(names, pl.String()),
        raise_if_empty=False,
        glob=False,
    )
    scan = scan.rename(dict(zip(names, _unlike(layout.fields), strict=True)))
    return RawFile(plain, form.name, layout, _three(scan, layout), records, notes, counts, examples)


def _unlike(fields: Sequence[str]) -> list[str]:
    # Unused fields may have equal or empty names; the three that matter were checked to be unique.
    seen: set[str] = set()
    names = []
    for number, name in enumerate(fields):
        names.append(name if name and name not in seen else f"\x00{number}")
        seen.add(name)
    return names


def _scan_json(path: Path, layout: Layout) -> pl.LazyFrame:
    columns = layout.columns
    schema = dict.fromkeys((columns.user, columns.item, columns.time), pl.String())
    return _three(pl.scan_ndjson(path, schema=schema), layout)


def _three(scan: pl.LazyFrame, layout: Layout) -> pl.LazyFrame:
    columns = layout.columns
    return scan.select(user=pl.col(columns.user), item=pl.col(columns.item), time=pl.col(columns.time))


def _counted(records: Records) -> tuple[Records, dict[str, int]]:
    counts = dict(records.malformed().iter_rows())
    counts.pop(None, None)
    return records, counts


def _examples(records: Records, counts: dict[str, int], name: str) -> tuple[BadRow, ...]:
    found = []
    for verdict in sorted(counts):
        if verdict != BLANK:
            rows = records.examples(verdict, EXAMPLES).iter_rows()
            found += [BadRow(name, line, verdict, shortened(text)) for line, text in rows]
    return tuple(found)


def _copy(records: Records, scratch: Path) -> Path:
    copy = scratch / f"{sum(1 for _ in scratch.iterdir())}.records"
    records.copy_well_formed(copy)
    return copy


def _not_utf8(plain: PlainFile) -> str:
    return f"{plain.given.name} is not valid UTF-8; the bytes that are not were replaced by \ufffd"
