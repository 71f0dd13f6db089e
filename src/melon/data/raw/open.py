"""A raw file is opened: unpacked, decoded, recognised, its malformed records set apart, the rest scanned lazily."""

from __future__ import annotations

import codecs
import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

import polars as pl
from polars.expr.whenthen import ChainedThen, Then

from melon.data.raw.formats import Layout, ReadOptions, find_columns, first_line, layout_of
from melon.errors import DataError, SettingsError

CHUNK = 1 << 22
EXAMPLES = 5
LONGEST_EXAMPLE = 160

GZIP, ZIP, PARQUET = b"\x1f\x8b", b"PK\x03\x04", b"PAR1"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: Stands for bytes that the encoding does not have; Unicode promises that no text holds it.
UNDECODABLE = "\ufdd0"
#: Stands for a whole quoted field while separators are counted; no text file has a reason to hold it.
_QUOTED = "\x00"

WRONG_FIELDS, UNBALANCED, BAD_JSON = "wrong number of fields", "unbalanced quotes", "malformed JSON line"
BLANK = "blank line"

codecs.register_error("melon.undecodable", lambda error: (UNDECODABLE, error.end))  # type: ignore[attr-defined]


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


@dataclass(frozen=True)
class PlainFile:
    """A readable file: the path as given, and where its plain UTF-8 (or Parquet) is.

    `encoding` is what the text was written in; with `damaged`, some lines hold `UNDECODABLE`.
    """

    given: Path
    path: Path
    parquet: bool
    encoding: str = "utf-8"
    damaged: bool = False
    has_quotes: bool = True
    notes: tuple[str, ...] = ()

    def first_lines(self, most: int = 200, left: int = 1 << 24) -> list[str]:
        """The first lines that are not blank, enough to recognise a format by."""
        lines: list[str] = []
        with self.path.open("rb") as stream:
            while len(lines) < most and left > 0 and (line := stream.readline(left)):
                left -= len(line)
                text = line.decode("utf-8-sig", errors="replace").rstrip("\r\n")
                if text.strip():
                    lines.append(text)
        if not lines:
            raise DataError(f"{self.given} is empty: it has no lines.")
        return lines


@dataclass(frozen=True)
class RawFile:
    """A raw file with its layout: `scan` gives `user`, `item` and `time`, one row per well-formed record.

    `records` are `line`, `text` and `problem` (null when well formed) of all records of a text file.
    """

    plain: PlainFile
    layout: Layout
    scan: pl.LazyFrame
    records: pl.LazyFrame | None
    malformed: tuple[BadRows, ...]
    notes: tuple[str, ...]

    def locate(self, positions: Sequence[int]) -> dict[int, tuple[int, str]]:
        """Line number in the original file and text, shortened, of the rows at these positions of the scan."""
        if self.records is None:
            columns = self.layout.columns
            rows = self.scan.with_row_index("row").filter(pl.col("row").is_in(list(positions))).collect().iter_rows()
            return {
                row: (row + 1, f"{columns.user}={user} {columns.item}={item} {columns.time}={time}")
                for row, user, item, time in rows
            }
        shift = int(self.layout.header)
        wanted = pl.Series([position + shift for position in positions], dtype=pl.UInt32)
        numbered = self.records.filter(pl.col("problem").is_null()).with_row_index("row")
        found = numbered.filter(pl.col("row").is_in(wanted.implode())).collect(engine="streaming")
        return {row - shift: (line, _shortened(text)) for row, line, text, *_ in found.iter_rows()}

    def repaired(self, scratch: Path) -> RawFile:
        """The same JSON-lines file without the lines that are no JSON objects."""
        scan, records, malformed = _scan_json(self.plain, self.layout, scratch, repair=True)
        return replace(self, scan=scan, records=records, malformed=malformed)


