"""Which implementation works on slots: compiled where numba is installed, plain numpy elsewhere (MELON_KERNEL)."""

from __future__ import annotations

from typing import Protocol, cast

from melon.data.interactions import Ints
from melon.recommenders.streaming.slots import Slots, Sums, Weights
from melon.stream.kernels import asked_kernel, numba_installed


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
    if asked_kernel() == "torch" or not numba_installed():
        from melon.recommenders.streaming import slots

        return cast("SlotKernel", slots)
    from melon.recommenders.streaming import compiled

    return cast("SlotKernel", compiled)
