"""Advice in plain words with the numbers, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from melon.advice.judging import Method, Verdict
from melon.evaluation.compare import Comparison
from melon.evaluation.ranking import metrics
from melon.terminal.tables import LABELS
from melon.types import Plain

_WORDS = {
    "frozen": "no update at all",
    "popularity": "popularity",
    "recent_popularity": "recent popularity",
}


@dataclass(frozen=True)
class Advice:
    """Everything that is told."""

    stream: Path
    interactions: int
    recent: int
    span: tuple[int, int]
    judged: int
    without_repeats: bool
    verdict: Verdict
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
        told = [f"Take {_named(taken.name)}: HR@5 {taken.hit_rate:.3f} on what came last."]
        told.append(self._reason())
        if not verdict.simpler:
            told += [
                f"Over {_WORDS[name]}: {_difference(found)}{'' if verdict.beats[name] else ', no difference shown'}."
                for name, found in verdict.simple.items()
            ]
            told.append(self._cost())
            settings = ", ".join(f"{key}={value}" for key, value in self.chosen[taken.name].items())
            told.append(f"Settings that were chosen for it: {settings}.")
        elif taken.name == "recent_popularity":
            told.append(f"Its counts halve every {self.half_life:g} interactions.")
        ahead = [each for each in self.methods if each.name in self.beside and each.hit_rate > taken.hit_rate]
        if ahead:
            others = ", ".join(f"{_shown(each.name)} ({each.hit_rate:.3f})" for each in ahead)
            told.append(f"Simple mixtures that no command here serves, and that did better by number: {others}.")
        if self.left_out:
            reasons = dict.fromkeys(self.left_out.values())
            by_reason = {why: [name for name, own in self.left_out.items() if own == why] for why in reasons}
            told += [f"Left out ({why}): {', '.join(names)}." for why, names in by_reason.items()]
        if not verdict.simpler:
            told.append(self._next())
        return told

    def _reason(self) -> str:
        verdict = self.verdict
        if verdict.simpler:
            found = verdict.simple[verdict.taken.name]
            rest = "" if not verdict.challengers else ", which no other strategy is shown to beat at its price,"
            if found.by_user[1] < 0:
                return f"Against it {verdict.strategy.name}{rest} is worse: {_difference(found)}."
            return (
                f"Against it {verdict.strategy.name}{rest} shows no difference ({_difference(found)}), so the cheaper "
                "one will do; more data, or more --minutes, may decide it."
            )
        if verdict.strategy is verdict.reference:
            if not verdict.challengers:
                return "No other strategy was compared with it."
            return "No other strategy is shown to be better than it, so the cheapest will do."
        found = verdict.challengers[verdict.strategy.name]
        open_point = "" if found.by_item[0] > 0 else " Resampling items instead of users leaves this open."
        better = [name for name, won in verdict.better.items() if won and name != verdict.strategy.name]
        others = f" So are {', '.join(better)}; none is shown to beat it and costs less." if better else ""
        return f"It is better than {verdict.reference.name}: {_difference(found)}.{open_point}{others}"

    def _cost(self) -> str:
        taken, reference = self.verdict.taken, self.verdict.reference
        pace = self.batch_size / max(taken.update_ms, 1e-6) * 1e3
        said = (
            f"It costs {taken.update_ms:.1f} ms for each batch of {self.batch_size}: {pace:,.0f} interactions a second"
        )
        if taken is reference:
            return said + "."
        return f"{said}, {taken.update_ms / max(reference.update_ms, 1e-6):.1f} times {reference.name}."

    def _next(self) -> str:
        recommender, _, strategy = self.verdict.taken.name.partition(" ")
        which = f"--recommender {recommender} --strategy {strategy} --fading auto"
        return (
            f"Go on with: melon evaluate {self.stream} {which}   or   melon pretrain {self.stream} {which} --out model/"
        )

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
                name: {**_comparison(found), "better": verdict.better[name]}
                for name, found in verdict.challengers.items()
            },
            "compared_with_simple": verdict.strategy.name,
            "against_simple": {
                name: {**_comparison(found), "better": verdict.beats[name]} for name, found in verdict.simple.items()
            },
            "left_out": dict(self.left_out),
        }


def show_advice(advice: Advice, *, as_json: bool) -> None:
    """On the screen, or as JSON."""
    console = Console(soft_wrap=True)
    if as_json:
        console.print_json(json.dumps(advice.plain(), allow_nan=False))
        return
    first, last = (datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%d %H:%M") for each in advice.span)
    lines = [
        f"The last {advice.recent:,} of {advice.interactions:,} interactions of {advice.stream}, {first} to {last}.",
        f"Settings were chosen on their earlier part; these figures are about {advice.judged:,} that came after"
        + (", repeats left out." if advice.without_repeats else "."),
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False)
    console.print(_table(advice))
    for line in advice.sentences():
        console.print(line, markup=False, highlight=False)


def _table(advice: Advice) -> RichTable:
    table = RichTable("", "HR@5", "NDCG@10", f"over {advice.verdict.reference.name}", "ms a batch")
    for each in sorted(advice.methods, key=lambda method: -method.hit_rate):
        found = metrics(each.rank)
        against = advice.verdict.challengers.get(each.name)
        mark = " *" if advice.verdict.better.get(each.name) else ""
        table.add_row(
            _shown(each.name),
            f"{found['HR@5']:.3f}",
            f"{found['NDCG@10']:.3f}",
            f"{_difference(against)}{mark}" if against else "",
            f"{each.update_ms:.1f}" if each.name in advice.chosen else "",
        )
    table.caption = "95 % intervals from resampling users; * better, corrected for the number of comparisons"
    return table


def _shown(name: str) -> str:
    """A method in a table or a list."""
    return _WORDS.get(name) or LABELS.get(name, name)


def _named(name: str) -> str:
    if name == "frozen":
        return "a model that is trained once and not updated"
    if name in _WORDS:
        return f"{_WORDS[name]} alone"
    recommender, _, strategy = name.partition(" ")
    return f"{recommender} updated by {strategy}"


def _difference(found: Comparison) -> str:
    low, high = found.by_user
    return f"{found.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def _comparison(found: Comparison) -> Plain:
    return {"difference": found.difference, "by_user": list(found.by_user), "by_item": list(found.by_item)}