def open_raw(given: Path, scratch: Path, options: ReadOptions) -> RawFile:
    """Open one raw file; its notes name everything that was guessed."""
    plain = unpack(given, scratch, options.encoding)
    if plain.parquet:
        file = _open_parquet(plain, options)
    else:
        layout = layout_of(plain.first_lines(), options, str(given))
        scan = _scan_delimited if layout.kind == "csv" else _scan_json
        file = RawFile(plain, layout, *scan(plain, layout, scratch), notes=plain.notes)
    notes, columns = file.layout.notes, file.layout.columns
    if columns.guessed:
        names = ", ".join(f"{role} = {getattr(columns, role)!r}" for role in columns.guessed)
        notes += (f"{'columns' if len(columns.guessed) > 1 else 'column'} {names} (guessed by name)",)
    return replace(file, notes=file.notes + tuple(f"{given.name}: {note}" for note in notes))


def _open_parquet(plain: PlainFile, options: ReadOptions) -> RawFile:
    if options.describes_a_table:
        raise SettingsError(f"--separator, --header and --no-header are for tables of text; {plain.given} is Parquet.")
    try:
        scan = pl.scan_parquet(plain.path, glob=False)
        available = scan.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{plain.given} is a damaged Parquet file ({first_line(error)}); make it again.") from error
    columns = find_columns(available, str(plain.given), options.columns, numbers=True)
    layout = Layout("parquet", columns, missing=options.missing or ())
    return RawFile(plain, layout, _three_columns(scan, layout), None, (), ())


#: `user`, `item` and `time` of the well-formed records, all records, and the malformed ones.
Scanned = tuple[pl.LazyFrame, pl.LazyFrame, tuple[BadRows, ...]]


def _scan_delimited(plain: PlainFile, layout: Layout, scratch: Path) -> Scanned:
    """A delimited file. Records are judged by the number of their fields. A quoted field may run over several lines."""
    lines, problem = _lines(plain)
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
        problem = problem.when(unbalanced).then(pl.lit(UNBALANCED))
    count = text.str.count_matches(separator, literal=True) + 1
    problem = problem.when(count != layout.fields).then(pl.lit(WRONG_FIELDS))
    records = _joined(lines, odd, problem) if several_lines else lines.with_columns(problem=problem)
    path, malformed = (plain.path, ()) if clean else _set_apart(records, plain, scratch)
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
    lines, problem = _lines(plain)
    path, malformed = plain.path, tuple[BadRows, ...]()
    if repair := repair or plain.damaged:
        text = pl.col("text")
        fine = text.str.strip_chars_start().str.starts_with("{") & text.str.json_path_match("$").is_not_null()
        problem = problem.when(~fine).then(pl.lit(BAD_JSON))
    records = lines.with_columns(problem=problem)
    if repair:
        path, malformed = _set_apart(records, plain, scratch)
    columns = layout.columns
    schema = dict.fromkeys((columns.user, columns.item, columns.time), pl.String())
    return _three_columns(pl.scan_ndjson(path, schema=schema), layout), records, malformed


def _three_columns(scan: pl.LazyFrame, layout: Layout) -> pl.LazyFrame:
    columns = layout.columns
    return scan.select(user=pl.col(columns.user), item=pl.col(columns.item), time=pl.col(columns.time))


def _lines(plain: PlainFile) -> tuple[pl.LazyFrame, Then | ChainedThen]:
    """A text file's lines as `line` and `text`, and the problem of those that are blank or cannot be decoded."""
    text = pl.col("text")
    problem: Then | ChainedThen = pl.when(text.str.strip_chars().str.len_bytes() == 0).then(pl.lit(BLANK))
    if plain.damaged:
        undecodable = text.str.contains(UNDECODABLE, literal=True)
        problem = problem.when(undecodable).then(pl.lit(f"not valid {plain.encoding}"))
    lines = pl.scan_lines(plain.path, name="text", row_index_name="line", row_index_offset=1, glob=False)
    return lines, problem


