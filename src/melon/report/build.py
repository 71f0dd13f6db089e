"""`melon report`: what a bench showed, as one page, as Markdown, and as figures."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from melon.atomic import replacing, require_writable, write_text
from melon.extras import require_plots
from melon.report.behaviour import ablation, cold_users, costs, learning_rates, over_time
from melon.report.comparing import Comparisons
from melon.report.contests import Bench
from melon.report.context import beside_the_paper, choices, made_of
from melon.report.document import Document
from melon.report.html import html_page
from melon.report.markdown import markdown_page
from melon.report.reading import read_bench
from melon.report.results import results, short


def report_folders(sources: Sequence[Path], out: Path | None = None) -> None:
    """`melon report`."""
    require_plots()
    where = out if out is not None else _beside(sources[0])
    require_writable(where / "report.html")
    bench = read_bench(sources)
    words = ["melon", "report", *map(str, sources), *(["--out", str(out)] if out is not None else [])]
    written = write_report(report(bench, shlex.join(words)), where)
    _say(
        f"{len(bench.runs)} records in {len(bench.contests)} contests; wrote {written[0]}, and {written[1].name} with "
        f"{len(written) - 2} figures beside it"
    )


def report(bench: Bench, command: str) -> Document:
    """The whole document."""
    comparisons = Comparisons()
    sections = [
        short(bench, comparisons),
        results(bench, comparisons),
        over_time(bench),
        costs(bench),
        cold_users(bench),
        ablation(bench),
        learning_rates(bench),
        beside_the_paper(bench),
        choices(bench),
        made_of(bench, command),
    ]
    name = ", ".join(source.stem for source in bench.sources)
    lead = "Every batch was predicted first, then learned from; settings were chosen before the test part was read."
    return Document(f"melon report: {name}", lead, _facts(bench), sections)


def write_report(document: Document, out: Path) -> list[Path]:
    """Write page, Markdown and figures; returns them in this order."""
    written = []
    for figure in document.figures():
        target = out / "figures" / f"{figure.name}.svg"
        write_text(target, figure.drawing.svg)
        with replacing(target.with_suffix(".png")) as unfinished:
            unfinished.write_bytes(figure.drawing.png)
        written.append(target)
    write_text(out / "report.md", markdown_page(document))
    write_text(out / "report.html", html_page(document))
    return [out / "report.html", out / "report.md", *written]


def _beside(source: Path) -> Path:
    return source / "report" if source.is_dir() else source.with_name(f"{source.stem}.report")


def _facts(bench: Bench) -> list[str]:
    strategies = {run.record["strategy"] for run in bench.runs}
    counts = {
        "stream": len({run.stream for run in bench.runs}),
        "recommender": len({run.record["recommender"] for run in bench.runs}),
        "strategy": len(strategies),
        "seed": max(len(contest.seeds) for contest in bench.contests),
        "record": len(bench.runs),
    }
    told = {name: f"{n} {name if n == 1 else name.replace('y', 'ie') + 's'}" for name, n in counts.items()}
    fewest = min(len(contest.seeds) for contest in bench.contests)
    if fewest < counts["seed"]:
        told["seed"] = f"{fewest} to {told['seed']}"
    failed = sum(gap.kind == "failed" for gap in bench.gaps)
    return [*told.values(), *([f"{failed} failed"] if failed else [])]


def _say(text: str) -> None:
    from rich.console import Console

    Console(soft_wrap=True).print(text, markup=False, highlight=False)
