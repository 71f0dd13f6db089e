"""What a long run reports while it works: one vocabulary for fitting, evaluating and benching.

Code that works calls these methods and prints nothing; subclasses show them to people.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

_LINE_EVERY_S, _REDRAWN_EVERY_S = 5.0, 0.2

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


class LineProgress(Progress):
    """Lines on standard error, a few seconds apart; on a terminal what passes takes the place of the line before."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        super().__init__(report)
        self.terminal = sys.stderr.isatty()
        self._stage, self._every = "", _REDRAWN_EVERY_S if self.terminal else _LINE_EVERY_S
        self._began = self._last = time.perf_counter()
        self._done = self._total = 0

    def __exit__(self, *error: object) -> None:
        if self.terminal:
            self._pass("")

    def stage(self, name: str) -> None:
        super().stage(name)
        self._began = self._last = time.perf_counter()
        self._stage, self._done, self._total = name, 0, 0
        self._pass(name)

    def note(self, text: str) -> None:
        super().note(text)
        self._step(text + self._left())

    def share(self, done: int | None, total: int) -> None:
        self._done, self._total = self._done + 1 if done is None else done, total

    def notice(self, text: str) -> None:
        self._report(text)
        self.line(text)

    def tick(self, text: str) -> None:
        super().tick(text)
        if self._due():
            self._step(text + self._left())

    def batch(self, done: int, total: int, hit_rate: float | None) -> None:
        if self._due() or done == total:
            rate = done / max(time.perf_counter() - self._began, 1e-9)
            self._step(f"{done:,} of {total:,}  {rate:,.0f}/s  HR@5 {shown(hit_rate)}")

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.terminal:
            self._pass("")
        say_aside(text)

    def _pass(self, text: str) -> None:
        """A line that the next one may take the place of."""
        if self.terminal:
            sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()
        else:
            say_aside(text)

    def _step(self, text: str) -> None:
        self._pass(f"{self._stage}  {text}" if self.terminal else f"  {text}")

    def _left(self) -> str:
        """How much of the stage is left, where that is known."""
        if not 0 < self._done < self._total:
            return ""
        seconds = (time.perf_counter() - self._began) / self._done * (self._total - self._done)
        return f" ({self._done} of {self._total}, {time_left(seconds)})"

    def _due(self) -> bool:
        due = time.perf_counter() - self._last > self._every
        if due:
            self._last = time.perf_counter()
        return due


class NotebookProgress(LineProgress):
    """One line under a notebook's cell, replaced as the work goes on; standard error would be a red block there."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        from importlib import import_module

        super().__init__(report)
        self.terminal = True
        self._shown = import_module("IPython.display").display({"text/plain": "starting"}, raw=True, display_id=True)

    def line(self, text: str) -> None:
        say(text)

    def _pass(self, text: str) -> None:
        self._shown.update({"text/plain": text}, raw=True)


def model_progress(report: Callable[[str], None] | None = None) -> LineProgress:
    """The one that fits where the output goes: a notebook, or a terminal or pipe."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookProgress(report) if hasattr(shell, "kernel") else LineProgress(report)


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
