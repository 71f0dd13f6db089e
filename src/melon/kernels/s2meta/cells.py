"""The cell's loops (docs/methods.md 3.5): a tile of scalars through every unit, LayerNorm and the heads, and back.

Each quantity of a tile is a row along the scalars, so that every loop becomes vector instructions, and the rows of all
units stay in a core's own cache. Features come in groups of GROUP, filled up with rows of zeros. Weights stand in the
order input gate, forget gate, output gate, candidate. Blocks of scalars never depend on the number of threads: each
sums its part of the gradient, and parts are added up in order.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.arithmetic import (
    E_TO_10,
    F0,
    F1,
    NORM_EPSILON,
    SMALL,
    TENTH,
    log,
    logistic,
)
from melon.kernels.generator import registers, unrolled
from melon.kernels.types import DOUBLE_CUBE, DOUBLE_TABLE, FLAG, INT, RANGE, SINGLE_TABLE, SINGLES, Signature
from melon.types import Floats, Singles

TILE = 256  # scalars in a tile
STRIDE = TILE + 16  # away from powers of two, whose rows would fight for the same lines of the cache
GROUP = 4  # features that are added at a time
F2 = np.float32(2.0)

# The rows of one unit in its scratch line. The first four are pre-activations, then gates, and their slopes at last.
ENTRY = 0
FORGET = STRIDE
LEAVE = STRIDE * 2
CANDIDATE = STRIDE * 3
BEFORE = STRIDE * 4
CELL = STRIDE * 5
SQUASHED = STRIDE * 6
BACK = STRIDE * 7
SCRATCH = STRIDE * 8

_SCALARS: Signature = (RANGE, INT, SINGLE_TABLE, SINGLE_TABLE, SINGLES, SINGLES, SINGLE_TABLE, SINGLES, FLAG)
SIGNATURES: dict[str, Signature] = {
    "scale_and_sign": (SINGLES, SINGLES, SINGLES),
    "cell_logits": (*_SCALARS, SINGLE_TABLE, SINGLE_TABLE),
    "cell_states": (*_SCALARS, SINGLE_TABLE, SINGLE_TABLE),
    "cell_back": (*_SCALARS, SINGLE_TABLE, SINGLE_TABLE, DOUBLE_CUBE, DOUBLE_TABLE, DOUBLE_TABLE, DOUBLE_CUBE),
}


def scale_and_sign(values: Singles, scale: Singles, sign: Singles) -> None:
    """What the cell sees of gradients and values (docs/methods.md 4.5); its ε is too small to show in float32."""
    for t in range(values.size):
        size = abs(values[t])
        large = size >= SMALL
        scale[t] = log(size) * TENTH if large else -F1
        sign[t] = (F1 if values[t] > F0 else -F1) if large else values[t] * E_TO_10


def cell_logits(
    blocks: tuple[int, int],
    per_block: int,
    features: Singles,
    weights: Singles,
    bias: Singles,
    start: Singles,
    cell: Singles,
    fresh: Singles,
    normalise: bool,
    head: Singles,
    logits: Singles,
) -> None:
    """What the heads say of the scalars of blocks[0] … blocks[1] − 1.

    `cell` and `fresh` are what scalars bring along; both are empty where none bring anything.
    """
    s, hidden = np.empty(SCRATCH, np.float32), np.empty((start.size, STRIDE), np.float32)
    mean, spread = np.empty(STRIDE, np.float32), np.empty(STRIDE, np.float32)
    for at in range(blocks[0] * per_block, min(blocks[1] * per_block, features.shape[1]), TILE):
        n = min(TILE, features.shape[1] - at)
        for u in range(start.size):
            load_unit(s, n, u, at, features, weights, bias, start, cell, fresh)
            unit(s, hidden[u, :n])
        if normalise:
            normalised(hidden, mean[:n], spread[:n])
        for o in range(head.shape[0]):
            weighed(logits[o, at : at + n], head[o], hidden)


def cell_states(
    blocks: tuple[int, int],
    per_block: int,
    features: Singles,
    weights: Singles,
    bias: Singles,
    start: Singles,
    cell: Singles,
    fresh: Singles,
    normalise: bool,
    out_hidden: Singles,
    out_cell: Singles,
) -> None:
    """The hidden state, normalised if so asked, and the cell state after one step, of the same scalars."""
    s, hidden = np.empty(SCRATCH, np.float32), np.empty((start.size, STRIDE), np.float32)
    mean, spread = np.empty(STRIDE, np.float32), np.empty(STRIDE, np.float32)
    for at in range(blocks[0] * per_block, min(blocks[1] * per_block, features.shape[1]), TILE):
        n = min(TILE, features.shape[1] - at)
        for u in range(start.size):
            load_unit(s, n, u, at, features, weights, bias, start, cell, fresh)
            unit(s, hidden[u, :n])
            out_cell[u, at : at + n] = s[CELL : CELL + n]
        if normalise:
            normalised(hidden, mean[:n], spread[:n])
        for u in range(start.size):
            out_hidden[u, at : at + n] = hidden[u, :n]


def cell_back(
    blocks: tuple[int, int],
    per_block: int,
    features: Singles,
    weights: Singles,
    bias: Singles,
    start: Singles,
    cell: Singles,
    fresh: Singles,
    normalise: bool,
    head: Singles,
    slopes: Singles,
    to_weights: Floats,
    to_bias: Floats,
    to_start: Floats,
    to_head: Floats,
) -> None:
    """Gradients over the same scalars, block by block, from the slopes of the logits; every tile is computed again."""
    units = start.size
    lines, hidden = np.empty((units, SCRATCH), np.float32), np.empty((units, STRIDE), np.float32)
    mean, spread, along = np.empty(STRIDE, np.float32), np.empty(STRIDE, np.float32), np.empty(STRIDE, np.float32)
    for block in range(blocks[0], blocks[1]):
        stop = min((block + 1) * per_block, features.shape[1])
        for at in range(block * per_block, stop, TILE):
            n = min(TILE, stop - at)
            for u in range(units):
                load_unit(lines[u], n, u, at, features, weights, bias, start, cell, fresh)
                unit(lines[u], hidden[u, :n])
            if normalise:
                normalised(hidden, mean[:n], spread[:n])
                through_norm(hidden, head, slopes, at, mean[:n], along[:n])
            for u in range(units):
                s = lines[u]
                for o in range(head.shape[0]):
                    to_head[block, o, u] += dot(slopes[o, at : at + n], hidden[u, :n])
                from_heads(s[BACK : BACK + n], u, head, slopes, at)
                if normalise:
                    before_norm(s[BACK : BACK + n], hidden[u], mean, spread, along)
                unit_back(s, n)
                back = s[BACK : BACK + n]
                to_start[block, u] += dot(back, fresh[at : at + n]) if fresh.size else total(back)
                for gate in range(4):
                    row, slope = gate * units + u, s[gate * STRIDE : gate * STRIDE + n]
                    to_bias[block, row] += total(slope)
                    to_features(to_weights[block, row], slope, features, at)


def load_unit(
    s: Singles,
    n: int,
    u: int,
    at: int,
    features: Singles,
    weights: Singles,
    bias: Singles,
    start: Singles,
    cell: Singles,
    fresh: Singles,
) -> None:
    """A unit's pre-activations, and its cell state before: what scalars bring along, or the start of those without."""
    preactivations(s, n, u, at, features, weights, bias)
    before, began = s[BEFORE : BEFORE + n], start[u]
    if fresh.size:
        brought, without = cell[u, at : at + n], fresh[at : at + n]
        for t in range(n):
            before[t] = brought[t] + began * without[t]
    else:
        for t in range(n):
            before[t] = began


