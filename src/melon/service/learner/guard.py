"""The guard: a batch that moves rows far more than batches do is not published."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

#: The median is that of so many batches, once there are enough of them.
REMEMBERED, ENOUGH = 101, 20


class Guard:
    """Compares how far a batch moved rows with the running median."""

    def __init__(self, times: float, moved: Iterable[float] = ()) -> None:
        self._times = times
        self._moved: deque[float] = deque(moved, maxlen=REMEMBERED)

    def judge(self, moved: float | None) -> str | None:
        """Why a batch should be set aside; None, and it is remembered, where nothing speaks against it."""
        if moved is None:
            return None
        if self._times and len(self._moved) >= ENOUGH and moved > self._times * (usual := median(self._moved)) > 0:
            return f"it moved rows by {moved:.4g}, more than {self._times:g} times the usual {usual:.4g}"
        self._moved.append(moved)
        return None
