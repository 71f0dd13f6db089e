"""A grid of cells: which there are, what each waits for, and the loop that hands them to an executor.

The cells of one stream, recommender and seed share their pre-training, the tuned Default and the baselines. These are
what the cell of `default` makes, so it runs first and the others start from its work. Nothing here knows where cells
run: on this machine's processes or on a cluster is the executor's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from melon.errors import MelonError, SettingsError
from melon.experiments.cell import Cell, CellResult
from melon.experiments.config import CellConfig, Plain
from melon.experiments.explain import Explained
from melon.experiments.work import Work

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
        """Whether the others of its group wait for it."""
        return self.config.strategy == FOUNDATION


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: a result, a reason why there can be none, or a problem."""

    task: Task
    seconds: float = 0.0
    record: Plain | None = None
    ranks: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    not_applicable: str | None = None
    problem: str | None = None
    rates: Explained | None = None


class Executor(Protocol):
    """Runs cells somewhere. What a foundation made stays with the executor and is given to the cells that follow."""

    workers: int

    def submit(self, task: Task) -> None:
        """Start a cell, or queue it."""

    def outcome(self, patience: float) -> Outcome | None:
        """The next cell that has ended, or nothing after so many seconds."""

    def stop(self) -> None:
        """End what is running."""


class Watcher:
    """Told how a grid comes along; this one keeps quiet."""

    def begin(self, tasks: Sequence[Task], done: Mapping[str, Outcome]) -> None:
        """The whole grid, and what was there already."""

    def started(self, task: Task) -> None:
        """A cell runs."""

    def ended(self, outcome: Outcome) -> None:
        """A cell has ended."""

    def waiting(self) -> None:
        """Time passes."""


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


def run_task(task: Task, log: Any, work: Work) -> Outcome:
    """Run one cell where the caller is; a problem becomes an outcome and sinks nothing else."""
    began = time.perf_counter()
    try:
        cell = Cell(log, task.config, work=work, rates=task.rates)
    except SettingsError as reason:  # the pairing does not exist
        return Outcome(task, not_applicable=str(reason))
    except MelonError as problem:
        return Outcome(task, problem=str(problem))
    try:
        result: CellResult = cell.run(task.stream)
    except MelonError as problem:
        return Outcome(task, time.perf_counter() - began, problem=str(problem))
    return Outcome(task, time.perf_counter() - began, result.record, result.ranks, rates=result.rates)


def run_grid(
    tasks: Sequence[Task],
    done: Mapping[str, Outcome],
    executor: Executor,
    keep: Callable[[Outcome], None],
    watcher: Watcher,
) -> Iterator[Outcome]:
    """Run what is not done yet; outcomes come as cells end, each kept before it is told."""
    watcher.begin(tasks, done)
    laid = {task.group for task in tasks if task.lays_foundation and _stands(done.get(task.key))}
    open_tasks = [task for task in tasks if task.key not in done]
    ready = [task for task in open_tasks if task.lays_foundation or task.group in laid]
    waiting = [task for task in open_tasks if task not in ready]
    running: dict[str, Task] = {}
    while ready or running:
        while ready and len(running) < executor.workers:
            task = ready.pop(0)
            running[task.key] = task
            executor.submit(task)
            watcher.started(task)
        ended = executor.outcome(patience=1.0)
        if ended is None:
            watcher.waiting()
            continue
        del running[ended.task.key]
        keep(ended)
        watcher.ended(ended)
        yield ended
        if not ended.task.lays_foundation:
            continue
        of_group = [task for task in waiting if task.group == ended.task.group]
        waiting = [task for task in waiting if task.group != ended.task.group]
        if _stands(ended):
            ready = of_group + ready
            continue
        for task in of_group:
            fallen = Outcome(task, problem=f"its pre-training failed: {ended.problem or ended.not_applicable}")
            keep(fallen)
            watcher.ended(fallen)
            yield fallen


def _stands(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.record is not None


def work_of(folder: Path, task: Task) -> Work:
    """Where a cell keeps its unfinished work; the foundation's is what the others of its group start from."""
    shared = folder / task.group
    return Work(shared) if task.lays_foundation else Work(folder / task.key, base=shared)
