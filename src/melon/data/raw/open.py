"""A raw file of any format is opened: its layout found, its malformed records set apart, the rest scanned lazily."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from polars.expr.whenthen import ChainedThen, Then

from melon.data.columns import first_line
from melon.data.raw.formats import FORMATS, Sample, guess_format
from melon.data.raw.layout import Layout, ReadOptions, layout_of, parquet_layout
from melon.data.raw.unpack import UNDECODABLE, PlainFile, unpack
from melon.errors import DataError
from melon.types import Flags, Ints

EXAMPLES = 5
LONGEST_EXAMPLE = 160

WRONG_FIELDS = "wrong number of fields"
UNBALANCED = "unbalanced quotes"
BAD_JSON = "malformed JSON line"
BLANK = "blank line"

# Stands for a whole quoted field while separators are counted; no text file has a reason to hold it.
_QUOTED = "\x00"


@dataclass(frozen=True)
class BadRow:
    """One raw row that is no interaction: where it stands, why it is none, and its text, shortened."""

    file: str
    line: int
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}: {self.text!r}"


@dataclass(frozen=True)
class BadRows:
    """Raw rows that were left out for one reason: how many, and the first few."""

    reason: str
    count: int
    examples: tuple[BadRow, ...]

    def __str__(self) -> str:
        rows = "row" if self.count == 1 else "rows"
        lines = [f"{self.count:,} {rows} left out: {self.reason}"]
        lines += [f"  {Path(row.file).name}, line {row.line}: {row.text}" for row in self.examples]
        more = self.count - len(self.examples)
        return "\n".join([*lines, f"  … and {more:,} more"] if more and self.examples else lines)


class Reasons:
    """Why each row is no interaction: a code for each row, 0 where it is one."""

    def __init__(self, rows: int) -> None:
        self.codes = np.zeros(rows, dtype=np.uint16)
        self.names: list[str] = []

    def set(self, where: npt.NDArray[np.integer] | Flags, reason: str) -> None:
        """Give rows a reason, in place of any other."""
        if not (where.any() if where.dtype == bool else len(where)):
            return
        if reason not in self.names:
            self.names.append(reason)
        self.codes[where] = self.names.index(reason) + 1

    def where(self, reason: str) -> Ints:
        """Rows that have a reason."""
        return np.flatnonzero(self.codes == self.names.index(reason) + 1)

    @property
    def good(self) -> Flags:
        """Whether each row is an interaction."""
        good: Flags = self.codes == 0
        return good


@dataclass(frozen=True)
class TextRecords:
    """Lazily, a text file's records: `line`, `text` and `verdict` (null when well formed), in file order."""

    frame: pl.LazyFrame
    header: bool = False

    def locate(self, positions: Sequence[int]) -> pl.DataFrame:
        """Line and text of the well-formed data records at these positions, counted from 0 without the header."""
        numbered = self.frame.filter(pl.col("verdict").is_null()).with_row_index("position")
        shift = int(self.header)
        wanted = pl.Series([position + shift for position in positions], dtype=pl.UInt32)
        rows = numbered.filter(pl.col("position").is_in(wanted.implode())).collect(engine="streaming")
        return rows.select(pl.col("position").cast(pl.Int64) - shift, "line", "text")

    def set_apart(self, plain: PlainFile, scratch: Path) -> tuple[Path, tuple[BadRows, ...]]:
        """A file with only the well-formed records, header included, and the others by their verdicts.

        It is the file itself where all are well formed, and else a copy. Blank lines are left out and not counted.
        """
        counts = dict(self.frame.group_by("verdict").len().collect(engine="streaming").iter_rows())
        counts.pop(None, None)
        if not counts:
            return plain.path, ()
        copy = scratch / f"{sum(1 for _ in scratch.iterdir())}.records"
        good = self.frame.filter(pl.col("verdict").is_null()).select("text")
        good.sink_csv(copy, include_header=False, quote_style="never", engine="streaming")
        counts.pop(BLANK, None)
        bad, file = [], str(plain.given)
        for verdict, count in sorted(counts.items()):
            chosen = self.frame.filter(pl.col("verdict") == verdict).select("line", "text").head(EXAMPLES)
            rows = chosen.collect(engine="streaming").iter_rows()
            bad.append(
                BadRows(verdict, count, tuple(BadRow(file, line, shortened(text), verdict) for line, text in rows))
            )
        return copy, tuple(bad)


#: `user`, `item` and `time` of the well-formed records, all records, and the malformed ones.
Scanned = tuple[pl.LazyFrame, TextRecords, tuple[BadRows, ...]]


