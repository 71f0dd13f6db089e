"""Sections on how methods behave: over time, in cost, for cold users, in two directions, and in their rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from melon.bench.rate_capture import RATES_SUFFIX, RatesKeeper
from melon.explain.matrix import RateFacts
from melon.paper.claims import META_OPTIMISATION, REWEIGHTING
from melon.paper.published import ABLATION, ELAPSED_MS, paper_table
from melon.report.comparing import REFERENCE
from melon.report.contests import Bench, Contest
from melon.report.document import (
    Block,
    Bullets,
    Cell,
    Figure,
    Figures,
    Fold,
    Mark,
    Prose,
    Section,
    Table,
    interval,
    number,
    signed,
)
from melon.report.drawing import cost, rates, trend
from melon.report.naming import label
from melon.report.numbers import (
    Estimate,
    Slope,
    batch_sizes,
    curve,
    frontier,
    milliseconds,
    on_top,
    podium,
    slope,
    split_by,
    table_of,
    trailing_width,
)
from melon.report.results import estimate_cell, slug, where

#: Metrics of cold and of warm users.
Sided = tuple[dict[str, Estimate], dict[str, Estimate]]
#: Fewer events than this say little about cold users.
FEW_EVENTS = 100
#: METHODS.md 5.6 asks for so many timed batches.
TIMED_BATCHES = 100


def over_time(bench: Bench) -> Section:
    """Curves, who is on top, and how the gap to Default moves."""
    figures, rows, told = [], [], []
    for contest in _with_strategies(bench):
        curves = {method: curve(contest, method) for method in contest.methods}
        batches = len(contest.first["batches"])
        width = trailing_width(batches)
        caption = f"{where(contest)}: NDCG@10 per online batch, and its mean over the last {width} batches"
        name = f"trend-{slug(contest)}"
        figures.append(Figure(name, trend(name, curves, width), caption))
        updated = {method: curves[method] for method in (REFERENCE, *contest.strategies)}
        shares, among_all, sizes = on_top(updated), on_top(curves), batch_sizes(contest)
        first, _ = podium(shares)
        told.append(
            _lead(contest, shares, slope(curves["melon"] - curves[REFERENCE], sizes) if "melon" in curves else None)
        )
        for method in contest.methods:
            move = slope(curves[method] - curves[REFERENCE], sizes) if method != REFERENCE else None
            share = shares.get(method)
            rows.append(
                [
                    Cell(where(contest)),
                    Cell(label(method, contest.recommender), method=method),
                    Cell("–" if share is None else f"{share:.0%}", "best" if method in first else ""),
                    Cell(f"{among_all.get(method, 0):.0%}"),
                    Cell(signed(float(np.nanmean(curves[method] - curves[REFERENCE]))) if method != REFERENCE else "–"),
                    Cell("–" if move is None else signed(move.per_100)),
                    Cell("–" if move is None else interval((move.low, move.high)), "soft"),
                ]
            )
    head = ["", "method", "on top of strategies", "on top of all", "gap to Default", "slope per 100 batches", "95 %"]
    caption = "Share of batches on which each has the highest NDCG@10, ties shared; its gap to Default and its slope."
    lead = (
        "Each batch is predicted before it is learned. A strategy that adapts pulls away from Default as time goes on."
    )
    table = Fold("All methods in numbers", [Table(head, rows, caption, left=2, grouped=True)])
    return Section("time", "Over time", lead, [Figures(figures), Bullets(told), table])


def costs(bench: Bench) -> Section:
    """Time per update, the paper's beside it, and accuracy against it with the frontier."""
    figures, rows, few = [], [], False
    for contest in _with_strategies(bench):
        found = table_of(contest, contest.headline)
        times = {method: milliseconds(contest, method) for method in (REFERENCE, *contest.strategies)}
        points = {m: (taken, found[m]["HR@5"].mean) for m, taken in times.items() if taken is not None}
        if not points:
            continue
        edge = frontier(points)
        flat = {name: found[name]["HR@5"].mean for name in ("frozen", "recent_popularity")}
        name = f"cost-{slug(contest)}"
        caption = f"{where(contest)}: accuracy against time per update; the steps are the frontier"
        figures.append(Figure(name, cost(name, points, edge, flat), caption))
        theirs = ELAPSED_MS.get((paper_table(contest.stream) or "", contest.recommender), {})
        for method, (taken, accuracy) in points.items():
            timed = min(run.record["update_ms"]["batches"] for run in contest.runs if run.method == method)
            few |= timed < TIMED_BATCHES
            rows.append(
                [
                    Cell(where(contest)),
                    Cell(label(method, contest.recommender), method=method),
                    *(Cell(_ms(milliseconds(contest, method, what))) for what in ("median", "mean", "p95")),
                    Cell(f"{1000 / taken:,.1f}"),
                    Cell(f"{timed:,}", "soft"),
                    Cell(number(accuracy)),
                    Cell("on the frontier" if method in edge else "", "good" if method in edge else ""),
                    Cell("–" if theirs.get(method) is None else f"{theirs[method]:,}", "theirs"),
                ]
            )
    machines = {(run.record["protocol"]["threads"], run.record["config"]["asked"].get("device")) for run in bench.runs}
    told = " or ".join(f"{n} thread{'' if n == 1 else 's'} on {device or 'cpu'}" for n, device in sorted(machines))
    note = f"Learning only, without scoring; {told}."
    if few:
        note += f" Some methods were timed on fewer than {TIMED_BATCHES} batches: read those with care."
    head = ["", "method", "median ms", "mean", "p95", "updates/s", "batches", "HR@5", "", "paper, ms (Titan RTX)"]
    blocks: list[Block] = (
        [Figures(figures), Table(head, rows, note, left=2, grouped=True)] if rows else [Prose("Nothing was timed.")]
    )
    lead = "Elapsed time per online batch, and what it buys. Anything below the steps is beaten by something cheaper."
    return Section("cost", "Cost", lead, blocks)


