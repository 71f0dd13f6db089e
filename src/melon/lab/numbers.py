"""A report's arithmetic: means with errors, paired tests, shares of batches on top, slopes, the frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from melon.evaluation.compare import Comparison, Conclusion, compare, conclusions
from melon.evaluation.ranking import METRICS, Metrics, gains, metrics
from melon.lab.records import REFERENCE, MethodComparison, View
from melon.learning.rate_matrix import RateFacts
from melon.types import Flags, Floats, Ints

METRIC = "HR@5"
#: Shown beside it with its own interval; conclusions are about the first alone.
SECOND_METRIC = "NDCG@10"
#: The quantile of the normal distribution that leaves 2.5 % above it.
_Z = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error, which one seed does not have."""

    mean: float
    error: float | None = None


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and sd(ddof=1)/√n; None of nothing."""
    if not values:
        return None
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return Estimate(float(np.mean(values)), error)


def estimates(scores: Sequence[Metrics]) -> dict[str, Estimate]:
    """Of every metric that all seeds have."""
    names = [name for name in (scores[0] if scores else ()) if all(name in each for each in scores)]
    means = {name: estimate([seed[name] for seed in scores]) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def table_of(comparison: MethodComparison, view: View) -> dict[str, dict[str, Estimate]]:
    """Methods × metrics; a method without the view has an empty line."""
    return {method: estimates(comparison.scores(method, view)) for method in comparison.methods}


@dataclass(frozen=True)
class Compared:
    """Two methods, or groups of them, on the same events."""

    difference: Comparison
    conclusion: Conclusion
    margin: float
    family: int

    @property
    def visible(self) -> float:
        """The smallest difference that could be seen at all: half the interval."""
        low, high = self.difference.by_user
        return (high - low) / 2

    @property
    def no_gain(self) -> bool:
        """Whether a gain of the margin's size is ruled out."""
        return self.conclusion != "better" and self.difference.by_user[1] < self.margin


