"""SmallInts of neighbours compiled by numba: what `slots` does, one meeting after another and without copies."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.types import (
    DOUBLE,
    DOUBLE_TABLE,
    DOUBLES,
    INT_TABLE,
    INTS,
    SINGLE_TABLE,
    SMALL_INT_TABLE,
    SMALL_INTS,
    Signature,
)
from melon.types import Floats, Ints, Singles, SmallInts

#: A slot that holds nobody.
EMPTY = -1
_FREE = np.int32(EMPTY)

_SLOTS: Signature = (SMALL_INT_TABLE, SINGLE_TABLE, SINGLE_TABLE)
SIGNATURES: dict[str, Signature] = {
    "count": (*_SLOTS, INTS, INTS, DOUBLES),
    "add_up": (*_SLOTS, INT_TABLE, DOUBLE_TABLE, INT_TABLE, DOUBLE, SMALL_INTS),
}


def count(ids: SmallInts, counts: Singles, recent: Singles, rows: Ints, others: Ints, moments: Floats) -> None:
    """Let each row meet its other, in order."""
    width = ids.shape[1]
    for n in range(len(rows)):
        row, other, moment = rows[n], np.int32(others[n]), moments[n]
        here, slot, found = ids[row], -1, False
        for s in range(width):
            if here[s] == other:
                slot, found = s, True
                break
            if here[s] == _FREE:
                slot = s
                break
        if slot < 0:
            late, slot = recent[row], 0
            least = late[0]
            for s in range(1, width):
                if late[s] < least:
                    least, slot = late[s], s
        before = math.pow(2.0, recent[row, slot] - moment) if found else 0.0
        here[slot] = other
        counts[row, slot] = (counts[row, slot] if found else np.float32(0)) + np.float32(1)
        recent[row, slot] = np.float32(math.log2(before + 1.0) + moment)


def add_up(
    ids: SmallInts,
    counts: Singles,
    recent: Singles,
    lasts: Ints,
    weights: Floats,
    items: Ints,
    now: float,
    columns: SmallInts,
) -> Floats:
    """What each line's last items have met each of its candidates, three ways.

    `columns` is scratch: an EMPTY for each item that there can be, before and after.
    """
    lines, width = items.shape
    sums = np.zeros((3, lines, width))
    offered = np.empty(ids.shape[1], dtype=np.int64)  # slots whose item is among the line's candidates
    for x in range(lines):
        for c in range(width):
            if columns[items[x, c]] == _FREE:
                columns[items[x, c]] = c
        for place in range(lasts.shape[1]):
            row = lasts[x, place]
            if row < 0 or row >= len(ids):
                continue
            weight, met = weights[x, place], ids[row]
            hits = 0
            for s in range(len(met)):
                item = met[s]
                if item == _FREE:
                    break
                offered[hits] = s  # written over where it is none: few are, and a branch would be guessed wrong
                hits += columns[np.uint32(item)] != _FREE
            for s in offered[:hits]:
                c, plain = columns[met[s]], weight * counts[row, s]
                sums[0, x, c] += plain
                sums[1, x, c] += plain / (place + 1)
                sums[2, x, c] += weight * math.pow(2.0, recent[row, s] - now)
        for c in range(width):  # the same item may stand in a line twice
            first = columns[items[x, c]]
            for number in range(3):
                sums[number, x, c] = sums[number, x, first]
        for c in range(width):
            columns[items[x, c]] = _FREE
    return sums
