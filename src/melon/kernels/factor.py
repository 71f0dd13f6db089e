"""A factorised score's arithmetic as compiled loops: one pass over the rows that a batch names, without copies."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.types import INT_TABLE, INTS, RANGE, SINGLE_CUBE, SINGLE_TABLE, SINGLES, Signature
from melon.types import Ints, Singles

SIGNATURES: dict[str, Signature] = {
    "pairwise_evidence": (INTS, INT_TABLE, *[SINGLE_TABLE] * 3, SINGLES, SINGLE_TABLE, SINGLE_TABLE, SINGLE_CUBE),
    "scores": (INTS, INT_TABLE, RANGE, *[SINGLE_TABLE] * 5),
    "dots": (INT_TABLE, INTS, SINGLES, *[SINGLE_TABLE] * 3),
}


def _dot(one: Singles, other: Singles) -> np.float32:
    total = np.float32(0)
    for t in range(one.size):
        total += one[t] * other[t]
    return total


def pairwise_evidence(
    users: Ints,
    items: Ints,
    user_factors: Singles,
    item_factors: Singles,
    item_bias: Singles,
    losses: Singles,
    slopes: Singles,
    to_user: Singles,
    to_items: Singles,
) -> None:
    """softplus(s⁻ − s⁺), averaged over negatives, its slope by each score, and its gradients (docs/methods.md 2.1)."""
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


def scores(
    users: Ints,
    items: Ints,
    known: tuple[int, int],
    user_factors: Singles,
    item_factors: Singles,
    user_bias: Singles,
    item_bias: Singles,
    out: Singles,
) -> None:
    """p_u · q_i + b_u + b_i from storage; rows from `known` on are absent and read as the zeros that stand there."""
    for n in range(users.size):
        user = min(users[n], known[0])
        own, bias = user_factors[user], user_bias[user, 0]
        for c in range(items.shape[1]):
            item = min(items[n, c], known[1])
            out[n, c] = _dot(own, item_factors[item]) + item_bias[item, 0] + bias


def dots(named: Ints, places: Ints, left: Singles, factors: Singles, values: Singles, out: Singles) -> None:
    """Each line's vector times the rows that it names, which stand at places of storage and have faded."""
    for n in range(named.shape[0]):
        for c in range(named.shape[1]):
            row = named[n, c]
            out[n, c] = left[row] * _dot(factors[n], values[places[row]])
