"""Long runs on the screen: bench, tune and advise as they go, live or as lines, and what came of them."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable

from melon.advice.judging import Advice, difference_text, method_text
from melon.bench.grid import CellOutcome, Task
from melon.bench.run import BenchResult
from melon.console import LiveProgress, last_line, live_bar, say, say_aside, time_left
from melon.evaluation.ranking import metrics
from melon.progress import Progress
from melon.tuning.study import PlannedTrial, best
from melon.tuning.tune import TrialEnd, TuneResult
from melon.types import Plain


class BenchProgress(LiveProgress):
    """The table of results as cells end."""

    def __init__(self) -> None:
        self._live = Live(console=Console(stderr=True), refresh_per_second=2, transient=True)
        super().__init__(self._live)
        self._workers = 1
        self._tasks: Sequence[Task] = ()
        self._outcomes: dict[str, CellOutcome] = {}
        self._running: dict[str, float] = {}

    def jobs(self, jobs: Sequence[Task], ended: Mapping[str, CellOutcome], workers: int) -> None:
        self._tasks, self._outcomes, self._workers = jobs, dict(ended), workers
        if ended:
            self.line(f"{len(ended)} of {len(jobs)} cells are there already")

    def started(self, job: Task) -> None:
        self._running[job.key] = time.monotonic()
        self.waiting()

    def ended(self, outcome: CellOutcome) -> None:
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


def bench_table(tasks: Sequence[Task], outcomes: Mapping[str, CellOutcome], running: Collection[str] = ()) -> RichTable:
    """HR@5 so far: streams and recommenders down, strategies across, the mean over finished seeds."""
    strategies = list(dict.fromkeys(task.config.strategy for task in tasks))
    table = RichTable("stream", "recommender", *strategies, box=None, pad_edge=False)
    lines: dict[tuple[str, str], dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
    for task in tasks:
        lines[task.stream, task.config.recommender][task.config.strategy].append(task)
    for (stream, recommender), line in lines.items():
        table.add_row(stream, recommender, *(_table_cell(line[name], outcomes, running) for name in strategies))
    return table


def _table_cell(tasks: Sequence[Task], outcomes: Mapping[str, CellOutcome], running: Collection[str]) -> str:
    ended = [outcomes[task.key] for task in tasks if task.key in outcomes]
    if ended and all(outcome.not_applicable for outcome in ended):
        return "N/A"
    records = [outcome.record for outcome in ended if outcome.record is not None]
    rates = [record["metrics"]["HR@5"] for record in records if record["metrics"]]
    text = f"{np.mean(rates):.3f}" if rates else "–"
    marks = "✗" * sum(outcome.problem is not None for outcome in ended) + "…" * sum(t.key in running for t in tasks)
    return f"{text} {len(rates)}/{len(tasks)}{marks}" if len(rates) < len(tasks) else f"{text}{marks}"


def outcome_text(outcome: CellOutcome) -> str:
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


class TuneProgress(LiveProgress):
    """Stages, then trials as they end."""

    def __init__(self, trials: int) -> None:
        self._trials, self._workers, self._stage = trials, 1, ""
        self._began = time.monotonic()
        self._progress = live_bar()
        super().__init__(self._progress)
        self._task = self._progress.add_task("", total=None, extra="")

    def stage(self, name: str) -> None:
        self._stage, self._began = name, time.monotonic()
        if self.terminal:
            self._progress.update(self._task, description=name)
        else:
            self.line(name)

    def jobs(self, jobs: Sequence[PlannedTrial], ended: Mapping[str, Any], workers: int) -> None:
        self._workers = workers
        count = sum(trial.ended for trial in jobs)
        if count:
            self.line(f"{count} of {self._trials} trials are there already")
        self._progress.update(self._task, description="trials", total=self._trials, completed=count)

    def waiting(self) -> None:
        if self.terminal and self._stage:
            self._progress.update(self._task, extra=f"{time.monotonic() - self._began:.0f} s")

    def ended(self, outcome: TrialEnd) -> None:
        self._stage, tried = "", outcome.tried
        if tried.problem is not None:
            how = f"failed: {last_line(tried.problem)}"
        else:
            how = f"{tried.score:.4f}{', given up on the way' if tried.pruned else ''} in {tried.seconds:.0f} s"
        so_far, settings = self._so_far(outcome.trials), settings_text(outcome.settings)
        self.line(f"{tried.key}{f' ({settings})' if settings else ''}: {how}  [{so_far}]")
        self._progress.update(self._task, completed=sum(trial.ended for trial in outcome.trials), extra=so_far)

    def _so_far(self, trials: list[PlannedTrial]) -> str:
        ended = [trial for trial in trials if trial.ended]
        top = best(trials)
        leader = f"best {top.score:.4f} by trial {top.place + 1}" if top else "none came through yet"
        return f"{len(ended)} of {self._trials}, {leader}, {self._left(ended)}"

    def _left(self, ended: list[PlannedTrial]) -> str:
        seconds = [trial.tried.seconds for trial in ended if trial.tried and trial.tried.problem is None]
        if not seconds:
            return "time left unknown"
        return time_left(float(np.mean(seconds)) * (self._trials - len(ended)) / self._workers)


def show_tuned(result: TuneResult) -> None:
    """What was chosen, what it gained, and how to use it."""
    edge = f"  (on the edge of its grid: {', '.join(result.edge)})" if result.edge else ""
    say(f"chosen for {result.strategy}: {settings_text(result.settings)}{edge}")
    say(f"{result.gain}; {result.counts}")
    say(f"wrote {result.out}: melon evaluate {result.stream} --config {result.out}")


def settings_text(settings: Plain) -> str:
    """Settings in a line."""
    return ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in settings.items())


class AdviceProgress(Progress):
    """A line for each cell, with the time that is left."""

    def __init__(self, minutes: float) -> None:
        self._until = time.monotonic() + 60 * minutes

    def started(self, job: Task) -> None:
        say_aside(f"{job.config.recommender} {job.config.strategy} …")

    def ended(self, outcome: CellOutcome) -> None:
        config = outcome.task.config
        left = max(self._until - time.monotonic(), 0)
        say_aside(f"{config.recommender} {config.strategy}: {outcome_text(outcome)}  ({left:.0f} s left)")


def show_advice(advice: Advice, *, as_json: bool) -> None:
    """On the screen, or as JSON."""
    if as_json:
        Console(soft_wrap=True).print_json(json.dumps(advice.plain(), allow_nan=False))
        return
    first, last = (datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M") for moment in advice.span)
    say(f"The last {advice.recent:,} of {advice.interactions:,} interactions of {advice.stream}, {first} to {last}.")
    after = f"{advice.judged:,} that came after{', repeats left out' if advice.without_repeats else ''}"
    say(f"Settings were chosen on their earlier part; these figures are about {after}.")
    Console(soft_wrap=True).print(_table(advice))
    for line in advice.sentences():
        say(line)


def _table(advice: Advice) -> RichTable:
    table = RichTable("", "HR@5", "NDCG@10", f"over {advice.verdict.reference.name}", "ms a batch")
    for method in sorted(advice.methods, key=lambda method: -method.hit_rate):
        scores, against = metrics(method.rank), advice.verdict.challengers.get(method.name)
        mark = " *" if advice.verdict.better.get(method.name) else ""
        table.add_row(
            method_text(method.name),
            f"{scores['HR@5']:.3f}",
            f"{scores['NDCG@10']:.3f}",
            f"{difference_text(against)}{mark}" if against else "",
            f"{method.update_ms:.1f}" if method.name in advice.chosen else "",
        )
    table.caption = "95 % intervals from resampling users; * better, corrected for the number of comparisons"
    return table
