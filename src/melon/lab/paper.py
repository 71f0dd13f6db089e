"""`melon reproduce`: the experiment of the MeLON paper (AAAI 2022), its claims, and its numbers beside ours."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from melon.atomic import write_text
from melon.data.files import load_stream, side_car
from melon.data.prepare import prepare
from melon.errors import DataError, require_plots
from melon.evaluation.labels import label, recommender_label
from melon.evaluation.table import ResultTable, TableCell, marks, number
from melon.lab.bench import bench_streams, files_about, tuned_elsewhere
from melon.lab.numbers import (
    Compared,
    Estimate,
    PairedTests,
    batch_sizes,
    curve,
    estimates,
    milliseconds,
    on_top,
    slope,
    table_of,
)
from melon.lab.page import Block, Card, Cards, Document, Part, Section
from melon.lab.published import (
    ABLATION,
    CATEGORIES,
    DATASETS,
    ELAPSED_MS,
    METRICS,
    PAPER_NAMES,
    RESULTS,
    Number,
    PaperDataset,
    paper_dataset,
    paper_table,
)
from melon.lab.records import REFERENCE, Bench, MethodComparison
from melon.lab.report import estimate_cell, milliseconds_text, report_folders, where
from melon.lab.terminal import BenchProgress, show_bench, show_preparation
from melon.progress import counted, say
from melon.strategies.registry import STRATEGIES
from melon.types import Plain

ClaimOutcome = Literal["held", "not held", "not decided"]
OURS = "melon"
REWEIGHTING = ("eals", "mwnet")
META_OPTIMISATION = ("metasgd", "s2meta", "sml")
#: "Several updates a second", as a number; the paper's slowest MeLON has 3.8.
SEVERAL = 3.0


@dataclass(frozen=True)
class ClaimResult:
    """A claim's outcome, the number that decides it, and a line for each comparison."""

    claim: str
    outcome: ClaimOutcome
    number: str
    lines: tuple[str, ...] = ()


def claim_results(bench: Bench, tests: PairedTests) -> list[ClaimResult]:
    """All five claims, on the comparisons of the main arrangement."""
    comparisons = [comparison for comparison in bench.main if OURS in comparison.methods]
    return [
        consistent_gains(comparisons, tests),
        quick_adaptation(comparisons),
        two_directions(comparisons, tests),
        affordable(comparisons),
        both_paces(bench, comparisons, tests),
    ]


def together(parts: Iterable[ClaimOutcome]) -> ClaimOutcome:
    """A claim about all cases fails with one that fails, and stays open with one that is open."""
    outcomes = list(parts)
    if "not held" in outcomes:
        return "not held"
    return "held" if outcomes and all(part == "held" for part in outcomes) else "not decided"


def gain(compared: Iterable[Compared]) -> ClaimOutcome:
    """Better than each; a single baseline against which a gain is ruled out is enough to fail."""
    baselines = list(compared)
    if any(baseline.conclusion == "worse" or baseline.no_gain for baseline in baselines):
        return "not held"
    return "held" if baselines and all(baseline.conclusion == "better" for baseline in baselines) else "not decided"


def consistent_gains(comparisons: Sequence[MethodComparison], tests: PairedTests) -> ClaimResult:
    """Better than every baseline, on every stream and recommender."""
    claim = "MeLON gains consistently, over datasets and recommenders"
    if not comparisons:
        return _absent(claim)
    parts, lines, over_default, over_recent = [], [], 0, 0
    met: set[str] = set()
    for comparison in comparisons:
        baselines = [name for name in (REFERENCE, *comparison.strategies) if name != OURS and not _kin(name)]
        compared = tests.against(comparison, OURS, baselines)
        part = gain(compared.values())
        parts.append(part)
        met |= compared.keys()
        recent = tests.against(comparison, OURS, ["recent_popularity"])["recent_popularity"]
        over_default += compared[REFERENCE].conclusion == "better"
        over_recent += recent.conclusion == "better"
        hardest = min(compared, key=lambda name, of=compared: of[name].difference.difference)  # type: ignore[misc]
        lines.append(
            f"{where(comparison)}: {_gap(compared[hardest])} over its hardest baseline, "
            f"{comparison.label(hardest)}: {part}"
        )
    streams, recommenders = ({getattr(c, name) for c in comparisons} for name in ("stream", "recommender"))
    outcome = together(parts)
    counts = (("stream", streams), ("recommender", recommenders), ("baseline", met))
    few = [text for text, seen in counts if len(seen) < 2]
    number = (
        f"better than every baseline in {parts.count('held')} of {counted(len(parts), 'comparison')}; than "
        f"{label(REFERENCE)} in {over_default}, than recent popularity in {over_recent}"
    )
    if few and outcome == "held":
        outcome = "not decided"
        number = f"only one {' and one '.join(few)} here, too few for a claim about all of them; {number}"
    return ClaimResult(claim, outcome, number, tuple(lines))


