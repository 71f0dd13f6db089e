"""`melon report`: a bench as one page, as figures, and its main table as CSV and LaTeX."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import melon
from melon.atomic import replacing, require_writable, write_text
from melon.errors import require_plots
from melon.evaluation.compare import Comparison
from melon.evaluation.labels import label, recommender_label
from melon.evaluation.ranking import METRICS
from melon.evaluation.table import Mark, ResultTable, TableCell, interval, marks, metric_table, number, signed
from melon.lab.comparisons import (
    BASELINES,
    METRIC,
    REFERENCE,
    SECOND_METRIC,
    Bench,
    Compared,
    Estimate,
    MethodComparison,
    PairedTests,
    Run,
    View,
    curve,
    frontier,
    milliseconds,
    read_bench,
    table_of,
    trailing_width,
)
from melon.lab.figures import StoryLine, Weight, forest, story
from melon.lab.page import Block, Bullets, Code, Document, Figure, Figures, Fold, Part, Prose, Section, html_page
from melon.progress import counted
from melon.types import Plain


@dataclass(frozen=True)
class Written:
    """A report's files, and what they are about in a line."""

    page: Path
    summary: str


def report_folders(
    sources: Sequence[Path],
    out: Path | None = None,
    extend: Callable[[Document, Bench, PairedTests], Document] | None = None,
) -> Written:
    """Write the report of benches and single results; `extend` may add sections to it."""
    require_plots("melon report")
    folder = out if out is not None else _beside(sources[0])
    require_writable(folder / "report.html")
    bench, tests = read_bench(sources), PairedTests()
    words = ["melon", "report", *map(str, sources), *(["--out", str(out)] if out is not None else [])]
    document = report(bench, shlex.join(words), tests)
    if extend is not None:
        document = extend(document, bench, tests)
    figures = write_report(document, folder)
    write_text(folder / "results.csv", results_csv(bench))
    write_text(folder / "results.tex", results_table(bench).to_latex())
    counts = f"{counted(len(bench.runs), 'record')} in {counted(len(bench.comparisons), 'comparison')}"
    beside = f"results.csv, results.tex and {counted(len(figures), 'figure')} beside it"
    return Written(folder / "report.html", f"{counts}; wrote {folder / 'report.html'}, with {beside}")


def report(bench: Bench, command: str, tests: PairedTests | None = None) -> Document:
    """The whole document."""
    compared = tests or PairedTests()
    sections: list[Section | None] = [
        short(bench, compared),
        results(bench, compared),
        over_time(bench),
        costs(bench),
        choices(bench),
        made_of(bench, command),
    ]
    name = ", ".join(source.stem for source in bench.sources)
    present = [section for section in sections if section is not None]
    methods = dict.fromkeys([m for c in bench.comparisons for m in c.methods] + [gap.strategy for gap in bench.gaps])
    return Document(f"melon report: {name}", headline(bench, compared), _facts(bench), present, list(methods))


def write_report(document: Document, out: Path) -> list[Path]:
    """Write figures and page; returns the figures."""
    written = []
    for figure in document.figures():
        target = out / "figures" / f"{figure.name}.svg"
        write_text(target, figure.drawing.svg)
        with replacing(target.with_suffix(".png")) as unfinished:
            unfinished.write_bytes(figure.drawing.png)
        written.append(target)
    write_text(out / "report.html", html_page(document))
    return written


def results_table(bench: Bench) -> ResultTable:
    """The main table: one block for each comparison, in the view that it is judged by."""
    rows = [
        [TableCell(f"{where(comparison)}, {VIEWS[comparison.headline]}"), *row]
        for comparison in bench.main
        for row in score_table(comparison, comparison.headline).rows
    ]
    return ResultTable(["", "method", *METRICS], rows, left=2, grouped=True)


def results_csv(bench: Bench) -> str:
    """Every comparison and method in a line: means over seeds, and standard errors (`_se`)."""
    rows = []
    for comparison in bench.comparisons:
        for method, line in table_of(comparison, comparison.headline).items():
            about = [
                comparison.stream,
                comparison.recommender,
                comparison.apart,
                comparison.headline,
                method,
                comparison.label(method),
            ]
            about += [str(int(comparison.judged.sum())), str(len(comparison.runs_of(method)))]
            values = [
                v for name in METRICS for e in [line.get(name)] for v in ((e.mean, e.error) if e else (None, None))
            ]
            rows.append([*map(TableCell, about), *(TableCell("", value=value) for value in values)])
    head = ["stream", "recommender", "options", "view", "method", "label", "events", "seeds"]
    return ResultTable([*head, *(text for name in METRICS for text in (name, f"{name}_se"))], rows).to_csv()


