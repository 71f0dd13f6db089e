"""What a long run reports while it works: one vocabulary for fitting, evaluating and benching.

Code that works calls these methods and prints nothing; subclasses show them to people.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress as RichProgress

_LINE_EVERY_S = 5.0

#: Without their wrappers, which look each handler up in an enumeration and take longer than the calls themselves.
_get_handler = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_set_handler = getattr(signal.signal, "__wrapped__", signal.signal)


class Progress:
    """Shows nothing, and calls `report` with each line; a subclass shows what it cares about.

    One model reports stages, notes, ticks and batches. A run of many jobs reports its jobs and their outcomes; what a
    job and an outcome are is the run's own business.
    """

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self._report = report or (lambda _: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close what is shown."""

    def stage(self, name: str) -> None:
        """A new stage begins."""
        self._report(name)

    def note(self, text: str) -> None:
        """Something worth a line happened inside a stage."""
        self._report(text)

    def notice(self, text: str) -> None:
        """Something that people should know when the run is over: a line that stays."""
        self.note(text)

    def tick(self, text: str) -> None:
        """One of many small steps of a stage is done."""
        self._report(text)

    def share(self, done: int | None, total: int) -> None:
        """So much of the stage is done: a number of steps, or one step more."""

    def batch(self, done: int, total: int, hit_rate: float | None) -> None:
        """A batch of the stream was evaluated: events so far, events in all, and HR@5 (None: nothing ranked yet)."""

    def jobs(self, jobs: Sequence[Any], ended: Mapping[str, Any], workers: int) -> None:
        """All jobs of a run, the outcomes that it starts with by key, and how many jobs run at a time."""

    def started(self, job: Any) -> None:
        """A job runs."""

    def ended(self, outcome: Any) -> None:
        """A job has ended."""

    def waiting(self) -> None:
        """About a second has passed without an outcome."""


def say(text: str) -> None:
    """A line on standard output, as it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_aside(text: str) -> None:
    """A line on standard error, as it is."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class LiveProgress(Progress):
    """Draws something live where standard error is a terminal; lines are printed in a pipe as well."""

    def __init__(self, live: Live | RichProgress, report: Callable[[str], None] | None = None) -> None:
        super().__init__(report)
        self.terminal, self._drawn = sys.stderr.isatty(), live

    def __enter__(self) -> Self:
        if self.terminal:
            self._drawn.start()
        return self

    def __exit__(self, *error: object) -> None:
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


def counted(count: int, noun: str) -> str:
    """`1 stream`, `2 streams`, `3 strategies`."""
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"


class BarProgress(LiveProgress):
    """A live bar for the stage under way."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._progress = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[extra]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        super().__init__(self._progress, report)
        self.terminal = True  # `model_progress` makes it for terminals only
        self._task = self._progress.add_task("starting", total=None, extra="")
        self._began = time.perf_counter()

    def stage(self, name: str) -> None:
        super().stage(name)
        self._began = time.perf_counter()
        self._progress.reset(self._task, description=name, total=None, extra="")

    def note(self, text: str) -> None:
        super().note(text)
        self._progress.update(self._task, extra=text)

    def notice(self, text: str) -> None:
        self._report(text)
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

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        super().__init__(report)
        self._began = self._last = time.perf_counter()
        self._done = self._total = 0

    def stage(self, name: str) -> None:
        super().stage(name)
        self._began = self._last = time.perf_counter()
        self._done = self._total = 0
        self._say(name)

    def note(self, text: str) -> None:
        super().note(text)
        self._say(f"  {text}{self._left()}")

    def share(self, done: int | None, total: int) -> None:
        self._done, self._total = self._done + 1 if done is None else done, total

    def notice(self, text: str) -> None:
        self._report(text)
        self._say(text)

    def tick(self, text: str) -> None:
        super().tick(text)
        if self._due():
            self._say(f"  {text}{self._left()}")

    def batch(self, done: int, total: int, hit_rate: float | None) -> None:
        if self._due() or done == total:
            self._say(f"  {done:,} of {total:,}  {_rate_and_score(done, self._began, hit_rate)}")

    def _say(self, text: str) -> None:
        say_aside(text)

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


class NotebookProgress(LineProgress):
    """One line under a notebook's cell, replaced as the work goes on; standard error would be a red block there."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        from importlib import import_module

        super().__init__(report)
        self._shown = import_module("IPython.display").display({"text/plain": "starting"}, raw=True, display_id=True)

    def __exit__(self, *error: object) -> None:
        self._say("")

    def notice(self, text: str) -> None:
        self._report(text)
        say(text)

    def _say(self, text: str) -> None:
        self._shown.update({"text/plain": text}, raw=True)


def _rate_and_score(done: int, began: float, hit_rate: float | None) -> str:
    return f"{done / max(time.perf_counter() - began, 1e-9):,.0f}/s  HR@5 {shown(hit_rate)}"


def model_progress(report: Callable[[str], None] | None = None) -> BarProgress | LineProgress:
    """The one that fits where the output goes: a notebook, a terminal, or a pipe."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return NotebookProgress(report)
    return BarProgress(report) if sys.stderr.isatty() else LineProgress(report)


class Stop:
    """Remembers that people have stopped a fit once; the second time ends it. Elsewhere, stopping ends at once."""

    def __init__(self, *, goes_on: bool = False) -> None:
        self.pressed, self._goes_on = False, goes_on

    def press(self) -> bool:
        """Whether to go on with what there is."""
        first, self.pressed = self._goes_on and not self.pressed, True
        return first


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done, so that a batch is learned whole or not at all."""
    before = _get_handler(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[tuple[int, Any]] = []
    _set_handler(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        _set_handler(signal.SIGINT, before)
    for number, frame in waiting[:1]:
        before(number, frame)
