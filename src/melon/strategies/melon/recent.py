"""How often items were taken of late: decayed counts as state of an item's row, current as of a moment beside them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from melon.types import Floats

#: In interactions: a few batches, and some dozens of them.
HALF_LIVES = (300.0, 3_000.0)
#: Numbers kept for an item: its counts, and their moment in two parts, for float32 holds no number of events exactly.
WIDTH = len(HALF_LIVES) + 2
_PART = 1 << 20


class RecentCounts:
    """The counts of compact rows. An interaction that is k interactions old counts 2^(-k / half-life).

    A row's counts are stored as of the last batch in which it was taken and decayed when they are read, so a row that
    nobody touches costs nothing. The interactions of a batch count as of its start, whatever their order.
    """

    def __init__(self, kept: Tensor, now: int) -> None:
        self._kept, self._now = kept, now

    def now(self) -> Floats:
        """Rows × half-lives, as of now."""
        kept = self._kept.detach().cpu().numpy().astype(np.float64)
        counts, high, low = kept[:, : len(HALF_LIVES)], kept[:, -2], kept[:, -1]
        age = self._now - (high * _PART + low)
        left: Floats = np.exp2(-age[:, None] / np.array(HALF_LIVES))
        return counts * left

    def after(self, taken: Tensor) -> Tensor:
        """What is kept after a batch that takes these rows, some of them several times; other rows stay as they are."""
        times = torch.bincount(taken, minlength=len(self._kept)).cpu().numpy()
        moment = np.array([self._now // _PART, self._now % _PART], dtype=np.float64)
        fresh = np.concatenate([self.now() + times[:, None], np.broadcast_to(moment, (len(times), 2))], axis=1)
        met = torch.from_numpy(times > 0).to(self._kept.device)[:, None]
        return torch.where(met, torch.from_numpy(fresh).to(self._kept), self._kept)
