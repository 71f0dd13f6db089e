"""`melon log import` of tables and of Gorse's export."""

import datetime
import json
import sqlite3
from pathlib import Path

import polars as pl
import pytest

from commands import Run
from melon.service.log.events import LogReader

ROWS = {
    "User ID": ["ann", "bob", "ann"],
    "sku": ["i1", "i2", "i3"],
    "when": [1_767_225_600, 1_767_225_601, 1_767_225_602],
    "action": ["view", "buy", "dislike"],
}


def stored(folder: Path) -> list[tuple[object, ...]]:
    with LogReader(folder) as log:
        return [(one.user, one.item, one.time, one.type, one.use, one.event_id) for one in log.events(1, 1 << 40)]


def written(frame: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix == ".ndjson":
        frame.write_ndjson(path)
    else:
        frame.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".parquet"])
def test_a_table_is_imported_once(run: Run, tmp_path: Path, kind: str) -> None:
    source, live = written(pl.DataFrame(ROWS), tmp_path / f"clicks{kind}"), tmp_path / "live"
    words = ("log", "import", live, source, "--column", "time=when")
    assert "3 events appended up to offset 3, 0 were known" in run(*words).out
    uses = ["learn", "learn", "hide"]
    expected = [
        (user, item, time, action, use, f"clicks{kind}/{row}")
        for row, (user, item, time, action, use) in enumerate(zip(*ROWS.values(), uses, strict=True), 1)
    ]
    assert stored(live) == expected
    assert "0 events appended up to offset 3, 3 were known" in run(*words).out
    written(pl.concat([pl.DataFrame(ROWS), pl.DataFrame(ROWS).head(1)]), source)  # a file that has grown
    assert "1 events appended up to offset 4, 3 were known" in run(*words).out


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([datetime.datetime(2026, 1, 1)], ()),
        ([datetime.date(2026, 1, 1)], ()),
        (["2026-01-01T00:00:00Z"], ()),
        (["2026-01-01T01:00:00+01:00"], ()),
        ([1_767_225_600.75], ()),
        (["1767225600"], ()),
        ([1_767_225_600_123], ("--time-unit", "ms")),
    ],
)
def test_times_as_they_come(run: Run, tmp_path: Path, times: list[object], words: tuple[str, ...]) -> None:
    source = written(pl.DataFrame({"user": [1], "item": [2], "time": times}), tmp_path / "one.parquet")
    run("log", "import", tmp_path / "live", source, *words)
    assert stored(tmp_path / "live") == [(1, 2, 1_767_225_600, "view", "learn", "one.parquet/1")]


def test_ids_are_of_the_kind_that_the_log_has(run: Run, tmp_path: Path) -> None:
    numbers = written(pl.DataFrame({"user": [1], "item": [2]}), tmp_path / "numbers.parquet")
    texts = written(pl.DataFrame({"user": ["3"], "item": ["4"]}), tmp_path / "texts.csv")
    run("log", "import", tmp_path / "a", numbers)
    run("log", "import", tmp_path / "a", texts)
    assert [one[:2] for one in stored(tmp_path / "a")] == [(1, 2), (3, 4)]
    run("log", "import", tmp_path / "b", texts)
    run("log", "import", tmp_path / "b", numbers)
    assert [one[:2] for one in stored(tmp_path / "b")] == [("3", "4"), ("1", "2")]


@pytest.mark.parametrize(
    ("rows", "words", "problem"),
    [
        ({"user": ["a"], "thing": ["b"]}, (), "no column looks like the item; columns there: user, thing"),
        ({"user": ["a"], "item": ["b"]}, ("--column", "time=when"), "no column 'when' for the time"),
        ({"user": ["a", ""], "item": ["b", "c"]}, (), "user of row 2, '', is not a valid id"),
        ({"user": ["a", None], "item": ["b", "c"]}, (), "user of row 2, None, is not a valid id"),
        ({"user": ["a"], "item": ["b\x07"]}, (), "item of row 1"),
        ({"user": ["a"], "item": ["b" * 300]}, (), "item of row 1"),
        ({"user": ["a"], "item": ["b"], "type": ["stare"]}, (), "type 'stare' is none of those"),
        ({"user": ["a"], "item": ["b"], "time": [1_767_225_600_000]}, (), "give --time-unit ms"),
        ({"user": ["a"], "item": ["b"], "time": ["soon"]}, (), "the time of row 1"),
        ({"user": ["a"], "item": ["b"]}, ("--column", "colour=user"), "is not ROLE=NAME"),
        ({"user": ["a"], "item": ["b"]}, ("--time-unit", "h"), "must be s, ms, us or ns"),
    ],
)
def test_what_cannot_be_read_is_named(
    run: Run, tmp_path: Path, rows: dict[str, list[object]], words: tuple[str, ...], problem: str
) -> None:
    done = run("log", "import", tmp_path / "live", written(pl.DataFrame(rows), tmp_path / "bad.parquet"), *words)
    assert done.code != 0
    assert problem in " ".join(done.err.split())