def _beside(source: Path) -> Path:
    return source / "report" if source.is_dir() else source.with_name(f"{source.stem}.report")


def _facts(bench: Bench) -> list[str]:
    seeds = [len(comparison.seeds) for comparison in bench.comparisons]
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


VIEWS: Mapping[View, str] = {
    "first": "without repeats of what the user already had",
    "all": "all events",
    "full": "ranked among the whole catalogue",
}
_MARKS: Mapping[str, Mark] = {
    "better": "good",
    "no significant loss": "fair",
    "worse within the margin": "open",
    "worse": "bad",
    "no significant difference": "open",
}
#: More methods than this are thin lines, except the baselines and the best.
_MOST_LINES = 6
_RULES = (
    f"The reference is {label(REFERENCE)}: plain fine-tuning, named before the test part is read. Methods are compared "
    f"by {METRIC}. “Better” and “worse”: the 95 % interval of the difference per event, from a bootstrap over users, "
    "lies above or below 0, after Holm's correction for the table. “No significant loss”: the interval excludes a loss "
    "above the margin. “Worse within the margin”: the interval also excludes a gain. Repeats are left out."
)


def headline(bench: Bench, tests: PairedTests) -> str:
    """One sentence: who has the highest hit rate, in how many comparisons, by how much."""
    leads = [(each, sorted(each.methods, key=each.hit_rate, reverse=True)) for each in bench.main]
    if len(leads) == 1:
        ((comparison, (first, second, *_)),) = leads
        gap = tests.against(comparison, first, [second])[second].difference
        return (
            f"{comparison.label(first)} has the highest {METRIC} on {where(comparison)}: "
            f"{number(comparison.hit_rate(first))}, {signed(gap.difference)} {interval(gap.by_user)} over "
            f"{comparison.label(second)}, the next of {counted(len(comparison.methods), 'method')}."
        )
    ahead: dict[str, list[float]] = defaultdict(list)
    for comparison, (first, second, *_) in leads:
        ahead[comparison.label(first)].append(comparison.hit_rate(first) - comparison.hit_rate(second))
    winner, *others = sorted(ahead, key=lambda name: -len(ahead[name]))
    gaps, count = ahead[winner], counted(len(leads), "comparison")
    by = " to ".join(dict.fromkeys((signed(min(gaps)), signed(max(gaps)))))
    text = f"{winner} has the highest {METRIC} in {len(gaps)} of {count}, {by} ahead of the next method"
    return text + "".join(f"; {name} in {len(ahead[name])}" for name in others) + "."


def short(bench: Bench, tests: PairedTests) -> Section:
    """The overview, and what to take."""
    note = (
        "The mean over seeds; the best of each comparison is bold, the second underlined. A stream is called fast if "
        "recent popularity is better than a recommender that is never updated."
    )
    return Section(
        "short",
        f"{METRIC} at a glance",
        note,
        [overview(bench), Bullets([advice(comparison, tests) for comparison in bench.main])],
    )


def advice(comparison: MethodComparison, tests: PairedTests) -> str:
    """What to take: the cheapest method that no other is shown to beat, by a rule that is fixed beforehand."""
    family = tests.family(comparison, comparison.strategies)
    winners = [method for method, each in family.items() if each.conclusion == "better"]
    taken, reason = REFERENCE, "no other strategy is shown to be better" if family else "no other strategy was compared"
    if winners:
        best = max(winners, key=comparison.hit_rate)
        beaten = tests.against(comparison, best, winners)
        equal = [method for method in winners if method == best or beaten[method].conclusion != "better"]
        taken = min(equal, key=lambda method: milliseconds(comparison, method) or 0.0)
        gain = family[taken].difference
        reason = f"{signed(gain.difference)} {interval(gain.by_user)} over {comparison.label(REFERENCE)}"
    simple = tests.against(comparison, taken, BASELINES[:-1])
    unbeaten = [method for method, each in simple.items() if each.conclusion != "better"]
    if unbeaten:
        reason = f"{comparison.label(taken)} is not shown to be better, and costs more"
        taken = max(unbeaten, key=comparison.hit_rate)
    value = f"{METRIC} {number(comparison.hit_rate(taken))}"
    return f"{where(comparison)}: take {comparison.label(taken)} ({value}); {reason}."