def quick_adaptation(comparisons: Sequence[MethodComparison]) -> ClaimResult:
    """On top most of the time, and the gap to Default does not close."""
    claim = "MeLON adapts quickly: it leads over time, and its gap to plain fine-tuning grows"
    if not comparisons:
        return _absent(claim)
    parts: list[ClaimOutcome] = []
    lines, shares, growing, closing = [], [], 0, 0
    for comparison in comparisons:
        curves = {name: curve(comparison, name) for name in (REFERENCE, *comparison.strategies)}
        share = on_top(curves).get(OURS, 0.0)
        trend = slope(curves[OURS] - curves[REFERENCE], batch_sizes(comparison))
        shares.append(share)
        if trend is None:
            parts.append("not decided")
            lines.append(
                f"{where(comparison)}: on top of the strategies in {share:.0%} of the batches; too few for a trend"
            )
            continue
        leads, chance = share > 0.5, 1 / len(curves)
        growing, closing = growing + (trend.low > 0), closing + (trend.high < 0)
        part: ClaimOutcome = "not decided"
        if trend.high < 0 or (share < chance and trend.low <= 0):
            part = "not held"
        elif leads and trend.low > 0:
            part = "held"
        parts.append(part)
        lines.append(
            f"{where(comparison)}: on top of the strategies in {share:.0%} of {len(curves[OURS])} batches "
            f"(chance: {chance:.0%}), gap "
            f"{trend.per_100:+.3f} NDCG@10 per 100 batches [{trend.low:+.3f}, {trend.high:+.3f}]: {part}"
        )
    number = (
        f"the gap grows in {growing} and closes in {closing} of {counted(len(comparisons), 'comparison')}; on top of "
        f"the strategies in {np.mean(shares):.0%} of the batches on average"
    )
    return ClaimResult(claim, together(parts), number, tuple(lines))


def two_directions(comparisons: Sequence[MethodComparison], tests: PairedTests) -> ClaimResult:
    """Better than both one-directional versions of itself."""
    claim = "Two directions are needed: MeLON beats MeLON_I and MeLON_P"
    parts, lines, better = [], [], 0
    for comparison in comparisons:
        halves = [name for name in ("melon_i", "melon_p") if name in comparison.methods]
        if len(halves) < 2:
            continue
        compared = tests.against(comparison, OURS, halves)
        part = gain(compared.values())
        parts.append(part)
        better += part == "held"
        gaps = ", ".join(f"{_gap(half)} over {comparison.label(name)}" for name, half in compared.items())
        lines.append(f"{where(comparison)}: {gaps}: {part}")
    if not parts:
        return _absent(claim, "no comparison has melon, melon_i and melon_p")
    return ClaimResult(
        claim, together(parts), f"better than both in {better} of {counted(len(parts), 'comparison')}", tuple(lines)
    )


def affordable(comparisons: Sequence[MethodComparison]) -> ClaimResult:
    """Several updates a second."""
    claim = "MeLON is affordable: several updates a second"
    lines, rates = [], []
    for comparison in comparisons:
        taken = milliseconds(comparison, OURS)
        if taken is None:
            continue
        rates.append(1000 / taken)
        lines.append(f"{where(comparison)}: {taken:,.0f} ms per batch, {rates[-1]:,.1f} updates a second")
    if not rates:
        return _absent(claim, "no update of MeLON was timed")
    outcome: ClaimOutcome = "held" if min(rates) >= SEVERAL else "not held"
    return ClaimResult(
        claim, outcome, f"{min(rates):,.1f} updates a second where it is slowest (several: {SEVERAL:g})", tuple(lines)
    )


