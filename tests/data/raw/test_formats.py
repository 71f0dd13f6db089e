"""Every raw format is recognised and read the same, plain, gzipped and zipped."""

import gzip
import os
import zipfile
from pathlib import Path

import polars as pl
import pytest

from melon.data.files import load_stream
from melon.data.prepare import prepare
from melon.data.raw.formats import FORMATS, Sample, guess_format
from melon.errors import DataError, SettingsError

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))

# The same three interactions in every format: (7, 11) at 1500000000, (7, 12) one second later, (8, 11) one more.
EVENTS = [(7, 11, 1_500_000_000), (7, 12, 1_500_000_001), (8, 11, 1_500_000_002)]
USER = {7: "A0000000000007", 8: "A0000000000008"}
ASIN = {11: "B000000011", 12: "B000000012"}
MOMENT = {
    1_500_000_000: "2017-07-14 02:40:00",
    1_500_000_001: "2017-07-14 02:40:01",
    1_500_000_002: "2017-07-14 02:40:02",
}


def lines(template: str, header: str = "") -> str:
    rows = [template.format(u=u, i=i, t=t, ms=t * 1000, U=USER[u], A=ASIN[i], d=MOMENT[t]) for u, i, t in EVENTS]
    return "".join(row + "\n" for row in ([header] if header else []) + rows)


RAW = {
    "csv": ("clicks.csv", lines("{t},x,{u},{i}", "when,what,who,product")),
    "tsv": ("clicks.tsv", lines("{u}\t{i}\t{t}", "user\titem\tts")),
    "jsonl": ("clicks.jsonl", lines('{{"user": {u}, "item": {i}, "time": "{d}"}}')),
    "recbole": (
        "ml.inter",
        lines("{u}\t{i}\t4.0\t{t}.0", "user_id:token\titem_id:token\trating:float\ttimestamp:float"),
    ),
    "rechorus": ("dev.csv", lines("{u}\t{i}\t{t}\t[1, 2]", "user_id\titem_id\ttime\tneg_items")),
    "rechorus, commas": ("dev.csv", lines("{u},{i},{t}", "user_id,item_id,time")),
    "movielens": ("ratings.dat", lines("{u}::{i}::4::{t}")),
    "movielens, tabs": ("u.data", lines("{u}\t{i}\t4\t{t}")),
    "movielens, commas": ("ratings.csv", lines("{u},{i},4.5,{t}", "userId,movieId,rating,timestamp")),
    "amazon": ("Grocery.csv", lines("{A},{U},5.0,{t}")),
    "amazon, 2014": ("ratings_Grocery.csv", lines("{U},{A},5.0,{t}")),
    "amazon, reviews": (
        "reviews.json",
        lines('{{"reviewerID": "{U}", "asin": "{A}", "overall": 5.0, "unixReviewTime": {t}, "text": "a, \\"b\\""}}'),
    ),
    "yelp": ("review.json", lines('{{"user_id": "{U}", "business_id": "{A}", "stars": 4, "date": "{d}"}}')),
    "adressa": ("20170101", lines('{{"eventId": 1, "userId": "{U}", "id": "{A}", "time": {t}, "activeTime": 9}}')),
    "globo": (
        "clicks_hour_000.csv",
        lines("{u},1,{ms},2,{i},{ms},4", "user_id,session_id,session_start,size,click_article_id,click_timestamp,env"),
    ),
}
CSV_NAMES = {"user": "who", "item": "product", "time": "when"}


