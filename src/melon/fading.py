"""Fading of idle rows: what is left of a row after its idle time, and the same for all rows from moment to moment."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from melon.kernels import policy
from melon.types import Ints, Singles

#: Half-lives after which the reference moment of fading moves; and the touch of no row.
_REFERENCE, _NEVER = 32, np.iinfo(np.int64).min


def fade(touched: Tensor, now: int, half_life: float) -> Tensor:
    """What is left of a row after its idle time: 0.5^(idle / half-life), docs/methods.md 8.3."""
    return torch.exp2((touched - now).clamp(max=0).to(torch.float64) / half_life)


class Fading:
    """What fading has left of rows, kept from moment to moment, so that only rows touched in between are computed.

    0.5^(idle / half-life) is a weight as of a reference, which is moved once in many half-lives, times one factor for
    all rows. Both depend on the moment and the last touch alone, and not on when they were read before.
    """

    def __init__(self) -> None:
        self._rule: tuple[int, float] = (0, 0.0)
        self._touched: Ints = np.empty(0, dtype=np.int64)
        self._weights: Singles = np.empty(0, dtype=np.float32)

    def read(
        self, loops: policy.Loops, last_touches: Tensor, now: int, half_life: float | None, rows: int
    ) -> tuple[Singles, np.float32]:
        """The weights of the first rows, and the factor."""
        if half_life is None:
            return self._weights[:0], np.float32(1)
        span = max(int(_REFERENCE * half_life), 1)
        rule, touched = (now // span * span, half_life), last_touches.numpy()[:rows]
        if rule != self._rule or len(self._touched) < rows:
            self._rule, room = rule, rows + rows // 4
            self._touched, self._weights = np.full(room, _NEVER), np.empty(room, dtype=np.float32)
        changed = np.flatnonzero(touched != self._touched[:rows])
        loops.faded(touched, changed, self._weights, *rule)
        self._touched[changed] = touched[changed]
        if touched.max(initial=0) > now:  # rows are read as of a moment before they were touched: not faded yet
            return fade(torch.from_numpy(touched), now, half_life).float().numpy(), np.float32(1)
        return self._weights[:rows], np.float32(2.0 ** ((rule[0] - now) / half_life))
