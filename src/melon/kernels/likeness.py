"""How like candidates are to each of a user's last items, as a compiled loop over the items' rows."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.types import INT, INT_TABLE, SINGLE_CUBE, SINGLE_TABLE, Signature
from melon.types import Ints, Singles

#: How sharply the nearest of the last items count: likeness is log(1 + Σ exp(SHARPNESS · cosine)).
SHARPNESS = 6.0
#: Added under a root, so that a row of zeros has the direction of zeros.
_TINY = np.float32(1e-9)
_NOTHING = np.float32(0)

SIGNATURES: dict[str, Signature] = {"likeness": (INT_TABLE, INT_TABLE, SINGLE_TABLE, INT, INT, SINGLE_CUBE)}


def _length(row: Singles) -> np.float32:
    size = _TINY
    for d in range(row.size):
        size += row[d] * row[d]
    return np.float32(math.sqrt(size))


def likeness(lasts: Ints, items: Ints, rows: Singles, known: int, first: int, out: Singles) -> None:
    """log(1 + Σ exp(6 cos(l, i))) over the user's last items l, of which the candidate i itself is left out.

    For candidates n × c, into input `first`; `lasts` are filled up with −1. Only the first `known` rows are there.
    Four of the last items at a time, so that each number of the candidate's row is loaded once for them.
    """
    (lines, width), dim = items.shape, rows.shape[1]
    most = -(-lasts.shape[1] // 4) * 4
    own, near = np.zeros((most, dim), np.float32), np.zeros(most, np.float32)
    names = np.empty(most, np.int64)
    for n in range(lines):
        count = 0
        for k in range(lasts.shape[1]):
            item = lasts[n, k]
            if 0 <= item < known:
                row, share = rows[item], np.float32(1) / _length(rows[item])
                for d in range(dim):
                    own[count, d] = row[d] * share
                names[count] = item
                count += 1
        for c in range(width):
            item, total = items[n, c], 0.0
            if item < known:
                row, share = rows[item], np.float32(SHARPNESS) / _length(rows[item])
                for k in range(0, count, 4):
                    one, two, three, four = _NOTHING, _NOTHING, _NOTHING, _NOTHING
                    for d in range(dim):
                        value = row[d]
                        one += own[k, d] * value
                        two += own[k + 1, d] * value
                        three += own[k + 2, d] * value
                        four += own[k + 3, d] * value
                    near[k], near[k + 1], near[k + 2], near[k + 3] = one, two, three, four
                for k in range(count):
                    if names[k] != item:
                        total += math.exp(share * near[k])
            out[n, c, first] = math.log(1.0 + total)