def _joined(lines: pl.LazyFrame, odd: pl.Expr, problem: pl.Expr) -> pl.LazyFrame:
    # A line with an odd number of quotes opens a field and the next such line closes it. When the joined record makes
    # no sense, the quote was a stray one: its lines then stand for themselves, so that one quote loses one line.
    marked = lines.with_columns(odd=odd.cast(pl.Int64)).with_columns(odds=pl.col("odd").cum_sum())
    marked = marked.with_columns(
        inside=((pl.col("odds") - pl.col("odd")) % 2 == 1) | (pl.col("odd") == 1), span=(pl.col("odds") + 1) // 2
    )
    inside = marked.filter(pl.col("inside"))
    spans = inside.group_by("span").agg(pl.col("line").min(), pl.col("text").sort_by("line").str.join("\n"))
    whole = spans.with_columns(problem=problem).filter(pl.col("problem").is_null())
    alone = marked.filter(~pl.col("inside")).with_columns(problem=problem)
    dissolved = inside.join(whole, on="span", how="anti").with_columns(problem=problem)
    return pl.concat([part.select("line", "text", "problem") for part in (alone, whole, dissolved)]).sort("line")


def _set_apart(records: pl.LazyFrame, plain: PlainFile, scratch: Path) -> tuple[Path, tuple[BadRows, ...]]:
    """A file with only the well-formed records, header included, and the others by their problems.

    It is the file itself where all are well formed, and else a copy. Blank lines are left out and not counted.
    """
    counts = dict(records.group_by("problem").len().collect(engine="streaming").iter_rows())
    counts.pop(None, None)
    if not counts:
        return plain.path, ()
    copy = _new_file(scratch)
    good = records.filter(pl.col("problem").is_null()).select("text")
    good.sink_csv(copy, include_header=False, quote_style="never", engine="streaming")
    counts.pop(BLANK, None)
    bad, file = [], str(plain.given)
    for problem, count in sorted(counts.items()):
        chosen = records.filter(pl.col("problem") == problem).select("line", "text").head(EXAMPLES)
        rows = chosen.collect(engine="streaming").iter_rows()
        examples = tuple(BadRow(file, line, _shortened(text), problem) for line, text in rows)
        bad.append(BadRows(problem, count, examples))
    return copy, tuple(bad)


def _shortened(text: str) -> str:
    text = text.replace(UNDECODABLE, "\ufffd")
    return text if len(text) <= LONGEST_EXAMPLE else text[:LONGEST_EXAMPLE] + "…"


def unpack(given: Path, scratch: Path, encoding: str | None = None) -> PlainFile:
    """The plain UTF-8 text (or Parquet) of a file; gzip, single-file zip and other encodings are copied to `scratch`.

    Without an encoding it is guessed, and the notes say so.
    """
    if encoding is not None:
        _require_encoding(encoding)
    if not given.exists():
        raise DataError(f"there is no file {given}.")
    if given.is_dir():
        raise DataError(f"{given} is a folder; name the files in it.")
    decoder, utf8, has_quotes = codecs.getincrementaldecoder("utf-8")(), True, False
    try:
        with _opened(given) as (source, compressed):
            head = chunk = source.read(CHUNK)
            if not head:
                raise DataError(f"{given} is empty.")
            parquet = head.startswith(PARQUET)
            path = _new_file(scratch) if compressed else given
            with path.open("wb") if compressed else nullcontext() as target:
                while chunk and (target or not parquet):
                    if not parquet:
                        has_quotes = has_quotes or b'"' in chunk
                        utf8 = utf8 and _decodes(decoder, chunk)
                    if target:
                        target.write(chunk)
                    chunk = source.read(CHUNK)
    except PermissionError as error:
        raise DataError(f"{given} may not be read: {error.strerror}.") from error
    plain = PlainFile(given, path, parquet, has_quotes=has_quotes)
    return plain if parquet else _decoded(plain, head, utf8 and _decodes(decoder, b"", final=True), scratch, encoding)