def overview(bench: Bench) -> ResultTable:
    """Methods down, the best first, and comparisons across."""
    rates = defaultdict(list)
    for comparison in bench.main:
        for method in comparison.methods:
            rates[method].append(comparison.hit_rate(method))
    methods = sorted(rates, key=lambda method: -float(np.mean(rates[method])))
    names = [f"{where(comparison)} ({bench.pace(comparison.stream)})" for comparison in bench.main]
    columns = [_overview_cells(comparison, methods) for comparison in bench.main]
    rows = zip(methods, *columns, strict=True)
    return ResultTable(["", *names], [[TableCell(label(method), method=method), *cells] for method, *cells in rows])


def _overview_cells(comparison: MethodComparison, methods: Sequence[str]) -> list[TableCell]:
    values = {method: comparison.hit_rate(method) for method in comparison.methods}
    marked = marks(values)
    cells = []
    for method in methods:
        absent = TableCell("N/A" if method in _absences(comparison) else "–", "soft")
        cells.append(TableCell(number(values[method]), marked[method]) if method in values else absent)
    return cells


def results(bench: Bench, tests: PairedTests) -> Section:
    """All differences at a glance, then every comparison; those under another arrangement are folded."""
    figures = [difference(comparison, tests) for comparison in bench.comparisons if comparison.strategies]
    blocks: list[Block] = [Prose(_RULES), *([Figures(figures)] if figures else [])]
    blocks += [comparison_part(comparison, tests) for comparison in bench.main]
    others = [comparison_part(comparison, tests) for comparison in bench.comparisons if comparison not in bench.main]
    blocks += [Fold(part.title, [Prose(part.note, soft=True), *part.blocks]) for part in others]
    lead = (
        "First the differences to the reference: the dot is the mean, the line the 95 % interval by users, the faint "
        "line the one by items, the shaded band the margin. Then hit rate and NDCG at 5, 10 and 20: mean ± standard "
        "error over seeds; the best is bold, the second underlined."
    )
    return Section("results", "Accuracy", lead, blocks)


def comparison_part(comparison: MethodComparison, tests: PairedTests) -> Part:
    """One table, its tests, and its other views."""
    views: list[View] = ["first", "all"] if comparison.headline == "first" else ["all"]
    views += ["full"] if any(comparison.scores(method, "full") for method in comparison.methods) else []
    blocks: list[Block] = [score_table(comparison, comparison.headline), against_reference(comparison, tests)]
    blocks += [
        Fold(VIEWS[view][0].upper() + VIEWS[view][1:], [score_table(comparison, view)])
        for view in views
        if view != comparison.headline
    ]
    return Part(where(comparison), _about(comparison), blocks)


def score_table(comparison: MethodComparison, view: View) -> ResultTable:
    """Methods down, metrics across, the best of each column marked."""
    scores = table_of(comparison, view)
    lines = [(comparison.label(m), m, {name: each.mean for name, each in line.items()}) for m, line in scores.items()]
    lines.sort(key=lambda line: -line[2].get(METRIC, 0.0))
    errors = {(m, name): e.error for m, line in scores.items() for name, e in line.items() if e.error is not None}
    table = metric_table(lines, list(METRICS), errors=errors)
    gaps = [
        [TableCell(label(gap), "soft", method=gap), *[TableCell("N/A", "soft")] * len(METRICS)]
        for gap in _absences(comparison)
    ]
    return replace(table, rows=[*table.rows, *gaps], caption=VIEWS[view])


def difference(comparison: MethodComparison, tests: PairedTests) -> Figure:
    """The figure of a comparison's tests."""
    family, beside = _compared(comparison, tests)
    near = _best_first(family | {method: each for method, each in beside.items() if _near(each, family)})
    name, reference = f"difference-{slug(comparison)}", comparison.label(REFERENCE)
    far = [label(method) for method in beside if method not in near]
    words = f"{where(comparison)}: difference to {reference}" + (f"; far below: {', '.join(far)}" if far else "")
    return Figure(name, forest(name, near, {method: comparison.label(method) for method in near}, reference), words)


