"""What people have at hand is read the same: CSV of any make, JSON lines, Parquet; plain, gzipped and zipped."""

import gzip
import os
import zipfile
from pathlib import Path

import polars as pl
import pytest

from melon.data.files import load_stream
from melon.data.prepare import prepare
from melon.errors import DataError, SettingsError

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))

# The same three interactions in every file: (7, 11) at 1500000000, (7, 12) one second later, (8, 11) one more.
EVENTS = [(7, 11, 1_500_000_000), (7, 12, 1_500_000_001), (8, 11, 1_500_000_002)]


def lines(template: str, header: str = "") -> str:
    rows = [template.format(u=u, i=i, t=t, ms=t * 1000, s=t - 1_500_000_000) for u, i, t in EVENTS]
    return "".join(row + "\n" for row in ([header] if header else []) + rows)


#: Published data: its lines, and what has to be said of them.
RAW: dict[str, tuple[str, dict[str, str]]] = {
    "named columns": (
        lines("{t},x,{u},{i}", "when,what,who,product"),
        {"user": "who", "item": "product", "time": "when"},
    ),
    "RecBole": (lines("{u}\t{i}\t4.0\t{t}.0", "user_id:token\titem_id:token\trating:float\ttimestamp:float"), {}),
    "ReChorus": (lines("{u}\t{i}\t{t}\t[1, 2]", "user_id\titem_id\ttime\tneg_items"), {}),
    "MovieLens ratings.dat": (lines("{u}::{i}::4::{t}"), {"format": "movielens"}),
    "MovieLens u.data": (lines("{u}\t{i}\t4\t{t}"), {"user": "1", "item": "2", "time": "4"}),
    "MovieLens ratings.csv": (lines("{u},{i},4.5,{t}", "userId,movieId,rating,timestamp"), {"format": "movielens"}),
    "Amazon 2018": (lines("{i},{u},5.0,{t}"), {"format": "amazon"}),
    "Amazon 2014": (lines("{u},{i},5.0,{t}"), {"format": "amazon-2014"}),
    "Amazon reviews": (
        lines('{{"reviewerID": {u}, "asin": {i}, "unixReviewTime": {t}, "reviewTime": "", "text": "a, \\"b\\""}}'),
        {"format": "amazon"},
    ),
    "Yelp": (lines('{{"user_id": {u}, "business_id": {i}, "stars": 4, "date": "2017-07-14 02:40:0{s}"}}'), {}),
    "Adressa": (
        lines('{{"eventId": 1, "userId": {u}, "id": {i}, "time": {t}, "activeTime": 9}}'),
        {"format": "adressa"},
    ),
    "Globo": (lines("{u},1,{ms},{i},{ms}", "user_id,session_id,session_start,click_article_id,click_timestamp"), {}),
}


def check(raw: Path, options: dict[str, str]) -> None:
    report = prepare(raw, out=raw.parent / "stream.parquet", **options)  # type: ignore[arg-type]
    assert not report.bad
    log = load_stream(raw.parent / "stream.parquet")
    users, items = log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist()
    assert list(zip(users, items, log.times.tolist(), strict=True)) == EVENTS


@pytest.mark.parametrize("name", RAW)
def test_published_data(name: str, tmp_path: Path) -> None:
    text, options = RAW[name]
    (tmp_path / "raw").write_text(text)
    check(tmp_path / "raw", options)


def test_packed_files_are_read_as_they_are(tmp_path: Path) -> None:
    text, options = RAW["named columns"]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    check(tmp_path / "a.csv.gz", options)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/a.csv", text)
        archive.writestr("__MACOSX/._shadow", "not data")
    check(tmp_path / "a.zip", options)


@pytest.mark.parametrize("texts", [False, True])
def test_parquet_keeps_its_types(texts: bool, tmp_path: Path) -> None:
    users = ["7", "7", "8"] if texts else [7, 7, 8]
    frame = pl.DataFrame({"uid": users, "movieId": [11, 12, 11], "ts": [t for _, _, t in EVENTS]})
    frame = frame.with_columns(pl.from_epoch("ts", "s"))
    frame.write_parquet(tmp_path / "raw.parquet")
    report = prepare(tmp_path / "raw.parquet", out=tmp_path / "s.parquet")
    assert report.format == "parquet"
    log = load_stream(tmp_path / "s.parquet")
    assert log.user_ids.tolist() == (["7", "8"] if texts else [7, 8])
    assert log.times.tolist() == [t for _, _, t in EVENTS]


def test_an_unknown_format_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown format 'amazn'. Did you mean 'amazon'\?"):
        prepare(tmp_path / "raw", out=tmp_path / "s.parquet", format="amazn")


def test_a_file_without_fields_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello world\n")
    with pytest.raises(DataError, match=r"cannot find the separator of .*notes.txt.*'hello world'.*--separator"):
        prepare(tmp_path / "notes.txt", out=tmp_path / "s.parquet")


@pytest.mark.parametrize(
    ("file", "columns", "unit"),
    [
        ("globo_clicks.csv", ("user_id", "click_article_id", "click_timestamp"), "ms"),
        ("rechorus_grocery.csv", ("user_id", "item_id", "time"), "s"),
    ],
)
def test_real_samples(file: str, columns: tuple[str, str, str], unit: str, tmp_path: Path) -> None:
    raw = DATA / "samples" / file
    if not raw.exists():
        pytest.skip(f"{raw} is not here; point MELON_DATA at the folder with the real streams")
    report = prepare(raw, out=tmp_path / "s.parquet")
    assert (report.time_unit, report.bad) == (unit, ())
    log = load_stream(tmp_path / "s.parquet")
    user, item, time = columns
    expected = pl.read_csv(raw).sort(time, maintain_order=True)
    assert log.user_ids[log.users].tolist() == expected[user].to_list()
    assert log.item_ids[log.items].tolist() == expected[item].to_list()
    assert log.times.tolist() == (expected[time] // (1000 if unit == "ms" else 1)).to_list()
