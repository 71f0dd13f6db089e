"""`melon advise`: run cells on the recent part of a stream until the time is over, and say which method to take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import LearningError, SettingsError, StreamError
from melon.evaluation import labels
from melon.evaluation.cell import Cell
from melon.evaluation.compare import Comparison, compare, holm
from melon.evaluation.ranking import hits, metrics
from melon.evaluation.record import judged
from melon.fitting.config import CellConfig
from melon.lab.bench import FIRST, CellOutcome, Task, run_grid
from melon.lab.executors import executor_for
from melon.models.registry import RECOMMENDERS
from melon.progress import Progress
from melon.strategies.registry import STRATEGIES
from melon.types import Floats, Ints, Plain

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
    baselines = {one.name: against(strategy, one) for one in simple}
    beats = holm(baselines)
    unbeaten = [one for one in simple if not beats[one.name]]  # each of them costs less than any strategy
    taken = max(unbeaten, key=lambda one: one.hit_rate, default=strategy)
    return Decision(taken, reference, challengers, better, baselines, beats, strategy)


def _cheapest_equal(winners: Sequence[Method], against: Callable[[Method, Method], Comparison]) -> Method:
    """The cheapest of those that are not shown to be worse than the best of them."""
    best = max(winners, key=lambda one: one.hit_rate)
    others = {one.name: against(best, one) for one in winners if one is not best}
    worse = holm(others)
    equal = [one for one in winners if one is best or not worse[one.name]]
    return min(equal, key=lambda one: one.update_ms)


@dataclass(frozen=True)
class Advice:
    """The advice, every comparison behind it, and what it is about."""

    stream: Path
    interactions: int
    recent: int
    span: tuple[int, int]
    judged: int
    without_repeats: bool
    conclusion: Decision
    methods: tuple[Method, ...]
    #: Simple baselines that are shown and not advised: they serve as a yardstick.
    beside: tuple[str, ...]
    chosen: Mapping[str, Plain]
    half_life: float
    left_out: Mapping[str, str]
    batch_size: int

    def sentences(self) -> list[str]:
        """The advice, one thought to a line."""
        conclusion, taken = self.conclusion, self.conclusion.taken
        lines = [f"Take {_named(taken.name)}: HR@5 {taken.hit_rate:.3f} on what came last."]
        lines.append(self._reason())
        if not conclusion.simpler:
            lines += [
                f"Over {_WORDS[name]}: {difference_text(gain)}"
                f"{'' if conclusion.beats[name] else ', no significant difference'}."
                for name, gain in conclusion.simple.items()
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
        if not conclusion.simpler:
            lines.append(self._next())
        return lines

    def _reason(self) -> str:
        conclusion = self.conclusion
        if conclusion.simpler:
            baseline = conclusion.simple[conclusion.taken.name]
            rest = "" if not conclusion.challengers else ", which no other strategy is shown to beat at its price,"
            if baseline.by_user[1] < 0:
                return f"Against it {conclusion.strategy.name}{rest} is worse: {difference_text(baseline)}."
            return (
                f"Against it {conclusion.strategy.name}{rest} shows no significant difference "
                f"({difference_text(baseline)}), so the cheaper one is enough; more data, or more --minutes, may "
                "decide it."
            )
        if conclusion.strategy is conclusion.reference:
            if not conclusion.challengers:
                return "No other strategy was compared with it."
            return "No other strategy is shown to be better than it, so the cheapest is enough."
        gain = conclusion.challengers[conclusion.strategy.name]
        open_point = "" if gain.by_item[0] > 0 else " Resampling items instead of users leaves this open."
        better = [name for name, won in conclusion.better.items() if won and name != conclusion.strategy.name]
        others = f" So are {', '.join(better)}; none is shown to beat it and costs less." if better else ""
        return f"It is better than {conclusion.reference.name}: {difference_text(gain)}.{open_point}{others}"

    def _cost(self) -> str:
        taken, reference = self.conclusion.taken, self.conclusion.reference
        pace = self.batch_size / max(taken.update_ms, 1e-6) * 1e3
        cost = (
            f"It costs {taken.update_ms:.1f} ms for each batch of {self.batch_size}: {pace:,.0f} interactions a second"
        )
        if taken is reference:
            return cost + "."
        return f"{cost}, {taken.update_ms / max(reference.update_ms, 1e-6):.1f} times {reference.name}."

    def _next(self) -> str:
        recommender, _, strategy = self.conclusion.taken.name.partition(" ")
        which = f"--recommender {recommender} --strategy {strategy} --half-life auto"
        return f"Next: melon evaluate {self.stream} {which}   or   melon pretrain {self.stream} {which} --out model/"

    def plain(self) -> Plain:
        """JSON-ready."""
        conclusion = self.conclusion
        return {
            "stream": str(self.stream),
            "interactions": self.interactions,
            "recent": self.recent,
            "from": self.span[0],
            "to": self.span[1],
            "judged": self.judged,
            "without_repeats": self.without_repeats,
            "take": conclusion.taken.name,
            "reference": conclusion.reference.name,
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
                name: {**_plain(comparison), "better": conclusion.better[name]}
                for name, comparison in conclusion.challengers.items()
            },
            "compared_with_simple": conclusion.strategy.name,
            "against_simple": {
                name: {**_plain(comparison), "better": conclusion.beats[name]}
                for name, comparison in conclusion.simple.items()
            },
            "left_out": dict(self.left_out),
        }


def method_text(name: str) -> str:
    """A method in a table or a list."""
    return _WORDS.get(name) or labels.label(name)


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


#: Interactions of the recent part for each minute, and the fewest that say anything.
_PER_MINUTE, _FEWEST = 10_000, 1_000
_SPLIT = (0.75, 0.05, 0.2)
#: From quick to slow, so that a short time still compares those that most people would take.
_STRATEGIES = (FIRST, "eals", "metasgd", "mwnet", "melon", "sml", "s2meta")
#: The quick ones, and the one that most often does best, before the slow one.
_RECOMMENDERS = ("bpr", "blend", "ncf")
_NAME = "recent"
NO_TIME = "no time left; more --minutes take more in"


@dataclass(frozen=True)
class AdvicePlan:
    """What is tried, in which order, and for how long."""

    recommenders: tuple[str, ...]
    strategies: tuple[str, ...]
    minutes: float
    config: Plain

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise SettingsError(f"minutes = {self.minutes:g} is too short: it must be more than 0.")
        for name in self.recommenders:
            RECOMMENDERS[name]
        for name in self.strategies:
            STRATEGIES[name]

    def phases(self) -> list[list[Task]]:
        """Cells up to each phase: plain fine-tuning of two recommenders, all strategies on the first, plain fine-tuning
        of every recommender, everything.
        """
        names = [FIRST, *(name for name in self.strategies if name != FIRST)]
        cells = [
            Task(_NAME, CellConfig(**{**self.config, "recommender": recommender, "strategy": strategy}))
            for recommender in self.recommenders
            for strategy in names
        ]
        plain = [task for task in cells if task.shared]
        first = cells[: len(names)]
        chosen = [plain[:2], [*plain[:2], *first], [*plain, *first], cells]
        return [_once(phase) for phase in chosen]


def advise_stream(
    stream: Path,
    *,
    minutes: float,
    recommenders: str | None,
    strategies: str | None,
    config: Plain,
    jobs: int,
    progress: Progress | None = None,
) -> Advice:
    """Which strategy fits a stream, as far as `minutes` of trying tell."""
    began = time.monotonic()
    plan = AdvicePlan(
        tuple(recommenders.split(",")) if recommenders else _recommenders(),
        tuple(strategies.split(",")) if strategies else _STRATEGIES,
        minutes,
        {"split": _SPLIT, "half_life": "auto", "budget": 4, "epochs": 20, "pretrain_settings": {"l2": 0.03}, **config},
    )
    log = load_stream(stream)
    recent = log.tail(max(len(log) - max(int(_PER_MINUTE * minutes), _FEWEST), 0))
    if len(recent) < _FEWEST:
        raise StreamError(f"{stream} has {len(log):,} interactions; advice needs at least {_FEWEST:,}.")
    first = plan.phases()[0][0]
    cell = Cell(recent, first.config)  # names, values and sizes are checked before anything is spent
    if not cell.selection.possible:
        raise StreamError(f"the recent part of {stream} is too short to choose settings on; give more --minutes.")
    outcomes = _run(plan, recent, jobs, progress or Progress(), until=began + 60 * minutes)
    if first.key not in outcomes:
        raise SettingsError(
            f"{minutes:g} minutes were not enough for plain fine-tuning on {len(recent):,} interactions; give more "
            "--minutes."
        )
    if outcomes[first.key].record is None:
        raise LearningError(f"plain fine-tuning failed: {outcomes[first.key].problem}")
    if not outcomes[first.key].record["metrics"]:  # type: ignore[index]
        raise StreamError(
            "no event could be ranked: there are too few items beside what users took; lower --negatives."
        )
    return _advice(stream, log, recent, plan, outcomes)


def _run(
    plan: AdvicePlan, recent: Interactions, jobs: int, progress: Progress, *, until: float
) -> dict[str, CellOutcome]:
    def time_is_up() -> bool:
        return time.monotonic() >= until

    outcomes: dict[str, CellOutcome] = {}
    with tempfile.TemporaryDirectory(prefix="melon-advice-") as folder:
        path = Path(folder) / f"{_NAME}.parquet"
        events = {"user": recent.users, "item": recent.items, "ts": recent.times}
        pl.DataFrame(events).write_parquet(path)
        threads = int(plan.config.get("threads", 1))
        with executor_for({_NAME: path}, Path(folder) / "work", jobs=jobs, ray=None, threads=threads) as executor:
            for tasks in plan.phases():
                for outcome in run_grid(tasks, dict(outcomes), executor, lambda _: None, progress, time_is_up):
                    outcomes[outcome.task.key] = outcome
    return outcomes


def _recommenders() -> tuple[str, ...]:
    names = [entry.name for entry in RECOMMENDERS if entry.driven]
    return (*(name for name in _RECOMMENDERS if name in names), *(name for name in names if name not in _RECOMMENDERS))


def _once(tasks: Iterable[Task]) -> list[Task]:
    """Each task once."""
    return list({task.key: task for task in tasks}.values())


def _label(task: Task) -> str:
    return f"{task.config.recommender} {task.config.strategy}"


def _advice(
    stream: Path, log: Interactions, recent: Interactions, plan: AdvicePlan, outcomes: Mapping[str, CellOutcome]
) -> Advice:
    cells = plan.phases()[-1]
    done = [outcomes[task.key] for task in cells if task.key in outcomes and outcomes[task.key].record is not None]
    ranks = done[0].ranks
    events = judged(np.asarray(ranks["repeat"], dtype=bool))
    strategies = [Method(_label(o.task), o.ranks["rank"][events], _cost(o)) for o in done]
    simple = [Method(name, ranks[f"rank_{name}"][events], 0.0) for name in SIMPLE]
    baselines = [name for name in _record(done[0])["baselines"] if name not in (*SIMPLE, FIRST)]
    beside = [Method(name, ranks[f"rank_{name}"][events], 0.0) for name in baselines]
    left_out = {_label(task): _why(outcomes.get(task.key)) for task in cells if _missing(outcomes.get(task.key))}
    return Advice(
        stream=stream,
        interactions=len(log),
        recent=len(recent),
        span=(int(recent.times[0]), int(recent.times[-1])),
        judged=int(events.sum()),
        without_repeats=not bool(events.all()),
        conclusion=judge(strategies, simple, ranks["user"][events], ranks["item"][events]),
        methods=(*simple, *beside, *strategies),
        beside=tuple(each.name for each in beside),
        chosen={_label(o.task): _settings(o) for o in done},
        half_life=_record(done[0])["baselines"]["recent_popularity"]["half_life"],
        left_out=left_out,
        batch_size=done[0].task.config.batch_size,
    )


def _record(outcome: CellOutcome) -> Plain:
    assert outcome.record is not None
    return outcome.record


def _cost(outcome: CellOutcome) -> float:
    return float(_record(outcome)["update_ms"]["median"])


def _settings(outcome: CellOutcome) -> Plain:
    settings: Plain = _record(outcome)["config"]["chosen"][outcome.task.config.strategy]["settings"]
    return settings


def _missing(outcome: CellOutcome | None) -> bool:
    return outcome is None or outcome.record is None


def _why(outcome: CellOutcome | None) -> str:
    if outcome is None:
        return NO_TIME
    return outcome.not_applicable or f"it failed: {(outcome.problem or '').strip().splitlines()[-1]}"
