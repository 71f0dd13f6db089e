"""Progress for people: a bar with rate and running HR@5 in a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from melon.progress import Progress as Listener
from melon.terminal.tables import shown

_LINE_EVERY_S = 5.0


class BarListener(Listener):
    """A line for each finished stage and a live bar for the one under way."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[extra]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, extra="")
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, name: str) -> None:
        self._began = time.perf_counter()
        self._progress.reset(self._task, description=name, total=None, extra="")

    def note(self, text: str) -> None:
        self._progress.update(self._task, extra=text)

    def notice(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def tick(self, text: str) -> None:
        self.note(text)

    def batch(self, done: int, total: int, hit_rate: float | None) -> None:
        rate = done / max(time.perf_counter() - self._began, 1e-9)
        self._progress.update(self._task, completed=done, total=total, extra=_standing(rate, hit_rate))


class LineListener(Listener):
    """Plain lines on standard error, a few seconds apart."""

    def __init__(self) -> None:
        self._began = self._said = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def stage(self, name: str) -> None:
        self._began = self._said = time.perf_counter()
        self._say(name)

    def note(self, text: str) -> None:
        self._say(f"  {text}")

    def notice(self, text: str) -> None:
        self._say(text)

    def tick(self, text: str) -> None:
        if time.perf_counter() - self._said > _LINE_EVERY_S:
            self._said = time.perf_counter()
            self._say(f"  {text}")

    def batch(self, done: int, total: int, hit_rate: float | None) -> None:
        now = time.perf_counter()
        if done == total or now - self._said > _LINE_EVERY_S:
            self._said = now
            rate = done / max(now - self._began, 1e-9)
            self._say(f"  {done:,} of {total:,}  {_standing(rate, hit_rate)}")

    @staticmethod
    def _say(text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _standing(rate: float, hit_rate: float | None) -> str:
    return f"{rate:,.0f}/s  HR@5 {shown(hit_rate)}"


def listener() -> BarListener | LineListener:
    """The one that fits where standard error goes."""
    return BarListener() if sys.stderr.isatty() else LineListener()
