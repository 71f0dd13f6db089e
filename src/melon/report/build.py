"""`melon report`: a bench as one page, as Markdown, as figures, and its main table as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from melon.atomic import replacing, require_writable, write_text
from melon.display import COLUMNS, counted
from melon.errors import require_plots
from melon.report.behaviour import cold_users, costs, learning_rates, over_time
from melon.report.contests import Bench
from melon.report.context import choices, made_of
from melon.report.document import Document, Section
from melon.report.html import html_page
from melon.report.markdown import markdown_page
from melon.report.numbers import Comparisons, podium, table_of
from melon.report.reading import read_bench
from melon.report.results import headline, results, short, where

_TEX = re.compile(r"([&%$#_{}])")


@dataclass(frozen=True)
class Written:
    """A report's files, and what they are about in a line."""

    page: Path
    summary: str


def report_folders(
    sources: Sequence[Path],
    out: Path | None = None,
    extend: Callable[[Document, Bench, Comparisons], Document] | None = None,
) -> Written:
    """Write the report of benches and single results; `extend` may add sections to it."""
    require_plots("melon report")
    folder = out if out is not None else _beside(sources[0])
    require_writable(folder / "report.html")
    bench, comparisons = read_bench(sources), Comparisons()
    words = ["melon", "report", *map(str, sources), *(["--out", str(out)] if out is not None else [])]
    document = report(bench, shlex.join(words), comparisons)
    if extend is not None:
        document = extend(document, bench, comparisons)
    figures = write_report(document, folder)
    write_text(folder / "results.csv", results_csv(bench))
    write_text(folder / "results.tex", results_tex(bench))
    counts = f"{counted(len(bench.runs), 'record')} in {counted(len(bench.contests), 'contest')}"
    beside = f"report.md, results.csv, results.tex and {counted(len(figures), 'figure')} beside it"
    return Written(folder / "report.html", f"{counts}; wrote {folder / 'report.html'}, with {beside}")


def report(bench: Bench, command: str, comparisons: Comparisons | None = None) -> Document:
    """The whole document."""
    compared = comparisons or Comparisons()
    sections: list[Section | None] = [
        short(bench),
        results(bench, compared),
        over_time(bench),
        costs(bench),
        cold_users(bench),
        learning_rates(bench),
        choices(bench),
        made_of(bench, command),
    ]
    name = ", ".join(source.stem for source in bench.sources)
    present = [section for section in sections if section is not None]
    methods = dict.fromkeys([m for c in bench.contests for m in c.methods] + [gap.strategy for gap in bench.gaps])
    return Document(f"melon report: {name}", headline(bench, compared), _facts(bench), present, list(methods))


def write_report(document: Document, out: Path) -> list[Path]:
    """Write figures, Markdown and page; returns the figures."""
    written = []
    for figure in document.figures():
        target = out / "figures" / f"{figure.name}.svg"
        write_text(target, figure.drawing.svg)
        with replacing(target.with_suffix(".png")) as unfinished:
            unfinished.write_bytes(figure.drawing.png)
        written.append(target)
    write_text(out / "report.md", markdown_page(document))
    write_text(out / "report.html", html_page(document))
    return written


def results_csv(bench: Bench) -> str:
    """The main table, one line for each contest and method: means over seeds, and standard errors (`_se`)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [name for column in COLUMNS for name in (column, f"{column}_se")]
    writer.writerow(["stream", "recommender", "arrangement", "method", "label", "events", "seeds", *names])
    for contest in bench.contests:
        for method, line in table_of(contest, contest.headline).items():
            values = [line.get(column) for column in COLUMNS]
            cells = [cell for value in values for cell in ((value.mean, value.error) if value else (None, None))]
            seeds = len(contest.runs_of(method))
            about = [contest.stream, contest.recommender, contest.apart, method, contest.label(method)]
            writer.writerow(
                [*about, int(contest.judged.sum()), seeds, *("" if v is None else f"{v:.6f}" for v in cells)]
            )
    return text.getvalue()


def results_tex(bench: Bench) -> str:
    """The main table as a LaTeX tabular: one block for each contest, the best of each column in bold."""
    lines = [f"\\begin{{tabular}}{{l{'r' * len(COLUMNS)}}}", "\\hline", " & ".join(["", *COLUMNS]) + r" \\"]
    for contest in bench.main:
        table = table_of(contest, contest.headline)
        best = {c: podium({m: line[c].mean for m, line in table.items() if c in line})[0] for c in COLUMNS}
        lines += ["\\hline", f"\\multicolumn{{{len(COLUMNS) + 1}}}{{l}}{{{_tex(where(contest))}}} \\\\"]
        for method, line in table.items():
            cells = [_tex(contest.label(method))]
            for column in COLUMNS:
                value = f"{line[column].mean:.3f}" if column in line else "--"
                cells.append(f"\\textbf{{{value}}}" if method in best[column] else value)
            lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, "\\hline", "\\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    plain = text.replace("\\", "/").replace("~", "-").replace("^", " ").replace("·", "--")
    return _TEX.sub(r"\\\1", plain).replace("<", "$<$").replace(">", "$>$")


def _beside(source: Path) -> Path:
    return source / "report" if source.is_dir() else source.with_name(f"{source.stem}.report")


def _facts(bench: Bench) -> list[str]:
    seeds = [len(contest.seeds) for contest in bench.contests]
    fewest = f"{min(seeds)} to " if min(seeds) < max(seeds) else ""
    failed = sum(gap.kind == "failed" for gap in bench.gaps)
    return [
        counted(len({run.stream for run in bench.runs}), "stream"),
        counted(len({run.record["recommender"] for run in bench.runs}), "recommender"),
        counted(len({run.record["strategy"] for run in bench.runs}), "strategy"),
        fewest + counted(max(seeds), "seed"),
        counted(len(bench.runs), "record"),
        *([f"{failed} failed"] if failed else []),
    ]
