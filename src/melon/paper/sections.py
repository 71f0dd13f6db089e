"""What `melon reproduce` adds to a report: the claims of the MeLON paper (AAAI 2022) and its numbers beside ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from melon.display import label, recommender_label
from melon.paper.claims import META_OPTIMISATION, REWEIGHTING, claim_results
from melon.paper.published import (
    ABLATION,
    CATEGORIES,
    ELAPSED_MS,
    METRICS,
    PAPER_NAMES,
    RESULTS,
    Number,
    paper_dataset,
    paper_table,
)
from melon.report.behaviour import milliseconds_text
from melon.report.contests import Bench, Contest
from melon.report.document import Block, Card, Cards, Document, Part, Section, TextCell, TextTable, number
from melon.report.numbers import Comparisons, Estimate, estimates, marks, milliseconds, table_of
from melon.report.results import estimate_cell, where
from melon.strategies.registry import STRATEGIES

PAPER = "the MeLON paper (AAAI 2022)"
_DIRECTIONS = (
    ("one rate per interaction", ("melon_i", *REWEIGHTING)),
    ("one rate per parameter", ("melon_p", *META_OPTIMISATION)),
    ("both directions", ("melon",)),
)


def paper_report(document: Document, bench: Bench, comparisons: Comparisons) -> Document:
    """A report with the sections about the paper in their places."""
    document = document.inserted(claims(bench, comparisons), before="results")
    document = document.inserted(ablation(bench), before="choices")
    return document.inserted(beside_the_paper(bench), before="choices")


def claims(bench: Bench, comparisons: Comparisons) -> Section:
    """The paper's claims, each judged by our numbers."""
    cards = [Card(v.outcome, v.claim, v.number, v.lines) for v in claim_results(bench, comparisons)]
    lead = f"What {PAPER} claims, judged on these streams by the rules of this report."
    return Section("claims", "The paper's claims", lead, [Cards(cards)])


def ablation(bench: Bench) -> Section | None:
    """MeLON beside its halves, and each half beside its family."""
    rows = []
    for contest in bench.main:
        if not any(half in contest.methods for half in ("melon_i", "melon_p")):
            continue
        scores = table_of(contest, contest.headline)
        ran = [name for _, names in _DIRECTIONS for name in names if name in contest.methods]
        marked = marks({name: scores[name]["HR@5"].mean for name in ran})
        theirs = ABLATION.get(paper_table(contest.stream) or "", {}) if contest.recommender == "bpr" else {}
        for family, names in _DIRECTIONS:
            for name in (name for name in names if name in contest.methods):
                published = theirs.get(name)
                rows.append(
                    [
                        TextCell(where(contest)),
                        TextCell(contest.label(name), method=name),
                        TextCell(family, "soft"),
                        estimate_cell(scores[name]["HR@5"], marked[name]),
                        estimate_cell(scores[name]["NDCG@10"]),
                        TextCell(number(published[0]), "theirs", number(published[1]))
                        if published
                        else TextCell("–", "theirs"),
                    ]
                )
    lead = (
        "MeLON_I learns one rate for each interaction, as re-weighting does; MeLON_P one for each parameter, as "
        "meta-optimisation does. MeLON learns both."
    )
    head = ["", "method", "learns", "HR@5", "NDCG@10", "paper, HR@5"]
    caption = (
        "The paper's numbers are theirs, on other data, for BPR only, and for Amazon the mean of three categories."
    )
    return (
        Section("ablation", "Two directions", lead, [TextTable(head, rows, caption, left=3, grouped=True)])
        if rows
        else None
    )


def beside_the_paper(bench: Bench) -> Section | None:
    """The dataset table, the published results and the published times beside ours."""
    parts: list[Block] = []
    for (dataset, recommender), contests in _corresponding(bench).items():
        complete = _complete(contests)
        title = f"{dataset} · {recommender_label(recommender)}"
        tables: list[Block] = [published(dataset, recommender, complete), *_times(dataset, recommender, complete)]
        parts.append(Part(title, _stands_in(dataset, complete, contests), tables))
    if not parts:
        return None
    lead = (
        f"The numbers of {PAPER} are theirs, from their data and their protocol (negatives outside a user's whole log, "
        "five seeds); ours are from the streams of this report, repeats included. They show whether the same order "
        "comes out, never who is better. The paper has no SML on NCF."
    )
    note = (
        "Ours stand in for theirs: other data of the same kind, and smaller. Cold users are those of the test part "
        "that the training part does not have."
    )
    return Section("paper", "Beside the paper", lead, [Part("Datasets", note, [datasets(bench)]), *parts])


