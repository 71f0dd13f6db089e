"""Time decay of idle rows: what is left of a row after its idle time, and that of all rows from moment to moment."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from melon.kernels import policy
from melon.types import Ints, Singles

#: Half-lives after which the reference moment moves.
_REFERENCE = 32
#: Changes of rows are brought together after so many writes.
_MOST_RECORDS = 1_000


def decay_factor(touched: Tensor, now: int, half_life: float) -> Tensor:
    """What is left of a row after its idle time: 0.5^(idle / half-life), docs/methods.md 8.3."""
    return torch.exp2((touched - now).clamp(max=0).to(torch.float64) / half_life)


def reference(now: int, half_life: float) -> tuple[int, np.float32]:
    """A moment that moves once in many half-lives, and the decay factor from then to now, of all rows alike.

    0.5^(idle / half-life) is a weight as of the reference, which stays while a row is idle, times this factor.
    """
    if not half_life:
        return 0, np.float32(1)
    span = max(int(_REFERENCE * half_life), 1)
    moment = now // span * span
    return moment, np.float32(2.0 ** ((moment - now) / half_life))


class Changes:
    """Rows that were written, whether or not the step was taken back after."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []

    def put(self, rows: Tensor) -> None:
        """Rows that are being written."""
        self._rows.append(rows)
        if len(self._rows) > _MOST_RECORDS:  # nobody has asked for long
            self._rows = [torch.unique(torch.cat(self._rows))]

    def take(self) -> Ints:
        """Numbers of the rows written since the last call; some may stand there several times."""
        rows, self._rows = self._rows, []
        return torch.cat(rows).cpu().numpy() if rows else np.empty(0, dtype=np.int64)


class DecayFactors:
    """Decay factors of rows, kept from moment to moment, so that only rows that changed are computed.

    Weights depend on the reference and the last touch alone, and not on when they were read before.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._rule: tuple[int, float] = (0, 0.0)
        self._latest = 0  # no row was touched later
        self._weights: Singles = np.empty(0, dtype=np.float32)

    def read(
        self, kernels: policy.Kernels, touched: Ints, rows: int, now: int, half_life: float
    ) -> tuple[Singles, np.float32]:
        """The weights of the first rows, and the factor."""
        moment, factor = reference(now, half_life)
        changed = self._changes.take()
        if (moment, half_life) != self._rule or len(self._weights) != len(touched):
            self._rule, self._latest = (moment, half_life), 0
            self._weights, changed = np.empty(len(touched), dtype=np.float32), np.arange(len(touched))
        kernels.decayed(touched, changed, self._weights, moment, half_life)
        self._latest = max(self._latest, int(touched[changed].max(initial=0)))
        if self._latest > now and touched[:rows].max(initial=0) > now:
            # Rows are read as of a moment before they were touched: not decayed yet.
            return decay_factor(torch.from_numpy(touched[:rows]), now, half_life).float().numpy(), np.float32(1)
        return self._weights[:rows], factor
