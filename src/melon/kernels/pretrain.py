"""Pre-training in compiled loops: summed plain steps with L2 on the rows of users and items (docs/methods.md 8.5).

A factorised score learns many batches in one call; so does NCF, in `network.py`.
"""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.types import INT, INT_TABLE, INTS, SINGLE, SINGLE_TABLE, SMALL_INTS, Signature
from melon.types import Ints, Singles, SmallInts

SIGNATURES: dict[str, Signature] = {
    "pairwise_batches": (INTS, INT_TABLE, INT, SINGLE, SINGLE, *[SINGLE_TABLE] * 3, *[SMALL_INTS] * 2),
}

_F0, _F1 = np.float32(0), np.float32(1)


def _product(one: Singles, other: Singles) -> np.float32:
    total = _F0
    for t in range(one.size):
        total += one[t] * other[t]
    return total


def _slopes(scores: Singles, slopes: Singles) -> float:
    """softplus(s⁻ − s⁺), averaged over negatives, and its slope by each score; the item taken stands first."""
    loss, down, share = 0.0, 0.0, 1.0 / (scores.size - 1)
    for c in range(1, scores.size):
        margin = np.float64(scores[c] - scores[0])
        small = math.exp(-abs(margin))
        loss += (margin if margin > 0 else margin * 0.0) + math.log1p(small)  # NaN stays NaN
        slope = (1.0 if margin >= 0 else small) / (1.0 + small) * share
        slopes[c] = slope
        down += slope
    slopes[0] = -down
    return loss * share


def _begin(row: Singles, slope: np.float32, direction: Singles) -> None:
    for t in range(row.size):
        row[t] = slope * direction[t]


def _move(row: Singles, left: np.float32, step: np.float32, direction: Singles) -> None:
    for t in range(row.size):
        row[t] = left * row[t] - step * direction[t]


def pairwise_batches(
    users: Ints, items: Ints, batch: int, lr: np.float32, l2: np.float32, user_factors: Singles, item_factors: Singles,
    item_bias: Singles, user_visits: SmallInts, item_visits: SmallInts,
) -> float:  # fmt: skip
    """Learn interactions in batches, each from the rows as they are at its start; returns the sum of losses.

    A row that a batch names k times is multiplied by 1 − k · lr · l2 when it is first written, and then takes its k
    steps; `user_visits` and `item_visits` hold k meanwhile, and zeros before and after. Users' steps wait in a buffer,
    since items' steps need the rows of users as they were.
    """
    width, dim = items.shape[1], user_factors.shape[1]
    scores, slopes = np.empty(width, np.float32), np.empty((batch, width), np.float32)
    to_users, total = np.empty((batch, dim), np.float32), 0.0
    for start in range(0, users.size, batch):
        size = min(batch, users.size - start)
        for n in range(size):
            user, named, step = users[start + n], items[start + n], to_users[n]
            own = user_factors[user]
            user_visits[user] += 1
            for c in range(width):
                item_visits[named[c]] += 1
                scores[c] = _product(own, item_factors[named[c]]) + item_bias[named[c], 0]
            total += _slopes(scores, slopes[n])
            _begin(step, slopes[n, 0], item_factors[named[0]])
            for c in range(1, width):
                _move(step, _F1, -slopes[n, c], item_factors[named[c]])
        for n in range(size):
            own, named = user_factors[users[start + n]], items[start + n]
            for c in range(width):
                item = named[c]
                left, slope = _F1 - np.float32(item_visits[item]) * lr * l2, lr * slopes[n, c]
                item_visits[item] = 0
                _move(item_factors[item], left, slope, own)
                item_bias[item, 0] = left * item_bias[item, 0] - slope
        for n in range(size):
            user = users[start + n]
            left = _F1 - np.float32(user_visits[user]) * lr * l2
            user_visits[user] = 0
            _move(user_factors[user], left, lr, to_users[n])
    return total
