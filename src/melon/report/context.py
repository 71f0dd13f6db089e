"""Sections that put the numbers in their place: the paper's beside ours, what was chosen, and what made the report."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

import melon
from melon.paper.published import (
    CATEGORIES,
    METRICS,
    PAPER_NAMES,
    RESULTS,
    Number,
    paper_dataset,
    paper_table,
)
from melon.report.contests import Bench, Contest, Run
from melon.report.document import Block, Bullets, Cell, Code, Fold, Part, Prose, Section, Table, number
from melon.report.naming import NAMES, base, label, recommender_label
from melon.report.numbers import Estimate, estimates
from melon.report.results import estimate_cell
from melon.types import Plain

_NOT_OPTIONS = ("recommender", "strategy", "seed", "settings", "preset", "split")


def beside_the_paper(bench: Bench) -> Section:
    """The dataset table and the published results beside ours."""
    parts: list[Block] = [
        Part(
            "Datasets",
            "Ours stand in for theirs: other data of the same kind, and smaller. Cold users are those of the test part "
            "that the training part does not have.",
            [datasets(bench)],
        )
    ]
    for (dataset, recommender), found in _corresponding(bench).items():
        contests = _complete(found)
        title = f"{dataset} · {recommender_label(recommender)}"
        parts.append(Part(title, _stands_in(dataset, contests, found), [published(dataset, recommender, contests)]))
    lead = (
        "The paper's published numbers are theirs, from their data and their protocol (negatives outside a user's "
        "whole log, five seeds); ours are from the streams of this report, repeats included. They show whether the "
        "same order comes out, never who is better."
    )
    if len(parts) == 1:
        parts.append(
            Prose("No stream here stands in for one of the paper's datasets, so there is nothing to put beside.")
        )
    return Section("paper", "Beside the paper", lead, parts)


def datasets(bench: Bench) -> Table:
    """Ours and, below each, theirs."""
    rows, seen = [], set()
    for contest in bench.contests:
        about = contest.first["dataset"]
        if about["sha256"] in seen:
            continue
        seen.add(about["sha256"])
        batches = len(contest.first["batches"])
        rows.append(
            [
                Cell(contest.stream),
                *(Cell(f"{about[name]:,}") for name in ("users", "items", "interactions")),
                Cell(f"{contest.first['cold']['users']:.1%}"),
                Cell(f"{contest.repeats.mean():.1%}"),
                Cell(" : ".join(f"{100 * share:g}" for share in about["split"])),
                Cell(f"{batches:,}"),
                Cell("fast" if contest.fast else "slow"),
            ]
        )
        theirs = paper_dataset(contest.stream)
        if theirs is not None:
            counts = (theirs.users, theirs.items, theirs.interactions)
            split = " : ".join(f"{share:g}" for share in theirs.split)
            cells = [
                *(f"{count:,}" for count in counts),
                f"{theirs.cold_users} %",
                "–",
                split,
                f"≈ {theirs.test_batches}",
                "–",
            ]
            rows.append([Cell(f"paper: {theirs.name}", "theirs"), *(Cell(text, "theirs") for text in cells)])
    head = ["", "users", "items", "interactions", "cold users", "repeats", "split, %", "test batches", "pace"]
    return Table(head, rows)


def published(dataset: str, recommender: str, contests: Sequence[Contest]) -> Table:
    """For every method ours, and theirs below; theirs of Amazon is the mean of three categories, so ours is one too."""
    theirs, rows = RESULTS[dataset, recommender], []
    methods = dict.fromkeys([*(method for contest in contests for method in contest.methods), *PAPER_NAMES])
    for method in sorted(methods, key=_table_order):
        found = averaged([contest for contest in contests if method in contest.methods], method)
        if found:
            scores = (estimate_cell(found.get(metric)) for metric in METRICS)
            rows.append([Cell(label(method, recommender), method=method), Cell("ours", "soft"), *scores])
        if method in PAPER_NAMES:
            name = Cell(PAPER_NAMES[method], "theirs", method=method)
            rows.append([name, Cell("paper", "theirs"), *_theirs(theirs.get(method))])
    return Table(["", "", *METRICS], rows, left=2)


def averaged(contests: Sequence[Contest], method: str) -> dict[str, Estimate]:
    """The mean over streams, seed by seed; its error is that of this mean over the seeds that all of them have."""
    if not contests:
        return {}
    common = set.intersection(*({run.seed for run in contest.runs_of(method)} for contest in contests))
    if not common:
        return {}
    per_seed = []
    scores = [dict(zip(_seeds(contest, method), contest.scores(method, "all"), strict=True)) for contest in contests]
    for seed in sorted(common):
        per_seed.append({name: float(np.mean([each[seed][name] for each in scores])) for name in METRICS})
    return estimates(per_seed)


def choices(bench: Bench) -> Section:
    """What was chosen before the test part was read, and how far each strategy moves."""
    rows = []
    for contest in bench.main:
        where = f"{contest.stream} · {recommender_label(contest.recommender)}"
        for method in ("pretrain", "recent_popularity", "default", *contest.strategies):
            runs = contest.runs_of(method) if method in contest.methods else contest.runs_of("default")
            chosen = [run.record["config"]["chosen"].get(_chosen_name(method, run)) for run in runs]
            edges = sorted({axis for each in chosen if each for axis in each.get("at_edge", ())})
            steps = [run.record["step"]["relative"] for run in runs if run.method == method and run.record.get("step")]
            moved = [step for step in steps if step is not None]
            rows.append(
                [
                    Cell(where),
                    Cell(
                        "pre-training" if method == "pretrain" else label(method, contest.recommender),
                        method=_dot(method),
                    ),
                    Cell(_settings([each["settings"] for each in chosen if each is not None])),
                    Cell(", ".join(edges), "soft"),
                    Cell(f"{np.mean(moved):.2f}×" if moved else "–"),
                ]
            )
    lead = (
        "Every strategy had the same number of trials on the selection window, before the test part was read. The step "
        "is how far a batch moves the rows that it touches, relative to Default's: one that hardly moves is seen here."
    )
    head = ["", "method", "chosen settings", "at the edge of its grid", "step"]
    caption = (
        "Where seeds chose differently, all of their values. A choice at the edge might do better on a wider grid."
    )
    return Section("choices", "Choices", lead, [Table(head, rows, caption, left=4, grouped=True)])


def made_of(bench: Bench, command: str) -> Section:
    """Versions, commands, configurations, data, and what is missing."""
    versions = sorted({str(run.record.get("version", "unknown")) for run in bench.runs})
    hashes = dict.fromkeys((run.stream, run.record["dataset"]["sha256"]) for run in bench.runs)
    hours = sum(run.record.get("seconds") or 0.0 for run in bench.runs) / 3600
    blocks: list[Block] = [
        Bullets(
            [
                f"records by melon {', '.join(versions)}; this report by melon {melon.__version__}",
                f"{len(bench.runs)} records" + (f", {hours:.1f} hours of computing" if hours >= 0.05 else ""),
                *(f"data: {stream}, sha256 {sha[:16]}" for stream, sha in hashes),
            ]
        ),
        Part(
            "Commands", "As far as the records tell; the report is made by the last.", [Code(_commands(bench, command))]
        ),
    ]
    if bench.gaps:
        counts: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for gap in bench.gaps:
            counts[gap.stream, gap.recommender, gap.strategy, gap.kind, gap.reason].append(gap.seed)
        rows = [
            [
                Cell(kind, "bad" if kind == "failed" else "soft"),
                Cell(f"{stream} · {recommender_label(recommender)}"),
                Cell(label(strategy), method=strategy),
                Cell(", ".join(map(str, seeds))),
                Cell(reason, "soft"),
            ]
            for (stream, recommender, strategy, kind, reason), seeds in counts.items()
        ]
        blocks.append(Part("Cells without a result", "", [Table(["", "", "strategy", "seeds", "why"], rows, left=5)]))
    if bench.notes:
        blocks.append(Bullets(bench.notes))
    settings = {json.dumps(contest.arrangement, indent=1, sort_keys=True): None for contest in bench.contests}
    blocks.append(Fold("The options that all cells of a table share", [Code(text) for text in settings]))
    return Section("made", "What made this", "", blocks)


def _commands(bench: Bench, command: str) -> str:
    folders: dict[str, list[Run]] = defaultdict(list)
    for run in bench.runs:
        folders[str(run.path.parent)].append(run)
    lines = []
    for folder, runs in folders.items():
        asked = runs[0].record["config"]["asked"]
        streams = dict.fromkeys(run.stream for run in runs)
        words = ["melon", "bench", *(f"{stream}.parquet" for stream in streams)]
        for name in ("recommender", "strategy"):
            words += ["--recommenders" if name == "recommender" else "--strategies"]
            words += [",".join(dict.fromkeys(str(run.record[name]) for run in runs))]
        words += ["--seeds", str(1 + max(run.seed for run in runs))]
        splits = {run.stream: ",".join(f"{share:g}" for share in run.record["dataset"]["split"]) for run in runs}
        words += [word for stream, split in splits.items() for word in ("--split", f"{stream}={split}")]
        words += _options(asked)
        words += ["--rates"] if any(run.rates for run in runs) else []
        lines.append(shlex.join([*words, "--out", folder]))
    return "\n".join([*lines, command])


def _options(asked: Mapping[str, object]) -> list[str]:
    """What was asked for beyond the defaults, as words of a command."""
    from melon.bench.config import CellConfig

    usual = CellConfig().plain()
    words = []
    for name, value in asked.items():
        if name in _NOT_OPTIONS or value == usual.get(name) or name not in usual:
            continue
        option = "--" + name.replace("_", "-")
        if isinstance(value, dict):
            section = name.partition("_")[0]
            words += [word for key, each in value.items() for word in ("--set", f"{section}.{key}={json.dumps(each)}")]
        elif value is True:
            words.append(option)
        else:
            words += [option, str(value)]
    return words


def _table_order(method: str) -> int:
    known = list(NAMES)
    return known.index(base(method)) if base(method) else len(known)


def _corresponding(bench: Bench) -> dict[tuple[str, str], list[Contest]]:
    found: dict[tuple[str, str], list[Contest]] = defaultdict(list)
    for contest in bench.main:
        dataset = paper_table(contest.stream)
        if dataset is not None and (dataset, contest.recommender) in RESULTS:
            found[dataset, contest.recommender].append(contest)
    return dict(found)


def _complete(contests: Sequence[Contest]) -> list[Contest]:
    """Those with the most methods: a mean over streams compares methods only where all of them ran on the same."""
    most = max(len(contest.methods) for contest in contests)
    return [contest for contest in contests if len(contest.methods) == most]


def _stands_in(dataset: str, contests: Sequence[Contest], found: Sequence[Contest]) -> str:
    streams = " and ".join(contest.stream for contest in contests)
    told = f"{streams} stand{'s' if len(contests) == 1 else ''} in for {dataset}."
    if dataset == "Amazon":
        told += (
            f" The paper's line is the mean of its {len(CATEGORIES)} categories; ours is the mean of {len(contests)}."
        )
    left = [contest.stream for contest in found if contest not in contests]
    return told + (f" Left out, because not every method ran on it: {', '.join(left)}." if left else "")


def _theirs(found: Mapping[str, Number] | None) -> list[Cell]:
    if found is None:
        return [Cell("N/A", "theirs")] * len(METRICS)
    return [Cell(number(found[name][0]), "theirs", number(found[name][1])) for name in METRICS]


def _seeds(contest: Contest, method: str) -> list[int]:
    return [run.seed for run in contest.runs_of(method)]


def _dot(method: str) -> str:
    return "" if method == "pretrain" else method


def _chosen_name(method: str, run: Run) -> str:
    return str(run.record["strategy"]) if method == run.method else method


def _settings(chosen: Sequence[Plain]) -> str:
    """Settings of all seeds in one line."""
    names = dict.fromkeys(name for each in chosen for name in each)
    values = {name: dict.fromkeys(_plain(each[name]) for each in chosen if name in each) for name in names}
    return (
        ", ".join(f"{name} = {' | '.join(sorted(each, key=_by_size))}" for name, each in values.items()) or "defaults"
    )


def _by_size(text: str) -> tuple[float, str]:
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def _plain(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
