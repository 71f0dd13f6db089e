"""Tables and the page: everything is there, nothing is fetched, and odd names do no harm."""

import copy
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from melon.atomic import require_writable, write_text
from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.files import write_result
from melon.data.interactions import Interactions
from melon.errors import DataError, MissingExtraError
from melon.report.page import curve, page
from melon.terminal.progress import BarListener, LineListener, listener
from melon.terminal.tables import COLUMNS, result_rows, show_result, show_table

Record = dict[str, Any]


@pytest.fixture(scope="module")
def record(flips: Interactions, small: Callable[..., CellConfig]) -> Record:
    return Cell(flips, small(strategy="eals", full_ranking=True)).run("odd [/bold] <name>.parquet").record


@pytest.fixture(scope="module")
def html(record: Record) -> str:
    return page("a <b>bold</b> title & more", "lead with <script>", [record])


def test_the_page_has_table_curve_and_choices(html: str, record: Record) -> None:
    assert html.startswith("<!doctype html>")
    assert html.count("<svg") == html.count("</svg>") == 1
    for name in ("frozen (no update)", "popularity", "recent popularity", "default (tuned)", "eals"):
        assert f"<td>{name}</td>" in html
    for column in COLUMNS:
        assert f"<th>{column}</th>" in html
    assert f"{record['metrics']['HR@5']:.3f}" in html
    assert "w_new = " in html
    assert "250 evaluated" in html


def test_the_page_fetches_nothing(html: str) -> None:
    assert "<script" not in html
    assert "<link" not in html
    assert "@import" not in html
    assert "<img" not in html
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)"', html))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    # Addresses are names of XML vocabularies and nothing else.
    assert set(re.findall(r'(\S+?)="https?://', html)) <= {
        "xmlns",
        "xmlns:xlink",
        "xmlns:cc",
        "xmlns:dc",
        "xmlns:rdf",
    } | {"rdf:resource"}


def test_the_page_escapes(html: str) -> None:
    assert "<b>" not in html
    assert "a &lt;b&gt;bold&lt;/b&gt; title &amp; more" in html
    assert "lead with &lt;script&gt;" in html


def test_the_same_result_is_the_same_page(html: str, record: Record) -> None:
    assert page("a <b>bold</b> title & more", "lead with <script>", [copy.deepcopy(record)]) == html


def test_batches_without_a_rank_leave_a_gap(record: Record) -> None:
    holed = copy.deepcopy(record)
    for line in holed["baseline_batches"].values():
        line[0] = None
    holed["batches"][0]["HR@5"] = None
    holed["warm"] = holed["without_repeats"] = {}
    assert "<svg" in page("t", "l", [holed])


def test_results_of_several_strategies_share_one_page(
    record: Record, flips: Interactions, small: Callable[..., CellConfig]
) -> None:
    default = Cell(flips, small(full_ranking=True)).run().record
    both = page("t", "l", [default, record])
    assert both.count("<td>eals</td>") == 2  # in the table, and among what was chosen
    assert both.count("<td>default (tuned)</td>") == 1


def test_without_matplotlib_one_line_says_what_to_install(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'melon-recommender\[plots\]'"):
        curve([record])


def test_the_terminal_shows_the_same(
    record: Record, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    show_result(record)
    shown = capsys.readouterr().out
    assert "odd [/bold] <name>.parquet" in shown
    for name in ("frozen (no update)", "recent popularity", "default (tuned)", "eals"):
        assert shown.count(f" {name} ") == 3  # with and without repeats, and in the full ranking
    assert "chosen for eals: " in shown
    assert "250 interactions evaluated, 0 set aside" in shown


def test_rows_of_a_result(record: Record) -> None:
    names = [name for name, _ in result_rows(record)]
    mixed = [f"{what} + popularity" for what in ("transitions", "item-kNN", "frozen")]
    assert names == ["frozen (no update)", "popularity", "recent popularity", *mixed, "default (tuned)", "eals"]
    assert dict(result_rows(record, "full_ranking"))["eals"] == record["full_ranking"]
    tuned = {**record, "strategy": "default"}
    assert [name for name, _ in result_rows(tuned)] == names[:-1]
    assert [name for name, _ in result_rows({**tuned, "pretrain": "own"})] == [*names[:-1], "default"]


def test_a_table_marks_the_best_and_shows_what_is_missing() -> None:
    out = io.StringIO()
    show_table(Console(file=out, width=100), "t", [("one", {"HR@5": 0.25}), ("two", {"HR@5": 0.5})])
    assert "0.250" in out.getvalue()
    assert "–" in out.getvalue()


def test_results_are_written_whole_or_not_at_all(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = {"event": np.arange(3), "rank": np.array([1.0, 2.5, 3.0])}
    target = tmp_path / "new" / "r.json"
    written = write_result(record, ranks, target)
    assert written["ranks"] == "r.ranks.parquet"
    assert pl.read_parquet(target.parent / written["ranks"])["rank"].to_list() == [1.0, 2.5, 3.0]
    before = target.read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DataError, match=r"r.json cannot be written: No space left on device"):
        write_text(target, "half")
    assert target.read_text() == before
    assert sorted(path.name for path in target.parent.iterdir()) == ["r.json", "r.ranks.parquet"]


def test_where_nothing_can_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "r.json", tmp_path):
        with pytest.raises(DataError, match="cannot be written"):
            require_writable(path)
    require_writable(tmp_path / "new" / "r.json")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str], record: Record) -> None:
    assert isinstance(listener(), LineListener)
    with LineListener() as told:
        told.stage("doing [this]")
        told.note("a note")
        told.tick("too soon to be told")
        told.point(None, 10, 10, 0.25)  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["doing [this]", "  a note"]
    assert re.fullmatch(r"  10 of 10  [\d,]+/s  HR@5 0\.250", lines[2])
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_bar() -> None:
    told = BarListener()
    out = io.StringIO()
    told._progress.live.console = Console(file=out, force_terminal=True, width=120)
    with told:
        told.stage("streaming [/odd]")
        told.note("a note with [/brackets]")
        told.tick("a tick")
        told.point(None, 5, 10, 0.25)  # type: ignore[arg-type]
        told._progress.refresh()
    assert "streaming [/odd]" in out.getvalue()
    assert "HR@5 0.250" in out.getvalue()


@pytest.mark.parametrize("candidates", ["catalogue", "born"])
def test_a_result_without_ranks_says_why(record: Record, capsys: pytest.CaptureFixture[str], candidates: str) -> None:
    empty = {**record, "metrics": {}, "interactions_evaluated": 0, "set_aside": 250}
    show_result({**empty, "protocol": {**record["protocol"], "candidates": candidates}})
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"nothing could be ranked: beside each interaction there were fewer than {record['protocol']['negatives']}"
        in shown
    )
    assert ("or its item was new" in shown) == (candidates == "born")
    assert "--negatives" in shown