def both_paces(bench: Bench, comparisons: Sequence[MethodComparison], tests: PairedTests) -> ClaimResult:
    """Re-weighting ahead on slow streams, meta-optimisation on fast ones, MeLON not behind either on any."""
    claim = "Re-weighting suits slow streams, meta-optimisation fast ones, MeLON both"
    parts: list[ClaimOutcome] = []
    lines, paces, right, judged = [], set(), 0, 0
    for comparison in comparisons:
        one = [name for name in REWEIGHTING if name in comparison.methods]
        other = [name for name in META_OPTIMISATION if name in comparison.methods]
        if not one or not other:
            continue
        fast, pace = bench.fast(comparison.stream), bench.pace(comparison.stream)
        paces.add(pace)
        suited, unsuited = (other, one) if fast else (one, other)
        families = tests.groups(comparison, suited, unsuited)
        ahead = gain([families])
        rest = tests.against(comparison, OURS, suited)
        not_behind: ClaimOutcome = "not decided"
        if any(baseline.conclusion == "worse" for baseline in rest.values()):
            not_behind = "not held"
        elif all(baseline.conclusion in ("better", "no significant loss") for baseline in rest.values()):
            not_behind = "held"
        parts += [ahead, not_behind]
        right, judged = right + (ahead == "held"), judged + 1
        names = ("meta-optimisation", "re-weighting") if fast else ("re-weighting", "meta-optimisation")
        lines.append(
            f"{where(comparison)} ({pace}): {names[0]} {_gap(families)} over {names[1]}: {ahead}; "
            f"MeLON not behind it: {not_behind}"
        )
    if not parts:
        return _absent(claim, "no comparison has a strategy of both families (eALS, MWNet; MetaSGD, S2Meta, SML)")
    outcome = together(parts)
    number = f"the family that should lead does in {right} of {counted(judged, 'comparison')}"
    if outcome == "held" and len(paces) < 2:
        outcome = "not decided"
        number = f"only {paces.pop()} streams here, and the claim is about both kinds; {number}"
    return ClaimResult(claim, outcome, number, tuple(lines))


def _kin(name: str) -> bool:
    """Versions of MeLON itself are no baselines."""
    return name.startswith(OURS)


def _gap(compared: Compared) -> str:
    low, high = compared.difference.by_user
    return f"{compared.difference.difference:+.3f} HR@5 [{low:+.3f}, {high:+.3f}]"


def _absent(claim: str, why: str = "no comparison has melon") -> ClaimResult:
    return ClaimResult(claim, "not decided", why)


PAPER = "the MeLON paper (AAAI 2022)"
_FORMS = {
    "linear": "MeLON and its halves run here in our default form: one learned rate for every (interaction, row) pair. "
    "The paper's form has one for every (interaction, parameter) pair (preset paper), so this is no conclusion on it.",
    "network": "MeLON and its halves run here in the paper's form: one learned rate for every (interaction, parameter) "
    "pair.",
}
_OTHERS = "The other strategies run with our default settings, not as published."
_DIRECTIONS = (
    ("one rate per interaction", ("melon_i", *REWEIGHTING)),
    ("one rate per parameter", ("melon_p", *META_OPTIMISATION)),
    ("both directions", ("melon",)),
)


def paper_report(document: Document, bench: Bench, tests: PairedTests) -> Document:
    """A report with the sections about the paper in their places."""
    document = document.inserted(claims(bench, tests), before="results")
    document = document.inserted(ablation(bench), before="choices")
    return document.inserted(beside_the_paper(bench), before="choices")


def claims(bench: Bench, tests: PairedTests) -> Section:
    """The paper's claims, each judged by our numbers."""
    cards = [Card(v.outcome, v.claim, v.number, v.lines) for v in claim_results(bench, tests)]
    lead = f"What {PAPER} claims, judged on these streams by the rules of this report. {which_form(bench)}"
    return Section("claims", "The paper's claims", lead, [Cards(cards)])


