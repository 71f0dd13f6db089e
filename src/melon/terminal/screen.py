"""What people see on standard error while something long runs: something live in a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.progress import Progress


class Shown:
    """Draws something live where there is a terminal; lines are said in both."""

    def __init__(self, live: Live | Progress) -> None:
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

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.terminal:
            self._drawn.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def time_left(seconds: float) -> str:
    """A guess in words."""
    minutes = seconds / 60
    return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"