def compressed(path: Path, way: str) -> Path:
    if way == "gzip":
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
    elif way == "zip":
        packed = path.with_name(path.name + ".zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, f"folder/{path.name}")
            archive.writestr("__MACOSX/._shadow", "not data")
    else:
        return path
    return packed


@pytest.mark.parametrize("way", ["plain", "gzip", "zip"])
@pytest.mark.parametrize("guessed", [True, False], ids=["guessed", "said"])
@pytest.mark.parametrize("name", RAW)
def test_format(name: str, guessed: bool, way: str, tmp_path: Path) -> None:
    form = name.partition(",")[0]
    file, text = RAW[name]
    raw = tmp_path / file
    raw.write_text(text, encoding="utf-8")
    report = prepare(
        compressed(raw, way),
        out=tmp_path / "stream.parquet",
        format=None if guessed else form,
        min_interactions=1,
        **(CSV_NAMES if form == "csv" else {}),
    )
    assert report.format == form
    assert not report.bad
    assert any(f"read as {form}" in note for note in report.notes) == guessed
    log = load_stream(tmp_path / "stream.parquet")
    users, items = (USER, ASIN) if form in {"amazon", "yelp", "adressa"} else ({7: 7, 8: 8}, {11: 11, 12: 12})
    assert log.user_ids[log.users].tolist() == [users[u] for u, _, _ in EVENTS]
    assert log.item_ids[log.items].tolist() == [items[i] for _, i, _ in EVENTS]
    assert log.times.tolist() == [t for _, _, t in EVENTS]


@pytest.mark.parametrize("texts", [False, True])
def test_parquet_keeps_its_types(texts: bool, tmp_path: Path) -> None:
    users = ["7", "7", "8"] if texts else [7, 7, 8]
    frame = pl.DataFrame({"uid": users, "movieId": [11, 12, 11], "ts": [t for _, _, t in EVENTS]})
    frame = frame.with_columns(pl.from_epoch("ts", "s"))
    frame.write_parquet(tmp_path / "raw.parquet")
    report = prepare(tmp_path / "raw.parquet", out=tmp_path / "s.parquet", min_interactions=1)
    assert report.format == "parquet"
    log = load_stream(tmp_path / "s.parquet")
    assert log.user_ids.tolist() == (["7", "8"] if texts else [7, 8])
    assert log.times.tolist() == [t for _, _, t in EVENTS]


def test_every_format_has_a_test_and_a_description() -> None:
    assert {name.partition(",")[0] for name in RAW} | {"parquet"} == set(FORMATS)
    assert all(each.description and each.columns for each in FORMATS.values())


def test_unknown_format_lists_the_choices(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'movielens'.*Choose one of: adressa"):
        prepare(tmp_path / "any", out=tmp_path / "s.parquet", format="movielense")


def test_wrong_format_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,time\n1,2,3\n")
    with pytest.raises(DataError, match=r"does not look like yelp.*user_id, business_id, date.*'user,item,time'"):
        prepare(tmp_path / "a.csv", out=tmp_path / "s.parquet", format="yelp")
    with pytest.raises(DataError, match="not a Parquet file"):
        prepare(tmp_path / "a.csv", out=tmp_path / "s.parquet", format="parquet")


def test_a_format_that_cannot_be_told() -> None:
    with pytest.raises(DataError, match=r"cannot tell the format of notes.txt.*--format, one of: csv, tsv"):
        guess_format(Sample("notes.txt", ["hello world"]))


def test_amazon_order_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(RAW["amazon, 2014"][1])
    report = prepare(tmp_path / "a.csv", out=tmp_path / "s.parquet", min_interactions=1)
    assert any("2014" in note for note in report.notes)


@pytest.mark.parametrize(
    ("file", "form", "unit"), [("globo_clicks.csv", "globo", "ms"), ("rechorus_grocery.csv", "rechorus", "s")]
)
def test_real_samples(file: str, form: str, unit: str, tmp_path: Path) -> None:
    raw = DATA / "samples" / file
    if not raw.exists():
        pytest.skip(f"{raw} is not here; point MELON_DATA at the folder with the real streams")
    report = prepare(raw, out=tmp_path / "s.parquet", min_interactions=1)
    assert (report.format, report.time_unit, report.bad) == (form, unit, ())
    log = load_stream(tmp_path / "s.parquet")
    assert len(log) == len(raw.read_text().splitlines()) - 1
    names = {"globo": ("user_id", "click_article_id", "click_timestamp"), "rechorus": ("user_id", "item_id", "time")}
    user, item, time = names[form]
    expected = pl.read_csv(raw).sort(time, maintain_order=True)
    assert log.user_ids[log.users].tolist() == expected[user].to_list()
    assert log.item_ids[log.items].tolist() == expected[item].to_list()
    assert log.times.tolist() == (expected[time] // (1000 if unit == "ms" else 1)).to_list()
