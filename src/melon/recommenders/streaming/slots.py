"""Slots of neighbours in numpy: what `melon.kernels.neighbours` computes, where nothing is compiled."""

from __future__ import annotations

import numpy as np

from melon.kernels.neighbours import EMPTY
from melon.types import Floats, Ints, Singles, SmallInts

__all__ = ["EMPTY", "Slots", "Sums", "Weights", "add_up", "count"]

#: At most this many sums are held at a time.
_SUMS_AT_ONCE = 1 << 20

Slots = SmallInts
Weights = Singles
Sums = Floats


def count(ids: Slots, counts: Weights, recent: Weights, rows: Ints, others: Ints, moments: Sums) -> None:
    """Let each row meet its other, in order; each row's slots depend on that row's own meetings alone.

    `moments` are in half-lives. `recent` holds log₂ of a decayed count that is referred to moment 0, so that slots of
    different ages compare as they are. A row without a free slot gives up the one with the least decayed count.
    """
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    starts = np.flatnonzero(np.r_[True, sorted_rows[1:] != sorted_rows[:-1]])
    sizes = np.diff(np.r_[starts, len(rows)])
    turn = np.arange(len(rows)) - np.repeat(starts, sizes)
    # In each round every row meets at most one other.
    by_turn = order[np.argsort(turn, kind="stable")]
    for round_ in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
        row, other, moment = rows[round_], others[round_].astype(np.int32), moments[round_]
        neighbours = ids[row]
        match = neighbours == other[:, None]
        met_before = match.any(axis=1)
        worth = np.where(neighbours == EMPTY, -np.inf, recent[row])
        slot = np.where(met_before, match.argmax(axis=1), worth.argmin(axis=1))
        before = np.where(met_before, recent[row, slot] - moment, -np.inf)
        ids[row, slot] = other
        counts[row, slot] = np.where(met_before, counts[row, slot], 0) + 1
        recent[row, slot] = np.log2(np.exp2(before) + 1) + moment


def add_up(
    ids: Slots, counts: Weights, recent: Weights, lasts: Ints, weights: Sums, items: Ints, now: float, _: Slots
) -> Sums:
    """For each line and candidate: what the line's last items have met it, three ways.

    Line x has last items `lasts` (EMPTY where there are fewer), newest first, with a weight each. The sums over them
    are Σ weight · count, Σ weight · count / place, and Σ weight · decayed count.
    """
    lines, width = items.shape
    sums = np.zeros((3, lines, width))
    kinds = max(int(items.max(initial=0)) + 1, 1)
    at_once = max(_SUMS_AT_ONCE // kinds, 1)
    for start in range(0, lines, at_once):
        some = slice(start, min(start + at_once, lines))
        line, place = np.nonzero((lasts[some] != EMPTY) & (lasts[some] < len(ids)))
        row = lasts[some][line, place]
        met = ids[row]
        entry, slot = np.nonzero((met != EMPTY) & (met < kinds))
        row, weight = row[entry], weights[some][line, place][entry]
        plain = weight * counts[row, slot]
        parts = (plain, plain / (place[entry] + 1), weight * np.exp2(recent[row, slot].astype(np.float64) - now))
        cells = line[entry] * kinds + met[entry, slot]
        block = some.stop - some.start
        for number, part in enumerate(parts):
            total = np.bincount(cells, weights=part, minlength=block * kinds).reshape(block, kinds)
            sums[number, some] = np.take_along_axis(total, items[some], axis=1)
    return sums