def against_reference(comparison: MethodComparison, tests: PairedTests) -> ResultTable:
    """Each strategy against the reference in numbers, baselines beside the family; they are it without strategies."""
    family, beside = _compared(comparison, tests)
    rows = [
        _compared_row(comparison, method, each, tests.second(comparison, method), judged=method in family)
        for method, each in _best_first(family | beside).items()
    ]
    head = ["", METRIC, "95 % by user", "by item", "± over seeds", "p", "smallest visible", "conclusion"]
    head += [SECOND_METRIC, "95 % by user"]
    whose = "strategies; the baselines stand outside it" if comparison.strategies else "baselines"
    caption = (
        f"Minus {comparison.label(REFERENCE)}, {VIEWS[comparison.headline]}; conclusions are about {METRIC}. Family: "
        f"{counted(len(family), 'comparison')} of {whose}. Margin: {number(comparison.margin)}. p is not yet corrected."
    )
    return ResultTable(head, rows, caption)


def _best_first(compared: Mapping[str, Compared]) -> dict[str, Compared]:
    return dict(sorted(compared.items(), key=lambda each: -each[1].difference.difference))


def where(comparison: MethodComparison) -> str:
    """A comparison's heading."""
    return " · ".join(
        each for each in (comparison.stream, recommender_label(comparison.recommender), comparison.apart) if each
    )


def estimate_cell(estimate: Estimate | None, mark: Mark = "") -> TableCell:
    """A mean with its error."""
    if estimate is None:
        return TableCell("–", "soft")
    return TableCell(number(estimate.mean), mark, "" if estimate.error is None else number(estimate.error))


def slug(comparison: MethodComparison) -> str:
    """A comparison's name for files."""
    text = "-".join(each for each in (comparison.stream, comparison.recommender, comparison.apart) if each)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "comparison"


def _compared(comparison: MethodComparison, tests: PairedTests) -> tuple[dict[str, Compared], dict[str, Compared]]:
    """The declared family, and the baselines beside it."""
    if not comparison.strategies:
        return tests.family(comparison, comparison.baselines), {}
    beside = {name: tests.family(comparison, [name])[name] for name in comparison.baselines if name != REFERENCE}
    return tests.family(comparison, comparison.strategies), beside


def _near(each: Compared, family: Mapping[str, Compared]) -> bool:
    """A baseline far below would squeeze the strategies into a corner of the figure; it is in the table."""
    reach = max(max(abs(end) for end in one.difference.by_user) for one in family.values())
    return each.difference.difference >= -2 * max(reach, each.margin)


def _compared_row(
    comparison: MethodComparison, method: str, compared: Compared, second: Comparison, *, judged: bool
) -> list[TableCell]:
    each = compared.difference
    return [
        TableCell(comparison.label(method), method=method),
        TableCell(signed(each.difference)),
        TableCell(interval(each.by_user)),
        TableCell(interval(each.by_item), "soft"),
        TableCell(number(each.seed_error), "soft"),
        TableCell("<.001" if each.p_value < 0.001 else number(each.p_value), "soft"),
        TableCell(number(compared.visible), "soft"),
        TableCell(compared.conclusion, _MARKS[compared.conclusion]) if judged else TableCell("baseline", "soft"),
        TableCell(signed(second.difference)),
        TableCell(interval(second.by_user)),
    ]


def _absences(comparison: MethodComparison) -> Sequence[str]:
    """Strategies that do not exist with this recommender."""
    return list(
        dict.fromkeys(g.strategy for g in comparison.gaps if g.kind == "N/A" and g.strategy not in comparison.methods)
    )


def _about(comparison: MethodComparison) -> str:
    aside, protocol = comparison.first.get("left_out", 0), comparison.first["protocol"]
    parts = [
        counted(len(comparison.events), "event") + (f", {aside:,} left out" if aside else ""),
        f"{comparison.repeats.mean():.1%} of them repeats" if comparison.repeats.any() else "no repeats",
        f"{len(comparison.first['batches'])} batches",
        counted(len(comparison.seeds), "seed"),
        f"candidates {protocol['candidates']}, 1 + {protocol['negatives']}",
    ]
    return " · ".join(parts)


#: docs/methods.md 5.6 wants this many timed batches.
TIMED_BATCHES = 100


def over_time(bench: Bench) -> Section:
    """A curve for every comparison."""
    lead = "Each batch is predicted before it is learned."
    figures = [_curves(comparison) for comparison in _with_strategies(bench)]
    return Section("time", "Over time", lead, [Figures(figures)])