@dataclass(frozen=True)
class RawFile:
    """A raw file with its layout: `scan` gives `user`, `item` and `time`, one row per well-formed record."""

    plain: PlainFile
    format: str
    layout: Layout
    scan: pl.LazyFrame
    records: TextRecords | None
    malformed: tuple[BadRows, ...]
    notes: tuple[str, ...]

    def locate(self, positions: Sequence[int]) -> dict[int, tuple[int, str]]:
        """Line number in the original file and text, shortened, of the rows at these positions of the scan."""
        if self.records is not None:
            return {row: (line, shortened(text)) for row, line, text in self.records.locate(positions).iter_rows()}
        columns = self.layout.columns
        rows = self.scan.with_row_index("row").filter(pl.col("row").is_in(list(positions))).collect().iter_rows()
        return {
            row: (row + 1, f"{columns.user}={user} {columns.item}={item} {columns.time}={time}")
            for row, user, item, time in rows
        }

    def quoted(self, positions: Sequence[int], column: int) -> list[int]:
        """Those of the positions at which a column of a delimited file stands in quotes."""
        quote = self.layout.quote
        if self.records is None or quote is None or self.layout.kind != "delimited":
            return []
        mark, split = re.escape(quote), re.escape(self.layout.separator)
        before = rf"(?:(?:{mark}(?:[^{mark}]|{mark}{mark})*{mark}|(?:[^{mark}{split}][^{split}]*)?){split}){{{column}}}"
        rows = self.records.locate(positions).filter(pl.col("text").str.contains(rf"^{before}{mark}"))
        return rows["position"].to_list()

    def repaired(self, scratch: Path) -> RawFile:
        """The same JSON-lines file without the lines that are no JSON objects."""
        scan, records, malformed = _scan_json(self.plain, self.layout, scratch, repair=True)
        return replace(self, scan=scan, records=records, malformed=malformed)


def shortened(text: str) -> str:
    """A raw line, cut where it would fill the screen."""
    text = text.replace(UNDECODABLE, "\ufffd")
    return text if len(text) <= LONGEST_EXAMPLE else text[:LONGEST_EXAMPLE] + "…"


def open_raw(given: Path, scratch: Path, options: ReadOptions) -> RawFile:
    """Open one raw file; its notes name everything that was guessed."""
    plain = unpack(given, scratch, options.encoding)
    if plain.parquet:
        file = _open_parquet(plain, options)
    elif options.format == "parquet":
        raise DataError(f"{given} is not a Parquet file; choose another --format, or none to have it guessed.")
    else:
        sample = Sample(plain.name, plain.first_lines(), options.separator)
        notes, form = plain.notes, options.format
        if form is None and options.describes_a_table:
            form = "csv"
        elif form is None:
            form, reason = guess_format(sample)
            notes += (f"{given.name} is read as {form}: {reason}",)
        layout = layout_of(FORMATS[form], sample, options, str(given))
        scan = _scan_delimited if layout.kind == "delimited" else _scan_json
        file = RawFile(plain, form, layout, *scan(plain, layout, scratch), notes=notes)
    notes, columns = file.layout.notes, file.layout.columns
    if columns.guessed:
        names = ", ".join(f"{role} = {getattr(columns, role)!r}" for role in columns.guessed)
        notes += (f"{'columns' if len(columns.guessed) > 1 else 'column'} {names} (guessed by name)",)
    return replace(file, notes=file.notes + tuple(f"{given.name}: {note}" for note in notes))


def _open_parquet(plain: PlainFile, options: ReadOptions) -> RawFile:
    notes: tuple[str, ...] = ()
    if options.format is None:
        notes = (f"{plain.given.name} is read as parquet: it begins as Parquet files do",)
    elif options.format != "parquet":
        raise DataError(f"{plain.given} is a Parquet file, not {options.format}; read it with --format parquet.")
    try:
        scan = pl.scan_parquet(plain.path, glob=False)
        available = scan.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{plain.given} is a damaged Parquet file ({first_line(error)}); make it again.") from error
    layout = parquet_layout(available, options, str(plain.given))
    return RawFile(plain, "parquet", layout, _three_columns(scan, layout), None, (), notes)


