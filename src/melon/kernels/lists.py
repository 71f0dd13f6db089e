"""Lists as compiled loops: products with all items, and the blend's head over all items.

What a line gets depends on that line alone, bit for bit: however many users are asked for at once, each one's numbers
are added up in the same order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.generator import registers, unrolled
from melon.kernels.types import (
    DOUBLE,
    DOUBLE_TABLE,
    INT,
    INT_TABLE,
    INTS,
    SINGLE,
    SINGLE_TABLE,
    SINGLES,
    SMALL_INT_TABLE,
    SMALL_INTS,
    Fields,
    Signature,
)
from melon.types import Floats, Ints, Singles, SmallInts


class Remembered(NamedTuple):
    """Neighbours of items as `ItemNeighbours` stores them, and the moment to which decayed counts are read."""

    ids: SmallInts
    counts: Singles
    recent: Singles
    now: float


class HeadWeights(NamedTuple):
    """A head over unscaled inputs, hidden weights as units × inputs; `constant` is what every score lacks."""

    trust: np.float32
    constant: np.float32
    linear: Singles
    hidden: Singles
    shift: Singles
    output: Singles


_REMEMBERED: Fields = Fields(Remembered, (SMALL_INT_TABLE, SINGLE_TABLE, SINGLE_TABLE, DOUBLE))
_WEIGHTS: Fields = Fields(HeadWeights, (SINGLE, SINGLE, SINGLES, SINGLE_TABLE, SINGLES, SINGLES))
_LASTS: Signature = (INT_TABLE, DOUBLE_TABLE)
_INTO: Signature = (SMALL_INTS, SINGLE_TABLE)

SIGNATURES: dict[str, Signature] = {
    "products": (SINGLE_TABLE, SINGLES, SINGLE_TABLE, INT, SINGLES, SINGLES, SINGLE_TABLE),
    "head": (_WEIGHTS, SINGLE_TABLE, SINGLE_TABLE, SINGLES, *_LASTS, _REMEMBERED, _REMEMBERED, *_INTO),
    "counted": (DOUBLE_TABLE, INTS, INTS, INT, INTS, SINGLE_TABLE, SINGLE_TABLE),
}

_FREE, _NOTHING = np.int32(-1), np.float32(0)
# As in `melon.kernels.lessons`.
_SHRINK_ALL, _SHRINK_LATE = np.float32(5.0), np.float32(2.0)
#: Items that are worked on at a time, so that they stay in the core's own cache.
_BLOCK, _LANES = 256, 256
# Inputs of the head, in the order of blend/features.py INPUTS: dot, bias, features of items, of pairs, then those times
# the user's activity, then transitions.
_OF_ITEMS, _OF_PAIRS, _TRANSITIONS = 10, 3, 2
_ACTIVE_DOT, _ACTIVE_300, _ACTIVE_5K, _ACTIVE_NEIGHBOURS, _FOLLOWERS = 13, 14, 15, 16, 17
_COUNT_300, _COUNT_5K = 3, 5


def products(
    factors: Singles, own: Singles, values: Singles, known: int, decay: Singles, bias: Singles, out: Singles
) -> None:
    """factors[n] · values[i] · decay[i] + bias[i] + own[n] for every n and i; items from `known` on have no row.

    Two users at a time, so that each row is loaded once for both; without fading, `decay` is empty.
    """
    users, items, dim = factors.shape[0], out.shape[1], factors.shape[1]
    for start in range(0, items, _BLOCK):
        stop = min(start + _BLOCK, items)
        for one in range(0, users, 2):
            other = min(one + 1, users - 1)
            left, right = factors[one], factors[other]
            for item in range(start, min(stop, known)):
                row = values[item]
                first, second = _NOTHING, _NOTHING
                for d in range(dim):
                    first += left[d] * row[d]
                    second += right[d] * row[d]
                if decay.size:
                    first *= decay[item]
                    second *= decay[item]
                out[one, item] = first + bias[item] + own[one]
                out[other, item] = second + bias[item] + own[other]
            for item in range(max(start, known), stop):
                out[one, item], out[other, item] = own[one], own[other]


def counted(
    counts: Floats, first: Ints, last: Ints, events: int, changed: Ints, by_kind: Singles, since: Singles
) -> None:
    """Copy counts of items as of their last interactions, kind × items; and since when each was last and first seen.

    Counts are those of items that have `changed`, times those of all. One that was never seen has always been there.
    """
    for n in range(changed.size):
        for kind in range(by_kind.shape[0]):
            by_kind[kind, changed[n]] = counts[changed[n], kind]
    known = min(first.size, since.shape[1])
    for item in range(known):
        since[0, item], since[1, item] = events - last[item], events - max(first[item], 0)
    for item in range(known, since.shape[1]):
        since[0, item], since[1, item] = events, events


def meet(
    kept: Remembered, lasts: Ints, weights: Floats, slots: SmallInts, items: Ints, sums: Floats, first: int, met: int
) -> int:
    """Add up how often the last items met others, into columns of `sums`; `slots` says which column an item has."""
    for place in range(lasts.size):
        row = lasts[place]
        if row < 0 or row >= kept.ids.shape[0]:
            continue
        for s in range(kept.ids.shape[1]):
            item = kept.ids[row, s]
            if item == _FREE:
                break
            if item >= slots.size:
                continue
            if slots[item] == _FREE:
                slots[item] = met
                items[met] = item
                for kind in range(sums.shape[0]):
                    sums[kind, met] = 0
                met += 1
            column, plain = slots[item], weights[place] * kept.counts[row, s]
            late = weights[place] * math.pow(2.0, kept.recent[row, s] - kept.now)
            sums[first, column] += plain
            if first == 0:
                sums[1, column] += plain / (place + 1)
                sums[2, column] += late
            else:
                sums[first + 1, column] += late
    return met


def _through(
    dots: Singles, columns: Singles, first: int, linear: Singles, hidden: Singles, head: HeadWeights, out: Singles
) -> None:
    """Scores of the items from number `first` on without features of pairs.

    Two units at a time, so that each input is loaded once for both.
    """
    one, two, column = registers(), registers(), registers()
    for f in unrolled(9):
        column[f] = columns[f, first : first + out.size]
    for f in unrolled(10):  # numbers with names, which no writing below can change
        one[f] = linear[f]
    for lane in range(out.size):
        score = one[0] * dots[lane] - head.constant
        for f in unrolled(9):
            score += one[f + 1] * column[f][lane]
        out[lane] = score
    for u in range(0, head.output.size, 2):
        v = min(u + 1, head.output.size - 1)
        for f in unrolled(10):
            one[f], two[f] = hidden[u, f], hidden[v, f]
        shift, other_shift = head.shift[u], head.shift[v]
        said, other_said = head.output[u], _NOTHING if v == u else head.output[v]
        for lane in range(out.size):
            left, right = shift + one[0] * dots[lane], other_shift + two[0] * dots[lane]
            for f in unrolled(9):
                left += one[f + 1] * column[f][lane]
                right += two[f + 1] * column[f][lane]
            left, right = _NOTHING if left < 0 else left, _NOTHING if right < 0 else right  # a NaN stays one
            out[lane] += said * left + other_said * right


def _eights(size: int) -> int:
    """Rounded up to a multiple of eight."""
    return (size + 7) // 8 * 8


def _through_all(
    block: Singles, linear: Singles, hidden: Singles, shift: Singles, output: Singles, constant: np.float32,
    out: Singles,
) -> None:  # fmt: skip
    """The same with features of pairs; the inputs of each item are a column.

    Inputs are taken by eights and units by twos, so that what is loaded serves several times; both are filled up with
    zeros.
    """
    one, two, column = registers(), registers(), registers()
    left, right = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    out[:] = -constant
    for f in range(0, linear.size, 8):
        for k in unrolled(8):
            one[k], column[k] = linear[f + k], block[f + k]
        for lane in range(_LANES):
            total = out[lane]
            for k in unrolled(8):
                total += one[k] * column[k][lane]
            out[lane] = total
    for u in range(0, output.size, 2):
        left[:], right[:] = shift[u], shift[u + 1]
        for f in range(0, linear.size, 8):
            for k in unrolled(8):
                one[k], two[k], column[k] = hidden[u, f + k], hidden[u + 1, f + k], block[f + k]
            for lane in range(_LANES):
                total, other = left[lane], right[lane]
                for k in unrolled(8):
                    total += one[k] * column[k][lane]
                    other += two[k] * column[k][lane]
                left[lane], right[lane] = total, other
        said, other_said = output[u], output[u + 1]
        for lane in range(_LANES):
            total, other = left[lane], right[lane]
            total, other = _NOTHING if total < 0 else total, _NOTHING if other < 0 else other  # a NaN stays one
            out[lane] += said * total + other_said * other


def _divisor(counts: Singles, kind: int, item: int) -> np.float32:
    """What meetings with an item are divided by: those that decay by its recent count, the others by its whole one."""
    if kind in (2, 4):
        return np.float32(np.sqrt(counts[1, item] + _SHRINK_LATE))
    return np.float32(np.sqrt(counts[0, item] + _SHRINK_ALL))


def head(
    head: HeadWeights,
    columns: Singles,
    counts: Singles,
    active: Singles,
    lasts: Ints,
    weights: Floats,
    neighbours: Remembered,
    followers: Remembered,
    slots: SmallInts,
    scores: Singles,
) -> None:
    """Turn dot products into the blend's scores, in place.

    `columns` are the items' biases and features × items, `counts` are all and recent interactions, 2 × items.
    Only items that met one of the user's last ones have features of pairs, so these are scored a second time. `slots`
    is scratch: an EMPTY for each item, before and after.
    """
    users, many, units = scores.shape[0], scores.shape[1], head.output.size
    pairs = _OF_PAIRS + (_TRANSITIONS if head.linear.size > _FOLLOWERS else 0)
    most = lasts.shape[1] * neighbours.ids.shape[1] + followers.ids.shape[1]
    met_items, sums = np.empty(most, np.int64), np.empty((pairs, most))
    inputs, all_units = _eights(_OF_ITEMS + pairs), _eights(units)
    block, said = np.zeros((inputs, _LANES), np.float32), np.empty(_LANES, np.float32)
    linear, hidden = np.zeros(inputs, np.float32), np.zeros((all_units, inputs), np.float32)
    shift, output = np.zeros(all_units, np.float32), np.zeros(all_units, np.float32)
    shift[:units], output[:units] = head.shift, head.output
    dots = np.empty(most, np.float32)
    for n in range(users):
        _fold(head.linear, active[n], pairs, linear)
        linear[0] += head.trust
        linear[1] += head.trust
        for u in range(units):
            _fold(head.hidden[u], active[n], pairs, hidden[u])
        met = meet(neighbours, lasts[n], weights[n], slots, met_items, sums, 0, 0)
        if pairs > _OF_PAIRS:
            met = meet(followers, lasts[n, :1], weights[n, :1], slots, met_items, sums, _OF_PAIRS, met)
        for c in range(met):
            dots[c] = scores[n, met_items[c]]
            slots[met_items[c]] = _FREE
        for start in range(0, many, _LANES):
            some = scores[n, start : start + _LANES]
            _through(some, columns, start, linear, hidden, head, said[: some.size])
            some[:] = said[: some.size]
        for start in range(0, met, _LANES):
            width = min(_LANES, met - start)
            for lane in range(width):
                item = met_items[start + lane]
                block[0, lane] = dots[start + lane]
                for f in range(columns.shape[0]):
                    block[1 + f, lane] = columns[f, item]
                for kind in range(pairs):
                    divisor = _divisor(counts, kind, item)
                    block[_OF_ITEMS + kind, lane] = math.log1p(sums[kind, start + lane] / divisor)
            _through_all(block, linear, hidden, shift, output, head.constant, said)
            for lane in range(width):
                scores[n, met_items[start + lane]] = said[lane]


def _fold(weights: Singles, active: np.float32, pairs: int, out: Singles) -> None:
    """The weights of one user: an input times the user's activity is the input with another weight."""
    for f in range(_OF_ITEMS + _OF_PAIRS):
        out[f] = weights[f]
    for kind in range(_OF_PAIRS, pairs):
        out[_OF_ITEMS + kind] = weights[_FOLLOWERS + kind - _OF_PAIRS]
    out[0] += active * weights[_ACTIVE_DOT]
    out[_COUNT_300] += active * weights[_ACTIVE_300]
    out[_COUNT_5K] += active * weights[_ACTIVE_5K]
    out[_OF_ITEMS] += active * weights[_ACTIVE_NEIGHBOURS]
