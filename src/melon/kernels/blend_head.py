"""The blend's head as kernels: layout of inputs, forward pass, training step and scores (docs/methods.md 8.5).

Tables of the head are those of `melon.models.blend.head`: linear 1 × inputs, hidden units × inputs, shift
units × 1, output 1 × units. Inputs stand in columns: inputs × pairs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.types import FlagTable, FloatTable, SingleCube, SingleTable, SmallIntTable
from melon.types import Flags, Floats, Ints, Singles

#: How many decayed counts the head sees, which of them belongs to recent co-occurrence, and the one that never decays.
COUNTS, RECENT, ALWAYS = 6, 4, 6
#: How many of the user's last items look for neighbours.
LAST = 20
#: Rare items are drawn towards having nothing in common.
SHRINK, SHRINK_RECENT, GAIN = 5.0, 2.0, 20.0
#: Where the inputs of a pair stand: dot, bias, counts, idle, age, three kinds of co-occurrence; then what is repeated
#: times the user's activity (the dot, two counts, co-occurrence); then how often the item followed the last one.
MET = 4 + COUNTS
ACTIVE = MET + 3
FOLLOWED = ACTIVE + 4
ACTIVE_COUNTS = (1, 3)


class Rings(NamedTuple):
    """The last partners of rows (`PartnerRings`), how many each row met, and how many rows there are."""

    partners: SmallIntTable
    met: Ints
    known: int


class Counts(NamedTuple):
    """Decayed counts (`ItemCounts`): as of each item's last event, its first and last event, decay rates, and now."""

    counts: FloatTable
    first: Ints
    last: Ints
    rates: Floats
    events: int


class Slots(NamedTuple):
    """Neighbours (`ItemNeighbours`): ids, counts, log₂ of the decayed ones, and now in half-lives."""

    ids: SmallIntTable
    counts: SingleTable
    recent: SingleTable
    now: float


class Rows(NamedTuple):
    """A table (`Table.arrays`): values, last touches, the half-life of idle rows (0: none), how many rows, and now."""

    values: SingleTable
    touched: Ints
    half_life: float
    rows: int
    now: int


class HeadTables(NamedTuple):
    """The weights of a head, or running means of their gradients."""

    linear: SingleTable
    hidden: SingleTable
    shift: SingleTable
    output: SingleTable


def _active(rings: Rings, user: int) -> np.float32:
    """How active a user has been."""
    times = rings.met[user] if user < rings.known else np.int64(0)
    return np.float32(math.log(1.0 + times) / 4 - 1)


def _last_items(rings: Rings, counted: Counts, user: int, lasts: Ints, weights: Floats) -> int:
    """The user's last items, newest first, and the weight of co-occurrence with each; returns how many there are."""
    times, width = rings.met[user] if user < rings.known else np.int64(0), rings.partners.shape[1]
    count = min(times, lasts.size, width)
    for back in range(count):
        item = np.int64(rings.partners[user, (times - 1 - back) % width])
        taken = counted.counts[item, ALWAYS] if item < counted.first.size else 0.0
        lasts[back], weights[back] = item, GAIN / math.sqrt(taken + SHRINK)
    return int(count)


#: The head works on this many lines at a time: long loops over items, whose numbers stay in the first cache.
LINES_AT_ONCE = 8


def _add_products(weights: Singles, columns: Singles, size: int, total: Singles) -> None:
    """total[u] += Σ_f weights[u, f] · columns[f] over the first `size` pairs, four inputs and two units at a time."""
    units, n_inputs = weights.shape
    whole, even = n_inputs - n_inputs % 4, units - units % 2
    for unit in range(0, even, 2):
        left, right = total[unit], total[unit + 1]
        for f in range(0, whole, 4):
            a, b, c, d = columns[f], columns[f + 1], columns[f + 2], columns[f + 3]
            one, two, three, four = weights[unit, f], weights[unit, f + 1], weights[unit, f + 2], weights[unit, f + 3]
            uno, due = weights[unit + 1, f], weights[unit + 1, f + 1]
            tre, quattro = weights[unit + 1, f + 2], weights[unit + 1, f + 3]
            for n in range(size):
                left[n] += (one * a[n] + two * b[n]) + (three * c[n] + four * d[n])
                right[n] += (uno * a[n] + due * b[n]) + (tre * c[n] + quattro * d[n])
        for f in range(whole, n_inputs):
            a, one, uno = columns[f], weights[unit, f], weights[unit + 1, f]
            for n in range(size):
                left[n] += one * a[n]
                right[n] += uno * a[n]
    for unit in range(even, units):
        left = total[unit]
        for f in range(0, whole, 4):
            a, b, c, d = columns[f], columns[f + 1], columns[f + 2], columns[f + 3]
            one, two, three, four = weights[unit, f], weights[unit, f + 1], weights[unit, f + 2], weights[unit, f + 3]
            for n in range(size):
                left[n] += (one * a[n] + two * b[n]) + (three * c[n] + four * d[n])
        for f in range(whole, n_inputs):
            a, one = columns[f], weights[unit, f]
            for n in range(size):
                left[n] += one * a[n]


