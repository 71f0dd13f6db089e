"""What a comparison may claim (docs/methods.md 5.8): paired by event, bootstrapped by user, Holm within its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from melon.errors import StreamError
from melon.types import Floats, Ints

RESAMPLES = 2_000
LEVEL = 0.95
#: What a comparison may claim, from the best to the worst; "no significant difference" is none of them.
Conclusion = Literal["better", "no significant loss", "worse within the margin", "worse", "no significant difference"]


@dataclass(frozen=True)
class Comparison:
    """A mean difference with its intervals from resampling users and items, and its spread over seeds."""

    difference: float
    by_user: tuple[float, float]
    by_item: tuple[float, float]
    seed_error: float | None
    p_value: float

    def __str__(self) -> str:
        by_user, by_item = (f"{low:+.3f} … {high:+.3f}" for low, high in (self.by_user, self.by_item))
        return f"{self.difference:+.3f} (95 % interval {by_user} by user, {by_item} by item; p = {self.p_value:.3f})"

    def _repr_html_(self) -> str:
        """The same, for notebooks."""
        return f"<p>{self}</p>"

    def turned(self) -> Comparison:
        """Theirs minus ours."""
        (low, high), (item_low, item_high) = self.by_user, self.by_item
        return replace(self, difference=-self.difference, by_user=(-high, -low), by_item=(-item_high, -item_low))


@dataclass(frozen=True)
class Sides:
    """Two sides on the events of one stream: values per event (hits or gains), one array for each seed."""

    ours: Sequence[Floats]
    theirs: Sequence[Floats]
    users: Ints
    items: Ints

    def __post_init__(self) -> None:
        sizes = {len(values) for values in (*self.ours, *self.theirs, self.users, self.items)}
        if len(self.ours) != len(self.theirs) or not self.ours or len(sizes) != 1:
            raise StreamError("a comparison needs the same events and the same seeds on both sides.")

    @property
    def per_seed(self) -> Floats:
        """The mean difference under each seed."""
        return np.array([np.mean(a - b) for a, b in zip(self.ours, self.theirs, strict=True)])

    @property
    def difference(self) -> Floats:
        """The difference of each event, averaged over seeds."""
        averaged: Floats = np.mean([a - b for a, b in zip(self.ours, self.theirs, strict=True)], axis=0)
        return averaged


def compare(ours: Sequence[Floats], theirs: Sequence[Floats], users: Ints, items: Ints, *, seed: int = 0) -> Comparison:
    """Ours minus theirs on one stream."""
    return compare_mean([Sides(ours, theirs, users, items)], seed=seed)


def compare_mean(streams: Sequence[Sides], *, seed: int = 0) -> Comparison:
    """Ours minus theirs on the mean of streams, each counting alike and resampled by itself."""
    if not streams or len({len(sides.ours) for sides in streams}) != 1:
        raise StreamError("a comparison over streams needs at least one, and the same number of seeds on each.")
    rng = np.random.default_rng(seed)
    per_seed = np.mean([sides.per_seed for sides in streams], axis=0)
    drawn = [[_resampled(sides.difference, groups, rng) for groups in (sides.users, sides.items)] for sides in streams]
    by_user, by_item = np.mean(drawn, axis=0)
    beyond = 1 + min(int((by_user <= 0).sum()), int((by_user >= 0).sum()))
    error = float(per_seed.std(ddof=1) / np.sqrt(len(per_seed))) if len(per_seed) > 1 else None
    p_value = min(1.0, 2 * beyond / (len(by_user) + 1))
    return Comparison(float(per_seed.mean()), _interval(by_user), _interval(by_item), error, p_value)


def holm(comparisons: Mapping[str, Comparison], level: float = 1 - LEVEL) -> dict[str, bool]:
    """Which of a declared family are better, their p-values corrected by Holm's method.

    A p-value from these resamples is at least .001, so families of more than fifty can show nothing: declare one for
    each stream rather than one for all.
    """
    better = dict.fromkeys(comparisons, False)
    order = sorted(comparisons, key=lambda name: comparisons[name].p_value)
    for place, name in enumerate(order):
        if comparisons[name].p_value > level / (len(order) - place):
            break
        better[name] = comparisons[name].by_user[0] > 0
    return better


def conclusions(comparisons: Mapping[str, Comparison], margin: float) -> dict[str, Conclusion]:
    """The conclusion on each comparison of a declared family.

    "better" and "worse" hold after Holm's correction. Where a loss of more than `margin` is ruled out, the interval
    decides: "no significant loss" reaches 0, "worse within the margin" lies wholly below it.
    """
    better = holm(comparisons)
    worse = holm({name: each.turned() for name, each in comparisons.items()})
    judged: dict[str, Conclusion] = {}
    for name, each in comparisons.items():
        low, high = each.by_user
        if better[name]:
            judged[name] = "better"
        elif low > -margin:
            judged[name] = "no significant loss" if high >= 0 else "worse within the margin"
        else:
            judged[name] = "worse" if worse[name] else "no significant difference"
    return judged


def _resampled(values: Floats, groups: Ints, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Means under resampling of whole groups."""
    _, group = np.unique(groups, return_inverse=True)
    sums, sizes = np.bincount(group, weights=values), np.bincount(group)
    means = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        times = np.bincount(rng.integers(len(sums), size=len(sums)), minlength=len(sums))
        means[number] = (times @ sums) / max(int(times @ sizes), 1)
    return means


def _interval(means: Floats) -> tuple[float, float]:
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(means, (tail, 100 - tail))
    return float(low), float(high)