def _scan_delimited(plain: PlainFile, layout: Layout, scratch: Path) -> Scanned:
    """A delimited file. Records are judged by the number of their fields. A quoted field may run over several lines."""
    lines, verdict = _lines(plain)
    text, separator, mark = pl.col("text"), layout.separator, layout.quote if plain.has_quotes else None
    several_lines, clean = False, False
    if mark is None:
        # The ordinary file: one quick pass tells that no line is ragged.
        ragged = (text.str.count_matches(separator, literal=True) != layout.fields - 1).any()
        clean = not plain.damaged and not lines.select(ragged).collect(engine="streaming").item()
    else:
        odd = text.str.count_matches(mark, literal=True) % 2
        several_lines = lines.select((odd == 1).any()).collect(engine="streaming").item()
        quote, split = re.escape(mark), re.escape(separator)
        fields = rf"(^|{split}){quote}(?:[^{quote}]|{quote}{quote})*{quote}"
        text = text.str.replace_all(fields, "${1}" + _QUOTED)
        # What is left must not begin a field with a quote, nor go on after a closing one, nor hold a single quote: even
        # inside a field, it would make the scanner take the end of the line for a part of the field.
        opened, after = text.str.contains(rf"(?:^|{split}){quote}"), text.str.contains(rf"{_QUOTED}[^{split}]")
        unbalanced = opened | after | (text.str.count_matches(mark, literal=True) % 2 == 1)
        verdict = verdict.when(unbalanced).then(pl.lit(UNBALANCED))
    count = text.str.count_matches(separator, literal=True) + 1
    verdict = verdict.when(count != layout.fields).then(pl.lit(WRONG_FIELDS))
    frame = _joined(lines, odd, verdict) if several_lines else lines.with_columns(verdict=verdict)
    records = TextRecords(frame, layout.header)
    path, malformed = (plain.path, ()) if clean else records.set_apart(plain, scratch)
    names = [f"f{number}" for number in range(layout.fields)]
    scan = pl.scan_csv(
        path,
        has_header=False,
        skip_lines=int(layout.header),
        separator=separator,
        quote_char=layout.quote,
        schema=dict.fromkeys(names, pl.String()),
        raise_if_empty=False,
        glob=False,
    )
    user, item, time = (pl.col(names[position]) for position in layout.columns.positions)
    return scan.select(user=user, item=item, time=time), records, malformed


def _scan_json(plain: PlainFile, layout: Layout, scratch: Path, *, repair: bool = False) -> Scanned:
    """A JSON-lines file as it is; with `repair` (or undecodable lines) without the lines that are no JSON objects.

    A repair parses each line, so it is for files that are known to have a bad one.
    """
    lines, verdict = _lines(plain)
    path, malformed = plain.path, tuple[BadRows, ...]()
    if repair := repair or plain.damaged:
        text = pl.col("text")
        fine = text.str.strip_chars_start().str.starts_with("{") & text.str.json_path_match("$").is_not_null()
        verdict = verdict.when(~fine).then(pl.lit(BAD_JSON))
    records = TextRecords(lines.with_columns(verdict=verdict))
    if repair:
        path, malformed = records.set_apart(plain, scratch)
    columns = layout.columns
    schema = dict.fromkeys((columns.user, columns.item, columns.time), pl.String())
    return _three_columns(pl.scan_ndjson(path, schema=schema), layout), records, malformed


def _three_columns(scan: pl.LazyFrame, layout: Layout) -> pl.LazyFrame:
    columns = layout.columns
    return scan.select(user=pl.col(columns.user), item=pl.col(columns.item), time=pl.col(columns.time))


def _joined(lines: pl.LazyFrame, odd: pl.Expr, verdict: pl.Expr) -> pl.LazyFrame:
    # A line with an odd number of quotes opens a field and the next such line closes it. When the joined record makes
    # no sense, the quote was a stray one: its lines then stand for themselves, so that one quote loses one line.
    marked = lines.with_columns(odd=odd.cast(pl.Int64)).with_columns(odds=pl.col("odd").cum_sum())
    marked = marked.with_columns(
        inside=((pl.col("odds") - pl.col("odd")) % 2 == 1) | (pl.col("odd") == 1), span=(pl.col("odds") + 1) // 2
    )
    inside = marked.filter(pl.col("inside"))
    spans = (
        inside.group_by("span")
        .agg(pl.col("line").min(), pl.col("text").sort_by("line").str.join("\n"))
        .with_columns(verdict=verdict)
    )
    alone = marked.filter(~pl.col("inside")).with_columns(verdict=verdict)
    whole = spans.filter(pl.col("verdict").is_null())
    dissolved = inside.join(whole, on="span", how="anti").with_columns(verdict=verdict)
    parts = [part.select("line", "text", "verdict") for part in (alone, whole, dissolved)]
    return pl.concat(parts).sort("line")


def _lines(plain: PlainFile) -> tuple[pl.LazyFrame, Then | ChainedThen]:
    """A text file's lines as `line` and `text`, and a verdict on those that are blank or cannot be decoded."""
    text = pl.col("text")
    verdict: Then | ChainedThen = pl.when(text.str.strip_chars().str.len_bytes() == 0).then(pl.lit(BLANK))
    if plain.damaged:
        undecodable = text.str.contains(UNDECODABLE, literal=True)
        verdict = verdict.when(undecodable).then(pl.lit(f"not valid {plain.encoding}"))
    lines = pl.scan_lines(plain.path, name="text", row_index_name="line", row_index_offset=1, glob=False)
    return lines, verdict
