"""Comparisons as METHODS.md 5.8 allows them: paired per event, clustered by user, Holm within a declared family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from melon.evaluation.compare import Comparison, compare, gains, hits, holm
from melon.report.contests import Contest
from melon.types import Floats

#: Named before anything is compared: what somebody would otherwise do.
REFERENCE = "default"
METRIC = "HR@5"
#: Shown beside it with its own interval; verdicts are about the first alone.
SECOND_METRIC = "NDCG@10"
_VALUES: Mapping[str, Callable[[Floats], Floats]] = {METRIC: hits, SECOND_METRIC: gains}
Standing = Literal["better", "not worse", "worse", "not decided"]


@dataclass(frozen=True)
class Compared:
    """Two methods, or groups of them, on the same events."""

    difference: Comparison
    standing: Standing
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
        return self.standing != "better" and self.difference.by_user[1] < self.margin


class Comparisons:
    """Compares once, remembers, and judges each table as the family that it declares."""

    def __init__(self) -> None:
        self._made: dict[tuple[Contest, tuple[str, ...], tuple[str, ...], str], Comparison] = {}

    def family(self, contest: Contest, ours: Sequence[str], rival: str = REFERENCE) -> dict[str, Compared]:
        """Each of ours against one rival; the family are all of them."""
        pairs = {name: ((name,), (rival,)) for name in ours if name != rival}
        return self._judged(contest, pairs)

    def against(self, contest: Contest, ours: str, rivals: Sequence[str]) -> dict[str, Compared]:
        """One of ours against each rival; the family are all of them."""
        pairs = {name: ((ours,), (name,)) for name in rivals if name != ours}
        return self._judged(contest, pairs)

    def groups(self, contest: Contest, ours: Sequence[str], theirs: Sequence[str]) -> Compared:
        """The mean of some methods against the mean of others: a family of one."""
        return self._judged(contest, {"": (tuple(ours), tuple(theirs))})[""]

    def second(self, contest: Contest, ours: str, rival: str = REFERENCE) -> Comparison:
        """The same two methods by the second metric."""
        return self._compare(contest, (ours,), (rival,), SECOND_METRIC)

    def _judged(
        self, contest: Contest, pairs: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> dict[str, Compared]:
        made = {name: self._compare(contest, *sides) for name, sides in pairs.items()}
        better = holm(made)
        worse = holm({name: _turned(each) for name, each in made.items()})
        found = {}
        for name, each in made.items():
            standing: Standing = "not decided"
            if better[name]:
                standing = "better"
            elif each.not_worse(contest.margin):
                standing = "not worse"
            elif worse[name]:
                standing = "worse"
            found[name] = Compared(each, standing, contest.margin, len(made))
        return found

    def _compare(
        self, contest: Contest, ours: tuple[str, ...], theirs: tuple[str, ...], metric: str = METRIC
    ) -> Comparison:
        key = (contest, ours, theirs, metric)
        if key not in self._made:
            judged = contest.judged
            sides = [
                {seed: self._values(contest, side, seed, metric) for seed in contest.seeds} for side in (ours, theirs)
            ]
            common = [seed for seed in contest.seeds if all(side[seed] is not None for side in sides)]
            one, other = ([values for seed in common if (values := side[seed]) is not None] for side in sides)
            users, items = contest.column("user")[judged], contest.column("item")[judged]
            self._made[key] = compare(one, other, users, items)
        return self._made[key]

    @staticmethod
    def _values(contest: Contest, methods: tuple[str, ...], seed: int, metric: str) -> Floats | None:
        """The part of each event in the metric, the mean over methods; nothing where one of them lacks the seed."""
        ranks = [contest.ranks(method).get(seed) for method in methods]
        if any(rank is None for rank in ranks):
            return None
        found: Floats = np.mean([_VALUES[metric](rank[contest.judged]) for rank in ranks if rank is not None], axis=0)
        return found


def _turned(comparison: Comparison) -> Comparison:
    """The same, seen from the other side."""
    (low, high), (item_low, item_high) = comparison.by_user, comparison.by_item
    return replace(
        comparison, difference=-comparison.difference, by_user=(-high, -low), by_item=(-item_high, -item_low)
    )
