"""What people see in a terminal and in a pipe: tables with odd names, plain lines."""

import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from melon.data.interactions import Interactions
from melon.evaluation.cell import Cell
from melon.evaluation.record import ResultLine
from melon.evaluation.table import metric_table
from melon.fitting.config import CellConfig
from melon.lab.terminal import show_result, show_table
from melon.progress import LineProgress, model_progress

Record = dict[str, Any]


@pytest.fixture(scope="module")
def record(flips: Interactions, small: Callable[..., CellConfig]) -> Record:
    return Cell(flips, small(strategy="eals")).run("odd [/bold] <name>.parquet").record


def test_the_terminal_shows_the_same(
    record: Record, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    show_result(record)
    shown = capsys.readouterr().out
    assert "odd [/bold] <name>.parquet" in shown
    for name in ("frozen (no update)", "recent popularity", "default steps (tuned)", "eALS"):
        # By lists in two tracks, then sampled with and without repeats.
        assert len(re.findall(rf"^{re.escape(name)} ", shown, re.MULTILINE)) == 4
    assert shown.startswith("In lists of the whole catalogue, eALS has NDCG@10 ")
    assert shown.index("all events") < shown.index("first-time pairs") < shown.index("the paper's protocol")
    assert "chosen for eals: " in shown
    assert "250 interactions evaluated, 0 left out" in shown


def test_a_table_marks_the_best_and_shows_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("t", [ResultLine(name, name, {"HR@5": value}, ()) for name, value in (("one", 0.25), ("two", 0.5))])
    shown = capsys.readouterr().out
    assert ".250" in shown
    assert "–" in shown
    table = metric_table([(name, name, {"HR@5": value}) for name, value in (("one", 0.25), ("two", 0.5))], ["HR@5"])
    assert table.text(bold=True).splitlines()[1:] == ["one    .250", "two \x1b[1m   .500\x1b[0m"]


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str], record: Record) -> None:
    assert isinstance(model_progress(), LineProgress)
    with LineProgress() as progress:
        progress.stage("doing [this]")
        progress.note("a note")
        progress.tick("too soon to be told")
        progress.batch(10, 10, 0.25)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["doing [this]", "  a note"]
    assert re.fullmatch(r"  10 of 10  [\d,]+/s  HR@5 0\.250", lines[2])
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_what_passes_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", screen)
    with LineProgress() as progress:
        progress.stage("streaming [/odd]")
        progress.share(1, 4)
        progress.note("a note with [/brackets]")
        progress.batch(10, 10, 0.25)
        progress.notice("this stays")
    *passing, last = screen.getvalue().split("\r\x1b[K")
    assert passing[1] == "streaming [/odd]"
    assert passing[2].startswith("streaming [/odd]  a note with [/brackets] (1 of 4, ")
    assert passing[3].endswith("HR@5 0.250")
    assert passing[4] == "this stays\n"
    assert not last  # nothing is left on the line


@pytest.mark.parametrize("candidates", ["catalogue", "known"])
def test_a_result_without_ranks_says_why(record: Record, capsys: pytest.CaptureFixture[str], candidates: str) -> None:
    empty = {**record, "metrics": {}, "interactions_evaluated": 0, "left_out": 250}
    show_result({**empty, "protocol": {**record["protocol"], "candidates": candidates}})
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"nothing could be ranked: beside each interaction there were fewer than {record['protocol']['negatives']}"
        in shown
    )
    assert ("or its item was new" in shown) == (candidates == "known")
    assert "--negatives" in shown