def which_form(bench: Bench) -> str:
    """Sentences on what ran under the name of MeLON, and of the others."""
    records = [run.record for comparison in bench.main for run in comparison.runs if run.method.startswith("melon")]
    choices = [record["config"]["chosen"].get(record["strategy"], {}) for record in records]
    forms = {str(choice.get("settings", {}).get("form", "linear")) for choice in choices}
    if len(forms) > 1:
        return f"MeLON runs here in several forms, which the settings below tell apart. {_OTHERS}"
    return f"{_FORMS[forms.pop()]} {_OTHERS}" if forms else _OTHERS


def ablation(bench: Bench) -> Section | None:
    """MeLON beside its halves, and each half beside its family."""
    rows = []
    for comparison in bench.main:
        if not any(half in comparison.methods for half in ("melon_i", "melon_p")):
            continue
        scores = table_of(comparison, comparison.headline)
        ran = [name for _, names in _DIRECTIONS for name in names if name in comparison.methods]
        marked = marks({name: scores[name]["HR@5"].mean for name in ran})
        theirs = ABLATION.get(paper_table(comparison.stream) or "", {}) if comparison.recommender == "bpr" else {}
        for family, names in _DIRECTIONS:
            for name in (name for name in names if name in comparison.methods):
                published = theirs.get(name)
                rows.append(
                    [
                        TableCell(where(comparison)),
                        TableCell(comparison.label(name), method=name),
                        TableCell(family, "soft"),
                        estimate_cell(scores[name]["HR@5"], marked[name]),
                        estimate_cell(scores[name]["NDCG@10"]),
                        TableCell(number(published[0]), "theirs", number(published[1]))
                        if published
                        else TableCell("–", "theirs"),
                    ]
                )
    lead = (
        "MeLON_I learns one rate for each interaction, as re-weighting does; MeLON_P one for each parameter (in the "
        f"default form: for each row), as meta-optimisation does. MeLON learns both. {which_form(bench)}"
    )
    head = ["", "method", "learns", "HR@5", "NDCG@10", "paper, HR@5"]
    caption = (
        "The paper's numbers are theirs, on other data, for BPR only, and for Amazon the mean of three categories."
    )
    return (
        Section("ablation", "Two directions", lead, [ResultTable(head, rows, caption, left=3, grouped=True)])
        if rows
        else None
    )


def beside_the_paper(bench: Bench) -> Section | None:
    """The dataset table, the published results and the published times beside ours."""
    parts: list[Block] = []
    for (dataset, recommender), comparisons in _corresponding(bench).items():
        complete = _complete(comparisons)
        title = f"{dataset} · {recommender_label(recommender)}"
        tables: list[Block] = [published(dataset, recommender, complete), *_times(dataset, recommender, complete)]
        parts.append(Part(title, _stands_in(dataset, complete, comparisons), tables))
    if not parts:
        return None
    lead = (
        f"The numbers of {PAPER} are theirs, from their data and their protocol (negatives outside a user's whole log, "
        "five seeds); ours are from the streams of this report, repeats included. They show whether the same order "
        f"comes out, never who is better. The paper has no SML on NCF. {which_form(bench)}"
    )
    note = (
        "Ours stand in for theirs: other data of the same kind, and smaller. Cold users are those of the test part "
        "that the training part does not have."
    )
    return Section("paper", "Beside the paper", lead, [Part("Datasets", note, [datasets(bench)]), *parts])


def datasets(bench: Bench) -> ResultTable:
    """Ours and, below each, theirs."""
    rows, seen = [], set()
    for comparison in bench.comparisons:
        about = comparison.first["dataset"]
        if about["sha256"] in seen:
            continue
        seen.add(about["sha256"])
        rows.append(
            [
                TableCell(comparison.stream),
                *(TableCell(f"{about[name]:,}") for name in ("users", "items", "interactions")),
                TableCell(f"{comparison.first['cold']['users']:.1%}"),
                TableCell(f"{comparison.repeats.mean():.1%}"),
                TableCell(" : ".join(f"{100 * share:g}" for share in about["split"])),
                TableCell(f"{len(comparison.first['batches']):,}"),
                TableCell(bench.pace(comparison.stream)),
            ]
        )
        theirs = paper_dataset(comparison.stream)
        if theirs is not None:
            counts = (f"{count:,}" for count in (theirs.users, theirs.items, theirs.interactions))
            split = " : ".join(f"{share:g}" for share in theirs.split)
            texts = [*counts, f"{theirs.cold_users} %", "–", split, f"≈ {theirs.test_batches}", "–"]
            rows.append([TableCell(f"paper: {theirs.name}", "theirs"), *(TableCell(text, "theirs") for text in texts)])
    head = ["", "users", "items", "interactions", "cold users", "repeats", "split, %", "test batches", "stream is"]
    return ResultTable(head, rows)


