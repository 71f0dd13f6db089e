"""Sections on how methods behave: over time, in cost, for cold users, and in their learning rates.

A section without content is None, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from melon.bench.work import RatesKeeper
from melon.display import color, counted, label
from melon.explain.matrix import BatchRates, RateFacts
from melon.report.contests import REFERENCE, Bench, Contest
from melon.report.document import (
    Bullets,
    Figure,
    Figures,
    Fold,
    Mark,
    Section,
    TextCell,
    TextTable,
    interval,
    number,
    signed,
)
from melon.report.drawing import cost, rates, trend
from melon.report.numbers import (
    Estimate,
    batch_sizes,
    curve,
    frontier,
    marks,
    milliseconds,
    on_top,
    podium,
    slope,
    split_by,
    trailing_width,
)
from melon.report.results import estimate_cell, slug, where
from melon.types import Floats

#: Metrics of cold and of warm users.
Sided = tuple[dict[str, Estimate], dict[str, Estimate]]
#: Fewer events than this say little about cold users.
FEW_EVENTS = 100
#: docs/methods.md 5.6 wants this many timed batches.
TIMED_BATCHES = 100


def over_time(bench: Bench) -> Section | None:
    """Curves, who is on top, and how the gap to the reference moves."""
    figures, rows, summaries = [], [], []
    for contest in _with_strategies(bench):
        curves = {method: curve(contest, method) for method in contest.methods}
        width, best = trailing_width(len(contest.first["batches"])), best_strategy(contest)
        caption = f"{where(contest)}: NDCG@10 per online batch, and its mean over the last {width} batches"
        name, labels = f"trend-{slug(contest)}", {method: contest.label(method) for method in contest.methods}
        figures.append(Figure(name, trend(name, curves, labels, width, best), caption))
        shares, among_all = on_top({m: curves[m] for m in (REFERENCE, *contest.strategies)}), on_top(curves)
        summaries.append(_lead(contest, shares, curves, best))
        for method in contest.methods:
            gap = curves[method] - curves[REFERENCE]
            move = slope(gap, batch_sizes(contest)) if method != REFERENCE else None
            share = shares.get(method)
            rows.append(
                [
                    TextCell(where(contest)),
                    TextCell(labels[method], method=method),
                    TextCell("–" if share is None else f"{share:.0%}", "best" if method in podium(shares)[0] else ""),
                    TextCell(f"{among_all.get(method, 0):.0%}"),
                    TextCell(signed(float(np.nanmean(gap))) if method != REFERENCE else "–"),
                    TextCell("–" if move is None else signed(move.per_100)),
                    TextCell("–" if move is None else interval((move.low, move.high)), "soft"),
                ]
            )
    gap_to = f"gap to {label(REFERENCE).partition(' (')[0]}"
    head = ["", "method", "on top of strategies", "on top of all", gap_to, "slope per 100 batches", "95 %"]
    caption = f"Share of batches on which each has the highest NDCG@10, ties shared; its {gap_to} and its slope."
    lead = f"Each batch is predicted before it is learned. The {gap_to} of a strategy that adapts grows with time."
    table = Fold("All methods in numbers", [TextTable(head, rows, caption, left=2, grouped=True)])
    return Section("time", "Over time", lead, [Figures(figures), Bullets(summaries), table]) if rows else None


def costs(bench: Bench) -> Section | None:
    """Time per update, and accuracy against it with the frontier."""
    figures, rows, few = [], [], False
    for contest in _with_strategies(bench):
        times = {method: milliseconds(contest, method) for method in (REFERENCE, *contest.strategies)}
        points = {m: (taken, contest.hit_rate(m)) for m, taken in times.items() if taken is not None}
        if not points:
            continue
        edge, labels = frontier(points), {method: contest.label(method) for method in contest.methods}
        flat = {name: contest.hit_rate(name) for name in ("frozen", "recent_popularity")}
        name = f"cost-{slug(contest)}"
        caption = f"{where(contest)}: accuracy against time per update; the steps are the frontier"
        figures.append(Figure(name, cost(name, points, edge, flat, labels), caption))
        for method, point in points.items():
            timed = min(run.record["update_ms"]["batches"] for run in contest.runs if run.method == method)
            few |= timed < TIMED_BATCHES
            rows.append(_cost_row(contest, method, point, timed, on_frontier=method in edge))
    if not rows:
        return None
    machines = {(run.record["protocol"]["threads"], run.request.get("device")) for run in bench.runs}
    used = " or ".join(f"{counted(n, 'thread')} on {device or 'cpu'}" for n, device in sorted(machines))
    note = f"Learning only, without scoring; {used}."
    if few:
        note += f" Some methods were timed on fewer than {TIMED_BATCHES} batches: read those with care."
    head = ["", "method", "median ms", "mean", "p95", "updates/s", "batches", "HR@5", ""]
    lead = "Elapsed time per online batch, and what it buys. Anything below the steps is beaten by something cheaper."
    return Section("cost", "Cost", lead, [Figures(figures), TextTable(head, rows, note, left=2, grouped=True)])


def cold_users(bench: Bench) -> Section | None:
    """Cold against warm, for every method; None where no event is a cold user's."""
    rows, summaries = [], []
    for contest in bench.main:
        cold = contest.column("cold").astype(bool)
        counts = [int((flags & contest.judged).sum()) for flags in (cold, ~cold)]
        if not counts[0]:
            continue
        sides = {m: (split_by(contest, m, cold), split_by(contest, m, ~cold)) for m in contest.methods}
        marked = [marks({m: side[at]["HR@5"].mean for m, side in sides.items() if "HR@5" in side[at]}) for at in (0, 1)]
        summaries.append(_cold_and_warm(contest, sides, counts))
        for method, both in sides.items():
            cells = [
                TextCell(f"{where(contest)} ({counts[0]:,} cold, {counts[1]:,} warm events)"),
                TextCell(contest.label(method), method=method),
            ]
            for metric in ("HR@5", "NDCG@10"):
                for at, side in enumerate(both):
                    mark: Mark = "soft" if counts[at] < FEW_EVENTS else ""
                    if metric == "HR@5" and not mark:
                        mark = marked[at].get(method, "")
                    cells.append(estimate_cell(side.get(metric), mark))
            rows.append(cells)
    head = ["", "method", "HR@5 cold", "HR@5 warm", "NDCG@10 cold", "NDCG@10 warm"]
    caption = f"Mean ± standard error over seeds. Grey: fewer than {FEW_EVENTS} events, too few to tell much."
    lead = "A cold user is absent from the training part: everything about them was learned online."
    table = Fold("All methods in numbers", [TextTable(head, rows, caption, left=2, grouped=True)])
    return Section("cold", "Cold users", lead, [Bullets(summaries), table]) if rows else None


