"""Raw files as they came, compressed and in any encoding, become plain files that can be scanned."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from melon.errors import DataError, SettingsError

CHUNK = 1 << 22
LONGEST_LINE = 1 << 26
FIRST_LINES = 200
FIRST_BYTES = 1 << 24

GZIP, ZIP, PARQUET = b"\x1f\x8b", b"PK\x03\x04", b"PAR1"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: Stands for bytes that the encoding does not have; Unicode promises that no text holds it.
UNDECODABLE = "\ufdd0"

codecs.register_error("melon.undecodable", lambda error: (UNDECODABLE, error.end))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class PlainFile:
    """A readable file: the path as given, the name of the data in it, and where its plain bytes are.

    `encoding` is what the text was written in; with `damaged`, some lines hold `UNDECODABLE`. `has_quotes` says whether
    there is a quotation mark in it.
    """

    given: Path
    name: str
    path: Path
    parquet: bool
    encoding: str = "utf-8"
    damaged: bool = False
    has_quotes: bool = True
    notes: tuple[str, ...] = ()

    def first_lines(self) -> list[str]:
        """The first lines that are not blank, enough to recognise a format by."""
        lines: list[str] = []
        left = FIRST_BYTES
        with self.path.open("rb") as stream:
            while len(lines) < FIRST_LINES and left > 0 and (line := stream.readline(left)):
                left -= len(line)
                text = line.decode("utf-8-sig", errors="replace").rstrip("\r\n")
                if text.strip():
                    lines.append(text)
        if not lines:
            raise DataError(f"{self.given} is empty: there is no line in it to read.")
        return lines


@dataclass
class TextCheck:
    """Looks at the bytes of a text file as they pass: a line that is too long, quotation marks, and UTF-8 or not."""

    given: Path
    utf8: bool = True
    has_quotes: bool = False
    _decoder: codecs.IncrementalDecoder | None = None
    _offset: int = 0
    _line_start: int = 0

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes; none at all means the end."""
        first = chunk.find(b"\n")
        end_of_line = self._offset + (len(chunk) if first < 0 else first)
        if end_of_line - self._line_start > LONGEST_LINE:
            raise DataError(
                f"{self.given}: the line that begins at byte {self._line_start} is longer than "
                f"{LONGEST_LINE >> 20} MiB, so this is no table of interactions; put one interaction on each line."
            )
        if first >= 0:
            self._line_start = self._offset + chunk.rfind(b"\n") + 1
        self._offset += len(chunk)
        self.has_quotes = self.has_quotes or b'"' in chunk
        if self.utf8 and (self._decoder or not chunk.isascii() or not chunk):
            self._decoder = self._decoder or codecs.getincrementaldecoder("utf-8")()
            try:
                self._decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError:
                self.utf8 = False


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
    check = TextCheck(given)
    try:
        with _opened(given) as (name, source, compressed):
            head = source.read(CHUNK)
            if not head:
                raise DataError(f"{given} is empty: there is nothing in it to read.")
            parquet = head.startswith(PARQUET)
            path, chunk = _new_file(scratch) if compressed else given, head
            with path.open("wb") if compressed else nullcontext() as target:
                while chunk and (target or not parquet):
                    if not parquet:
                        check.feed(chunk)
                    if target:
                        target.write(chunk)
                    chunk = source.read(CHUNK)
            if not parquet:
                check.feed(b"")
    except PermissionError as error:
        raise DataError(f"{given} may not be read: {error.strerror}.") from error
    plain = PlainFile(given, name, path, parquet, has_quotes=check.has_quotes)
    return plain if parquet else _decoded(plain, head, check.utf8, scratch, encoding)


def fingerprints(paths: Sequence[Path]) -> list[str]:
    """SHA-256 of each file as it came."""
    digests = []
    for path in paths:
        with path.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests


