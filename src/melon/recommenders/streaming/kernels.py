"""Which implementation works on slots: compiled where numba is installed, plain numpy elsewhere (MELON_KERNEL)."""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np

from melon.kernels.policy import loaded, may_compile
from melon.recommenders.streaming import slots
from melon.recommenders.streaming.slots import Slots, Sums, Weights
from melon.types import Ints


class SlotKernel(Protocol):
    """The two functions of `slots` and `compiled`."""

    def count(self, ids: Slots, counts: Weights, recent: Weights, rows: Ints, others: Ints, moments: Sums) -> None:
        """Let each row meet its other, in order."""

    def add_up(
        self,
        ids: Slots,
        counts: Weights,
        recent: Weights,
        lasts: Ints,
        weights: Sums,
        items: Ints,
        now: float,
        columns: Slots,
    ) -> Sums:
        """What each line's last items have met each of its candidates, three ways."""


def slot_kernel() -> SlotKernel:
    """The implementation for this process; both give the same bits."""
    compiled = _loops() if may_compile() else None
    return cast("SlotKernel", slots) if compiled is None else compiled


def warm_up() -> None:
    """Have both functions compiled, by asking them for next to nothing."""
    compiled = _loops()
    if compiled is None:
        return
    ids, counts = np.full((1, 1), slots.EMPTY, dtype=np.int32), np.zeros((1, 1), dtype=np.float32)
    place, number = np.zeros(1, dtype=np.int64), np.zeros(1)
    compiled.count(ids, counts, counts.copy(), place, place, number)
    compiled.add_up(ids, counts, counts, place[None], number[None], place[None], 0.0, ids[0])


def _loops() -> SlotKernel | None:
    return cast("SlotKernel | None", loaded("melon.recommenders.streaming.compiled"))
