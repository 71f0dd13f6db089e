"""The published pair network (docs/methods.md 4.5, 4.6): the two rates of every pair, and the way back.

Lines are units (interactions, or their pairs), each with its own constants. Some of a line's pairs are worked on at a
time, one row of numbers for each quantity, so that every loop runs along the pairs. Widths are multiples of four.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.arithmetic import log, logistic
from melon.kernels.types import FloatTable, SingleCube, SingleTable
from melon.types import Floats, Singles

#: Pairs that are worked on at a time.
TILE = 512
ZERO, ONE = np.float32(0.0), np.float32(1.0)
#: Where the preprocessing changes over: e^-10, and one over it.
SMALL, E_TO_10 = np.float32(4.5399929762484854e-05), np.float32(22026.465794806718)
TINY, TENTH = np.float32(1e-8), np.float32(0.1)


def _features(theta: Singles, gradient: Singles, at: int, many: int, out: Singles) -> None:
    """Scale and sign of the gradient, and θ."""
    scale, sign, value = out[0], out[1], out[2]
    for m in range(many):
        g = gradient[at + m]
        size = abs(g)
        large = size >= SMALL
        scale[m] = log(size + TINY) * TENTH if large else -ONE
        sign[m] = (ONE if g > ZERO else -ONE) if large else g * E_TO_10
        value[m] = theta[at + m]


def _fill(out: Singles, constants: Singles, many: int) -> None:
    """Each row its constant."""
    for k in range(constants.size):
        row, constant = out[k], constants[k]
        for m in range(many):
            row[m] = constant


def _mix(weights: Singles, below: Singles, many: int, out: Singles) -> None:
    """out += weights · below; two rows from four at a time, so that numbers once read are used several times."""
    for k in range(0, weights.shape[0], 2):
        row_0, row_1 = out[k], out[k + 1]
        for j in range(0, weights.shape[1], 4):
            v0, v1, v2, v3 = weights[k, j], weights[k, j + 1], weights[k, j + 2], weights[k, j + 3]
            w0, w1, w2, w3 = weights[k + 1, j], weights[k + 1, j + 1], weights[k + 1, j + 2], weights[k + 1, j + 3]
            below_0, below_1, below_2, below_3 = below[j], below[j + 1], below[j + 2], below[j + 3]
            for m in range(many):
                x0, x1, x2, x3 = below_0[m], below_1[m], below_2[m], below_3[m]
                row_0[m] += v0 * x0 + v1 * x1 + v2 * x2 + v3 * x3
                row_1[m] += w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3


def _add_products(above: Singles, below: Singles, many: int, out: Floats) -> None:
    """out += above · belowᵀ: sums over the pairs."""
    for k in range(out.shape[0]):
        row = above[k]
        for j in range(0, out.shape[1], 4):
            below_0, below_1, below_2, below_3 = below[j], below[j + 1], below[j + 2], below[j + 3]
            s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
            for m in range(many):
                x = row[m]
                s0 += x * below_0[m]
                s1 += x * below_1[m]
                s2 += x * below_2[m]
                s3 += x * below_3[m]
            out[k, j] += s0
            out[k, j + 1] += s1
            out[k, j + 2] += s2
            out[k, j + 3] += s3


def _cut(values: Singles, many: int) -> None:
    """ReLU."""
    for k in range(values.shape[0]):
        row = values[k]
        for m in range(many):
            row[m] = ZERO if row[m] < ZERO else row[m]


def _where_on(slopes: Singles, units: Singles, many: int) -> None:
    """Slopes stay where a unit is on."""
    for k in range(units.shape[0]):
        row, unit = slopes[k], units[k]
        for m in range(many):
            row[m] = row[m] if unit[m] > ZERO else ZERO


def _sum(values: Singles, many: int) -> np.float32:
    total = ZERO
    for m in range(many):
        total += values[m]
    return total


def _logits(
    hidden: Singles, logits: Singles, first: Singles, second: Singles, bias: Singles, head: Singles, many: int,
    features: Singles, lower: Singles, upper: Singles, both: Singles,
) -> None:  # fmt: skip
    """Both hidden layers of some pairs, and their logits."""
    _fill(lower, hidden, many)
    _mix(first, features, many, lower)
    _cut(lower, many)
    _fill(upper, bias, many)
    _mix(second, lower, many, upper)
    _cut(upper, many)
    _fill(both, logits, many)
    _mix(head, upper, many, both)


def pair_rates(
    theta: SingleTable, gradient: SingleTable, hidden: SingleTable, logits: SingleTable,
    first: SingleTable, second: SingleTable, bias: Singles, head: SingleTable, out: SingleCube,
) -> None:  # fmt: skip
    """w and f of every line and entry: 2 × lines × entries. θ has a row for each line, or one for all."""
    width, entries = bias.size, gradient.shape[1]
    features, both = np.zeros((4, TILE), np.float32), np.empty((2, TILE), np.float32)
    lower, upper = np.empty((width, TILE), np.float32), np.empty((width, TILE), np.float32)
    for x in range(gradient.shape[0]):
        values = theta[x if theta.shape[0] > 1 else 0]
        for at in range(0, entries, TILE):
            many = min(TILE, entries - at)
            _features(values, gradient[x], at, many, features)
            _logits(hidden[x], logits[x], first, second, bias, head, many, features, lower, upper, both)
            for k in range(2):
                row, target = both[k], out[k, x]
                for m in range(many):
                    target[at + m] = logistic(row[m])


def pair_rates_back(
    theta: SingleTable, gradient: SingleTable, hidden: SingleTable, logits: SingleTable,
    first: SingleTable, second: SingleTable, bias: Singles, head: SingleTable, by: SingleCube,
    to_hidden: SingleTable, to_logits: SingleTable, to_first: FloatTable,
    to_second: FloatTable, to_bias: Floats, to_head: FloatTable,
) -> None:  # fmt: skip
    """Add to the gradients of all weights and terms, from ∂J by w and f (2 × lines × entries)."""
    width, entries = bias.size, gradient.shape[1]
    features, both = np.zeros((4, TILE), np.float32), np.zeros((4, TILE), np.float32)
    lower, upper = np.empty((width, TILE), np.float32), np.empty((width, TILE), np.float32)
    back, from_head, through = np.empty((width, TILE), np.float32), np.zeros((width, 4), np.float32), second.T.copy()
    from_head[:, :2], nothing = head.T, np.zeros(width, np.float32)
    for x in range(gradient.shape[0]):
        values = theta[x if theta.shape[0] > 1 else 0]
        for at in range(0, entries, TILE):
            many = min(TILE, entries - at)
            _features(values, gradient[x], at, many, features)
            _logits(hidden[x], logits[x], first, second, bias, head, many, features, lower, upper, both)
            for k in range(2):
                row, given = both[k], by[k, x]
                for m in range(many):
                    rate = logistic(row[m])
                    row[m] = given[at + m] * rate * (ONE - rate)
                to_logits[x, k] += _sum(row, many)
            _add_products(both, upper, many, to_head)
            _fill(back, nothing, many)
            _mix(from_head, both, many, back)
            _where_on(back, upper, many)
            _add_products(back, lower, many, to_second)
            for k in range(width):
                to_bias[k] += _sum(back[k], many)
            _fill(upper, nothing, many)
            _mix(through, back, many, upper)
            _where_on(upper, lower, many)
            _add_products(upper, features, many, to_first)
            for k in range(width):
                to_hidden[x, k] += _sum(upper[k], many)
