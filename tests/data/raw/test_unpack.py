"""Compressed files are read as they are, and damaged ones say so."""

import errno
import gzip
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.data.prepare import fingerprints, prepare
from melon.data.raw.open import UNDECODABLE, unpack
from melon.errors import DataError


def test_zip_with_several_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("one.csv", "two.csv"):
            archive.writestr(name, "user,item,time\n1,2,3\n")
    with pytest.raises(DataError, match=r"exactly one data file but holds 2 \(one.csv, two.csv\)"):
        unpack(tmp_path / "a.zip", tmp_path)


def test_zip_with_nothing(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(".hidden", "x")
    with pytest.raises(DataError, match="holds 0"):
        unpack(tmp_path / "a.zip", tmp_path)


@pytest.mark.parametrize("kind", ["gzip", "zip"])
def test_truncated(kind: str, tmp_path: Path) -> None:
    packed = tmp_path / "a.packed"
    if kind == "gzip":
        packed.write_bytes(gzip.compress(b"user,item,time\n" * 1000))
    else:
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("a.csv", "user,item,time\n" * 1000)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match=f"{kind} file"):
        unpack(packed, tmp_path)


def test_gzip_of_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="is empty"):
        unpack(tmp_path / "a.gz", tmp_path)


def test_utf8_copies_split_no_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melon.data.raw.open.CHUNK", 3)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "a").write_bytes("éé→\n".encode() + b"\xff\n")
    plain = unpack(tmp_path / "a", scratch, "utf-8")
    assert plain.path.read_text(encoding="utf-8") == f"éé→\n{UNDECODABLE}\n"
    assert plain.damaged


def test_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert fingerprints([tmp_path / "a"]) == ["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_other_encodings_are_guessed_and_said(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "a").write_bytes("André Andrè €\n".encode("cp1252"))
    plain = unpack(tmp_path / "a", scratch)
    assert plain.path.read_text(encoding="utf-8") == "André Andrè €\n"
    assert plain.encoding == "cp1252"
    assert not plain.damaged
    assert any("cp1252 (guessed)" in note and "--encoding" in note for note in plain.notes)


@pytest.mark.parametrize("encoding", ["cp1251", "shift_jis", "gb18030", "utf-16-le", "utf-8"])
def test_encodings_can_be_said(encoding: str, tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "a").write_bytes("при\n".encode(encoding))
    plain = unpack(tmp_path / "a", scratch, encoding)
    assert plain.path.read_text(encoding="utf-8") == "при\n"
    assert not plain.notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("é\n".encode() + b"\xe9\n", r"1 letters in UTF-8 and other bytes.*--encoding utf-8.*cp1252"),
        (b"\x81\x8d\n", r"neither valid UTF-8 nor cp1252.*--encoding"),
        ("user\n".encode("utf-16-le"), r"zero bytes.*--encoding utf-16-le"),
    ],
)
def test_text_that_can_be_read_in_two_ways_is_refused(
    content: bytes, message: str, tmp_path: Path, scratch: Path
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=message):
        unpack(tmp_path / "a", scratch)


@given(st.lists(st.binary(max_size=6).filter(lambda raw: b"\n" not in raw), min_size=2, max_size=2, unique=True))
def test_no_two_texts_become_one(raws: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "scratch").mkdir()
        (Path(folder) / "a").write_bytes(b"\n".join(raws))
        try:
            plain = unpack(Path(folder) / "a", Path(folder) / "scratch")
        except DataError:
            return
        first, _, second = plain.path.read_bytes().decode("utf-8").partition("\n")
        assert first != second


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "open._new_file"),
        (OSError("No space left on device (os error 28)"), "open._set_apart"),  # as polars says it
    ],
)
def test_a_full_temporary_folder_is_named_and_left_clean(
    error: OSError, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(f"melon.data.raw.{step}", full)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"user,item,time\n1,2,3\n1,2\n"))
    with pytest.raises(DataError, match=rf"temporary files, {place}, is full.*No space left.*TMPDIR"):
        prepare(tmp_path / "a.gz", out=tmp_path / "s.parquet")
    assert not list(place.iterdir())


def test_temporary_files_are_removed_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"user,item,time\n1,2,soon\n1,2\n"))
    with pytest.raises(DataError, match="no good row"):
        prepare(tmp_path / "a.gz", out=tmp_path / "s.parquet")
    assert not list(place.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="TMPDIR"):
        prepare(tmp_path / "a.gz", out=tmp_path / "s.parquet")


def test_an_encoding_that_the_file_cannot_have(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "a").write_bytes(b"user,item,time\n")
    with pytest.raises(DataError, match=r"is not utf-16 \(.*BOM\); choose another --encoding"):
        unpack(tmp_path / "a", scratch, "utf-16")
