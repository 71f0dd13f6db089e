"""From ranks to advice (METHODS.md 5.8): a dearer method is advised only where the data show that it is better.

The rival is named beforehand: plain fine-tuning, with settings chosen as everybody's are. Whatever beats it is compared
with what is cheaper among the winners, and the one that is left with the ways to do without any strategy at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from melon.evaluation.compare import Comparison, compare, hits, holm
from melon.types import Flags, Floats, Ints

#: What costs next to nothing, the cheapest first.
SIMPLE = ("frozen", "popularity", "recent_popularity")


@dataclass(frozen=True)
class Method:
    """One way to keep up with the stream: the rank of every judged event, and what an update costs."""

    name: str
    rank: Floats
    update_ms: float

    @property
    def hit_rate(self) -> float:
        """HR@5."""
        return float(hits(self.rank).mean())


@dataclass(frozen=True)
class Verdict:
    """The advice: what to take, and every comparison behind it."""

    taken: Method
    reference: Method
    #: Against the reference, for every other strategy.
    challengers: Mapping[str, Comparison]
    better: Mapping[str, bool]
    #: The strategy that is left against the simple ways.
    simple: Mapping[str, Comparison]
    beats: Mapping[str, bool]
    #: The strategy that is left: the cheapest that nothing is shown to beat.
    strategy: Method

    @property
    def simpler(self) -> bool:
        """Whether the advice is to do without any strategy."""
        return self.taken is not self.strategy


def judge(strategies: Sequence[Method], simple: Sequence[Method], users: Ints, items: Ints) -> Verdict:
    """Strategies (the reference first) and the simple ways, all on the same events."""

    def against(ours: Method, theirs: Method) -> Comparison:
        return compare([hits(ours.rank)], [hits(theirs.rank)], users, items)

    reference = strategies[0]
    challengers = {each.name: against(each, reference) for each in strategies[1:]}
    better = holm(challengers)
    winners = [each for each in strategies[1:] if better[each.name]]
    strategy = _cheapest_equal(winners, against) if winners else reference
    rivals = {each.name: against(strategy, each) for each in simple}
    beats = holm(rivals)
    unbeaten = [each for each in simple if not beats[each.name]]  # each of them costs less than any strategy
    taken = max(unbeaten, key=lambda each: each.hit_rate, default=strategy)
    return Verdict(taken, reference, challengers, better, rivals, beats, strategy)


def _cheapest_equal(winners: Sequence[Method], against: Callable[[Method, Method], Comparison]) -> Method:
    """The cheapest of those that are not shown to be worse than the best of them."""
    best = max(winners, key=lambda each: each.hit_rate)
    others = {each.name: against(best, each) for each in winners if each is not best}
    worse = holm(others)
    equal = [each for each in winners if each is best or not worse[each.name]]
    return min(equal, key=lambda each: each.update_ms)


def judged(repeats: Flags) -> Flags:
    """Which events count: on streams with repeats, those on items that the user did not have."""
    return ~repeats if repeats.any() and not repeats.all() else np.ones(len(repeats), dtype=bool)
