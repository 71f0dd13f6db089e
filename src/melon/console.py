"""Lines on standard output, and progress on standard error: live in a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from melon.progress import Progress

_LINE_EVERY_S = 5.0


def say(text: str) -> None:
    """A line on standard output, as it is."""
    Console(soft_wrap=True).print(text, markup=False, highlight=False)


def say_aside(text: str) -> None:
    """A line on standard error, as it is."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class LiveProgress(Progress):
    """Draws something live where standard error is a terminal; lines are printed in a pipe as well."""

    def __init__(self, live: Live | RichProgress) -> None:
        self.terminal, self._drawn = sys.stderr.isatty(), live

    def __enter__(self) -> Self:
        if self.terminal:
            self._drawn.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.terminal:
            self._drawn.stop()

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.terminal:
            self._drawn.console.print(text, markup=False, highlight=False)
        else:
            say_aside(text)


def time_left(seconds: float) -> str:
    """A guess in words."""
    minutes = seconds / 60
    return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"


def last_line(text: str | None) -> str:
    """What a problem comes to: the last line of its message or traceback."""
    return ((text or "").strip().splitlines() or [""])[-1]


def shown(value: float | None) -> str:
    """A metric as tables print it."""
    return "–" if value is None else f"{value:.3f}"


def live_bar(*more: ProgressColumn) -> RichProgress:
    """A bar with a description, a count and a text of its own (`extra`), on standard error."""
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[extra]}", markup=False),
        *more,
        console=Console(stderr=True),
        transient=True,
    )


class BarProgress(LiveProgress):
    """A live bar for the stage under way."""

    def __init__(self) -> None:
        self._progress = live_bar(TimeRemainingColumn(compact=True))
        super().__init__(self._progress)
        self.terminal = True  # `model_progress` makes it for terminals only
        self._task = self._progress.add_task("starting", total=None, extra="")
        self._began = time.perf_counter()

    def stage(self, name: str) -> None:
        self._began = time.perf_counter()
        self._progress.reset(self._task, description=name, total=None, extra="")

    def note(self, text: str) -> None:
        self._progress.update(self._task, extra=text)

    def notice(self, text: str) -> None:
        self.line(text)

    def tick(self, text: str) -> None:
        self.note(text)

    def share(self, done: int | None, total: int) -> None:
        if done is None:
            self._progress.update(self._task, advance=1, total=total)
        else:
            self._progress.update(self._task, completed=done, total=total)

    def batch(self, done: int, total: int, hit_rate: float | None) -> None:
        text = _rate_and_score(done, self._began, hit_rate)
        self._progress.update(self._task, completed=done, total=total, extra=text)


class LineProgress(Progress):
    """Plain lines on standard error, a few seconds apart."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._done = self._total = 0

    def stage(self, name: str) -> None:
        self._began = self._last = time.perf_counter()
        self._done = self._total = 0
        say_aside(name)

    def note(self, text: str) -> None:
        say_aside(f"  {text}{self._left()}")

    def share(self, done: int | None, total: int) -> None:
        self._done, self._total = self._done + 1 if done is None else done, total

    def notice(self, text: str) -> None:
        say_aside(text)

    def tick(self, text: str) -> None:
        if self._due():
            say_aside(f"  {text}{self._left()}")

    def batch(self, done: int, total: int, hit_rate: float | None) -> None:
        if self._due() or done == total:
            say_aside(f"  {done:,} of {total:,}  {_rate_and_score(done, self._began, hit_rate)}")

    def _left(self) -> str:
        """How much of the stage is left, where that is known."""
        if not 0 < self._done < self._total:
            return ""
        seconds = (time.perf_counter() - self._began) / self._done * (self._total - self._done)
        return f" ({self._done} of {self._total}, {time_left(seconds)})"

    def _due(self) -> bool:
        due = time.perf_counter() - self._last > _LINE_EVERY_S
        if due:
            self._last = time.perf_counter()
        return due


def _rate_and_score(done: int, began: float, hit_rate: float | None) -> str:
    return f"{done / max(time.perf_counter() - began, 1e-9):,.0f}/s  HR@5 {shown(hit_rate)}"


def model_progress() -> BarProgress | LineProgress:
    """The one that fits where standard error goes."""
    return BarProgress() if sys.stderr.isatty() else LineProgress()
