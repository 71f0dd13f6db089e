"""Lists of a blend with further inputs: the head over all items for one user, each pair with inputs of its own."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.lists import (
    _FOLLOWERS,
    _FREE,
    _LANES,
    _OF_ITEMS,
    _OF_PAIRS,
    _REMEMBERED,
    _TRANSITIONS,
    _WEIGHTS,
    HeadWeights,
    Remembered,
    _fold,
    _through_all,
    meet,
)
from melon.kernels.types import DOUBLES, INTS, SINGLE, SINGLE_TABLE, SINGLES, SMALL_INTS, Signature
from melon.types import Floats, Ints, Singles, SmallInts

SIGNATURES: dict[str, Signature] = {
    "head_beside": (
        _WEIGHTS,
        *[SINGLE_TABLE] * 2,
        SINGLE,
        INTS,
        DOUBLES,
        _REMEMBERED,
        _REMEMBERED,
        SMALL_INTS,
        SINGLE_TABLE,
        SINGLES,
    )
}


def head_beside(
    head: HeadWeights,
    columns: Singles,
    divisors: Singles,
    active: np.float32,
    lasts: Ints,
    weights: Floats,
    neighbours: Remembered,
    followers: Remembered,
    slots: SmallInts,
    besides: Singles,
    scores: Singles,
) -> None:
    """Turn dot products of one user into the blend's scores, in place.

    As `melon.kernels.lists.head`, with inputs of pairs `besides` (items × some), which the head's weights end with.
    """
    many, more = besides.shape
    pairs = _OF_PAIRS + (_TRANSITIONS if head.linear.size - more > _FOLLOWERS else 0)
    most, usual = lasts.size * neighbours.ids.shape[1] + followers.ids.shape[1], _OF_ITEMS + pairs
    met_items, sums = np.empty(most, np.int64), np.empty((pairs, most))
    block, said = np.zeros((usual + more, _LANES), np.float32), np.empty(_LANES, np.float32)
    linear, hidden = np.empty(usual + more, np.float32), np.empty((head.output.size, usual + more), np.float32)
    _fold(head.linear, active, pairs, linear)
    linear[usual:] = head.linear[head.linear.size - more :]
    linear[0] += head.trust
    linear[1] += head.trust
    for u in range(head.output.size):
        _fold(head.hidden[u], active, pairs, hidden[u])
        hidden[u, usual:] = head.hidden[u, head.linear.size - more :]
    met = meet(neighbours, lasts, weights, slots, met_items, sums, 0, 0)
    if pairs > _OF_PAIRS:
        met = meet(followers, lasts[:1], weights[:1], slots, met_items, sums, _OF_PAIRS, met)
    for start in range(0, many, _LANES):
        width = min(_LANES, many - start)
        for f in range(columns.shape[0]):
            for lane in range(width):
                block[1 + f, lane] = columns[f, start + lane]
        for lane in range(width):
            item = start + lane
            block[0, lane] = scores[item]
            for kind in range(pairs):
                block[_OF_ITEMS + kind, lane] = 0
                if slots[item] != _FREE:
                    divisor = divisors[1 if kind in (2, 4) else 0, item]
                    block[_OF_ITEMS + kind, lane] = math.log1p(sums[kind, slots[item]] / divisor)
            for f in range(more):
                block[usual + f, lane] = besides[item, f]
        _through_all(block, linear, hidden, head, said)
        scores[start : start + width] = said[:width]
    for c in range(met):
        slots[met_items[c]] = _FREE
