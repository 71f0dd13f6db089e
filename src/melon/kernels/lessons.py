"""What teaches the blend's head, compiled by numba: inputs straight from rows and streaming state, and the head's step.

Suites put this behind `factor` and `neighbours`, whose functions it uses.
"""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.factor import _dot, _placed
from melon.kernels.neighbours import add_up
from melon.kernels.types import (
    DOUBLE,
    DOUBLE_TABLE,
    DOUBLES,
    FLAG_TABLE,
    INT,
    INT_TABLE,
    INTS,
    ROWS,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SINGLES,
    SMALL_INT_TABLE,
    SMALL_INTS,
    Signature,
)
from melon.types import Flags, Floats, Ints, Singles, SmallInts

#: How many decayed counts the head sees, which of them belongs to recent meetings, and the one that never decays.
COUNTS, RECENT, ALWAYS = 6, 4, 6
#: How many of the user's last items look for neighbours.
LAST = 20
# docs/methods.md 8.5: rare items are drawn towards having nothing in common.
SHRINK, SHRINK_RECENT, GAIN = 5.0, 2.0, 20.0
#: Where the inputs of a pair stand: dot, bias, counts, idle, age, three kinds of meetings; then what is repeated times
#: the user's activity (the dot, two counts, the meetings); then how often the item followed the last one.
MET = 4 + COUNTS
ACTIVE = MET + 3
FOLLOWED = ACTIVE + 4
_ACTIVE_COUNTS = (1, 3)
#: The head works on this many lines at a time: long loops over items, whose numbers stay in the first cache.
LINES_AT_ONCE = 8

_PAST: Signature = (SMALL_INT_TABLE, INTS, INT)
_COUNTED: Signature = (DOUBLE_TABLE, INTS, INTS, DOUBLES, INT)
_SLOTS: Signature = (SMALL_INT_TABLE, SINGLE_TABLE, SINGLE_TABLE, DOUBLE)
_HEAD: Signature = (SINGLE_TABLE, SINGLE_TABLE, SINGLE_TABLE, SINGLE_TABLE)
SIGNATURES: dict[str, Signature] = {
    "inputs": (
        INTS, INT_TABLE, *_PAST, *_COUNTED, *_SLOTS, *_SLOTS, INT, INT, INT, *ROWS, *ROWS, *ROWS,
        SMALL_INTS, SMALL_INTS, INT, SINGLE_CUBE,
    ),
    "head_columns": (SINGLE_CUBE, SINGLES, SINGLES, DOUBLE, SINGLE_CUBE, SINGLE_TABLE),
    "head_step": (SINGLE_CUBE, SINGLE_TABLE, FLAG_TABLE, DOUBLES, *_HEAD * 6),
    "head_scores": (SINGLE_CUBE, DOUBLE, DOUBLE, *_HEAD, SINGLE_TABLE),
}  # fmt: skip


def _left(touched: Ints, half_life: float, now: int, row: int) -> np.float32:
    """What fading has left of a row."""
    if half_life > 0 and touched[row] < now:
        return np.float32(np.exp2((touched[row] - now) / half_life))
    return np.float32(1)


def _of_items(
    items: Ints, count: int, counts: Floats, first: Ints, last: Ints, rates: Floats, events: int
) -> tuple[Singles, Floats]:
    """Logarithms of decayed counts, of idle time and of age, and what the items' meetings are divided by."""
    columns, divisors = np.zeros((count, COUNTS + 2), np.float32), np.empty((count, 2))
    for n in range(count):
        item, total, recent = items[n], 0.0, 0.0
        idle, age = np.int64(events), np.int64(events)
        if item < first.size and first[item] >= 0:
            idle, age, total = events - last[item], events - first[item], counts[item, ALWAYS]
            for k in range(COUNTS):
                decayed = counts[item, k] * np.exp2(-idle * rates[k])
                columns[n, k] = math.log(1.0 + decayed)
                if k == RECENT:
                    recent = decayed
        columns[n, COUNTS], columns[n, COUNTS + 1] = math.log(1.0 + idle), math.log(1.0 + age)
        divisors[n, 0], divisors[n, 1] = math.sqrt(total + SHRINK), math.sqrt(recent + SHRINK_RECENT)
    return columns, divisors