def cold_users(bench: Bench) -> Section:
    """Cold against warm, for every method."""
    rows, told = [], []
    for contest in bench.main:
        cold = contest.column("cold").astype(bool)
        counts = [int((flags & contest.judged).sum()) for flags in (cold, ~cold)]
        sides = {m: (split_by(contest, m, cold), split_by(contest, m, ~cold)) for m in contest.methods}
        marks = [podium({m: side[at]["HR@5"].mean for m, side in sides.items() if "HR@5" in side[at]}) for at in (0, 1)]
        told.append(_cold_and_warm(contest, sides, counts))
        for method, both in sides.items():
            cells = [
                Cell(f"{where(contest)} ({counts[0]:,} cold, {counts[1]:,} warm events)"),
                Cell(label(method, contest.recommender), method=method),
            ]
            for metric in ("HR@5", "NDCG@10"):
                for at, side in enumerate(both):
                    mark: Mark = "soft" if counts[at] < FEW_EVENTS else ""
                    if metric == "HR@5" and not mark:
                        mark = "best" if method in marks[at][0] else "second" if method in marks[at][1] else ""
                    cells.append(estimate_cell(side.get(metric), mark))
            rows.append(cells)
    head = ["", "method", "HR@5 cold", "HR@5 warm", "NDCG@10 cold", "NDCG@10 warm"]
    caption = f"Mean ± standard error over seeds. Grey: fewer than {FEW_EVENTS} events, too few to tell much."
    lead = "A cold user is absent from the training part: whatever is known of them was learned online."
    table = Fold("All methods in numbers", [Table(head, rows, caption, left=2, grouped=True)])
    return Section("cold", "Cold users", lead, [Bullets(told), table])


def ablation(bench: Bench) -> Section:
    """MeLON beside its halves, and each half beside its family."""
    groups = (
        ("one rate per interaction", ("melon_i", *REWEIGHTING)),
        ("one rate per parameter", ("melon_p", *META_OPTIMISATION)),
        ("both directions", ("melon",)),
    )
    rows = []
    for contest in bench.main:
        if not any(half in contest.methods for half in ("melon_i", "melon_p")):
            continue
        found = table_of(contest, contest.headline)
        ran = [name for _, names in groups for name in names if name in contest.methods]
        first, second = podium({name: found[name]["HR@5"].mean for name in ran})
        theirs = ABLATION.get(paper_table(contest.stream) or "", {}) if contest.recommender == "bpr" else {}
        for family, names in groups:
            for name in names:
                if name in contest.methods:
                    mark: Mark = "best" if name in first else "second" if name in second else ""
                    paper = theirs.get(name)
                    rows.append(
                        [
                            Cell(where(contest)),
                            Cell(label(name, contest.recommender), method=name),
                            Cell(family, "soft"),
                            estimate_cell(found[name]["HR@5"], mark),
                            estimate_cell(found[name]["NDCG@10"]),
                            Cell(number(paper[0]), "theirs", number(paper[1])) if paper else Cell("–", "theirs"),
                        ]
                    )
    lead = (
        "MeLON_I learns one rate for each interaction, as re-weighting does; MeLON_P one for each parameter, as "
        "meta-optimisation does. MeLON learns both."
    )
    if not rows:
        return Section("ablation", "Two directions", lead, [Prose("Neither melon_i nor melon_p has a record here.")])
    head = ["", "method", "learns", "HR@5", "NDCG@10", "paper, HR@5"]
    caption = (
        "The paper's numbers are theirs, on other data, for BPR only, and for Amazon the mean of three categories."
    )
    return Section("ablation", "Two directions", lead, [Table(head, rows, caption, left=3, grouped=True)])


