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
    _divisor,
    _eights,
    _fold,
    _through_all,
    meet,
)
from melon.kernels.types import DOUBLES, INTS, SINGLE, SINGLE_TABLE, SINGLES, SMALL_INTS, Signature
from melon.types import Floats, Ints, Singles, SmallInts

#: A head, and one user: how active, leanings, what is usual, and which features of items these belong to.
_USER: Signature = (_WEIGHTS, SINGLE, DOUBLES, DOUBLES, INTS)
SIGNATURES: dict[str, Signature] = {
    "head_beside": (
        *(*_USER, *[SINGLE_TABLE] * 2, INTS, DOUBLES, _REMEMBERED, _REMEMBERED),
        *(SMALL_INTS, SINGLE_TABLE, SINGLES),
    )
}


def head_beside(
    head: HeadWeights,
    active: np.float32,
    about: Floats,
    usual: Floats,
    looks: Ints,
    columns: Singles,
    counts: Singles,
    lasts: Ints,
    weights: Floats,
    neighbours: Remembered,
    followers: Remembered,
    slots: SmallInts,
    besides: Singles,
    scores: Singles,
) -> None:
    """Turn dot products of one user into the blend's scores, in place.

    As `melon.kernels.lists.head`, with inputs of pairs `besides` (items × some) and the user's leanings `about`. Items
    that met one of the user's last ones are scored a second time, with features of pairs.
    """
    many, more = besides.shape
    pairs = _OF_PAIRS + (_TRANSITIONS if followers.ids.shape[1] > 0 else 0)
    most, first = lasts.size * neighbours.ids.shape[1] + followers.ids.shape[1], _eights(_OF_ITEMS + more)
    inputs, all_units = first + _eights(pairs), _eights(head.output.size)
    met_items, sums, dots = np.empty(most, np.int64), np.empty((pairs, most)), np.empty(most, np.float32)
    block, said = np.zeros((inputs, _LANES), np.float32), np.empty(_LANES, np.float32)
    linear, hidden = np.zeros(inputs, np.float32), np.zeros((all_units, inputs), np.float32)
    shift, output = np.zeros(all_units, np.float32), np.zeros(all_units, np.float32)
    constant = _personal(head, active, about, usual, looks, pairs, more, linear, hidden, shift, output)
    alone, hidden_alone = linear[:first], np.ascontiguousarray(hidden[:, :first])
    met = meet(neighbours, lasts, weights, slots, met_items, sums, 0, 0)
    if pairs > _OF_PAIRS:
        met = meet(followers, lasts[:1], weights[:1], slots, met_items, sums, _OF_PAIRS, met)
    for c in range(met):
        dots[c] = scores[met_items[c]]
        slots[met_items[c]] = _FREE
    for start in range(0, many, _LANES):
        width = min(_LANES, many - start)
        _lay_out(
            columns[:, start : start + width], besides[start : start + width], scores[start : start + width], block
        )
        _through_all(block, alone, hidden_alone, shift, output, constant, said)
        scores[start : start + width] = said[:width]
    for start in range(0, met, _LANES):
        width = min(_LANES, met - start)
        for lane in range(width):
            item = met_items[start + lane]
            block[0, lane] = dots[start + lane]
            for f in range(columns.shape[0]):
                block[1 + f, lane] = columns[f, item]
            for f in range(more):
                block[_OF_ITEMS + f, lane] = besides[item, f]
            for kind in range(pairs):
                block[first + kind, lane] = math.log1p(sums[kind, start + lane] / _divisor(counts, kind, item))
        _through_all(block, linear, hidden, shift, output, constant, said)
        for lane in range(width):
            scores[met_items[start + lane]] = said[lane]


def _lay_out(columns: Singles, besides: Singles, dots: Singles, block: Singles) -> None:
    """The inputs of a run of items, without features of pairs."""
    block[0, : dots.size] = dots
    for f in range(columns.shape[0]):
        block[1 + f, : dots.size] = columns[f]
    for lane in range(dots.size):
        for f in range(besides.shape[1]):
            block[_OF_ITEMS + f, lane] = besides[lane, f]


def _personal(
    head: HeadWeights,
    active: np.float32,
    about: Floats,
    usual: Floats,
    looks: Ints,
    pairs: int,
    more: int,
    linear: Singles,
    hidden: Singles,
    shift: Singles,
    output: Singles,
) -> np.float32:
    """Write a head as that of one user, over blocks of inputs; returns what every score lacks."""
    constant = np.float32(head.constant - _arrange(head.linear, active, about, usual, looks, pairs, more, linear))
    linear[0] += head.trust
    linear[1] += head.trust
    for u in range(head.output.size):
        same = _arrange(head.hidden[u], active, about, usual, looks, pairs, more, hidden[u])
        shift[u], output[u] = head.shift[u] + same, head.output[u]
    return constant


def _arrange(
    weights: Singles, active: np.float32, about: Floats, usual: Floats, looks: Ints, pairs: int, more: int, out: Singles
) -> float:
    """One user's weights in the order of a block: features of items, inputs besides, zeros, features of pairs.

    Leanings are linear in the items' own features, so they change the weights of these; returns what is the same for
    all items.
    """
    folded = np.empty(_OF_ITEMS + pairs, np.float32)
    _fold(weights, active, pairs, folded)
    out[:_OF_ITEMS] = folded[:_OF_ITEMS]
    beside = _FOLLOWERS + pairs - _OF_PAIRS
    out[_OF_ITEMS : _OF_ITEMS + more] = weights[beside : beside + more]
    first = _eights(_OF_ITEMS + more)
    out[first : first + pairs] = folded[_OF_ITEMS:]
    leaning, width, same = beside + more, min(looks.size, about.size), 0.0
    for f in range(width):
        suits = weights[leaning + width + f] * about[f]
        out[looks[f]] += np.float32(suits)
        same += weights[leaning + f] * about[f] - suits * usual[f]
    for f in range(width, about.size):
        same += weights[leaning + width + f] * about[f]
    return same