def published(dataset: str, recommender: str, comparisons: Sequence[MethodComparison]) -> ResultTable:
    """For every method ours, and theirs below; theirs of Amazon is the mean of three categories, so ours is one too."""
    theirs, rows = RESULTS[dataset, recommender], []
    methods = dict.fromkeys([*(method for comparison in comparisons for method in comparison.methods), *PAPER_NAMES])
    for method in sorted(methods, key=_table_order):
        ours = averaged([comparison for comparison in comparisons if method in comparison.methods], method)
        if ours:
            scores = (estimate_cell(ours.get(metric)) for metric in METRICS)
            rows.append([TableCell(label(method), method=method), TableCell("ours", "soft"), *scores])
        if method in PAPER_NAMES:
            name = TableCell(PAPER_NAMES[method], "theirs", method=method)
            rows.append([name, TableCell("paper", "theirs"), *_theirs(theirs.get(method))])
    return ResultTable(["", "", *METRICS], rows, left=2)


def averaged(comparisons: Sequence[MethodComparison], method: str) -> dict[str, Estimate]:
    """The mean over streams, seed by seed; its error is that of this mean over the seeds that all of them have."""
    if not comparisons:
        return {}
    by_seed = [
        {run.seed: scores for run, scores in zip(c.runs_of(method), c.scores(method, "all"), strict=True)}
        for c in comparisons
    ]
    common = sorted(set.intersection(*(set(scores) for scores in by_seed)))
    means = [{name: float(np.mean([scores[seed][name] for scores in by_seed])) for name in METRICS} for seed in common]
    return estimates(means)


def _times(dataset: str, recommender: str, comparisons: Sequence[MethodComparison]) -> list[ResultTable]:
    """Milliseconds per online batch, ours and theirs."""
    theirs, rows = ELAPSED_MS.get((dataset, recommender), {}), []
    for method, elapsed in theirs.items():
        ours = [milliseconds(comparison, method) for comparison in comparisons if method in comparison.methods]
        taken = [value for value in ours if value is not None]
        if taken:
            mean = TableCell(milliseconds_text(float(np.mean(taken))))
            rows.append(
                [
                    TableCell(label(method), method=method),
                    mean,
                    TableCell("N/A" if elapsed is None else f"{elapsed:,}", "theirs"),
                ]
            )
    return [ResultTable(["", "ours, ms per batch", "paper, ms (Titan RTX)"], rows)] if rows else []


def _table_order(method: str) -> int:
    names = [*STRATEGIES.names()]
    return names.index(method) + 1 if method in names else 0 if method not in PAPER_NAMES else len(names)


def _corresponding(bench: Bench) -> dict[tuple[str, str], list[MethodComparison]]:
    comparisons: dict[tuple[str, str], list[MethodComparison]] = defaultdict(list)
    for comparison in bench.main:
        dataset = paper_table(comparison.stream)
        if dataset is not None and (dataset, comparison.recommender) in RESULTS:
            comparisons[dataset, comparison.recommender].append(comparison)
    return dict(comparisons)


def _complete(comparisons: Sequence[MethodComparison]) -> list[MethodComparison]:
    """Those with the most methods: a mean over streams compares methods only where all of them ran on the same."""
    most = max(len(comparison.methods) for comparison in comparisons)
    return [comparison for comparison in comparisons if len(comparison.methods) == most]