def learning_rates(bench: Bench) -> Section | None:
    """Learning-rate matrices with their numbers, where `melon bench --rates` matrices them."""
    figures, rows = [], []
    for contest in bench.main:
        matrices = {method: matrix for method in contest.strategies if (matrix := _rates_of(contest, method))}
        facts = {method: matrix.facts() for method, matrix in matrices.items()}
        varying = [method for method in matrices if facts[method]["rows"].neither is not None]
        if varying:
            drawn = max(varying, key=contest.hit_rate)
            name, matrix = f"rates-{slug(contest)}", matrices[drawn]
            words = f"{where(contest)} ({bench.pace(contest.stream)} stream), {contest.label(drawn)}: "
            caption = words + counted(matrix.about["interactions"], "interaction")
            figures.append(Figure(name, rates(name, matrix, color(drawn).light), caption))
        for method, parts in facts.items():
            for part, numbers in parts.items():
                whose = {"rows": "users and items"}.get(part, "shared weights")
                name_cell = TextCell(contest.label(method), method=method)
                rows.append([TextCell(where(contest)), name_cell, TextCell(whose, "soft"), *_facts(numbers)])
    head = ["", "method", "parameters of", "mean rate", "σ₂/σ₁", "with loss", "with |gradient|", "by interaction"]
    head += ["by parameter", "by neither", "from one per interaction", "from one per parameter"]
    caption = (
        "Rank correlations of the rate with loss and gradient; shares of its variance; and its relative distance "
        "(Frobenius) from the best matrix with one rate per interaction, and per parameter."
    )
    lead = (
        "How far each interaction (left to right) moves each parameter (top to bottom) in the last full batch, with "
        "the means along both directions as bars: these are what re-weighting and meta-optimisation could do at best. "
        "Drawn for the best strategy of a contest whose rates vary."
    )
    table = TextTable(head, rows, caption, left=3, grouped=True)
    return Section("rates", "Learning rates", lead, [Figures(figures), table]) if rows else None