def _curves(comparison: MethodComparison) -> Figure:
    """The baselines and the best strategy; the others are thin where there are many."""
    methods, best = comparison.methods, max(comparison.strategies, key=comparison.hit_rate, default=REFERENCE)
    crowd = [method for method in methods if len(methods) > _MOST_LINES and method not in (best, *BASELINES)]
    lines = []
    for method in methods:
        weight: Weight = "bold" if method == best else "thin" if method in crowd else "plain"
        lines.append(StoryLine(method, label(method).partition(" (")[0], curve(comparison, method), weight))
    name, width = f"trend-{slug(comparison)}", trailing_width(len(comparison.first["batches"]))
    drawing = story(name, lines, width, f"{len(crowd)} others", SECOND_METRIC, from_zero=False)
    thin = f". Thin: {', '.join(map(comparison.label, crowd))}" if crowd else ""
    caption = f"{where(comparison)}: {SECOND_METRIC} per online batch, the mean over the last {width} batches{thin}"
    return Figure(name, drawing, caption)


def costs(bench: Bench) -> Section | None:
    """Time per update, and which methods are on the frontier: nothing as cheap is better."""
    rows, few = [], False
    for comparison in _with_strategies(bench):
        times = {method: milliseconds(comparison, method) for method in (REFERENCE, *comparison.strategies)}
        points = {m: (taken, comparison.hit_rate(m)) for m, taken in times.items() if taken is not None}
        if not points:
            continue
        edge = frontier(points)
        for method, point in points.items():
            timed = min(run.record["update_ms"]["batches"] for run in comparison.runs if run.method == method)
            few |= timed < TIMED_BATCHES
            rows.append(_cost_row(comparison, method, point, timed, on_frontier=method in edge))
    if not rows:
        return None
    used = " or ".join(counted(n, "thread") for n in sorted({run.record["protocol"]["threads"] for run in bench.runs}))
    note = f"Learning only, without scoring; {used}."
    if few:
        note += f" Fewer than {TIMED_BATCHES} batches were timed for some methods: their times are not exact."
    head = ["", "method", "median ms", "mean", "p95", "updates/s", "batches", "HR@5", ""]
    lead = "Elapsed time per online batch, and HR@5. For a method off the frontier, a cheaper one is as good."
    return Section("cost", "Cost", lead, [ResultTable(head, rows, note, left=2, grouped=True)])


def _cost_row(
    comparison: MethodComparison, method: str, point: tuple[float, float], timed: int, *, on_frontier: bool
) -> list[TableCell]:
    taken, accuracy = point
    return [
        TableCell(where(comparison)),
        TableCell(comparison.label(method), method=method),
        *(TableCell(milliseconds_text(milliseconds(comparison, method, what))) for what in ("median", "mean", "p95")),
        TableCell(f"{1000 / taken:,.1f}"),
        TableCell(f"{timed:,}", "soft"),
        TableCell(number(accuracy)),
        TableCell("on the frontier", "good") if on_frontier else TableCell(""),
    ]


def _with_strategies(bench: Bench) -> Sequence[MethodComparison]:
    """Comparisons that are more than their baselines, if any is."""
    return [comparison for comparison in bench.main if comparison.strategies] or bench.main