def _stands_in(dataset: str, complete: Sequence[MethodComparison], comparisons: Sequence[MethodComparison]) -> str:
    streams = " and ".join(comparison.stream for comparison in complete)
    text = f"{streams} stand{'s' if len(complete) == 1 else ''} in for {dataset}."
    if dataset == "Amazon":
        text += (
            f" The paper's line is the mean of its {len(CATEGORIES)} categories; ours is the mean of {len(complete)}."
        )
    left = [comparison.stream for comparison in comparisons if comparison not in complete]
    return text + (f" Left out, because not every method ran on it: {', '.join(left)}." if left else "")


def _theirs(scores: Mapping[str, Number] | None) -> list[TableCell]:
    if scores is None:
        return [TableCell("N/A", "theirs")] * len(METRICS)
    return [TableCell(number(scores[name][0]), "theirs", number(scores[name][1])) for name in METRICS]


#: Packed files are read as they are; archives of several files (.tar) have to be unpacked first.
_PACKED = r"(\.gz|\.zip)?"


@dataclass(frozen=True)
class DatasetSource:
    """One dataset: its stream's name, raw files by pattern (the first that fits is taken), and how to get them."""

    paper: PaperDataset
    stream: str
    format: str
    patterns: tuple[str, ...]
    how: str
    stand_ins: tuple[str, ...] = ()

    @property
    def split(self) -> str:
        """As `--split` writes it."""
        return ",".join(f"{share / 100:g}" for share in self.paper.split)


@dataclass(frozen=True)
class Found:
    """Where a dataset is: raw files to prepare, or a stream that stands in for it."""

    wanted: DatasetSource
    raw: tuple[Path, ...] = ()
    prepared: Path | None = None

    @property
    def stream(self) -> str:
        """The stream's name in the bench."""
        return self.prepared.name.removesuffix(".parquet") if self.prepared else self.wanted.stream


def _amazon(paper: str, stream: str, category: str) -> DatasetSource:
    names = (
        rf"ratings_{category}\.csv",
        rf"{category}\.csv",
        rf"reviews_{category}\.json",
        rf"{category}\.json",
    )
    how = (
        f"ratings_{category}.csv of 2014 (https://jmcauley.ucsd.edu/data/amazon/) or {category}.csv of 2018 "
        "(https://nijianmo.github.io/amazon/), the ratings only"
    )
    return DatasetSource(DATASETS[paper], stream, "amazon", tuple(name + _PACKED for name in names), how)


WANTED = (
    DatasetSource(
        DATASETS["Adressa"],
        "adressa",
        "adressa",
        (rf"201701\d\d{_PACKED}", rf"adressa.*\.jsonl?{_PACKED}"),
        "the light version of one week (one_week.tar.gz) from https://reclab.idi.ntnu.no/dataset/, unpacked: seven "
        "files named 20170101 to 20170107",
        ("news_globo",),
    ),
    _amazon("Amazon Book", "amazon_book", "Books"),
    _amazon("Amazon Electronics", "amazon_electronics", "Electronics"),
    _amazon("Amazon Grocery", "amazon_grocery", "Grocery_and_Gourmet_Food"),
    DatasetSource(
        DATASETS["Yelp"],
        "yelp",
        "yelp",
        (rf"yelp_academic_dataset_review\.json{_PACKED}", rf"review\.json{_PACKED}"),
        "yelp_academic_dataset_review.json from https://www.yelp.com/dataset, unpacked",
    ),
)


def look(folder: Path) -> tuple[list[Found], list[DatasetSource]]:
    """What a folder and those in it hold of the five (raw files before prepared streams), and what is missing."""
    files = sorted(path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_file())
    datasets, missing = [], []
    for wanted in WANTED:
        raw = next((some for pattern in wanted.patterns if (some := _matching(files, pattern))), ())
        names = (wanted.stream, *wanted.stand_ins)
        prepared = next((path for name in names if (path := folder / f"{name}.parquet").is_file()), None)
        if raw:
            datasets.append(Found(wanted, raw))
        elif prepared is not None:
            datasets.append(Found(wanted, prepared=prepared))
        else:
            missing.append(wanted)
    return datasets, missing


