"""Lines on standard output, and something live on standard error while a long run works."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import Progress as RichProgress

from melon.progress import Progress


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