def learning_rates(bench: Bench) -> Section:
    """The matrices of MeLON with their numbers, where they were kept."""
    lead = (
        "How far each interaction (left to right) moves each parameter (top to bottom) in the last full batch, with "
        "the means along both directions as bars: these are what re-weighting and meta-optimisation could do at best."
    )
    figures, rows = [], []
    for contest in bench.main:
        runs = [run for run in contest.runs_of("melon") if run.rates] if "melon" in contest.methods else []
        if not runs:
            continue
        found = RatesKeeper().read(runs[0].path.with_suffix(RATES_SUFFIX))
        name = f"rates-{slug(contest)}"
        pace = "fast" if contest.fast else "slow"
        seen = f"{where(contest)} ({pace} stream), seed {runs[0].seed}"
        figures.append(Figure(name, rates(name, found), f"{seen}: {found.about['interactions']} interactions"))
        for part, facts in found.facts().items():
            rows.append(
                [Cell(where(contest)), Cell({"rows": "users and items"}.get(part, "shared weights")), *_facts(facts)]
            )
    if not rows:
        how = "Run the same `melon bench` with `--rates`: cells of melon run again and keep a batch's learning rates."
        return Section("rates", "Learning rates", lead, [Prose("No learning rates were kept. " + how)])
    head = [
        "",
        "parameters of",
        "mean rate",
        "σ₂/σ₁",
        "with loss",
        "with |gradient|",
        "by interaction",
        "by parameter",
        "by neither",
        "from one per interaction",
        "from one per parameter",
    ]
    caption = (
        "Rank correlations of the rate with loss and gradient; shares of its variance; and its relative distance "
        "(Frobenius) from the best matrix with one rate per interaction, and per parameter."
    )
    return Section(
        "rates", "Learning rates", lead, [Figures(figures), Table(head, rows, caption, left=2, grouped=True)]
    )


def _lead(contest: Contest, shares: Mapping[str, float], move: Slope | None) -> str:
    """Who led, in words, and where MeLON's gap to Default goes."""
    leaders = [label(method, contest.recommender) for method in podium(shares)[0]]
    told = f"{where(contest)}: {' and '.join(leaders)} on top in {max(shares.values(), default=0):.0%} of the batches"
    if move is None:
        return told
    bounds = interval((move.low, move.high))
    return f"{told}; MeLON's gap to Default moves by {signed(move.per_100)} NDCG@10 per 100 batches, 95 % {bounds}"


def _cold_and_warm(contest: Contest, sides: Mapping[str, Sided], counts: Sequence[int]) -> str:
    """How many events are a cold user's, and how the reference and MeLON do there."""
    told = f"{where(contest)}: {counts[0]:,} of {sum(counts):,} events are a cold user's"
    if counts[0] < FEW_EVENTS:
        return told + ", too few to tell much"
    shown = [method for method in ("frozen", "recent_popularity", REFERENCE, "melon") if method in sides]
    both = [f"{label(m)} {number(sides[m][0]['HR@5'].mean)} against {number(sides[m][1]['HR@5'].mean)}" for m in shown]
    return f"{told}; HR@5 on them against warm users: {', '.join(both)}"


def _with_strategies(bench: Bench) -> Sequence[Contest]:
    """Contests that are more than their baselines, if any is."""
    return [contest for contest in bench.main if contest.strategies] or bench.main


def _facts(facts: RateFacts) -> list[Cell]:
    def share(value: float | None) -> Cell:
        return Cell("–" if value is None else f"{value:.0%}")

    def correlation(value: float | None) -> Cell:
        return Cell("–" if value is None else signed(value, 2))

    return [
        Cell(f"{facts.mean:.3g}"),
        Cell(f"{facts.sigma_ratio:.3f}"),
        correlation(facts.with_loss),
        correlation(facts.with_gradient),
        share(facts.by_interaction),
        share(facts.by_parameter),
        share(facts.neither),
        share(facts.from_one_rate_per_interaction.frobenius),
        share(facts.from_one_rate_per_parameter.frobenius),
    ]


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
