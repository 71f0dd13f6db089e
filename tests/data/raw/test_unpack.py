"""Compressed files are read as they are, and damaged ones say so."""

import gzip
import zipfile
from pathlib import Path

import pytest

from melon.data.raw.unpack import UNDECODABLE, fingerprints, unpack
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


def test_names_without_the_packing(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "a.inter.gz").write_bytes(gzip.compress(b"x"))
    (tmp_path / "b.inter").write_bytes(b"x")
    assert unpack(tmp_path / "a.inter.gz", scratch).name == "a.inter"
    plain = unpack(tmp_path / "b.inter", scratch)
    assert (plain.name, plain.path) == ("b.inter", tmp_path / "b.inter")


def test_gzip_of_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="is empty"):
        unpack(tmp_path / "a.gz", tmp_path)


def test_utf8_copies_split_no_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melon.data.raw.unpack.CHUNK", 3)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "a").write_bytes("éé→\n".encode() + b"\xff\n")
    plain = unpack(tmp_path / "a", scratch, "utf-8")
    assert plain.path.read_text(encoding="utf-8") == f"éé→\n{UNDECODABLE}\n"
    assert plain.damaged


def test_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert fingerprints([tmp_path / "a"]) == ["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]
