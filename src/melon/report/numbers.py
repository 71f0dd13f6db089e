"""The report's arithmetic: means with their errors, who is on top, how a gap moves, and what is worth its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from melon.evaluation.compare import gains
from melon.evaluation.ranking import Metrics, metrics
from melon.report.contests import Contest, View
from melon.types import Flags, Floats, Ints


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error, which one seed does not have."""

    mean: float
    error: float | None = None


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and sd(ddof=1)/√n; nothing of nothing."""
    if not values:
        return None
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return Estimate(float(np.mean(values)), error)


def estimates(scores: Sequence[Metrics]) -> dict[str, Estimate]:
    """Of every metric that all seeds have."""
    names = [name for name in (scores[0] if scores else ()) if all(name in each for each in scores)]
    found = {name: estimate([each[name] for each in scores]) for name in names}
    return {name: each for name, each in found.items() if each is not None}


def table_of(contest: Contest, view: View) -> dict[str, dict[str, Estimate]]:
    """Methods × metrics; a method without the view has an empty line."""
    return {method: estimates(contest.scores(method, view)) for method in contest.methods}


def podium(values: Mapping[str, float]) -> tuple[set[str], set[str]]:
    """Who is best and who is second; equal values share a place."""
    levels = sorted({round(value, 12) for value in values.values()}, reverse=True)

    def at(place: int) -> set[str]:
        return {name for name, value in values.items() if place < len(levels) and round(value, 12) == levels[place]}

    return at(0), at(1)


def curve(contest: Contest, method: str) -> Floats:
    """NDCG@10 of each batch, averaged over seeds, on the events that the headline is about; NaN where there is none."""
    batches, judged = contest.batches[contest.judged], contest.judged
    count = np.bincount(batches, minlength=len(contest.first["batches"]))
    gain = np.mean([gains(rank[judged]) for rank in contest.ranks(method).values()], axis=0)
    sums = np.bincount(batches, weights=gain, minlength=len(count))
    found: Floats = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
    return found


def batch_sizes(contest: Contest) -> Ints:
    """How many events of each batch the headline is about."""
    found: Ints = np.bincount(contest.batches[contest.judged], minlength=len(contest.first["batches"]))
    return found


def trailing_width(batches: int) -> int:
    """An eighth of the stream, but at least three batches and at most twenty."""
    return int(np.clip(batches // 8, 3, 20))


def on_top(curves: Mapping[str, Floats]) -> dict[str, float]:
    """The share of batches on which each is best; a batch that is tied counts for each of them in equal parts."""
    values = np.array(list(curves.values()))
    if not values.size:
        return {}
    known: Flags = ~np.isnan(values).any(0)
    values = values[:, known]
    if not values.shape[1]:
        return {}
    best = np.isclose(values, values.max(0), rtol=0, atol=1e-12)
    shares = (best / best.sum(0)).mean(1)
    return dict(zip(curves, map(float, shares), strict=True))


@dataclass(frozen=True)
class Slope:
    """How a gap changes over 100 batches, with its 95 % interval from the residuals."""

    per_100: float
    low: float
    high: float


def slope(gap: Floats, weights: Ints) -> Slope | None:
    """A straight line through the gap, batches weighted by their size; too few batches have none."""
    known = ~np.isnan(gap) & (weights > 0)
    n = int(known.sum())
    if n < 5:
        return None
    x, y = np.flatnonzero(known).astype(np.float64), gap[known]
    w = weights[known] / weights[known].mean()
    x_mean, y_mean = float(np.average(x, weights=w)), float(np.average(y, weights=w))
    spread = float((w * (x - x_mean) ** 2).sum())
    rise = float((w * (x - x_mean) * (y - y_mean)).sum()) / spread
    residuals = y - y_mean - rise * (x - x_mean)
    error = float(np.sqrt((w * residuals**2).sum() / (n - 2) / spread))
    half = 1.96 * error
    return Slope(100 * rise, 100 * (rise - half), 100 * (rise + half))


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Of (cost, accuracy) points those that no other beats at the same or a lower cost, from cheap to dear."""
    best, found = -np.inf, []
    for name, (_, accuracy) in sorted(points.items(), key=lambda each: (each[1][0], -each[1][1])):
        if accuracy > best:
            best = accuracy
            found.append(name)
    return found


def milliseconds(contest: Contest, method: str, what: str = "median") -> float | None:
    """Time per update, the mean over seeds of each one's median (or mean, or p95); nothing where it was not timed."""
    taken = [
        run.record["update_ms"][what]
        for run in contest.runs
        if run.method == method and what in run.record.get("update_ms", {})
    ]
    return float(np.mean(taken)) if taken else None


def split_by(contest: Contest, method: str, flags: Flags) -> dict[str, Estimate]:
    """Metrics on some of the events that the headline is about."""
    chosen = flags & contest.judged
    return estimates([found for rank in contest.ranks(method).values() if (found := metrics(rank[chosen]))])