def test_lines_without_ids_get_their_place(run: Run, tmp_path: Path) -> None:
    source = written(pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"]}), tmp_path / "lines.ndjson")
    for count in (2, 0):
        assert f"{count} events appended" in run("log", "import", tmp_path / "live", source, "--name", "shop").out
    assert [one[5] for one in stored(tmp_path / "live")] == ["shop/1", "shop/2"]


def test_an_export_of_gorse(run: Run, tmp_path: Path) -> None:
    files = {
        "feedback": [
            {"FeedbackType": "watch", "UserId": "u", "ItemId": "i", "Value": 1, "Timestamp": "2026-01-01T00:00:00Z"},
            {"FeedbackType": "read", "UserId": "u", "ItemId": "j", "Value": 1, "Timestamp": "2026-01-01T00:00:01Z"},
        ],
        "items": [{"ItemId": "i", "Categories": ["a"], "Labels": {"n": 1}, "IsHidden": False, "Comment": "c"}],
        "users": [{"UserId": "u", "Labels": ["x"], "Comment": ""}],
    }
    live = tmp_path / "live"
    for name, lines in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = ("log", "import", live, tmp_path / "feedback.jsonl", "--learn", "watch", "--hide", "read")
    assert "2 events appended" in run(*words).out
    assert "0 events appended" in run(*words).out
    assert stored(live)[0] == ("u", "i", 1_767_225_600, "watch", "learn", "gorse/watch/u/i/1767225600")
    assert "1 items stored" in run("log", "import", live, tmp_path / "items.jsonl").out
    assert "1 users stored" in run("log", "import", live, tmp_path / "users.jsonl").out
    with LogReader(live) as log:
        assert log.profile("user", "u") == {"Labels": ["x"], "Comment": ""}
        ((item, _, facts),) = log.facts()
        assert (item, facts and facts["categories"], facts and facts["attributes"]) == ("i", ["a"], {"n": 1})


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """The address of a SQLite file with a table of orders."""
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE orders(id INTEGER PRIMARY KEY, customer TEXT, sku TEXT, at TEXT, note TEXT)")
        rows = [("ann", "i1", "2026-01-01 00:00:00"), ("bob", "i2", "2026-01-01 00:00:01")]
        connection.executemany("INSERT INTO orders(customer, sku, at) VALUES (?, ?, ?)", rows)
    connection.close()
    return f"sqlite:///{tmp_path}/shop.db"


SELECT = "SELECT 'orders/' || id AS event_id, customer AS user, sku AS item, at AS time, 'buy' AS type FROM orders"


def test_a_query_is_imported_once(run: Run, tmp_path: Path, orders: str) -> None:
    live = tmp_path / "live"
    words = ("log", "import", live, orders, "--query", SELECT)
    assert "2 events appended up to offset 2, 0 were known" in run(*words).out
    assert stored(live) == [
        ("ann", "i1", 1_767_225_600, "buy", "learn", "orders/1"),
        ("bob", "i2", 1_767_225_601, "buy", "learn", "orders/2"),
    ]
    assert "0 events appended up to offset 2, 2 were known" in run(*words, "--name", "again").out


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT customer AS user, sku AS item FROM orders", "has no column with ids of events; columns there: "),
        ("SELECT id AS event_id, customer AS who, sku FROM orders", "no column looks like the user; columns there"),
        (SELECT.replace("'orders/' || id", "note"), "row 1 has no event_id"),
        (SELECT.replace("customer AS", "note AS"), "of row 1, None, is not a valid id"),
        ("SELECT * FROM ordres", "no such table: ordres"),
        ("DELETE FROM orders RETURNING id AS event_id, customer AS user, sku AS item", "attempt to write a readonly"),
        (None, 'give the query: --query "SELECT'),
    ],
)  # fmt: skip
def test_a_query_that_gives_no_events_is_refused(
    run: Run, tmp_path: Path, orders: str, query: str | None, message: str
) -> None:
    assert message in run("log", "import", tmp_path / "live", orders, *(("--query", query) if query else ())).said


def test_other_databases_and_missing_files_have_a_way_out(run: Run, tmp_path: Path) -> None:
    live, asked = tmp_path / "live", ("--query", "SELECT 1")
    assert "mysql:// is not a source; give a file" in run("log", "import", live, "mysql://x/y", *asked).said
    assert "there is no none.db; a relative path" in run("log", "import", live, "sqlite:///none.db", *asked).said
    assert "--query is for databases, and x.csv is a file" in run("log", "import", live, "x.csv", *asked).said
