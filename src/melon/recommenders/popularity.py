"""Popularity, all-time or recent: what a user would otherwise do, and the rival that every result carries."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from melon.data.interactions import Ints
from melon.errors import SettingsError

Floats = npt.NDArray[np.float64]


class DecayedCounts:
    """Exponentially decayed count of each item's interactions; the half-life is counted in interactions."""

    def __init__(self, half_life: float = float("inf")) -> None:
        if not half_life > 0:
            raise SettingsError(f"half_life = {half_life!r} must be a positive number of interactions.")
        self.half_life = half_life
        self.events = 0
        self._count: Floats = np.zeros(0)
        self._as_of: Ints = np.zeros(0, dtype=np.int64)

    def read(self, items: Ints) -> Floats:
        """The counts as of now; items never seen have none."""
        known = items < len(self._count)
        at = np.where(known, items, 0)
        if not len(self._count):
            return np.zeros(items.shape)
        return np.where(known, self._count[at] * self._left(self.events - self._as_of[at]), 0.0)

    def observe(self, items: Ints) -> None:
        """Count a run of consecutive interactions."""
        if not len(items):
            return
        self._grow(int(items.max()) + 1)
        end = self.events + len(items)
        touched = np.unique(items)
        self._count[touched] *= self._left(end - self._as_of[touched])
        self._as_of[touched] = end
        np.add.at(self._count, items, self._left(np.arange(len(items), 0, -1)))
        self.events = end

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays that `from_state` turns back into the same counts."""
        size = int(np.flatnonzero(self._as_of).max(initial=-1)) + 1
        moments = np.array([self.half_life, self.events], dtype=np.float64)
        return {"count": self._count[:size], "as_of": self._as_of[:size], "half_life_and_events": moments}

    @classmethod
    def from_state(cls, state: Mapping[str, npt.NDArray[np.generic]]) -> DecayedCounts:
        """The counts that `state` described."""
        half_life, events = state["half_life_and_events"].tolist()
        counts = cls(half_life)
        counts.events = int(events)
        counts._count = state["count"].astype(np.float64)
        counts._as_of = state["as_of"].astype(np.int64)
        return counts

    def _left(self, idle: Ints) -> Floats:
        return np.exp2(-np.asarray(idle, dtype=np.float64) / self.half_life)

    def _grow(self, size: int) -> None:
        if size > len(self._count):
            more = max(size, 2 * len(self._count)) - len(self._count)
            self._count = np.concatenate([self._count, np.zeros(more)])
            self._as_of = np.concatenate([self._as_of, np.zeros(more, dtype=np.int64)])
