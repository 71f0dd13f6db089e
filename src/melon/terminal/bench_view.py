"""A bench on the screen: a live table in a terminal, a line for each cell in a pipe, and the table at the end."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable

from melon.bench.grid import Outcome, Task
from melon.bench.run import BenchResult
from melon.console import LiveProgress, last_line, say, time_left


class BenchProgress(LiveProgress):
    """The table of results as cells end."""

    def __init__(self) -> None:
        self._live = Live(console=Console(stderr=True), refresh_per_second=2, transient=True)
        super().__init__(self._live)
        self._workers = 1
        self._tasks: Sequence[Task] = ()
        self._outcomes: dict[str, Outcome] = {}
        self._running: dict[str, float] = {}

    def jobs(self, jobs: Sequence[Task], ended: Mapping[str, Outcome], workers: int) -> None:
        self._tasks, self._outcomes, self._workers = jobs, dict(ended), workers
        if ended:
            self.line(f"{len(ended)} of {len(jobs)} cells are there already")

    def started(self, job: Task) -> None:
        self._running[job.key] = time.monotonic()
        self.waiting()

    def ended(self, outcome: Outcome) -> None:
        self._running.pop(outcome.task.key, None)
        self._outcomes[outcome.task.key] = outcome
        count = f"{len(self._outcomes)} of {len(self._tasks)}"
        self.line(f"{outcome.task.key}: {outcome_text(outcome)}  ({count}, {self._left()})")
        self.waiting()

    def waiting(self) -> None:
        if self.terminal:
            running = ", ".join(f"{key} ({time.monotonic() - since:.0f} s)" for key, since in self._running.items())
            table = bench_table(self._tasks, self._outcomes, set(self._running))
            table.caption = f"{len(self._outcomes)} of {len(self._tasks)} cells, {self._left()}\n{running}"
            self._live.update(table)

    def _left(self) -> str:
        """Time left, by the seconds of the same cell with other seeds, or else of the same strategy."""
        seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for outcome in self._outcomes.values():
            if outcome.record is not None:
                for kind in _kinds(outcome.task):
                    seconds[kind].append(outcome.seconds)
        if not seconds:
            return "time left unknown"
        left = [task for task in self._tasks if task.key not in self._outcomes]
        total = sum(next(float(np.mean(seconds[kind])) for kind in _kinds(task) if kind in seconds) for task in left)
        return time_left(total / self._workers)


def show_bench(result: BenchResult) -> int:
    """The table and the failed cells; returns the exit code of the command."""
    table = bench_table(result.tasks, result.outcomes)
    table.title = "HR@5, mean over seeds"
    Console(soft_wrap=True).print(table)
    failed = result.failed
    for outcome in failed:
        say(f"{outcome.task.key} {outcome_text(outcome)}")
    if failed:
        count = f"{len(failed)} of {len(result.tasks)} cells failed"
        say(f"{count} ({result.out}/*.failed.txt say why); run the same command to try them again.")
    say(f"records in {result.out}: melon report {result.out}")
    return 1 if failed else 0


def bench_table(tasks: Sequence[Task], outcomes: Mapping[str, Outcome], running: Collection[str] = ()) -> RichTable:
    """HR@5 so far: streams and recommenders down, strategies across, the mean over finished seeds."""
    strategies = list(dict.fromkeys(task.config.strategy for task in tasks))
    table = RichTable("stream", "recommender", *strategies, box=None, pad_edge=False)
    lines: dict[tuple[str, str], dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
    for task in tasks:
        lines[task.stream, task.config.recommender][task.config.strategy].append(task)
    for (stream, recommender), line in lines.items():
        table.add_row(stream, recommender, *(_table_cell(line[name], outcomes, running) for name in strategies))
    return table


def _table_cell(tasks: Sequence[Task], outcomes: Mapping[str, Outcome], running: Collection[str]) -> str:
    ended = [outcomes[task.key] for task in tasks if task.key in outcomes]
    if ended and all(outcome.not_applicable for outcome in ended):
        return "N/A"
    records = [outcome.record for outcome in ended if outcome.record is not None]
    rates = [record["metrics"]["HR@5"] for record in records if record["metrics"]]
    text = f"{np.mean(rates):.3f}" if rates else "–"
    marks = "✗" * sum(outcome.problem is not None for outcome in ended) + "…" * sum(t.key in running for t in tasks)
    return f"{text} {len(rates)}/{len(tasks)}{marks}" if len(rates) < len(tasks) else f"{text}{marks}"


def outcome_text(outcome: Outcome) -> str:
    """How a cell ended, in a line."""
    if outcome.record is not None and not outcome.record["metrics"]:
        return "no event could be ranked: there are too few items beside what users have taken (--negatives)"
    if outcome.record is not None:
        return f"HR@5 {outcome.record['metrics']['HR@5']:.4f} in {outcome.seconds:.0f} s"
    if outcome.not_applicable is not None:
        return f"N/A: {outcome.not_applicable}"
    return f"failed: {last_line(outcome.problem)}"


def _kinds(task: Task) -> list[tuple[str, ...]]:
    """What a cell is like, from the most to the least alike."""
    config = task.config
    return [(task.stream, config.recommender, config.strategy), (config.recommender, config.strategy), ()]