def _decodes(decoder: codecs.IncrementalDecoder, chunk: bytes, *, final: bool = False) -> bool:
    try:
        decoder.decode(chunk, final=final)
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def _opened(given: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """The bytes of the data in a file, and whether they were compressed."""
    with given.open("rb") as stream:
        magic = stream.read(4)
        stream.seek(0)
        if magic.startswith(GZIP):
            try:
                with gzip.open(stream, "rb") as source:
                    yield source, True  # type: ignore[misc]
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(f"{given} is a damaged gzip file ({error}); fetch it again.") from error
        elif magic.startswith(ZIP):
            try:
                with zipfile.ZipFile(stream) as archive, archive.open(_only_member(archive, given)) as source:
                    yield source, True
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                raise DataError(f"{given} is a zip file that cannot be read ({error}); unpack it first.") from error
        else:
            yield stream, False


def _only_member(archive: zipfile.ZipFile, given: Path) -> zipfile.ZipInfo:
    # Archives made on a Mac carry a shadow of every file, and any archive may carry hidden ones.
    paths = [(member, PurePosixPath(member.filename)) for member in archive.infolist() if not member.is_dir()]
    members = [one for one, path in paths if not path.name.startswith(".") and "__MACOSX" not in path.parts]
    if len(members) != 1:
        inside = ", ".join(member.filename for member in members[:5]) or "nothing"
        raise DataError(
            f"{given} must hold exactly one data file but holds {len(members)} ({inside}"
            f"{', …' if len(members) > 5 else ''}); unpack it and name the files to read."
        )
    return members[0]


def _decoded(plain: PlainFile, head: bytes, utf8: bool, scratch: Path, encoding: str | None) -> PlainFile:
    """The file as UTF-8: as it is, or a copy."""
    name, guessed = plain.given.name, ""
    if encoding is None and head.startswith(UTF_16):
        encoding, guessed = "utf-16", f"{name} is UTF-16 and was read so"
    elif encoding is None and b"\0" in head[:1000]:
        raise DataError(
            f"{plain.given} has zero bytes, so it is not UTF-8; if it is UTF-16, give --encoding utf-16-le."
        )
    elif encoding is None and not utf8:
        encoding = _guessed_encoding(plain)
        guessed = (
            f"{name} is not valid UTF-8 and was read as {encoding} (guessed); if letters look wrong, name another "
            "with --encoding"
        )
    if encoding is None or (codecs.lookup(encoding).name == "utf-8" and utf8):
        return plain
    copy, damaged = _new_file(scratch), False
    decoder = codecs.getincrementaldecoder(encoding)(errors="melon.undecodable")
    with plain.path.open("rb") as source, copy.open("wb") as target:
        chunk = b"more"
        while chunk:
            chunk = source.read(CHUNK)
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeError as error:  # of the whole file, such as a byte-order mark that is not there
                raise DataError(f"{plain.given} is not {encoding} ({error}); choose another --encoding.") from error
            damaged = damaged or UNDECODABLE in text
            target.write(text.encode("utf-8", "melon.undecodable"))
    return replace(
        plain, path=copy, encoding=encoding, damaged=damaged, has_quotes=True, notes=(guessed,) if guessed else ()
    )


def _guessed_encoding(plain: PlainFile) -> str:
    """cp1252, in which no two texts have the same bytes; an error where another reading is as likely."""
    letters, others = 0, set()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape")
    with plain.path.open("rb") as source:
        while chunk := source.read(CHUNK):
            text = decoder.decode(chunk)
            letters += len(re.findall(r"[^\x00-\x7f\udc80-\udcff]", text))
            others |= set(re.findall(r"[\udc80-\udcff]", text))
    if letters:
        raise DataError(
            f"{plain.given} has {letters} letters in UTF-8 and other bytes. Give the encoding: --encoding "
            "utf-8 leaves out the lines with such bytes and counts them, --encoding cp1252 reads every byte as a "
            "letter of Western Europe."
        )
    try:
        bytes(ord(one) - 0xDC00 for one in others).decode("cp1252")
    except UnicodeDecodeError:
        raise DataError(
            f"{plain.given} is neither valid UTF-8 nor cp1252; give --encoding, such as shift_jis, "
            "gb18030, cp1251 or latin-1."
        ) from None
    return "cp1252"


def _require_encoding(name: str) -> None:
    try:
        is_text = codecs.lookup(name)._is_text_encoding
    except LookupError:
        is_text = False
    if not is_text:
        raise SettingsError(
            f"unknown encoding {name!r}; choose one that Python knows: utf-8, cp1252, latin-1, utf-16, …"
        )


def _new_file(scratch: Path) -> Path:
    return scratch / f"{sum(1 for _ in scratch.iterdir())}.plain"