def milliseconds_text(value: float | None) -> str:
    """Milliseconds with about three digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def choices(bench: Bench) -> Section:
    """What was chosen before the test part was read, with how many trials, and how far each strategy moves."""
    rows = []
    for comparison in bench.main:
        for method in ("pretrain", "recent_popularity", REFERENCE, *comparison.strategies):
            runs = comparison.runs_of(method if method in comparison.methods else REFERENCE)
            chosen = [choice for run in runs if (choice := run.record["config"]["chosen"].get(_key(method, run)))]
            steps = [run.record["step"]["relative"] for run in runs if run.method == method and run.record.get("step")]
            moved = [step for step in steps if step is not None]
            dot = "" if method == "pretrain" else method
            rows.append(
                [
                    TableCell(where(comparison)),
                    TableCell("pre-training" if method == "pretrain" else comparison.label(method), method=dot),
                    TableCell(_chosen_settings([choice["settings"] for choice in chosen])),
                    TableCell(_trials(comparison, method, chosen), "soft"),
                    TableCell(
                        ", ".join(sorted({axis for choice in chosen for axis in choice.get("at_edge", ())})), "soft"
                    ),
                    TableCell(f"{np.mean(moved):.2f}×" if moved else "–"),
                ]
            )
    lead = (
        f"{_equal_trials(bench)} The step is the distance by which a batch moves its rows, divided by that "
        f"of {label(REFERENCE)}."
    )
    head = ["", "method", "chosen settings", "trials", "at the edge of its grid", "step"]
    caption = "If seeds chose different values, all are listed. Beyond the edge of a grid, a better value is possible."
    return Section("choices", "Choices", lead, [ResultTable(head, rows, caption, left=5, grouped=True)])


def made_of(bench: Bench, command: str) -> Section:
    """Versions, commands, configurations, data, and what is missing."""
    versions = sorted({str(run.record.get("version", "unknown")) for run in bench.runs})
    hashes = dict.fromkeys((run.stream, str(run.record["dataset"]["sha256"])) for run in bench.runs)
    hours = sum(run.record.get("seconds") or 0.0 for run in bench.runs) / 3600
    blocks: list[Block] = [
        Bullets(
            [
                f"records by melon {', '.join(versions)}; this report by melon {melon.__version__}",
                counted(len(bench.runs), "record") + (f", {hours:.1f} hours of computing" if hours >= 0.05 else ""),
                *(f"data: {stream}, sha256 {sha[:16]}" for stream, sha in hashes),
            ]
        ),
        Part("Commands", "", [Code("\n".join([*bench.commands, command]))]),
    ]
    if bench.gaps:
        seeds_of: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for gap in bench.gaps:
            seeds_of[gap.stream, gap.recommender, gap.strategy, gap.kind, gap.reason].append(gap.seed)
        rows = [
            [
                TableCell(kind, "bad" if kind == "failed" else "soft"),
                TableCell(f"{stream} · {recommender_label(recommender)}"),
                TableCell(label(strategy), method=strategy),
                TableCell(", ".join(map(str, seeds))),
                TableCell(reason, "soft"),
            ]
            for (stream, recommender, strategy, kind, reason), seeds in seeds_of.items()
        ]
        blocks.append(
            Part("Cells without a result", "", [ResultTable(["", "", "strategy", "seeds", "why"], rows, left=5)])
        )
    if bench.notes:
        blocks.append(Bullets(bench.notes))
    settings = {json.dumps(comparison.arrangement, indent=1, sort_keys=True): None for comparison in bench.comparisons}
    blocks.append(Fold("The options that all cells of a table share", [Code(text) for text in settings]))
    return Section("made", "What made this", "", blocks)


def _equal_trials(bench: Bench) -> str:
    """Whether strategies had the same number of trials; who had none, and whose settings were given, is said."""
    runs = [run for comparison in bench.main for run in comparison.runs]
    counts = {run.trials for run in runs if run.trials}
    untuned = sorted({label(m) for c in bench.main for m in (REFERENCE, *c.strategies) if not c.searched(m)})
    given = sorted({label(run.method) for run in runs if run.trials is None and run.request.get("settings")})
    text = "Settings were chosen on the selection window, before the test part was read"
    if counts:
        least, most = min(counts), max(counts)
        text += f": {least} trials for each strategy" if least == most else f": {least} to {most} trials for a strategy"
    if untuned:
        text += f". Not tuned, because nothing was searched for it: {', '.join(untuned)}; compare it with care"
    if given:
        text += f". Settings were given for {', '.join(given)}"
    return text + "."


def _trials(comparison: MethodComparison, method: str, chosen: Sequence[Plain]) -> str:
    if not comparison.searched(method):
        return "not tuned"
    if any(run.trials is None and run.request.get("settings") for run in comparison.runs if run.method == method):
        return "given"
    counts = sorted({len(choice["trials"]) for choice in chosen if "trials" in choice})
    return " | ".join(map(str, counts)) or "–"


def _key(method: str, run: Run) -> str:
    """Under which name a record keeps a method's choice."""
    return str(run.record["strategy"]) if method == run.method else method


def _chosen_settings(chosen: Sequence[Plain]) -> str:
    """Settings of all seeds in one line."""
    names = dict.fromkeys(name for settings in chosen for name in settings)
    values = {name: {_plain(settings[name]) for settings in chosen if name in settings} for name in names}
    parts = (f"{name} = {' | '.join(sorted(texts, key=_by_size))}" for name, texts in values.items())
    return ", ".join(parts) or "defaults"


def _by_size(text: str) -> tuple[float, str]:
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def _plain(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
