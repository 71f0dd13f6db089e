"""How a bench stands: a live table in a terminal, a line for each cell in a pipe, and the table at the end."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable

from melon.bench.grid import Outcome, Task, Watcher
from melon.terminal.screen import Shown, time_left


class BenchWatcher(Shown, Watcher):
    """A live table in a terminal, a line for each cell in a pipe."""

    def __init__(self, workers: int) -> None:
        self._live = Live(console=Console(stderr=True), refresh_per_second=2, transient=True)
        super().__init__(self._live)
        self._workers = workers
        self._tasks: Sequence[Task] = ()
        self._outcomes: dict[str, Outcome] = {}
        self._running: dict[str, float] = {}

    def begin(self, tasks: Sequence[Task], done: Mapping[str, Outcome]) -> None:
        self._tasks, self._outcomes = tasks, dict(done)
        if done:
            self.say(f"{len(done)} of {len(tasks)} cells are there already")

    def started(self, task: Task) -> None:
        self._running[task.key] = time.monotonic()
        self.waiting()

    def ended(self, outcome: Outcome) -> None:
        self._running.pop(outcome.task.key, None)
        self._outcomes[outcome.task.key] = outcome
        self.say(
            f"{outcome.task.key}: {became(outcome)}  ({len(self._outcomes)} of {len(self._tasks)}, {self._left()})"
        )
        self.waiting()

    def waiting(self) -> None:
        if self.terminal:
            self._live.update(self._table())

    def _table(self) -> RichTable:
        running = ", ".join(f"{key} ({time.monotonic() - since:.0f} s)" for key, since in self._running.items())
        table = standing(self._tasks, self._outcomes, set(self._running))
        table.caption = f"{len(self._outcomes)} of {len(self._tasks)} cells, {self._left()}\n{running}"
        return table

    def _left(self) -> str:
        """Time left, by what the same cell took with other seeds, or else by what its strategy took."""
        took: dict[Any, list[float]] = defaultdict(list)
        for outcome in self._outcomes.values():
            if outcome.record is not None:
                for kind in _kinds(outcome.task):
                    took[kind].append(outcome.seconds)
        if not took:
            return "time left unknown"
        left = [task for task in self._tasks if task.key not in self._outcomes]
        seconds = sum(next(float(np.mean(took[kind])) for kind in _kinds(task) if kind in took) for task in left)
        return time_left(seconds / self._workers)


def _kinds(task: Task) -> list[tuple[str, ...]]:
    """What a cell is like, from the most to the least alike."""
    config = task.config
    return [(task.stream, config.recommender, config.strategy), (config.recommender, config.strategy), ()]


def standing(tasks: Sequence[Task], outcomes: Mapping[str, Outcome], running: Collection[str] = ()) -> RichTable:
    """HR@5 so far: streams and recommenders down, strategies across, the mean over finished seeds."""
    strategies = list(dict.fromkeys(task.config.strategy for task in tasks))
    table = RichTable("stream", "recommender", *strategies, box=None, pad_edge=False)
    lines: dict[tuple[str, str], dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
    for task in tasks:
        lines[task.stream, task.config.recommender][task.config.strategy].append(task)
    for (stream, recommender), line in lines.items():
        table.add_row(stream, recommender, *(_standing(line[name], outcomes, running) for name in strategies))
    return table


def _standing(tasks: Sequence[Task], outcomes: Mapping[str, Outcome], running: Collection[str]) -> str:
    ended = [outcomes[task.key] for task in tasks if task.key in outcomes]
    if ended and all(outcome.not_applicable for outcome in ended):
        return "N/A"
    found = [
        outcome.record["metrics"]["HR@5"]
        for outcome in ended
        if outcome.record is not None and outcome.record["metrics"]
    ]
    text = f"{np.mean(found):.3f}" if found else "–"
    marks = "✗" * sum(outcome.problem is not None for outcome in ended) + "…" * sum(t.key in running for t in tasks)
    return f"{text} {len(found)}/{len(tasks)}{marks}" if len(found) < len(tasks) else f"{text}{marks}"


def became(outcome: Outcome) -> str:
    """What became of a cell, in a line."""
    if outcome.record is not None and not outcome.record["metrics"]:
        return "no event could be ranked: there are too few items beside what users have taken (--negatives)"
    if outcome.record is not None:
        return f"HR@5 {outcome.record['metrics']['HR@5']:.4f} in {outcome.seconds:.0f} s"
    if outcome.not_applicable is not None:
        return f"N/A: {outcome.not_applicable}"
    return f"failed: {(outcome.problem or '').strip().splitlines()[-1]}"