def _forward(
    columns: Singles, size: int, linear: Singles, hidden: Singles, shift: Singles, output: Singles, deep: Singles,
    scores: Singles,
) -> None:  # fmt: skip
    """scores += w · z + v · relu(W z + b) for the first `size` pairs; `deep` gets relu(W z + b)."""
    for unit in range(shift.shape[0]):
        line, start = deep[unit], shift[unit, 0]
        for n in range(size):
            line[n] = start
    _add_products(hidden, columns, size, deep)
    for unit in range(shift.shape[0]):
        line = deep[unit]
        for n in range(size):
            line[n] = np.float32(0) if line[n] < 0 else line[n]  # a NaN stays one
    _add_products(linear, columns, size, scores)
    _add_products(output, deep, size, scores)


def _adam(
    values: Singles, first: Singles, second: Singles, slopes: Singles, rates: Floats,
    new: Singles, new_first: Singles, new_second: Singles,
) -> None:  # fmt: skip
    """One step of AdamW.

    `rates` are 1 − β₁, 1 − β₂, ε, the step, the share of weights that is left, 1 − β₂ᵗ, and a factor on the slopes.
    """
    mean, square, eps, step = np.float32(rates[0]), np.float32(rates[1]), np.float32(rates[2]), np.float32(rates[3])
    kept, settled, share = np.float32(rates[4]), np.float32(rates[5]), np.float32(rates[6])
    for row in range(values.shape[0]):
        for d in range(values.shape[1]):
            slope = share * slopes[row, d]
            one = first[row, d] + mean * (slope - first[row, d])
            other = second[row, d] + square * (slope * slope - second[row, d])
            new_first[row, d], new_second[row, d] = one, other
            new[row, d] = kept * values[row, d] - step * (one / (np.float32(math.sqrt(other / settled)) + eps))


def _add_slopes(reaching: Singles, scaled: Singles, size: int, total: Singles) -> None:
    """total[u, f] += Σ_n reaching[u, n] · scaled[f, n] over the first `size` items, four inputs at a time."""
    units, n_inputs = total.shape
    whole = n_inputs - n_inputs % 4
    for unit in range(units):
        for f in range(0, whole, 4):
            one, two, three, four = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for n in range(size):
                slope = reaching[unit, n]
                one += slope * scaled[f, n]
                two += slope * scaled[f + 1, n]
                three += slope * scaled[f + 2, n]
                four += slope * scaled[f + 3, n]
            total[unit, f] += one
            total[unit, f + 1] += two
            total[unit, f + 2] += three
            total[unit, f + 3] += four
        for f in range(whole, n_inputs):
            one = np.float32(0)
            for n in range(size):
                one += reaching[unit, n] * scaled[f, n]
            total[unit, f] += one


def _softmax_slopes(scores: Singles, allowed: Flags, slopes: Singles) -> None:
    """The slopes of −log softmax of the first score, where some items are not allowed."""
    width, most, total = scores.size, -np.inf, 0.0
    for c in range(width):
        if allowed[c] and not scores[c] <= most:  # a NaN stays one
            most = np.float64(scores[c])
    for c in range(width):
        slopes[c] = math.exp(np.float64(scores[c]) - most) if allowed[c] else 0.0
    for c in range(width):
        total += np.float64(slopes[c])
    for c in range(width):
        slopes[c] = slopes[c] / total - (1.0 if c == 0 else 0.0)