@contextmanager
def _opened(given: Path) -> Iterator[tuple[str, IO[bytes], bool]]:
    """The name and the bytes of the data in a file, and whether they were compressed."""
    with given.open("rb") as stream:
        magic = stream.read(4)
        stream.seek(0)
        if magic.startswith(GZIP):
            name = given.stem if given.suffix.lower() in {".gz", ".gzip"} else given.name
            try:
                with gzip.open(stream, "rb") as source:
                    yield name, source, True  # type: ignore[misc]
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(f"{given} is a damaged gzip file ({error}); fetch it again.") from error
        elif magic.startswith(ZIP):
            try:
                with zipfile.ZipFile(stream) as archive, archive.open(_only_member(archive, given)) as source:
                    yield PurePosixPath(source.name).name, source, True
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                raise DataError(f"{given} is a zip file that cannot be read ({error}); unpack it first.") from error
        else:
            yield given.name, stream, False


def _only_member(archive: zipfile.ZipFile, given: Path) -> zipfile.ZipInfo:
    members = [member for member in archive.infolist() if _holds_data(member)]
    if len(members) != 1:
        inside = ", ".join(member.filename for member in members[:5]) or "nothing"
        raise DataError(
            f"{given} must hold exactly one data file but holds {len(members)} ({inside}"
            f"{', …' if len(members) > 5 else ''}); unpack it and name the files to read."
        )
    return members[0]


def _holds_data(member: zipfile.ZipInfo) -> bool:
    # Archives made on a Mac carry a shadow of every file, and any archive may carry hidden ones.
    path = PurePosixPath(member.filename)
    hidden = path.name.startswith(".") or "__MACOSX" in path.parts
    return not member.is_dir() and not hidden


def _decoded(plain: PlainFile, head: bytes, utf8: bool, scratch: Path, encoding: str | None) -> PlainFile:
    """The file as UTF-8: as it is, or a copy."""
    name, guessed = plain.given.name, ""
    if encoding is None and head.startswith(UTF_16):
        encoding, guessed = "utf-16", f"{name} is UTF-16 and was read so"
    elif encoding is None and b"\0" in head[:1000]:
        raise DataError(
            f"{plain.given} has zero bytes, so it is no UTF-8 text; if it is UTF-16, say so with --encoding utf-16-le."
        )
    elif encoding is None and not utf8:
        encoding = _guessed_encoding(plain)
        guessed = (
            f"{name} is not valid UTF-8 and was read as {encoding} (guessed); if letters look wrong, name another "
            "with --encoding"
        )
    if encoding is None or (codecs.lookup(encoding).name == "utf-8" and utf8):
        return plain
    return replace(_recoded(plain, scratch, encoding), notes=(guessed,) if guessed else ())


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
            f"{plain.given} has {letters} letters in UTF-8 and bytes that are no UTF-8. Say how to read it: --encoding "
            "utf-8 leaves out the lines with such bytes and counts them, --encoding cp1252 reads every byte as a "
            "letter of Western Europe."
        )
    try:
        bytes(ord(one) - 0xDC00 for one in others).decode("cp1252")
    except UnicodeDecodeError:
        raise DataError(
            f"{plain.given} is neither valid UTF-8 nor cp1252; say its encoding with --encoding, such as shift_jis, "
            "gb18030, cp1251 or latin-1."
        ) from None
    return "cp1252"


def _recoded(plain: PlainFile, scratch: Path, encoding: str) -> PlainFile:
    """A copy in UTF-8 in which `UNDECODABLE` stands for what cannot be decoded."""
    copy, damaged = _new_file(scratch), False
    check = TextCheck(plain.given)
    decoder = codecs.getincrementaldecoder(encoding)(errors="melon.undecodable")
    with plain.path.open("rb") as source, copy.open("wb") as target:
        while True:
            chunk = source.read(CHUNK)
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeError as error:  # of the whole file, such as a byte-order mark that is not there
                raise DataError(f"{plain.given} is not {encoding} ({error}); choose another --encoding.") from error
            damaged = damaged or UNDECODABLE in text
            encoded = text.encode("utf-8", "melon.undecodable")
            if encoded:
                check.feed(encoded)
            target.write(encoded)
            if not chunk:
                return replace(plain, path=copy, encoding=encoding, damaged=damaged, has_quotes=check.has_quotes)


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