def unit(s: Singles, hidden: Singles) -> None:
    """One unit's step: gates, candidate, the cell state after it and its tanh, and the hidden state.

    One short loop after another: a single long one would wait for each result in turn.
    """
    n = hidden.size
    for gate in range(3):
        opened(s[gate * STRIDE : gate * STRIDE + n])
    for t in range(n):
        s[CANDIDATE + t] = tanh(s[CANDIDATE + t])
    for t in range(n):
        s[CELL + t] = s[FORGET + t] * s[BEFORE + t] + s[ENTRY + t] * s[CANDIDATE + t]
    for t in range(n):
        s[SQUASHED + t] = tanh(s[CELL + t])
    for t in range(n):
        hidden[t] = s[LEAVE + t] * s[SQUASHED + t]


def opened(gate: Singles) -> None:
    """σ of a pre-activation."""
    for t in range(gate.size):
        gate[t] = logistic(gate[t])


def unit_back(s: Singles, n: int) -> None:
    """From the slope of the hidden state (BACK) those of the pre-activations and of the cell state before (BACK)."""
    for t in range(n):
        entry, forget, leave, candidate = s[ENTRY + t], s[FORGET + t], s[LEAVE + t], s[CANDIDATE + t]
        back, squashed = s[BACK + t], s[SQUASHED + t]
        to_cell = back * leave * (F1 - squashed * squashed)
        s[ENTRY + t] = to_cell * candidate * entry * (F1 - entry)
        s[FORGET + t] = to_cell * s[BEFORE + t] * forget * (F1 - forget)
        s[LEAVE + t] = back * squashed * leave * (F1 - leave)
        s[CANDIDATE + t] = to_cell * entry * (F1 - candidate * candidate)
        s[BACK + t] = to_cell * forget