def head_columns(
    inputs: SingleCube, centre: Singles, scale: Singles, columns: SingleCube, personal: SingleTable
) -> None:
    """Training examples as the head's step takes them: LINES_AT_ONCE lines at a time, scaled, input by input.

    `personal` gets what the items' scores are without the head.
    """
    lines, width, n_inputs = inputs.shape
    for start in range(0, lines, LINES_AT_ONCE):
        scaled, scores = columns[start // LINES_AT_ONCE], personal[start // LINES_AT_ONCE]
        for n in range(min(lines - start, LINES_AT_ONCE) * width):
            pair = inputs[start + n // width, n % width]
            scores[n] = pair[0] + pair[1]
            for f in range(n_inputs):
                scaled[f, n] = (pair[f] - centre[f]) * scale[f]


def head_step(
    columns: SingleCube, personal: SingleTable, allowed: FlagTable, rates: Floats,
    head: HeadTables, means: HeadTables, squares: HeadTables,
    new: HeadTables, new_means: HeadTables, new_squares: HeadTables,
) -> None:  # fmt: skip
    """The head's step on `head_columns`: the mean gradient of −log softmax of the item taken, and AdamW.

    An item that is not allowed is out of the softmax.
    """
    (lines, width), (_, n_inputs, many), units = allowed.shape, columns.shape, head.output.shape[1]
    deep = np.empty((units, many), np.float32)
    scores, slopes = np.empty((1, many), np.float32), np.empty((1, many), np.float32)
    to_linear, to_hidden = np.zeros((1, n_inputs), np.float32), np.zeros((units, n_inputs), np.float32)
    to_shift, to_output = np.zeros((units, 1), np.float32), np.zeros((1, units), np.float32)
    ones = np.ones((1, many), np.float32)
    for start in range(0, lines, LINES_AT_ONCE):
        some = min(lines - start, LINES_AT_ONCE)
        size, scaled = some * width, columns[start // LINES_AT_ONCE]
        for n in range(size):
            scores[0, n] = personal[start // LINES_AT_ONCE, n]
        _forward(scaled, size, head.linear, head.hidden, head.shift, head.output, deep, scores)
        for n in range(some):
            line = slice(n * width, (n + 1) * width)
            _softmax_slopes(scores[0, line], allowed[start + n], slopes[0, line])
        _add_slopes(slopes, scaled, size, to_linear)
        _add_slopes(slopes, deep, size, to_output)
        for unit in range(units):
            for n in range(size):
                deep[unit, n] = slopes[0, n] * head.output[0, unit] if deep[unit, n] > 0 else np.float32(0)
        _add_slopes(deep, ones, size, to_shift)
        _add_slopes(deep, scaled, size, to_hidden)
    _adam(head.linear, means.linear, squares.linear, to_linear, rates, new.linear, new_means.linear, new_squares.linear)
    _adam(head.hidden, means.hidden, squares.hidden, to_hidden, rates, new.hidden, new_means.hidden, new_squares.hidden)
    _adam(head.shift, means.shift, squares.shift, to_shift, rates, new.shift, new_means.shift, new_squares.shift)
    _adam(head.output, means.output, squares.output, to_output, rates, new.output, new_means.output, new_squares.output)


def head_scores(inputs: SingleCube, constant: float, head: HeadTables, out: SingleTable) -> None:
    """Scores of lines of items from their inputs, by a head over unscaled inputs; `constant` is taken off each."""
    (lines, width, n_inputs), units = inputs.shape, head.output.shape[1]
    some = max(LINES_AT_ONCE * 32 // max(width, 1), 1)
    columns, deep = np.empty((n_inputs, some * width), np.float32), np.empty((units, some * width), np.float32)
    scores = np.empty((1, some * width), np.float32)
    for start in range(0, lines, some):
        size = min(lines - start, some) * width
        for n in range(size):
            pair = inputs[start + n // width, n % width]
            scores[0, n] = pair[0] + pair[1] - constant
            for f in range(n_inputs):
                columns[f, n] = pair[f]
        _forward(columns, size, head.linear, head.hidden, head.shift, head.output, deep, scores)
        for n in range(size):
            out[start + n // width, n % width] = scores[0, n]