def datasets(bench: Bench) -> TextTable:
    """Ours and, below each, theirs."""
    rows, seen = [], set()
    for contest in bench.contests:
        about = contest.first["dataset"]
        if about["sha256"] in seen:
            continue
        seen.add(about["sha256"])
        rows.append(
            [
                TextCell(contest.stream),
                *(TextCell(f"{about[name]:,}") for name in ("users", "items", "interactions")),
                TextCell(f"{contest.first['cold']['users']:.1%}"),
                TextCell(f"{contest.repeats.mean():.1%}"),
                TextCell(" : ".join(f"{100 * share:g}" for share in about["split"])),
                TextCell(f"{len(contest.first['batches']):,}"),
                TextCell(bench.pace(contest.stream)),
            ]
        )
        theirs = paper_dataset(contest.stream)
        if theirs is not None:
            counts = (f"{count:,}" for count in (theirs.users, theirs.items, theirs.interactions))
            split = " : ".join(f"{share:g}" for share in theirs.split)
            texts = [*counts, f"{theirs.cold_users} %", "–", split, f"≈ {theirs.test_batches}", "–"]
            rows.append([TextCell(f"paper: {theirs.name}", "theirs"), *(TextCell(text, "theirs") for text in texts)])
    head = ["", "users", "items", "interactions", "cold users", "repeats", "split, %", "test batches", "stream is"]
    return TextTable(head, rows)


def published(dataset: str, recommender: str, contests: Sequence[Contest]) -> TextTable:
    """For every method ours, and theirs below; theirs of Amazon is the mean of three categories, so ours is one too."""
    theirs, rows = RESULTS[dataset, recommender], []
    methods = dict.fromkeys([*(method for contest in contests for method in contest.methods), *PAPER_NAMES])
    for method in sorted(methods, key=_table_order):
        ours = averaged([contest for contest in contests if method in contest.methods], method)
        if ours:
            scores = (estimate_cell(ours.get(metric)) for metric in METRICS)
            rows.append([TextCell(label(method), method=method), TextCell("ours", "soft"), *scores])
        if method in PAPER_NAMES:
            name = TextCell(PAPER_NAMES[method], "theirs", method=method)
            rows.append([name, TextCell("paper", "theirs"), *_theirs(theirs.get(method))])
    return TextTable(["", "", *METRICS], rows, left=2)


def averaged(contests: Sequence[Contest], method: str) -> dict[str, Estimate]:
    """The mean over streams, seed by seed; its error is that of this mean over the seeds that all of them have."""
    if not contests:
        return {}
    by_seed = [
        {run.seed: scores for run, scores in zip(c.runs_of(method), c.scores(method, "all"), strict=True)}
        for c in contests
    ]
    common = sorted(set.intersection(*(set(scores) for scores in by_seed)))
    means = [{name: float(np.mean([scores[seed][name] for scores in by_seed])) for name in METRICS} for seed in common]
    return estimates(means)


def _times(dataset: str, recommender: str, contests: Sequence[Contest]) -> list[TextTable]:
    """Milliseconds per online batch, ours and theirs."""
    theirs, rows = ELAPSED_MS.get((dataset, recommender), {}), []
    for method, elapsed in theirs.items():
        ours = [milliseconds(contest, method) for contest in contests if method in contest.methods]
        taken = [value for value in ours if value is not None]
        if taken:
            mean = TextCell(milliseconds_text(float(np.mean(taken))))
            rows.append(
                [
                    TextCell(label(method), method=method),
                    mean,
                    TextCell("N/A" if elapsed is None else f"{elapsed:,}", "theirs"),
                ]
            )
    return [TextTable(["", "ours, ms per batch", "paper, ms (Titan RTX)"], rows)] if rows else []


def _table_order(method: str) -> int:
    names = [*STRATEGIES.names()]
    return names.index(method) + 1 if method in names else 0 if method not in PAPER_NAMES else len(names)


def _corresponding(bench: Bench) -> dict[tuple[str, str], list[Contest]]:
    contests: dict[tuple[str, str], list[Contest]] = defaultdict(list)
    for contest in bench.main:
        dataset = paper_table(contest.stream)
        if dataset is not None and (dataset, contest.recommender) in RESULTS:
            contests[dataset, contest.recommender].append(contest)
    return dict(contests)


def _complete(contests: Sequence[Contest]) -> list[Contest]:
    """Those with the most methods: a mean over streams compares methods only where all of them ran on the same."""
    most = max(len(contest.methods) for contest in contests)
    return [contest for contest in contests if len(contest.methods) == most]


def _stands_in(dataset: str, complete: Sequence[Contest], contests: Sequence[Contest]) -> str:
    streams = " and ".join(contest.stream for contest in complete)
    text = f"{streams} stand{'s' if len(complete) == 1 else ''} in for {dataset}."
    if dataset == "Amazon":
        text += (
            f" The paper's line is the mean of its {len(CATEGORIES)} categories; ours is the mean of {len(complete)}."
        )
    left = [contest.stream for contest in contests if contest not in complete]
    return text + (f" Left out, because not every method ran on it: {', '.join(left)}." if left else "")


def _theirs(scores: Mapping[str, Number] | None) -> list[TextCell]:
    if scores is None:
        return [TextCell("N/A", "theirs")] * len(METRICS)
    return [TextCell(number(scores[name][0]), "theirs", number(scores[name][1])) for name in METRICS]
