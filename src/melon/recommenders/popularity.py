"""Popularity, all-time or recent: what a user would otherwise do, and the rival that every result carries."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from melon.recommenders.streaming.counts import ItemCounts
from melon.types import Arrays, Floats, Ints


class DecayedCounts:
    """`ItemCounts` with one half-life, read as one number for each item."""

    def __init__(self, half_life: float = float("inf")) -> None:
        self._counts = ItemCounts([half_life])

    @property
    def events(self) -> int:
        """How many interactions were counted."""
        return self._counts.events

    def read(self, items: Ints) -> Floats:
        """The counts as of now; items never seen have none."""
        counts: Floats = self._counts.read(items)[..., 0]
        return counts

    def observe(self, items: Ints) -> None:
        """Count a run of consecutive interactions."""
        self._counts.observe(items)

    def state(self) -> Arrays:
        """Arrays that `from_state` turns back into the same counts."""
        return self._counts.state()

    @classmethod
    def from_state(cls, state: Mapping[str, npt.NDArray[np.generic]]) -> DecayedCounts:
        """The counts that `state` described."""
        made = cls()
        made._counts = ItemCounts.from_state(state)
        return made
