"""Likeness of candidates to each of a user's last items, by the directions of the items' rows; it keeps no state."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from melon.kernels import policy
from melon.kernels.lessons import LAST
from melon.kernels.likeness import SHARPNESS
from melon.stream.history import History
from melon.types import Ints

LIKENESS = ("likeness",)
_Rows = npt.NDArray[np.floating[Any]]
_TINY = 1e-9


def likeness(users: Ints, items: Ints, past: History, rows: _Rows, known: int, first: int, out: _Rows) -> None:
    """log(1 + Σ exp(6 cos(l, i))) over the user's last items l ≠ i, for candidates n × c, into input `first` of `out`.

    The nearest of the last items decides. The candidate itself is left out: it would tell a repeat. Items without one
    of the first `known` rows are like nothing.
    """
    lasts = np.ascontiguousarray(past.of_users.recent(users, LAST).partners)
    loops = policy.load("profiles", like=torch.from_numpy(out))
    if loops is not None:
        loops.likeness(lasts, np.ascontiguousarray(items), rows, known, first, out)
        return
    directions = rows[:known] / np.sqrt(np.square(rows[:known]).sum(-1, keepdims=True) + _TINY)
    for line, last in enumerate(lasts):
        own, there = last[(last >= 0) & (last < known)], items[line] < known
        near = directions[items[line][there]] @ directions[own].T
        others = own != items[line][there][:, None]
        out[line, :, first] = 0
        out[line, there, first] = np.log1p((np.exp(SHARPNESS * near) * others).sum(-1))
