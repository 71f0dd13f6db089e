"""A factorised score's arithmetic as compiled loops: one pass over the rows that a batch names, without copies."""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

from melon.types import Ints

Floats = npt.NDArray[np.float32]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz", "arcp", "contract"})
def _dot(one: Floats, other: Floats) -> np.float32:
    total = np.float32(0)
    for t in range(one.size):
        total += one[t] * other[t]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz", "arcp", "contract"})
def pairwise_evidence(
    users: Ints,
    items: Ints,
    user_factors: Floats,
    item_factors: Floats,
    item_bias: Floats,
    losses: Floats,
    slopes: Floats,
    to_user: Floats,
    to_items: Floats,
) -> None:
    """softplus(s⁻ − s⁺) averaged over the negatives, its slope by each score, and its gradients (METHODS.md 2.1)."""
    width, dim = items.shape[1], user_factors.shape[1]
    for n in range(users.size):
        own, back = user_factors[users[n]], to_user[n]
        first = _dot(own, item_factors[items[n, 0]]) + item_bias[items[n, 0], 0]
        loss, down = 0.0, 0.0
        for c in range(1, width):
            margin = np.float64(_dot(own, item_factors[items[n, c]]) + item_bias[items[n, c], 0] - first)
            small = math.exp(-abs(margin))
            loss += (margin if margin > 0 else margin * 0.0) + math.log1p(small)  # NaN stays NaN
            slope = (1.0 if margin >= 0 else small) / (1.0 + small) / (width - 1)
            slopes[n, c] = slope
            down += slope
        losses[n], slopes[n, 0] = loss / (width - 1), -down
        for d in range(dim):
            back[d] = 0
        for c in range(width):
            slope, vector, to_item = slopes[n, c], item_factors[items[n, c]], to_items[n, c]
            for d in range(dim):
                back[d] += slope * vector[d]
                to_item[d] = slope * own[d]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz", "arcp", "contract"})
def scores(
    users: Ints,
    items: Ints,
    known: tuple[int, int],
    user_factors: Floats,
    item_factors: Floats,
    user_bias: Floats,
    item_bias: Floats,
    out: Floats,
) -> None:
    """p_u · q_i + b_u + b_i from storage; rows from `known` on are absent and read as the zeros that stand there."""
    for n in range(users.size):
        user = min(users[n], known[0])
        own, bias = user_factors[user], user_bias[user, 0]
        for c in range(items.shape[1]):
            item = min(items[n, c], known[1])
            out[n, c] = _dot(own, item_factors[item]) + item_bias[item, 0] + bias


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz", "arcp", "contract"})
def dots(named: Ints, places: Ints, left: Floats, factors: Floats, values: Floats, out: Floats) -> None:
    """Each line's vector times the rows that it names, which stand at places of storage and have faded."""
    for n in range(named.shape[0]):
        for c in range(named.shape[1]):
            row = named[n, c]
            out[n, c] = left[row] * _dot(factors[n], values[places[row]])
