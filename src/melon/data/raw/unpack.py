"""Raw files as they came, compressed or not, become plain files that can be scanned."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from melon.errors import DataError

CHUNK = 1 << 22
FIRST_LINES = 200
LONGEST_LINE = 1 << 24

GZIP, ZIP, PARQUET = b"\x1f\x8b", b"PK\x03\x04", b"PAR1"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class PlainFile:
    """A readable file: the path as given, the name of the data in it, and where its plain bytes are."""

    given: Path
    name: str
    path: Path
    parquet: bool
    notes: tuple[str, ...] = ()

    def first_lines(self) -> list[str]:
        """The first lines that are not blank, enough to recognise a format by."""
        lines: list[str] = []
        with self.path.open("rb") as stream:
            for _ in range(2 * FIRST_LINES):
                line = stream.readline(LONGEST_LINE)
                if not line or len(lines) == FIRST_LINES:
                    break
                text = line.decode("utf-8-sig", errors="replace").rstrip("\r\n")
                if text.strip():
                    lines.append(text)
        if not lines:
            raise DataError(f"{self.given} is empty: there is no line in it to read.")
        return lines


def unpack(given: Path, scratch: Path) -> PlainFile:
    """Decompress gzip and single-file zip into `scratch`, chunk by chunk; other files stay where they are."""
    if not given.exists():
        raise DataError(f"there is no file {given}.")
    if given.is_dir():
        raise DataError(f"{given} is a folder; name the files in it.")
    try:
        magic = _magic(given)
        if magic.startswith(GZIP):
            name = given.stem if given.suffix.lower() in {".gz", ".gzip"} else given.name
            plain = _ungzip(given, scratch)
        elif magic.startswith(ZIP):
            name, plain = _unzip(given, scratch)
        else:
            name, plain = given.name, given
    except PermissionError as error:
        raise DataError(f"{given} may not be read: {error.strerror}.") from error
    magic = _magic(plain)
    if not magic:
        raise DataError(f"{given} is empty: there is nothing in it to read.")
    if magic.startswith(PARQUET):
        return PlainFile(given, name, plain, parquet=True)
    if magic.startswith(UTF_16):
        copy = as_utf8(plain, scratch, "utf-16")
        return PlainFile(given, name, copy, parquet=False, notes=(f"{given.name} is UTF-16 and was read so",))
    return PlainFile(given, name, plain, parquet=False)


def as_utf8(path: Path, scratch: Path, encoding: str = "utf-8") -> Path:
    """A copy in which whatever cannot be decoded is the replacement character."""
    copy = scratch / f"{_count(scratch)}.utf8"
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    with path.open("rb") as source, copy.open("wb") as target:
        while chunk := source.read(CHUNK):
            target.write(decoder.decode(chunk).encode())
        target.write(decoder.decode(b"", final=True).encode())
    return copy


def fingerprints(paths: Sequence[Path]) -> list[str]:
    """The SHA-256 of each file as it came."""
    found = []
    for path in paths:
        with path.open("rb") as stream:
            found.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return found


def _magic(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4)


def _count(scratch: Path) -> int:
    return sum(1 for _ in scratch.iterdir())


def _ungzip(given: Path, scratch: Path) -> Path:
    plain = scratch / f"{_count(scratch)}.plain"
    try:
        with gzip.open(given, "rb") as source, plain.open("wb") as target:
            shutil.copyfileobj(source, target, CHUNK)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{given} is a damaged gzip file ({error}); fetch it again.") from error
    return plain


def _unzip(given: Path, scratch: Path) -> tuple[str, Path]:
    plain = scratch / f"{_count(scratch)}.plain"
    try:
        with zipfile.ZipFile(given) as archive:
            members = [member for member in archive.infolist() if _holds_data(member)]
            if len(members) != 1:
                inside = ", ".join(member.filename for member in members[:5]) or "nothing"
                raise DataError(
                    f"{given} must hold exactly one data file but holds {len(members)} ({inside}"
                    f"{', …' if len(members) > 5 else ''}); unpack it and name the files to read."
                )
            with archive.open(members[0]) as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target, CHUNK)
            return PurePosixPath(members[0].filename).name, plain
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{given} is a zip file that cannot be read ({error}); unpack it first.") from error


def _holds_data(member: zipfile.ZipInfo) -> bool:
    # Archives made on a Mac carry a shadow of every file, and any archive may carry hidden ones.
    path = PurePosixPath(member.filename)
    hidden = path.name.startswith(".") or "__MACOSX" in path.parts
    return not member.is_dir() and not hidden
