"""Preparation: what is kept, in which order, under which ids, and that a failure leaves nothing half done."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import melon
from melon.data import files
from melon.data.files import load_stream
from melon.data.prepare import prepare
from melon.errors import DataError, SettingsError

Event = tuple[Any, Any, int]

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
whole = st.integers(-(2**63), 2**63 - 1)
moments = st.integers(0, 9_999_999_999)


def logs(ids: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Event]]:
    few = st.lists(ids, min_size=1, max_size=5, unique=True)
    return st.tuples(few, few).flatmap(
        lambda pools: st.lists(
            st.tuples(st.sampled_from(pools[0]), st.sampled_from(pools[1]), st.one_of(st.integers(0, 3), moments)),
            min_size=1,
            max_size=30,
        )
    )


def as_csv(events: list[Event]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("user", "item", "time"))
    writer.writerows(events)
    return out.getvalue()


def loaded(path: Path) -> list[Event]:
    log = load_stream(path)
    return list(
        zip(log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist(), log.times.tolist(), strict=True)
    )


def in_time(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event[2])  # stable, as Python's sort is


@given(events=logs(whole))
@settings(max_examples=40)
def test_round_trip_of_integers_through_csv(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("round")
    (folder / "raw.csv").write_text(as_csv(events))
    report = prepare(folder / "raw.csv", out=folder / "s.parquet", min_interactions=1, strict=True, time_unit="s")
    assert loaded(folder / "s.parquet") == in_time(events)
    assert report.interactions == len(events)


def canonical(ids: list[str]) -> bool:
    return all(each.lstrip("-").isascii() and each.lstrip("-").isdigit() and str(int(each)) == each for each in ids)


@given(
    events=logs(st.one_of(texts, st.sampled_from(['"', '""', 'a"b', ",", "07", "7", "+7", "-0", " 7", "a\nb", "::"])))
)
@settings(max_examples=30)
def test_round_trip_of_texts_through_csv(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("round")
    (folder / "raw.csv").write_text(as_csv(events), encoding="utf-8", newline="")
    out = folder / "s.parquet"
    prepare(folder / "raw.csv", separator=",", missing=(), out=out, min_interactions=1, strict=True, time_unit="s")
    numbers = [canonical([event[role] for event in events]) for role in (0, 1)]
    expected = [
        (int(user) if numbers[0] else user, int(item) if numbers[1] else item, time)
        for user, item, time in in_time(events)
    ]
    assert loaded(out) == expected


@given(events=logs(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)))
@settings(max_examples=40)
def test_round_trip_of_any_text_through_parquet(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("round")
    pl.DataFrame(events, schema=["user", "item", "time"], orient="row").write_parquet(folder / "raw.parquet")
    prepare(folder / "raw.parquet", out=folder / "s.parquet", min_interactions=1, strict=True, time_unit="s")
    assert loaded(folder / "s.parquet") == in_time(events)


@given(events=logs(texts))
@settings(max_examples=25)
def test_round_trip_through_json(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("round")
    rows = [json.dumps({"user": f"u{user}", "item": f"i{item}", "time": time}) for user, item, time in events]
    (folder / "raw.jsonl").write_text("\n".join(rows), encoding="utf-8")
    prepare(folder / "raw.jsonl", out=folder / "s.parquet", min_interactions=1, strict=True, time_unit="s")
    assert loaded(folder / "s.parquet") == [(f"u{user}", f"i{item}", time) for user, item, time in in_time(events)]


def write_log(path: Path, users: list[int], items: list[int]) -> None:
    rows = [f"{user},{item},{n}" for n, (user, item) in enumerate(zip(users, items, strict=True))]
    path.write_text("\n".join(["user,item,time", *rows]))


def test_users_and_items_are_dropped_by_counts_taken_once(tmp_path: Path) -> None:
    # Item 9 has two events, one of them by user 3, who has one only: item 9 stays, though one of its events goes.
    write_log(tmp_path / "raw.csv", [1, 1, 1, 2, 2, 3], [7, 8, 9, 7, 8, 9])
    once = prepare(tmp_path / "raw.csv", out=tmp_path / "once.parquet", min_interactions=2)
    assert (once.interactions, once.filtered) == (5, 1)


def test_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("user,item,time\nb,30,5\na,07,5\nb,8,1\n")
    report = prepare(tmp_path / "raw.csv", out=tmp_path / "deep" / "clicks.parquet", min_interactions=1)
    folder = tmp_path / "deep"
    assert sorted(path.name for path in folder.iterdir()) == [
        "clicks.items.parquet",
        "clicks.json",
        "clicks.parquet",
        "clicks.users.parquet",
    ]
    events = pl.read_parquet(folder / "clicks.parquet")
    assert events.schema == {"user": pl.Int32, "item": pl.Int32, "ts": pl.Int64}
    assert events.rows() == [(0, 0, 1), (0, 1, 5), (1, 2, 5)]
    assert pl.read_parquet(folder / "clicks.users.parquet").rows() == [(0, "b"), (1, "a")]
    assert pl.read_parquet(folder / "clicks.items.parquet").rows() == [(0, "8"), (1, "30"), (2, "07")]
    about = json.loads((folder / "clicks.json").read_text())
    assert about["format"] == "csv"
    assert about["version"] == report.version == melon.__version__
    assert about["sources"][0]["name"] == "raw.csv"
    assert len(about["sources"][0]["sha256"]) == 64
    assert (about["users"], about["items"], about["interactions"]) == (2, 3, 3)


def test_same_input_same_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_log(tmp_path / "raw.csv", rng.integers(50, size=2000).tolist(), rng.integers(50, size=2000).tolist())
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        prepare(tmp_path / "raw.csv", out=tmp_path / name / "s.parquet")
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "raw.csv", [1, 2], [1, 2])
    out = tmp_path / "out" / "s.parquet"
    prepare(tmp_path / "raw.csv", out=out, min_interactions=1)
    before = {path.name: path.read_bytes() for path in out.parent.iterdir()}

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    write_log(tmp_path / "raw.csv", [5, 6, 7], [5, 6, 7])
    with monkeypatch.context() as patch:
        patch.setattr(files.json, "dumps", full_disk)
        with pytest.raises(DataError, match=r"cannot be written.*No space left"):
            prepare(tmp_path / "raw.csv", out=out, min_interactions=1)
    assert {path.name: path.read_bytes() for path in out.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "is empty"),
        ("\n \n", {}, "is empty"),
        ("user,item,time\n", {}, "no line after the header"),
        ("user,item,time\n1,2,x\n", {}, "1 × unparsable time.*line 2"),
        ("user,item,time\n1,2,3\n", {"min_interactions": 2}, "--min-interactions"),
        ("who,item,time\n1,2,3\n", {}, "'who', 'item', 'time'.*--user"),
        ("user,item,time\n1,2,3\n", {"user": "usr"}, "'usr'.*'user', 'item', 'time'"),
        ("user,item,time\n1,2,3\n", {"item": "user"}, "three different columns"),
        ("user,user,item,time\n1,2,3,4\n", {"user": "user"}, "several columns named 'user'"),
        ("userId,user_id,item,time\n1,2,3,4\n", {}, "'userId', 'user_id'"),
        ("user,item,time\n1,2,3\n", {"min_interactions": 0}, "got 0"),
        ("user,item,time\n1,2,3\n", {"out": "s.csv"}, "must end in .parquet"),
    ],
)
def test_bad_input(text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text(text)
    given_ = {"out": "s.parquet", "min_interactions": 1} | options
    given_["out"] = tmp_path / given_["out"]
    with pytest.raises((DataError, SettingsError), match=message):
        prepare(tmp_path / "raw.csv", **given_)
    assert not list(tmp_path.glob("s.*"))


def test_places_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    with pytest.raises(DataError, match=r"there is no file .*nowhere.csv"):
        prepare(tmp_path / "nowhere.csv", out=out)
    with pytest.raises(DataError, match="is a folder"):
        prepare(tmp_path, out=out)
    with pytest.raises(DataError, match="no raw file was given"):
        prepare([], out=out)
    pl.DataFrame({"user": [1], "item": [1], "time": [1]}).write_parquet(out)
    with pytest.raises(DataError, match="is one of the raw files"):
        prepare(out, out=out, min_interactions=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(out, out=tmp_path / "file" / "t.parquet", min_interactions=1)


def test_column_types_that_cannot_be(tmp_path: Path) -> None:
    good = {"user": [1], "item": [1], "time": [1]}
    for name, value in (("user", [[1]]), ("item", [True]), ("time", [[1]])):
        pl.DataFrame(good | {name: value}).write_parquet(tmp_path / "raw.parquet")
        with pytest.raises(DataError, match=f"column {name!r}.* has type .*--{name}|column '{name}' has type"):
            prepare(tmp_path / "raw.parquet", out=tmp_path / "s.parquet", min_interactions=1)
