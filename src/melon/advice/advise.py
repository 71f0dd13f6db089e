"""`melon advise`: run cells on the recent part of a stream until the time is over, and judge them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from melon.advice.judging import SIMPLE, Advice, Method, judge, judged
from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.executors import executor_for
from melon.bench.grid import FOUNDATION, CellOutcome, Task, run_grid
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import LearningError, SettingsError, StreamError
from melon.progress import Progress
from melon.recommenders.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES
from melon.types import Plain

#: Interactions of the recent part for each minute, and the fewest that say anything.
_PER_MINUTE, _FEWEST = 10_000, 1_000
_SPLIT = (0.75, 0.05, 0.2)
#: From quick to slow, so that a short time still compares those that most people would take.
_STRATEGIES = (FOUNDATION, "eals", "metasgd", "mwnet", "melon", "sml", "s2meta")
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
        names = [FOUNDATION, *(name for name in self.strategies if name != FOUNDATION)]
        cells = [
            Task(_NAME, CellConfig(**{**self.config, "recommender": recommender, "strategy": strategy}))
            for recommender in self.recommenders
            for strategy in names
        ]
        plain = [task for task in cells if task.lays_foundation]
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
        {"split": _SPLIT, "fading": "auto", "budget": 4, "epochs": 20, "pretrain_settings": {"l2": 0.03}, **config},
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
    rivals = [name for name in _record(done[0])["baselines"] if name not in (*SIMPLE, FOUNDATION)]
    beside = [Method(name, ranks[f"rank_{name}"][events], 0.0) for name in rivals]
    left_out = {_label(task): _why(outcomes.get(task.key)) for task in cells if _missing(outcomes.get(task.key))}
    return Advice(
        stream=stream,
        interactions=len(log),
        recent=len(recent),
        span=(int(recent.times[0]), int(recent.times[-1])),
        judged=int(events.sum()),
        without_repeats=not bool(events.all()),
        verdict=judge(strategies, simple, ranks["user"][events], ranks["item"][events]),
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
