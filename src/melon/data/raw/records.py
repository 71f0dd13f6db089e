"""The records of a text file with their line numbers, and which of them are not well formed."""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from polars.expr.whenthen import ChainedThen, Then

from melon.data.raw.formats import Layout

WRONG_FIELDS = "wrong number of fields"
UNBALANCED = "unbalanced quotes"
BAD_JSON = "malformed JSON line"
BLANK = "blank line"

# Stands for a whole quoted field while separators are counted; no text file has a reason to hold it.
_QUOTED = "\x00"


@dataclass(frozen=True)
class Records:
    """Lazily, a text file's records: `line`, `text` and `verdict` (null when well formed), in file order."""

    frame: pl.LazyFrame
    header: bool

    def malformed(self) -> pl.DataFrame:
        """How many records there are of each verdict, and how many are well formed (the null verdict)."""
        return self.frame.group_by("verdict").len().collect(engine="streaming")

    def examples(self, verdict: str, count: int) -> pl.DataFrame:
        """Line and text of the first records with this verdict."""
        chosen = self.frame.filter(pl.col("verdict") == verdict).select("line", "text")
        return chosen.head(count).collect(engine="streaming")

    def locate(self, positions: Sequence[int]) -> pl.DataFrame:
        """Line and text of the well-formed data records at these positions, counted from 0 without the header."""
        numbered = self.frame.filter(pl.col("verdict").is_null()).with_row_index("position")
        shift = int(self.header)
        wanted = pl.Series([position + shift for position in positions], dtype=pl.UInt32)
        found = numbered.filter(pl.col("position").is_in(wanted.implode())).collect(engine="streaming")
        return found.select(pl.col("position").cast(pl.Int64) - shift, "line", "text")

    def copy_well_formed(self, path: Path) -> None:
        """Write the well-formed records, header included, as they came."""
        good = self.frame.filter(pl.col("verdict").is_null()).select("text")
        good.sink_csv(path, include_header=False, quote_style="never", engine="streaming")


def json_records(path: Path) -> Records:
    """A JSON-lines file's records; each line is parsed, so this is for files that are known to have a bad one."""
    text = pl.col("text")
    fine = text.str.strip_chars_start().str.starts_with("{") & text.str.json_path_match("$").is_not_null()
    verdict = pl.when(_blank()).then(pl.lit(BLANK)).when(~fine).then(pl.lit(BAD_JSON))
    return Records(_lines(path).with_columns(verdict=verdict), header=False)


def lines_with_text(path: Path) -> Records:
    """A file's lines that are not blank, all taken as well formed."""
    verdict = pl.when(_blank()).then(pl.lit(BLANK))
    return Records(_lines(path).with_columns(verdict=verdict), header=False)


def delimited_records(path: Path, layout: Layout) -> tuple[Records, bool]:
    """A delimited file's records by the number of their fields, and whether all of them are plain and well formed.

    A quoted field may run over several lines.
    """
    lines = _lines(path)
    text, quote = pl.col("text"), layout.quote
    if quote is None or not _holds(path, quote.encode()):
        # The ordinary file: one quick pass tells that no line is ragged.
        ragged = (text.str.count_matches(layout.separator, literal=True) != len(layout.fields) - 1).any()
        records = Records(lines.with_columns(verdict=_verdict(layout, quoted=False)), layout.header)
        return records, not _single(lines, ragged)
    odd = text.str.count_matches(quote, literal=True) % 2
    if not _single(lines, (odd == 1).any()):
        return Records(lines.with_columns(verdict=_verdict(layout, quoted=True)), layout.header), False
    return Records(_joined(lines, odd, layout), layout.header), False


def _joined(lines: pl.LazyFrame, odd: pl.Expr, layout: Layout) -> pl.LazyFrame:
    # A line with an odd number of quotes opens a field and the next such line closes it. When the joined record makes
    # no sense, the quote was a stray one: its lines then stand for themselves, so that one quote loses one line.
    verdict = _verdict(layout, quoted=True)
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


def _verdict(layout: Layout, *, quoted: bool) -> pl.Expr:
    text, separator = pl.col("text"), layout.separator
    verdict: Then | ChainedThen = pl.when(_blank()).then(pl.lit(BLANK))
    if quoted and layout.quote:
        mark, split = re.escape(layout.quote), re.escape(separator)
        fields = rf"(^|{split}){mark}(?:[^{mark}]|{mark}{mark})*{mark}"
        text = text.str.replace_all(fields, "${1}" + _QUOTED)
        # What is left must not begin a field with a quote, nor go on after a closing one, nor hold a single quote: even
        # inside a field, it would make the scanner take the end of the line for a part of the field.
        opened, after = text.str.contains(rf"(?:^|{split}){mark}"), text.str.contains(rf"{_QUOTED}[^{split}]")
        ragged = opened | after | (text.str.count_matches(layout.quote, literal=True) % 2 == 1)
        verdict = verdict.when(ragged).then(pl.lit(UNBALANCED))
    count = text.str.count_matches(separator, literal=True) + 1
    return verdict.when(count != len(layout.fields)).then(pl.lit(WRONG_FIELDS))


def _blank() -> pl.Expr:
    return pl.col("text").str.strip_chars().str.len_bytes() == 0


def _lines(path: Path) -> pl.LazyFrame:
    return pl.scan_lines(path, name="text", row_index_name="line", row_index_offset=1, glob=False)


def _single(lines: pl.LazyFrame, condition: pl.Expr) -> bool:
    return bool(lines.select(condition).collect(engine="streaming").item())


def _holds(path: Path, mark: bytes) -> bool:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(mark) >= 0
