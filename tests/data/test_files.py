"""Prepared streams load with or without side-cars, and strangers and damaged files are told apart."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from melon.data.files import STAMP, VERSION, VERSION_KEY, load_stream, side_car, write_stream
from melon.data.frames import interactions_from
from melon.data.prepare import prepare
from melon.errors import DataError

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


def stream(path: Path, **columns: Any) -> Path:
    data = {"user": [5, 3, 5], "item": [1, 1, 0], "ts": [1, 1, 2]} | columns
    pl.DataFrame({name: values for name, values in data.items() if values is not None}).write_parquet(path)
    return path


@pytest.mark.parametrize("name", ["ts", "time", "timestamp"])
def test_rows_are_numbered_by_first_appearance(name: str, tmp_path: Path) -> None:
    log = load_stream(stream(tmp_path / "s.parquet", **({"ts": None} | {name: [1, 1, 2]})))
    assert log.users.tolist() == [0, 1, 0]
    assert log.user_ids.tolist() == [5, 3]
    assert log.item_ids.tolist() == [1, 0]
    assert log.times.tolist() == [1, 1, 2]


@pytest.mark.parametrize("ids", [[2**40, -1, 2**40], ["b", "a", "b"], ["1", "01", "1"], ["a\x00", "a", "a\x00"]])
def test_any_ids(ids: list[Any], tmp_path: Path) -> None:
    log = load_stream(stream(tmp_path / "s.parquet", user=ids))
    assert log.user_ids[log.users].tolist() == ids


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt16, pl.Int32, pl.UInt64])
def test_any_integer_type(dtype: Any, tmp_path: Path) -> None:
    log = load_stream(stream(tmp_path / "s.parquet", user=pl.Series([5, 3, 5], dtype=dtype)))
    assert log.user_ids.dtype == np.int64


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"ts": None}, "no column looks like the time.*'user', 'item'.*melon data prepare"),
        ({"user": None, "User_ID": [1, 2, 3]}, "is not a prepared stream.*'User_ID'"),
        ({"ts": [-1, 0, 2]}, r"time of event 0 is negative \(-1\)"),
        ({"ts": ["a", "b", "c"]}, "time of event 0, 'a'"),
        ({"item": [1.5, 2.0, 3.0]}, "not a whole number"),
        ({"user": [], "item": [], "ts": []}, "has no interactions"),
        ({"user": pl.Series([1, 2**63, 2], dtype=pl.UInt64)}, "9223372036854775808"),
        ({"ts": pl.Series([1, 2, 2**63], dtype=pl.UInt64)}, "time of event 2"),
    ],
)
def test_bad_streams(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        load_stream(stream(tmp_path / "s.parquet", **columns))


def test_any_order_and_gaps(tmp_path: Path) -> None:
    log = load_stream(stream(tmp_path / "s.parquet", ts=[3, 2, 1]))
    assert (log.times.tolist(), log.user_ids.tolist()) == ([1, 2, 3], [5, 3])
    with pytest.warns(UserWarning, match="1 of 3 interactions left out: 1 × missing user"):
        assert len(load_stream(stream(tmp_path / "s.parquet", user=[1, None, 2]))) == 2


def test_what_is_no_stream(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no stream .*melon data prepare"):
        load_stream(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="is a folder"):
        load_stream(tmp_path)
    (tmp_path / "empty.parquet").touch()
    with pytest.raises(DataError, match="is empty"):
        load_stream(tmp_path / "empty.parquet")
    (tmp_path / "raw.csv").write_text("user,item,ts\n1,2,3\n")
    with pytest.raises(
        DataError, match=r"not a Parquet file; prepare it first: melon data prepare .*raw.csv --out raw.parquet"
    ):
        load_stream(tmp_path / "raw.csv")
    whole = stream(tmp_path / "s.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-30])
    with pytest.raises(DataError, match="damaged Parquet file"):
        load_stream(tmp_path / "cut.parquet")


def prepared(folder: Path, users: str) -> Path:
    folder.mkdir()
    rows = "".join(f"{user},i,{n}\n" for n, user in enumerate(users))
    (folder / "raw.csv").write_text("user,item,time\n" + rows)
    prepare(folder / "raw.csv", out=folder / "s.parquet", min_interactions=1)
    return folder / "s.parquet"


def test_side_cars_give_the_original_ids(tmp_path: Path) -> None:
    path = prepared(tmp_path / "a", "xyxz")
    assert load_stream(path).user_ids.tolist() == ["x", "y", "z"]
    for part in ("users", "items"):
        side_car(path, f"{part}.parquet").unlink()
    assert load_stream(path).user_ids.tolist() == [0, 1, 2]


def test_side_cars_of_another_stream(tmp_path: Path) -> None:
    one, other = prepared(tmp_path / "a", "xyz"), prepared(tmp_path / "b", "xyw")
    shutil.copy(side_car(other, "users.parquet"), side_car(one, "users.parquet"))
    with pytest.raises(DataError, match=r"does not belong.*written with another stream.*prepare the stream again"):
        load_stream(one)
    stream(side_car(one, "users.parquet"))
    with pytest.raises(DataError, match=r"does not belong.*not row and id"):
        load_stream(one)
    plain = stream(tmp_path / "plain.parquet")
    pl.DataFrame({"row": [0, 1, 2], "id": [7, 8, 9]}).write_parquet(side_car(plain, "users.parquet"))
    with pytest.raises(DataError, match="it has 3 ids, the stream 2 users"):
        load_stream(plain)


@pytest.mark.parametrize(
    ("name", "users", "items", "events"),
    [
        ("news_globo", 33_598, 4_761, 1_272_277),
        ("amazon_grocery", 1_342, 1_480, 33_326),
        ("yelp", 2_865, 4_216, 52_376),
    ],
)
def test_real_streams(name: str, users: int, items: int, events: int) -> None:
    path = DATA / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not here; point MELON_DATA at the folder with the real streams")
    log = load_stream(path)
    assert (log.n_users, log.n_items, len(log)) == (users, items, events)


def test_streams_with_other_ids_have_another_identity(tmp_path: Path) -> None:
    one, other = load_stream(prepared(tmp_path / "a", "xyz")), load_stream(prepared(tmp_path / "b", "xyw"))
    assert one.sha256 == other.sha256
    assert one.identity != other.identity
    assert one.identity == load_stream(tmp_path / "a" / "s.parquet").identity
    numbers = interactions_from([(1, "i", 0), (2, "i", 1), (3, "i", 2)])
    texts = interactions_from([("1", "i", 0), ("2", "i", 1), ("3", "i", 2)])
    assert numbers.sha256 == texts.sha256
    assert numbers.identity != texts.identity


def test_a_stream_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    write_stream(path, interactions_from([(1, 1, 1)]), {})
    assert pl.read_parquet_metadata(path)[VERSION_KEY] == VERSION
    pl.read_parquet(path).write_parquet(path, metadata={STAMP: "of an earlier melon"})
    with pytest.raises(DataError, match=r"version 1 .* reads version 2; prepare it again"):
        load_stream(path)