def best_strategy(contest: Contest) -> str:
    """The strategy with the highest HR@5; the reference where there is none."""
    return max(contest.strategies, key=contest.hit_rate, default=REFERENCE)


def _rates_of(contest: Contest, method: str) -> BatchRates | None:
    paths = [run.path for run in contest.runs_of(method) if run.rates]
    return RatesKeeper().read(paths[0].with_suffix(RatesKeeper.suffix)) if paths else None


def _lead(contest: Contest, shares: Mapping[str, float], curves: Mapping[str, Floats], best: str) -> str:
    """Who led, and where the gap between the best strategy and the reference goes."""
    leaders = [contest.label(method) for method in podium(shares)[0]]
    text = f"{where(contest)}: {' and '.join(leaders)} on top in {max(shares.values(), default=0):.0%} of the batches"
    move = slope(curves[best] - curves[REFERENCE], batch_sizes(contest)) if best != REFERENCE else None
    if move is None:
        return text
    bounds = interval((move.low, move.high))
    gap = f"the gap between {contest.label(best)} and {contest.label(REFERENCE)}"
    return f"{text}; {gap} moves by {signed(move.per_100)} NDCG@10 per 100 batches, 95 % {bounds}"


def _cold_and_warm(contest: Contest, sides: Mapping[str, Sided], counts: Sequence[int]) -> str:
    """How many events are a cold user's, and how the best strategy and the baselines do there."""
    text = f"{where(contest)}: {counts[0]:,} of {counted(sum(counts), 'event')} are a cold user's"
    if counts[0] < FEW_EVENTS:
        return text + ", too few to tell much"
    methods = dict.fromkeys(("frozen", "recent_popularity", REFERENCE, best_strategy(contest)))
    both = [
        f"{label(m)} {number(sides[m][0]['HR@5'].mean)} against {number(sides[m][1]['HR@5'].mean)}" for m in methods
    ]
    return f"{text}; HR@5 on them against warm users: {', '.join(both)}"


def _cost_row(
    contest: Contest, method: str, point: tuple[float, float], timed: int, *, on_frontier: bool
) -> list[TextCell]:
    taken, accuracy = point
    return [
        TextCell(where(contest)),
        TextCell(contest.label(method), method=method),
        *(TextCell(milliseconds_text(milliseconds(contest, method, what))) for what in ("median", "mean", "p95")),
        TextCell(f"{1000 / taken:,.1f}"),
        TextCell(f"{timed:,}", "soft"),
        TextCell(number(accuracy)),
        TextCell("on the frontier", "good") if on_frontier else TextCell(""),
    ]


def _with_strategies(bench: Bench) -> Sequence[Contest]:
    """Contests that are more than their baselines, if any is."""
    return [contest for contest in bench.main if contest.strategies] or bench.main


def _facts(facts: RateFacts) -> list[TextCell]:
    def share(value: float | None) -> TextCell:
        return TextCell("–" if value is None else f"{value:.0%}")

    def correlation(value: float | None) -> TextCell:
        return TextCell("–" if value is None else signed(value, 2))

    return [
        TextCell(f"{facts.mean:.3g}"),
        TextCell(f"{facts.sigma_ratio:.3f}"),
        correlation(facts.with_loss),
        correlation(facts.with_gradient),
        share(facts.by_interaction),
        share(facts.by_parameter),
        share(facts.neither),
        share(facts.from_one_rate_per_interaction.frobenius),
        share(facts.from_one_rate_per_parameter.frobenius),
    ]


def milliseconds_text(value: float | None) -> str:
    """Milliseconds with about three digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
