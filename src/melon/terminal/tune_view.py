"""A tuning on the screen: a bar with the best so far in a terminal, a line for each trial in a pipe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from melon.console import LiveProgress, last_line, say, time_left
from melon.tuning.study import Trial, best
from melon.tuning.tune import TrialEnd, TuneResult
from melon.types import Plain


class TuneProgress(LiveProgress):
    """Stages, then trials as they end."""

    def __init__(self, trials: int) -> None:
        self._trials, self._workers, self._stage = trials, 1, ""
        self._began = time.monotonic()
        self._progress = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[extra]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        super().__init__(self._progress)
        self._task = self._progress.add_task("", total=None, extra="")

    def stage(self, name: str) -> None:
        self._stage, self._began = name, time.monotonic()
        if self.terminal:
            self._progress.update(self._task, description=name)
        else:
            self.line(name)

    def jobs(self, jobs: Sequence[Trial], ended: Mapping[str, Any], workers: int) -> None:
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

    def _so_far(self, trials: list[Trial]) -> str:
        ended = [trial for trial in trials if trial.ended]
        top = best(trials)
        leader = f"best {top.score:.4f} by trial {top.place + 1}" if top else "none came through yet"
        return f"{len(ended)} of {self._trials}, {leader}, {self._left(ended)}"

    def _left(self, ended: list[Trial]) -> str:
        seconds = [trial.seconds for trial in ended if trial.problem is None]
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
