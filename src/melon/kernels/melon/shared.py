"""Weights that every unit touches: the gradient is expanded from its factors, one unit at a time, and never stored.

Where a row's left factors or a column's right factors are all exactly 0 (units of the recommender's ReLU layers that
were off), the gradient is 0 there and so is the step: such rows and columns are left out, unless weights forget too.
Blocks of units never depend on the number of threads; each has sums of its own, and these are added up in order.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.arithmetic import F0
from melon.kernels.melon.layout import (
    APPLIED,
    FORGET,
    GAMMA,
    KEPT,
    LOWER,
    RATE,
    SCALE,
    SCRATCH,
    STRIDE,
    THETA,
    TILE,
    WIDTH,
)
from melon.kernels.melon.tiles import (
    added,
    features,
    fill,
    first_layer_of_one,
    load,
    moves,
    moves_without_forgetting,
    network_back_of_one,
    second_layer,
)
from melon.kernels.types import DOUBLE_TABLE, INT, RANGE, SINGLE, SINGLE_CUBE, SINGLE_TABLE, SINGLES, Signature
from melon.types import Floats, Ints, Singles

_FACTORS: Signature = (SINGLE_TABLE, SINGLE_CUBE, SINGLE_CUBE)
_UNITS: Signature = (RANGE, INT, *_FACTORS, SINGLE_TABLE, SINGLE_TABLE, SINGLES, SINGLE, SINGLE)
SIGNATURES: dict[str, Signature] = {
    "shared_forward": (*_UNITS, SINGLE_TABLE),
    "shared_backward": (*_UNITS, SINGLE_TABLE, DOUBLE_TABLE, SINGLE_TABLE, SINGLE_TABLE),
}


def shared_forward(
    blocks: tuple[int, int],
    per_block: int,
    theta: Singles,
    left: Singles,
    right: Singles,
    hidden: Singles,
    logits: Singles,
    w: Singles,
    step: float,
    share: float,
    out: Singles,
) -> None:
    """Σ_x (step · σ(rate) g − share · (1 − f) θ) over the units of each block, into the block's line of `out`."""
    s, forgets = np.zeros(SCRATCH, np.float32), share != F0
    rows, columns = np.empty(theta.shape[0], np.int64), np.empty(theta.shape[1], np.int64)
    values, gradient = np.empty(theta.size, np.float32), np.empty(theta.size, np.float32)
    moved = np.empty(theta.size, np.float32)
    for block in range(blocks[0], blocks[1]):
        for x in range(block * per_block, min((block + 1) * per_block, left.shape[0])):
            high, wide = alive(left[x], rows, forgets), alive(right[x], columns, forgets)
            gather(theta, rows[:high], columns[:wide], values)
            expand(left[x], right[x], rows[:high], columns[:wide], gradient)
            for at in range(0, high * wide, TILE):
                end = min(at + TILE, high * wide)
                load_unit(s, values[at:end], gradient[at:end], logits[x], step, share)
                features(s)
                first_layer_of_one(s, w, hidden[x])
                second_layer(s, w)
                if forgets:
                    moves(s)
                else:
                    moves_without_forgetting(s)
                moved[at:end] = s[RATE : RATE + end - at]
            scatter(moved, rows[:high], columns[:wide], out[block], theta.shape[1])


def shared_backward(
    blocks: tuple[int, int],
    per_block: int,
    theta: Singles,
    left: Singles,
    right: Singles,
    hidden: Singles,
    logits: Singles,
    w: Singles,
    step: float,
    share: float,
    gamma: Singles,
    to_weights: Floats,
    to_hidden: Singles,
    to_logits: Singles,
) -> None:
    """Gradients over the same units, with γ for each entry: of weights block by block, and of units' terms."""
    s, forgets = np.zeros(SCRATCH, np.float32), share != F0
    rows, columns = np.empty(theta.shape[0], np.int64), np.empty(theta.shape[1], np.int64)
    values, gradient = np.empty(theta.size, np.float32), np.empty(theta.size, np.float32)
    wanted = np.empty(theta.size, np.float32)
    for block in range(blocks[0], blocks[1]):
        for x in range(block * per_block, min((block + 1) * per_block, left.shape[0])):
            high, wide = alive(left[x], rows, forgets), alive(right[x], columns, forgets)
            gather(theta, rows[:high], columns[:wide], values)
            gather(gamma, rows[:high], columns[:wide], wanted)
            expand(left[x], right[x], rows[:high], columns[:wide], gradient)
            for at in range(0, high * wide, TILE):
                end = min(at + TILE, high * wide)
                load_unit(s, values[at:end], gradient[at:end], logits[x], step, share)
                load(s, GAMMA, wanted[at:end])
                network_back_of_one(s, w, hidden[x], to_weights[block])
                for j in range(WIDTH):
                    to_hidden[x, j] += added(s[LOWER + j * STRIDE : LOWER + j * STRIDE + TILE])
                to_logits[x, 0] += added(s[RATE : RATE + TILE])
                to_logits[x, 1] += added(s[FORGET : FORGET + TILE])


def alive(factors: Singles, places: Ints, everywhere: bool) -> int:
    """Where any branch's factor is not exactly 0 (or everywhere); returns how many places that are."""
    count = 0
    for place in range(factors.shape[1]):
        used = everywhere
        for branch in range(factors.shape[0]):
            used = used or factors[branch, place] != F0
        if used:
            places[count] = place
            count += 1
    return count


def gather(table: Singles, rows: Ints, columns: Ints, out: Singles) -> None:
    """The entries of some rows and columns, one row after another."""
    wide = columns.size
    for r in range(rows.size):
        line, target = table[rows[r]], out[r * wide : (r + 1) * wide]
        if wide == line.size:
            for c in range(wide):
                target[c] = line[c]
        else:
            for c in range(wide):
                target[c] = line[columns[c]]


def scatter(moved: Singles, rows: Ints, columns: Ints, out: Singles, dim: int) -> None:
    """Add what was gathered to its places."""
    wide = columns.size
    for r in range(rows.size):
        line, source = out[rows[r] * dim : (rows[r] + 1) * dim], moved[r * wide : (r + 1) * wide]
        if wide == dim:
            for c in range(wide):
                line[c] += source[c]
        else:
            for c in range(wide):
                line[columns[c]] += source[c]


def expand(left: Singles, right: Singles, rows: Ints, columns: Ints, out: Singles) -> None:
    """Σ_b left[b] ⊗ right[b] at some rows and columns."""
    wide = columns.size
    packed = np.empty(wide, np.float32)
    for branch in range(left.shape[0]):
        for c in range(wide):
            packed[c] = right[branch, columns[c]]
        for r in range(rows.size):
            factor, target = left[branch, rows[r]], out[r * wide : (r + 1) * wide]
            if branch == 0:
                for c in range(wide):
                    target[c] = factor * packed[c]
            else:
                for c in range(wide):
                    target[c] += factor * packed[c]


def load_unit(s: Singles, values: Singles, gradient: Singles, logits: Singles, step: float, share: float) -> None:
    """Some pairs of one unit; the rest of the tile is zeros."""
    load(s, THETA, values)
    load(s, SCALE, gradient)
    for t in range(TILE):
        s[APPLIED + t] = s[SCALE + t] * step
        s[KEPT + t] = s[THETA + t] * share
    fill(s[RATE : RATE + TILE], logits[0])
    fill(s[FORGET : FORGET + TILE], logits[1])