def inputs(
    users: Ints, lines: Ints,
    ring: SmallInts, met: Ints, known: int,
    counts: Floats, first: Ints, last: Ints, rates: Floats, events: int,
    ids: SmallInts, meetings: Singles, recent: Singles, now: float,
    followers: SmallInts, follows: Singles, follows_recent: Singles, follows_now: float,
    moment: int, users_known: int, items_known: int,
    user_factors: Singles, users_touched: Ints, users_half_life: float,
    item_factors: Singles, items_touched: Ints, items_half_life: float,
    item_bias: Singles, bias_touched: Ints, bias_half_life: float,
    item_at: SmallInts, columns: SmallInts, kinds: int, out: Singles,
) -> None:  # fmt: skip
    """The head's inputs of lines of items n × c, from storage.

    Rings, counts and slots are those of the past; rows beyond `users_known` and `items_known` read as the zeros that
    stand there. `item_at` is scratch with a number for each item; `columns` has an EMPTY for each, before and after.
    `kinds` says how many inputs of transitions there are; what stands behind them in `out` is left alone.
    """
    n_lines, width = lines.shape
    places, distinct, n_items = np.empty((n_lines, width), np.int64), np.empty(lines.size, np.int64), 0
    lasts, weights = np.full((n_lines, LAST), -1, np.int64), np.zeros((n_lines, LAST))
    for n in range(n_lines):
        for c in range(width):
            places[n, c] = _placed(item_at, distinct, n_items, lines[n, c])
            n_items = max(n_items, places[n, c] + 1)
        times = met[users[n]] if users[n] < known else np.int64(0)
        for back in range(min(times, LAST, ring.shape[1])):
            item = np.int64(ring[users[n], (times - 1 - back) % ring.shape[1]])
            taken = counts[item, ALWAYS] if item < first.size else 0.0
            lasts[n, back], weights[n, back] = item, GAIN / math.sqrt(taken + SHRINK)
    features, divisors = _of_items(distinct, n_items, counts, first, last, rates, events)
    sums = add_up(ids, meetings, recent, lasts, weights, lines, now, columns)
    transitions = followers.shape[0] > 0 and kinds > 0
    if transitions:
        last_ones, last_weights = np.ascontiguousarray(lasts[:, :1]), np.ascontiguousarray(weights[:, :1])
        followed = add_up(followers, follows, follows_recent, last_ones, last_weights, lines, follows_now, columns)
    else:
        followed = sums
    for n in range(n_lines):
        user = min(users[n], users_known)
        own, own_left = user_factors[user], _left(users_touched, users_half_life, moment, user)
        times = met[users[n]] if users[n] < known else np.int64(0)
        active = np.float32(math.log(1.0 + times) / 4 - 1)
        for c in range(width):
            row, at, line = min(lines[n, c], items_known), places[n, c], out[n, c]
            left = own_left * _left(items_touched, items_half_life, moment, row)
            line[0] = left * _dot(own, item_factors[row])
            line[1] = _left(bias_touched, bias_half_life, moment, row) * item_bias[row, 0]
            for f in range(COUNTS + 2):
                line[2 + f] = features[at, f]
            for kind in range(3):  # most pairs have no neighbours in common, and log(1 + 0) is 0
                both = sums[kind, n, c]
                line[MET + kind] = math.log(1.0 + both / divisors[at, kind // 2]) if both != 0 else 0.0
            line[ACTIVE] = active * line[0]
            for f in range(2):
                line[ACTIVE + 1 + f] = active * line[2 + _ACTIVE_COUNTS[f]]
            line[ACTIVE + 3] = active * line[MET]
            for kind in range(kinds):
                both = followed[2 * kind, n, c] if transitions else 0.0
                line[FOLLOWED + kind] = math.log(1.0 + both / divisors[at, kind]) if both != 0 else 0.0


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


def _add_products(weights: Singles, scaled: Singles, size: int, total: Singles) -> None:
    """total[u] += Σ_f weights[u, f] · scaled[f] over the first `size` items, four inputs at a time."""
    units, n_inputs = weights.shape
    whole = n_inputs - n_inputs % 4
    for unit in range(units):
        for f in range(0, whole, 4):
            one, two, three, four = weights[unit, f], weights[unit, f + 1], weights[unit, f + 2], weights[unit, f + 3]
            for n in range(size):
                first = one * scaled[f, n] + two * scaled[f + 1, n]
                total[unit, n] += first + (three * scaled[f + 2, n] + four * scaled[f + 3, n])
        for f in range(whole, n_inputs):
            one = weights[unit, f]
            for n in range(size):
                total[unit, n] += one * scaled[f, n]


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
    inputs: Singles, centre: Singles, scale: Singles, trust: float, columns: Singles, personal: Singles
) -> None:
    """A lesson's inputs as the head's step takes them: LINES_AT_ONCE lines at a time, scaled, input by input.

    `personal` gets what the items' scores are without the head.
    """
    lines, width, n_inputs = inputs.shape
    for start in range(0, lines, LINES_AT_ONCE):
        scaled, scores = columns[start // LINES_AT_ONCE], personal[start // LINES_AT_ONCE]
        for n in range(min(lines - start, LINES_AT_ONCE) * width):
            said = inputs[start + n // width, n % width]
            scores[n] = trust * (said[0] + said[1])
            for f in range(n_inputs):
                scaled[f, n] = (said[f] - centre[f]) * scale[f]


def head_step(
    columns: Singles, personal: Singles, allowed: Flags, rates: Floats,
    linear: Singles, hidden: Singles, shift: Singles, output: Singles,
    linear_1: Singles, hidden_1: Singles, shift_1: Singles, output_1: Singles,
    linear_2: Singles, hidden_2: Singles, shift_2: Singles, output_2: Singles,
    new_linear: Singles, new_hidden: Singles, new_shift: Singles, new_output: Singles,
    new_linear_1: Singles, new_hidden_1: Singles, new_shift_1: Singles, new_output_1: Singles,
    new_linear_2: Singles, new_hidden_2: Singles, new_shift_2: Singles, new_output_2: Singles,
) -> None:  # fmt: skip
    """The head's step on a lesson (`head_columns`): the mean gradient of −log softmax of the item taken, and AdamW.

    An item that is not allowed is out of the softmax. 1 and 2 mark the means of slopes and of their squares.
    """
    (lines, width), (_, n_inputs, many), units = allowed.shape, columns.shape, output.shape[1]
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
        for unit in range(units):
            for n in range(size):
                deep[unit, n] = shift[unit, 0]
        _add_products(hidden, scaled, size, deep)
        for unit in range(units):
            for n in range(size):
                deep[unit, n] = np.float32(0) if deep[unit, n] < 0 else deep[unit, n]  # a NaN stays one
        _add_products(linear, scaled, size, scores)
        _add_products(output, deep, size, scores)
        for n in range(some):
            line = slice(n * width, (n + 1) * width)
            _softmax_slopes(scores[0, line], allowed[start + n], slopes[0, line])
        _add_slopes(slopes, scaled, size, to_linear)
        _add_slopes(slopes, deep, size, to_output)
        for unit in range(units):
            for n in range(size):
                deep[unit, n] = slopes[0, n] * output[0, unit] if deep[unit, n] > 0 else np.float32(0)
        _add_slopes(deep, ones, size, to_shift)
        _add_slopes(deep, scaled, size, to_hidden)
    _adam(linear, linear_1, linear_2, to_linear, rates, new_linear, new_linear_1, new_linear_2)
    _adam(hidden, hidden_1, hidden_2, to_hidden, rates, new_hidden, new_hidden_1, new_hidden_2)
    _adam(shift, shift_1, shift_2, to_shift, rates, new_shift, new_shift_1, new_shift_2)
    _adam(output, output_1, output_2, to_output, rates, new_output, new_output_1, new_output_2)


def head_scores(
    inputs: Singles, trust: float, constant: float,
    linear: Singles, hidden: Singles, shift: Singles, output: Singles, out: Singles,
) -> None:  # fmt: skip
    """Scores of lines of items from their inputs, by a head over unscaled inputs; `constant` is taken off each."""
    (lines, width, n_inputs), units = inputs.shape, output.shape[1]
    some = max(LINES_AT_ONCE * 32 // max(width, 1), 1)
    columns, deep = np.empty((n_inputs, some * width), np.float32), np.empty((units, some * width), np.float32)
    scores = np.empty((1, some * width), np.float32)
    for start in range(0, lines, some):
        size = min(lines - start, some) * width
        for n in range(size):
            said = inputs[start + n // width, n % width]
            scores[0, n] = trust * (said[0] + said[1]) - constant
            for f in range(n_inputs):
                columns[f, n] = said[f]
        for unit in range(units):
            for n in range(size):
                deep[unit, n] = shift[unit, 0]
        _add_products(hidden, columns, size, deep)
        for unit in range(units):
            for n in range(size):
                deep[unit, n] = np.float32(0) if deep[unit, n] < 0 else deep[unit, n]  # a NaN stays one
        _add_products(linear, columns, size, scores)
        _add_products(output, deep, size, scores)
        for n in range(size):
            out[start + n // width, n % width] = scores[0, n]