class PairedTests:
    """Paired tests (docs/methods.md 5.8), each made once; a table is judged as the family that it declares."""

    def __init__(self) -> None:
        self._cache: dict[tuple[MethodComparison, tuple[str, ...], tuple[str, ...], str], Comparison] = {}

    def family(
        self, comparison: MethodComparison, ours: Sequence[str], baseline: str = REFERENCE
    ) -> dict[str, Compared]:
        """Each of ours against one baseline, as one family."""
        return self._judged(comparison, {name: ((name,), (baseline,)) for name in ours if name != baseline})

    def against(self, comparison: MethodComparison, ours: str, baselines: Sequence[str]) -> dict[str, Compared]:
        """One of ours against each baseline, as one family."""
        return self._judged(comparison, {name: ((ours,), (name,)) for name in baselines if name != ours})

    def groups(self, comparison: MethodComparison, ours: Sequence[str], theirs: Sequence[str]) -> Compared:
        """The mean of some methods against the mean of others: a family of one."""
        return self._judged(comparison, {"": (tuple(ours), tuple(theirs))})[""]

    def second(self, comparison: MethodComparison, ours: str, baseline: str = REFERENCE) -> Comparison:
        """The same two methods by the second metric."""
        return self._compare(comparison, (ours,), (baseline,), SECOND_METRIC)

    def _judged(
        self, comparison: MethodComparison, pairs: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> dict[str, Compared]:
        family = {name: self._compare(comparison, *sides) for name, sides in pairs.items()}
        judged = conclusions(family, comparison.margin)
        return {name: Compared(each, judged[name], comparison.margin, len(family)) for name, each in family.items()}

    def _compare(
        self, comparison: MethodComparison, ours: tuple[str, ...], theirs: tuple[str, ...], metric: str = METRIC
    ) -> Comparison:
        key = (comparison, ours, theirs, metric)
        if key not in self._cache:
            sides = [
                {seed: self._values(comparison, side, seed, metric) for seed in comparison.seeds}
                for side in (ours, theirs)
            ]
            common = [seed for seed in comparison.seeds if all(side[seed] is not None for side in sides)]
            one, other = ([values for seed in common if (values := side[seed]) is not None] for side in sides)
            users, items = (comparison.column(name)[comparison.judged] for name in ("user", "item"))
            self._cache[key] = compare(one, other, users, items)
        return self._cache[key]

    @staticmethod
    def _values(comparison: MethodComparison, methods: tuple[str, ...], seed: int, metric: str) -> Floats | None:
        """The part of each event in the metric, the mean over methods; None where one of them lacks the seed."""
        ranks = [comparison.ranks(method).get(seed) for method in methods]
        if any(rank is None for rank in ranks):
            return None
        values: Floats = np.mean(
            [METRICS[metric](rank[comparison.judged]) for rank in ranks if rank is not None], axis=0
        )
        return values


def curve(comparison: MethodComparison, method: str) -> Floats:
    """NDCG@10 of each batch, averaged over seeds, on the events that the headline is about; NaN where there is none."""
    batches, judged = comparison.batches[comparison.judged], comparison.judged
    count = np.bincount(batches, minlength=len(comparison.first["batches"]))
    gain = np.mean([gains(rank[judged]) for rank in comparison.ranks(method).values()], axis=0)
    sums = np.bincount(batches, weights=gain, minlength=len(count))
    means: Floats = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
    return means


def batch_sizes(comparison: MethodComparison) -> Ints:
    """How many events of each batch the headline is about."""
    sizes: Ints = np.bincount(comparison.batches[comparison.judged], minlength=len(comparison.first["batches"]))
    return sizes


def trailing_width(batches: int) -> int:
    """An eighth of the stream, but at least three batches and at most twenty."""
    return int(np.clip(batches // 8, 3, 20))


def trailing_mean(values: Floats, width: int = 10) -> Floats:
    """The mean of the last `width` values that are known, at each place."""
    windows = (values[max(0, at - width + 1) : at + 1] for at in range(len(values)))
    return np.array([numbers.mean() if len(numbers := window[~np.isnan(window)]) else np.nan for window in windows])


def on_top(curves: Mapping[str, Floats]) -> dict[str, float]:
    """The share of batches on which each is best; a batch that is tied counts for each of them in equal parts."""
    values = np.array(list(curves.values()))
    if not values.size:
        return {}
    complete: Flags = ~np.isnan(values).any(0)
    values = values[:, complete]
    if not values.shape[1]:
        return {}
    best = np.isclose(values, values.max(0), rtol=0, atol=1e-12)
    shares = (best / best.sum(0)).mean(1)
    return dict(zip(curves, map(float, shares), strict=True))


#: Fewer batches than this show no trend.
_FEWEST_BATCHES = 20


@dataclass(frozen=True)
class Slope:
    """How a gap changes over 100 batches, with its 95 % interval from the residuals (Student's t)."""

    per_100: float
    low: float
    high: float


def slope(gap: Floats, weights: Ints) -> Slope | None:
    """A straight line through the gap, batches weighted by their size; too few batches have none."""
    known = ~np.isnan(gap) & (weights > 0)
    n = int(known.sum())
    if n < _FEWEST_BATCHES:
        return None
    x, y = np.flatnonzero(known).astype(np.float64), gap[known]
    w = weights[known] / weights[known].mean()
    x_mean, y_mean = float(np.average(x, weights=w)), float(np.average(y, weights=w))
    spread = float((w * (x - x_mean) ** 2).sum())
    rise = float((w * (x - x_mean) * (y - y_mean)).sum()) / spread
    residuals = y - y_mean - rise * (x - x_mean)
    error = float(np.sqrt((w * residuals**2).sum() / (n - 2) / spread))
    half = t_quantile(n - 2) * error
    return Slope(100 * rise, 100 * (rise - half), 100 * (rise + half))


def t_quantile(degrees: int) -> float:
    """Student's t at 97.5 %, by the expansion of Cornish and Fisher: within 0.1 % from 18 degrees of freedom on."""
    first, second = (_Z**3 + _Z) / 4, (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    return _Z + first / degrees + second / degrees**2


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Of (cost, accuracy) points those that no other beats at the same or a lower cost, from cheap to expensive."""
    best, names = -np.inf, []
    for name, (_, accuracy) in sorted(points.items(), key=lambda each: (each[1][0], -each[1][1])):
        if accuracy > best:
            best = accuracy
            names.append(name)
    return names


def milliseconds(comparison: MethodComparison, method: str, what: str = "median") -> float | None:
    """Time per update, the mean over seeds of each one's median (or mean, or p95); nothing where it was not timed."""
    taken = [
        run.record["update_ms"][what]
        for run in comparison.runs
        if run.method == method and what in run.record.get("update_ms", {})
    ]
    return float(np.mean(taken)) if taken else None


def split_by(comparison: MethodComparison, method: str, flags: Flags) -> dict[str, Estimate]:
    """Metrics on some of the events that the headline is about."""
    chosen = flags & comparison.judged
    return estimates([scores for rank in comparison.ranks(method).values() if (scores := metrics(rank[chosen]))])


def rate_texts(facts: RateFacts) -> dict[str, str]:
    """What is said of a learning-rate matrix, by name."""

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    def signed(value: float | None) -> str:
        return "–" if value is None else f"{value:+.3f}"

    by_interaction, by_parameter = facts.from_one_rate_per_interaction, facts.from_one_rate_per_parameter
    return {
        "interactions × parameters": f"{facts.interactions:,} × {facts.parameters:,}",
        "least, mean, most": f"{facts.least:.3g}, {facts.mean:.3g}, {facts.most:.3g}",
        "numerical rank": f"{facts.rank}",
        "patterns above 1 % of the strongest": f"{facts.patterns}",
        "spread within a row": "–" if facts.within_rows is None else f"{facts.within_rows:.1%}",
        "σ₂/σ₁": f"{facts.sigma_ratio:.4f}",
        "rank correlation with the loss": signed(facts.with_loss),
        "rank correlation with |gradient|": signed(facts.with_gradient),
        "rank correlation with the gradient": signed(facts.with_signed_gradient),
        "variance by interaction": share(facts.by_interaction),
        "variance by parameter": share(facts.by_parameter),
        "variance by neither": share(facts.neither),
        "distance from one rate per interaction": f"{by_interaction.spectral:.4f}, {by_interaction.frobenius:.4f}",
        "distance from one rate per parameter": f"{by_parameter.spectral:.4f}, {by_parameter.frobenius:.4f}",
    }