def _matching(files: list[Path], pattern: str) -> tuple[Path, ...]:
    """Files of that name in one folder: copies in several would count everything twice."""
    alike = [path for path in files if re.fullmatch(pattern, path.name)]
    return tuple(path for path in alike if path.parent == alike[0].parent)


#: The paper drops users and items with fewer interactions (docs/methods.md 5.1).
_FEWEST = 20


@dataclass(frozen=True)
class Reproduction:
    """How much of the experiment is run, and where."""

    data: Path
    out: Path
    recommenders: str
    strategies: str
    seeds: int
    options: Plain
    configs: Path
    jobs: int
    ray: str | None
    dry_run: bool

    def check(self) -> None:
        """Raise where a strategy does not exist."""
        for name in () if self.strategies == "all" else self.strategies.split(","):
            STRATEGIES[name]


def reproduce(request: Reproduction) -> int:
    """`melon reproduce`; the exit code says whether every cell came through."""
    request.check()
    if not request.dry_run:
        require_plots("the report of melon reproduce")
    if not request.data.is_dir():
        raise DataError(f"there is no folder {request.data}; say with --data where the paper's datasets are.")
    datasets, missing = look(request.data)
    _show(request.data, datasets, missing)
    if not datasets:
        raise DataError(f"{request.data} holds none of the paper's datasets; say where they are with --data.")
    if request.dry_run:
        return 0
    streams = {dataset.stream: _stream(dataset, request.out) for dataset in datasets}
    splits = [f"{dataset.stream}={dataset.wanted.split}" for dataset in datasets]
    configs = request.out / "configs"
    _take(request.configs, streams, configs)
    taken = files_about(configs, streams)
    say(
        f"settings of {len(taken)} cells come from {configs}; what is open is chosen on the selection window"
        if taken
        else "settings are chosen on the selection window"
    )
    result = bench_streams(
        list(streams.values()),
        request.options,
        recommenders=request.recommenders,
        strategies=request.strategies,
        seeds=request.seeds,
        splits=splits,
        configs=[configs] if taken else [],
        jobs=request.jobs,
        ray=request.ray,
        rates=True,
        out=request.out,
        progress=BenchProgress(),
    )
    code = show_bench(result)
    say(report_folders([request.out], extend=paper_report).summary)
    return code


def _stream(dataset: Found, out: Path) -> Path:
    """A stream that is there already, or one that is prepared now; the same raw files are prepared once."""
    if dataset.prepared is not None:
        return dataset.prepared
    target = out / "data" / f"{dataset.stream}.parquet"
    if _is_of(target, dataset.raw):
        say(f"{target} is there already")
        return target
    say(f"preparing {dataset.wanted.paper.name} from {', '.join(path.name for path in dataset.raw)}")
    report = prepare(list(dataset.raw), out=target, format=dataset.wanted.format, min_interactions=_FEWEST)
    show_preparation(report, target)
    return target


def _is_of(stream: Path, raw: Sequence[Path]) -> bool:
    about = side_car(stream, "json")
    if not (stream.exists() and about.exists()):
        return False
    sources = json.loads(about.read_text(encoding="utf-8")).get("sources", [])
    return [(source["name"], source["bytes"]) for source in sources] == [
        (path.name, path.stat().st_size) for path in raw
    ]


def _take(folder: Path, streams: Mapping[str, Path], target: Path) -> None:
    """Copy the configs that were tuned on these very streams, so that the folder of the records says what was used."""
    fingerprint = cache(lambda stream: load_stream(streams[stream]).sha256)
    for stream, path in files_about(folder, streams):
        if tuned_elsewhere(path, fingerprint(stream)):
            say(f"{path} was tuned on other data and is left alone")
        else:
            write_text(target / path.name, path.read_text(encoding="utf-8"))


def _show(folder: Path, datasets: Sequence[Found], missing: Sequence[DatasetSource]) -> None:
    for dataset in datasets:
        where = dataset.prepared or ", ".join(str(path) for path in dataset.raw)
        verb = "stands in for" if dataset.prepared else "is"
        say(f"{where} {verb} {dataset.wanted.paper.name}; split {dataset.wanted.split}")
    for wanted in missing:
        say(f"{wanted.paper.name} is not in {folder}: get {wanted.how}")