def preactivations(s: Singles, n: int, u: int, at: int, features: Singles, weights: Singles, bias: Singles) -> None:
    """Σ_k weights[k] · features[k] + bias, for the four rows of a unit."""
    units = bias.size // 4
    weight, constant, sums, line = registers(), registers(), registers(), registers()
    for first in range(0, weights.shape[1], GROUP):
        for gate in unrolled(4):
            constant[gate] = bias[gate * units + u]
            for k in unrolled(4):
                weight[gate, k] = weights[gate * units + u, first + k]
        for k in unrolled(4):
            line[k] = features[first + k, at : at + n]
        for t in range(n):
            for gate in unrolled(4):
                sums[gate] = constant[gate] if first == 0 else s[gate * STRIDE + t]
            for k in unrolled(4):
                for gate in unrolled(4):
                    sums[gate] += weight[gate, k] * line[k][t]
            for gate in unrolled(4):
                s[gate * STRIDE + t] = sums[gate]


def to_features(to_weights: Floats, slope: Singles, features: Singles, at: int) -> None:
    """Add the gradient of one row of weights."""
    sums, line = registers(), registers()
    for first in range(0, to_weights.size, GROUP):
        for k in unrolled(4):
            sums[k] = F0
            line[k] = features[first + k, at : at + slope.size]
        for t in range(slope.size):
            for k in unrolled(4):
                sums[k] += slope[t] * line[k][t]
        for k in unrolled(4):
            to_weights[first + k] += sums[k]


def normalised(hidden: Singles, mean: Singles, spread: Singles) -> None:
    """LayerNorm over the units; `spread` is one over the deviation."""
    share = F1 / np.float32(hidden.shape[0])
    for t in range(mean.size):
        mean[t], spread[t] = F0, F0
    for u in range(hidden.shape[0]):
        for t in range(mean.size):
            mean[t] += hidden[u, t] * share
    for u in range(hidden.shape[0]):
        for t in range(mean.size):
            hidden[u, t] -= mean[t]
            spread[t] += hidden[u, t] * hidden[u, t] * share
    for t in range(mean.size):
        spread[t] = F1 / np.sqrt(spread[t] + NORM_EPSILON)
    for u in range(hidden.shape[0]):
        for t in range(mean.size):
            hidden[u, t] *= spread[t]


def through_norm(hidden: Singles, head: Singles, slopes: Singles, at: int, mean: Singles, along: Singles) -> None:
    """The means over the units of the slope of the normalised state, and of its product with that state."""
    share = F1 / np.float32(hidden.shape[0])
    for t in range(mean.size):
        mean[t], along[t] = F0, F0
    for o in range(head.shape[0]):
        whole, slope = total(head[o]) * share, slopes[o, at : at + mean.size]
        for t in range(mean.size):
            mean[t] += whole * slope[t]
        for u in range(hidden.shape[0]):
            weight, state = head[o, u] * share, hidden[u]
            for t in range(mean.size):
                along[t] += weight * state[t] * slope[t]


def before_norm(back: Singles, hidden: Singles, mean: Singles, spread: Singles, along: Singles) -> None:
    """From the slope of a unit's normalised state that of the state itself."""
    for t in range(back.size):
        back[t] = (back[t] - mean[t] - hidden[t] * along[t]) * spread[t]


def from_heads(back: Singles, u: int, head: Singles, slopes: Singles, at: int) -> None:
    """The slope of a unit's state."""
    for t in range(back.size):
        back[t] = F0
    for o in range(head.shape[0]):
        weight, slope = head[o, u], slopes[o, at : at + back.size]
        for t in range(back.size):
            back[t] += weight * slope[t]


def weighed(out: Singles, weights: Singles, hidden: Singles) -> None:
    """Σ_u weights[u] · hidden[u]."""
    for t in range(out.size):
        out[t] = F0
    for u in range(weights.size):
        for t in range(out.size):
            out[t] += weights[u] * hidden[u, t]


def tanh(x: np.float32) -> np.float32:
    """2σ(2x) − 1."""
    return F2 * logistic(x + x) - F1


def dot(one: Singles, other: Singles) -> np.float32:
    """Σ one · other."""
    result = F0
    for t in range(one.size):
        result += one[t] * other[t]
    return result


def total(values: Singles) -> np.float32:
    """The sum of some numbers."""
    result = F0
    for t in range(values.size):
        result += values[t]
    return result
