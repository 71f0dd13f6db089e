"""A grid of cells: which there are, what each waits for, and their outcomes.

The cells of one stream, recommender and seed share their pre-training, the tuned Default and the baselines. These are
what the cell of `default` makes, so it runs first and the others start from its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from melon.bench.cell import Cell, CellResult
from melon.bench.config import CellConfig
from melon.bench.executors import Executor, drive
from melon.bench.work import Work
from melon.data.interactions import Interactions
from melon.errors import MelonError, SettingsError
from melon.explain.matrix import BatchRates
from melon.progress import Progress
from melon.types import Plain

FOUNDATION = "default"


@dataclass(frozen=True)
class Task:
    """One cell of a grid, on a stream that the executor knows by its name; `rates` asks for its learning rates too."""

    stream: str
    config: CellConfig
    rates: bool = False

    @property
    def key(self) -> str:
        """The name of its record."""
        return f"{self.group}-{self.config.strategy}"

    @property
    def group(self) -> str:
        """Cells with the same group share their work."""
        return f"{self.stream}-{self.config.recommender}-{self.config.seed}"

    @property
    def lays_foundation(self) -> bool:
        """Whether it makes what the other cells of its group start from."""
        return self.config.strategy == FOUNDATION

    @property
    def keeps_work(self) -> bool:
        """A stopped cell resumes from its choices and from what it has streamed."""
        return True

    def run(self, log: Interactions, work: Work) -> CellOutcome:
        """Run the cell in this process; a problem becomes an outcome."""
        began = time.perf_counter()
        try:
            cell = Cell(log, self.config, work=work, rates=self.rates)
        except SettingsError as reason:  # the pairing does not exist
            return CellOutcome(self, not_applicable=str(reason))
        except MelonError as problem:
            return CellOutcome(self, problem=str(problem))
        try:
            result: CellResult = cell.run(self.stream)
        except MelonError as problem:
            return CellOutcome(self, time.perf_counter() - began, problem=str(problem))
        return CellOutcome(self, time.perf_counter() - began, result.record, result.ranks, rates=result.rates)

    def lost(self, problem: str) -> CellOutcome:
        """The outcome of a cell whose worker died."""
        return CellOutcome(self, problem=problem)


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: a result, a reason why there can be none, or a problem."""

    task: Task
    seconds: float = 0.0
    record: Plain | None = None
    ranks: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    not_applicable: str | None = None
    problem: str | None = None
    rates: BatchRates | None = None


def tasks_of(
    streams: Mapping[str, tuple[float, float, float]],
    recommenders: Sequence[str],
    strategies: Sequence[str],
    seeds: int,
    base: CellConfig,
) -> list[Task]:
    """Every cell, foundations included, seed by seed so that a whole table is there early."""
    wanted = list(dict.fromkeys([FOUNDATION, *strategies]))
    return [
        Task(
            stream,
            replace(
                base, recommender=recommender, strategy=strategy, seed=seed, split=split, preset=_preset(base, strategy)
            ),
        )
        for seed in range(seeds)
        for stream, split in streams.items()
        for recommender in recommenders
        for strategy in wanted
    ]


def _preset(base: CellConfig, strategy: str) -> str:
    """A preset is meant for the strategies that have it."""
    from melon.strategies.registry import STRATEGIES

    return base.preset if base.preset in STRATEGIES[strategy].presets else "default"


def run_grid(
    tasks: Sequence[Task],
    done: Mapping[str, CellOutcome],
    executor: Executor[CellOutcome],
    keep: Callable[[CellOutcome], None],
    progress: Progress,
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[CellOutcome]:
    """Run what is not done yet; outcomes come as cells end, each kept before it is reported.

    Where there is `enough`, cells that still run are given up.
    """
    progress.jobs(tasks, done, executor.workers)
    laid = {task.group for task in tasks if task.lays_foundation and _stands(done.get(task.key))}
    open_tasks = [task for task in tasks if task.key not in done]
    ready = [task for task in open_tasks if task.lays_foundation or task.group in laid]
    waiting = [task for task in open_tasks if task not in ready]

    def supply() -> Task | None:
        if not ready:
            return None
        progress.started(ready[0])
        return ready.pop(0)

    for ended in drive(executor, supply, progress.waiting, enough):
        keep(ended)
        progress.ended(ended)
        yield ended
        if not ended.task.lays_foundation:
            continue
        of_group = [task for task in waiting if task.group == ended.task.group]
        waiting = [task for task in waiting if task.group != ended.task.group]
        if _stands(ended):
            ready[:0] = of_group
            continue
        for task in of_group:
            fallen = CellOutcome(task, problem=f"its pre-training failed: {ended.problem or ended.not_applicable}")
            keep(fallen)
            progress.ended(fallen)
            yield fallen


def _stands(outcome: CellOutcome | None) -> bool:
    return outcome is not None and outcome.record is not None
