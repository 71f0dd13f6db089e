"""The demo: every strategy on an embedded synthetic stream, ending with a table and a page to open."""

from __future__ import annotations

from pathlib import Path

from melon.atomic import write_text
from melon.data.files import load_stream, write_stream
from melon.data.synthetic import SYNTHETIC, synthetic_stream
from melon.errors import SettingsError, require_plots, unknown_name
from melon.evaluation.cell import Cell
from melon.evaluation.record import result_lines, write_result
from melon.evaluation.work import Work
from melon.fitting.auto import AUTO, settle_auto
from melon.fitting.config import CellConfig
from melon.lab.page import html_page, result_document
from melon.lab.terminal import show_table
from melon.progress import model_progress, say
from melon.strategies.registry import ALL_STRATEGIES

_SPLIT = (0.7, 0.02, 0.28)
#: Settings tried for each strategy: fewer than an evaluation takes, so that all of them fit into a short demo.
_BUDGET = 4
_TITLE = "melon demo: a news site that changes all the time"


def write_synthetic(kind: str, out: Path, events: int | None, seed: int) -> Path:
    """Write a synthetic stream as a prepared one; its side-cars lead back to the ids of its world."""
    if out.suffix != ".parquet":
        raise SettingsError(f"--out must end in .parquet, got {str(out)!r}.")
    if kind not in SYNTHETIC:
        raise unknown_name("synthetic stream", kind, SYNTHETIC)
    log = synthetic_stream(kind, n_events=events, seed=seed)
    write_stream(out, log, {"synthetic": kind, "seed": seed, "answer": SYNTHETIC[kind].answer})
    return out


def run_demo(out: Path, events: int, seed: int) -> None:
    """Make the stream, evaluate the strategies on it, show the table, write the page and its picture."""
    require_plots("melon demo")
    stream = write_synthetic("news", out / "stream.parquet", events, seed)
    log = load_stream(stream)
    say(
        f"A made-up news site: {log.n_users:,} readers, {log.n_items:,} articles that appear, burst and decay, "
        f"{len(log):,} clicks. Each batch is first predicted, then learned."
    )
    records, work = [], Work()
    with model_progress() as progress:
        for strategy in ALL_STRATEGIES:
            config = CellConfig(strategy=strategy, split=_SPLIT, seed=seed, budget=_BUDGET)
            result = Cell(log, config, progress, work).run(str(stream))
            records.append(write_result(result.record, result.ranks, out / f"{strategy}.json"))
        config = CellConfig(**settle_auto({"split": _SPLIT, "seed": seed, "budget": _BUDGET}))
        result = Cell(log, config, progress).run(str(stream))
        records.append(write_result(result.record, result.ranks, out / f"{AUTO}.json"))
    document = result_document(records, _TITLE)
    (figure,) = document.figures()
    write_text(out / "demo.svg", figure.drawing.svg)
    write_text(out / "index.html", html_page(document))
    show_table("update strategies on BPR, and auto, the default method", result_lines(records))
    say(document.lead)
    say(f"Open {out / 'index.html'} for the curve over time.")
