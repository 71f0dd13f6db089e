"""The service's clock: the machine's wall clock, checked against one that nobody can set."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds by which the wall clock may be corrected without a word.
_TOLERANCE_S = 2.0


def steady() -> float:
    """Seconds that only run forward; those that the machine sleeps count where the system can tell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class WallClock:
    """Unix seconds that do not follow a jump of the wall clock until it has lasted for `believe_s` seconds.

    Safe for threads: its state is one tuple, replaced as a whole.
    """

    def __init__(
        self, believe_s: float = 600.0, wall: Callable[[], float] | None = None, run: Callable[[], float] = steady
    ) -> None:
        self._believe_s, self._wall, self._run = believe_s, wall, run
        self._state: tuple[float, float, float | None] = (self._read(), run(), None)

    def _read(self) -> float:
        return time.time() if self._wall is None else self._wall()

    def now(self) -> float:
        """The time, in Unix seconds."""
        (base, began, since), wall, run = self._state, self._read(), self._run()
        expected = base + run - began
        if abs(wall - expected) <= _TOLERANCE_S or (since is not None and run - since >= self._believe_s):
            self._state = wall, run, None
            return wall
        if since is None:
            self._state = base, began, run
        return expected

    @property
    def problem(self) -> str | None:
        """What an operator should know: the wall clock has jumped, and is not followed yet."""
        now = self.now()
        if self._state[2] is None:
            return None
        return (
            f"the machine's clock jumped by {self._read() - now:+.0f} s; events without a time are stamped as if it "
            f"had not, and a jump that lasts {self._believe_s:.0f} s is believed. Look at the machine's time service."
        )
