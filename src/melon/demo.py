"""The demo: the main job on an embedded synthetic stream, ending with a table and a page to open."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from melon.atomic import write_text
from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.files import write_result
from melon.bench.work import Work
from melon.data.files import load_stream, write_stream
from melon.data.synthetic import SYNTHETIC, synthetic_stream
from melon.errors import SettingsError, unknown_name
from melon.extras import require_plots
from melon.fitting.auto import AUTO, settle_auto
from melon.report.page import merged_rows, page
from melon.strategies.registry import ALL_STRATEGIES
from melon.terminal.progress import listener
from melon.terminal.tables import show_table

_SPLIT = (0.7, 0.02, 0.28)
#: Settings tried for each strategy: fewer than an evaluation takes, so that all of them fit into a short demo.
_BUDGET = 4


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
    """Make the stream, evaluate the strategies on it, show the table and write the page."""
    require_plots()
    console = Console(soft_wrap=True)
    stream = write_synthetic("news", out / "stream.parquet", events, seed)
    log = load_stream(stream)
    console.print(
        f"A made-up news site: {log.n_users:,} readers, {log.n_items:,} articles that are born, burst and fade, "
        f"{len(log):,} clicks. Each batch is predicted first, then learned from."
    )
    records, work = [], Work()
    with listener() as told:
        for strategy in ALL_STRATEGIES:
            config = CellConfig(strategy=strategy, split=_SPLIT, seed=seed, budget=_BUDGET)
            result = Cell(log, config, told, work).run(str(stream))
            records.append(write_result(result.record, result.ranks, out / f"{strategy}.json"))
        config = CellConfig(**settle_auto({"split": _SPLIT, "seed": seed, "budget": _BUDGET}))
        result = Cell(log, config, told).run(str(stream))
        records.append(write_result(result.record, result.ranks, out / f"{AUTO}.json"))
    show_table(console, "strategies on bpr, and last what you get if you name nothing", merged_rows(records))
    lead = (
        "A synthetic news stream. Every batch was predicted first, then learned from; settings were chosen beforehand."
    )
    write_text(out / "index.html", page("melon demo", lead, records))
    console.print(f"Open {out / 'index.html'} for the curve over time.", markup=False)
