"""From ranks to advice (docs/methods.md 5.8): a costlier method is advised only where the data show that it is better.

The reference is named beforehand: plain fine-tuning, with settings chosen as those of all others. What beats it is
compared with cheaper winners, and the one that is left with doing without any strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from melon import display
from melon.evaluation.compare import Comparison, compare, hits, holm
from melon.evaluation.ranking import metrics
from melon.types import Flags, Floats, Ints, Plain

#: Methods that cost next to nothing, the cheapest first, in words.
_WORDS = {"frozen": "no update at all", "popularity": "popularity", "recent_popularity": "recent popularity"}
SIMPLE = tuple(_WORDS)


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
class Decision:
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


def judge(strategies: Sequence[Method], simple: Sequence[Method], users: Ints, items: Ints) -> Decision:
    """Strategies (the reference first) and the simple ways, all on the same events."""

    def against(ours: Method, theirs: Method) -> Comparison:
        return compare([hits(ours.rank)], [hits(theirs.rank)], users, items)

    reference = strategies[0]
    challengers = {one.name: against(one, reference) for one in strategies[1:]}
    better = holm(challengers)
    winners = [one for one in strategies[1:] if better[one.name]]
    strategy = _cheapest_equal(winners, against) if winners else reference
    rivals = {one.name: against(strategy, one) for one in simple}
    beats = holm(rivals)
    unbeaten = [one for one in simple if not beats[one.name]]  # each of them costs less than any strategy
    taken = max(unbeaten, key=lambda one: one.hit_rate, default=strategy)
    return Decision(taken, reference, challengers, better, rivals, beats, strategy)


def _cheapest_equal(winners: Sequence[Method], against: Callable[[Method, Method], Comparison]) -> Method:
    """The cheapest of those that are not shown to be worse than the best of them."""
    best = max(winners, key=lambda one: one.hit_rate)
    others = {one.name: against(best, one) for one in winners if one is not best}
    worse = holm(others)
    equal = [one for one in winners if one is best or not worse[one.name]]
    return min(equal, key=lambda one: one.update_ms)


def judged(repeats: Flags) -> Flags:
    """Which events count: on streams with repeats, those on items that the user did not have."""
    return ~repeats if repeats.any() and not repeats.all() else np.ones(len(repeats), dtype=bool)


@dataclass(frozen=True)
class Advice:
    """The advice, every comparison behind it, and what it is about."""

    stream: Path
    interactions: int
    recent: int
    span: tuple[int, int]
    judged: int
    without_repeats: bool
    verdict: Decision
    methods: tuple[Method, ...]
    #: Simple rivals that are shown and not advised: they serve as a yardstick.
    beside: tuple[str, ...]
    chosen: Mapping[str, Plain]
    half_life: float
    left_out: Mapping[str, str]
    batch_size: int

    def sentences(self) -> list[str]:
        """The advice, one thought to a line."""
        verdict, taken = self.verdict, self.verdict.taken
        lines = [f"Take {_named(taken.name)}: HR@5 {taken.hit_rate:.3f} on what came last."]
        lines.append(self._reason())
        if not verdict.simpler:
            lines += [
                f"Over {_WORDS[name]}: {difference_text(gain)}{'' if verdict.beats[name] else ', no difference shown'}."
                for name, gain in verdict.simple.items()
            ]
            lines.append(self._cost())
            settings = ", ".join(f"{key}={value}" for key, value in self.chosen[taken.name].items())
            lines.append(f"Settings that were chosen for it: {settings}.")
        elif taken.name == "recent_popularity":
            lines.append(f"Its counts halve every {self.half_life:g} interactions.")
        ahead = [each for each in self.methods if each.name in self.beside and each.hit_rate > taken.hit_rate]
        if ahead:
            others = ", ".join(f"{method_text(each.name)} ({each.hit_rate:.3f})" for each in ahead)
            lines.append(f"Simple mixtures with a higher HR@5, which melon only measures and cannot serve: {others}.")
        if self.left_out:
            reasons = dict.fromkeys(self.left_out.values())
            by_reason = {why: [name for name, own in self.left_out.items() if own == why] for why in reasons}
            lines += [f"Left out ({why}): {', '.join(names)}." for why, names in by_reason.items()]
        if not verdict.simpler:
            lines.append(self._next())
        return lines

    def _reason(self) -> str:
        verdict = self.verdict
        if verdict.simpler:
            rival = verdict.simple[verdict.taken.name]
            rest = "" if not verdict.challengers else ", which no other strategy is shown to beat at its price,"
            if rival.by_user[1] < 0:
                return f"Against it {verdict.strategy.name}{rest} is worse: {difference_text(rival)}."
            return (
                f"Against it {verdict.strategy.name}{rest} shows no difference ({difference_text(rival)}), so the "
                "cheaper one is enough; more data, or more --minutes, may decide it."
            )
        if verdict.strategy is verdict.reference:
            if not verdict.challengers:
                return "No other strategy was compared with it."
            return "No other strategy is shown to be better than it, so the cheapest is enough."
        gain = verdict.challengers[verdict.strategy.name]
        open_point = "" if gain.by_item[0] > 0 else " Resampling items instead of users leaves this open."
        better = [name for name, won in verdict.better.items() if won and name != verdict.strategy.name]
        others = f" So are {', '.join(better)}; none is shown to beat it and costs less." if better else ""
        return f"It is better than {verdict.reference.name}: {difference_text(gain)}.{open_point}{others}"

    def _cost(self) -> str:
        taken, reference = self.verdict.taken, self.verdict.reference
        pace = self.batch_size / max(taken.update_ms, 1e-6) * 1e3
        cost = (
            f"It costs {taken.update_ms:.1f} ms for each batch of {self.batch_size}: {pace:,.0f} interactions a second"
        )
        if taken is reference:
            return cost + "."
        return f"{cost}, {taken.update_ms / max(reference.update_ms, 1e-6):.1f} times {reference.name}."

    def _next(self) -> str:
        recommender, _, strategy = self.verdict.taken.name.partition(" ")
        which = f"--recommender {recommender} --strategy {strategy} --fading auto"
        return f"Next: melon evaluate {self.stream} {which}   or   melon pretrain {self.stream} {which} --out model/"

    def plain(self) -> Plain:
        """JSON-ready."""
        verdict = self.verdict
        return {
            "stream": str(self.stream),
            "interactions": self.interactions,
            "recent": self.recent,
            "from": self.span[0],
            "to": self.span[1],
            "judged": self.judged,
            "without_repeats": self.without_repeats,
            "take": verdict.taken.name,
            "reference": verdict.reference.name,
            "sentences": self.sentences(),
            "methods": {
                each.name: {
                    **metrics(each.rank),
                    "update_ms": each.update_ms if each.name in self.chosen else None,
                    "settings": self.chosen.get(each.name),
                }
                for each in self.methods
            },
            "against_reference": {
                name: {**_plain(comparison), "better": verdict.better[name]}
                for name, comparison in verdict.challengers.items()
            },
            "compared_with_simple": verdict.strategy.name,
            "against_simple": {
                name: {**_plain(comparison), "better": verdict.beats[name]}
                for name, comparison in verdict.simple.items()
            },
            "left_out": dict(self.left_out),
        }


def method_text(name: str) -> str:
    """A method in a table or a list."""
    return _WORDS.get(name) or display.label(name)


def difference_text(comparison: Comparison) -> str:
    """A difference with its interval."""
    low, high = comparison.by_user
    return f"{comparison.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def _named(name: str) -> str:
    if name == "frozen":
        return "a model that is trained once and not updated"
    if name in _WORDS:
        return f"{_WORDS[name]} alone"
    recommender, _, strategy = name.partition(" ")
    return f"{recommender} updated by {strategy}"


def _plain(comparison: Comparison) -> Plain:
    return {
        "difference": comparison.difference,
        "by_user": list(comparison.by_user),
        "by_item": list(comparison.by_item),
    }
