"""How a tuning comes along, for people: a bar with the best so far in a terminal, a line for each trial in a pipe."""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from melon.terminal.screen import Shown, time_left
from melon.tuning.study import Trial, best
from melon.tuning.trials import Tried
from melon.types import Plain


class TuneWatcher(Shown):
    """Told of stages and trials."""

    def __init__(self, trials: int) -> None:
        self._trials, self._workers, self._stage = trials, 1, ""
        self._began = time.monotonic()
        self._progress = Progress(
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
        """A new stage begins."""
        self._stage, self._began = name, time.monotonic()
        if self.terminal:
            self._progress.update(self._task, description=name)
        else:
            self.say(name)

    def known(self, trials: list[Trial], workers: int) -> None:
        """Trials begin; some may be there already."""
        self._workers = workers
        ended = sum(trial.ended for trial in trials)
        if ended:
            self.say(f"{ended} of {self._trials} trials are there already")
        self._progress.update(self._task, description="trials", total=self._trials, completed=ended)

    def waiting(self) -> None:
        """Time passes."""
        if self.terminal and self._stage:
            self._progress.update(self._task, extra=f"{time.monotonic() - self._began:.0f} s")

    def ended(self, tried: Tried, settings: Plain, trials: list[Trial]) -> None:
        """A trial has ended; all trials so far."""
        self._stage = ""
        if tried.problem is not None:
            how = f"failed: {tried.problem.strip().splitlines()[-1]}"
        else:
            how = f"{tried.score:.4f}{', given up on the way' if tried.pruned else ''} in {tried.seconds:.0f} s"
        standing = self._standing(trials)
        shown = words(settings)
        self.say(f"{tried.key}{f' ({shown})' if shown else ''}: {how}  [{standing}]")
        self._progress.update(self._task, completed=sum(trial.ended for trial in trials), extra=standing)

    def _standing(self, trials: list[Trial]) -> str:
        ended = [trial for trial in trials if trial.ended]
        top = best(trials)
        so_far = f"best {top.score:.4f} by trial {top.place + 1}" if top else "none came through yet"
        return f"{len(ended)} of {self._trials}, {so_far}, {self._left(ended)}"

    def _left(self, ended: list[Trial]) -> str:
        took = [trial.seconds for trial in ended if trial.problem is None]
        if not took:
            return "time left unknown"
        return time_left(float(np.mean(took)) * (self._trials - len(ended)) / self._workers)


def words(point: Plain) -> str:
    """Settings in a line."""
    return ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
