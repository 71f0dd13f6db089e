"""The best items of each line as compiled kernels, out of scores or straight out of rows; and decay factors.

What a line gets depends on that line alone, bit for bit: however many users are asked for at once, each one's numbers
are added up in the same order.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.seen import PairsSeen, _holds
from melon.kernels.types import FloatTable, IntTable, ScoreTable, SingleTable
from melon.types import Flags, Floats, Ints, Scores, Singles

_ZERO, _ONE = np.float32(0), np.float32(1)
#: Items that are worked on at a time, so that they stay in the core's own cache; scores that are looked at together.
_AT_ONCE, _TOGETHER = 256, 64


def decayed(touched: Ints, rows: Ints, weights: Singles, reference: int, half_life: float) -> None:
    """Decay factors of some rows, relative to a reference: 2^((touched − reference) / half-life)."""
    for n in range(rows.size):
        weights[rows[n]] = np.float32(np.exp2((touched[rows[n]] - reference) / half_life))


def _worse(score: float, item: int, than: float, than_item: int) -> bool:
    return score < than or (score == than and item > than_item)


def _sink(values: Scores, items: Ints, place: int, size: int) -> None:
    """Let an entry of a heap sink to where it belongs; the worst entry is on top."""
    score, item = values[place], items[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _worse(values[child + 1], items[child + 1], values[child], items[child]):
            child += 1
        if not _worse(values[child], items[child], score, item):
            break
        values[place], items[place] = values[child], items[child]
        place = child
    values[place], items[place] = score, item


def _heap(values: Scores, items: Ints, size: int) -> None:
    for place in range(size // 2 - 1, -1, -1):
        _sink(values, items, place, size)


def _put(values: Scores, items: Ints, size: int, score: float, item: int) -> int:
    """Put an entry in, for the worst one where all places are taken; returns how many there are now."""
    if size == items.size:
        values[0], items[0] = score, item
        _sink(values, items, 0, size)
        return size
    values[size], items[size] = score, item
    if size + 1 == items.size:
        _heap(values, items, size + 1)
    return size + 1


def _ordered(values: Scores, items: Ints, size: int) -> None:
    """A heap's entries, best first: the worst goes to the end, again and again."""
    for last in range(size - 1, 0, -1):
        score, item = values[last], items[last]
        values[last], items[last] = values[0], items[0]
        values[0], items[0] = score, item
        _sink(values, items, 0, last)


def _better(line: Scores, start: int, stop: int, least: float) -> bool:
    """Whether any of these scores could be listed; a vector's work."""
    hits = _ZERO
    for column in range(start, stop):
        hits += _ZERO if line[column] <= least else _ONE  # a NaN is a hit, too
    return bool(hits > 0)


def _offer(
    line: Scores,
    first: int,
    user: np.int64,
    allowed: Flags,
    seen: PairsSeen,
    items: Ints,
    best: Scores,
    held: int,
) -> int:
    """Put the scores of items from number `first` on into a heap; returns how many it holds, -1 where one is broken."""
    k = items.size
    for start in range(0, line.size, _TOGETHER):
        stop = min(start + _TOGETHER, line.size)
        if held == k and not _better(line, start, stop, best[0]):
            continue
        for place in range(start, stop):
            score, item = line[place], first + place
            if (held == k and score <= best[0]) or (allowed.size and not allowed[item]):
                continue
            if score - score != 0:
                return -1
            if not _holds(seen, user, item):
                held = _put(best, items, held, score, item)
    return held


def _sorted(best: Scores, items: Ints, held: int) -> None:
    if held < items.size:
        _heap(best, items, held)
    _ordered(best, items, held)


def top(
    scores: ScoreTable,
    users: Ints,
    allowed: Flags,
    seen: PairsSeen,
    rows: IntTable,
    values: ScoreTable,
    counts: Ints,
) -> int:
    """The best columns of each line, best first, of equal scores the lower column first; -1, or a line that is broken.

    Left out are columns that are not `allowed` (empty: all are) and those whose pair with the line's user has been seen
    (empty: none has). A line with a NaN or an infinity among what could be listed is broken.
    """
    for n in range(scores.shape[0]):
        held = _offer(scores[n], 0, users[n], allowed, seen, rows[n], values[n], 0)
        if held < 0:
            return n
        _sorted(values[n], rows[n], held)
        counts[n] = held
    return -1


def count_better(
    scores: ScoreTable, users: Ints, allowed: Flags, seen: PairsSeen, targets: Ints, counts: IntTable
) -> int:
    """For each line, how many other columns score higher than its target and how many the same: of all that are
    allowed, then of those whose pair with the line's user is new. Returns -1, or a line with a NaN or an infinity.
    """
    for n in range(scores.shape[0]):
        line, target, broken = scores[n], targets[n], _ZERO
        own = line[target]
        counts[n] = 0
        for start in range(0, line.size, _TOGETHER):
            stop, reaches = min(start + _TOGETHER, line.size), _ZERO
            for column in range(start, stop):
                broken += _ZERO if line[column] - line[column] == 0 else _ONE
                reaches += _ZERO if line[column] < own else _ONE
            if reaches == 0:
                continue
            for column in range(start, stop):
                if line[column] < own or column == target or (allowed.size and not allowed[column]):
                    continue
                kind = 0 if line[column] > own else 1
                counts[n, kind] += 1
                if not _holds(seen, users[n], column):
                    counts[n, 2 + kind] += 1
        if broken > 0:
            return n
    return -1


def most_counted(
    counts: FloatTable,
    first: Ints,
    last: Ints,
    rates: Floats,
    events: int,
    kinds: Ints,
    items: Ints,
    rows: IntTable,
    values: FloatTable,
) -> int:
    """Those of some items whose decayed counts of some kinds are highest, kind by kind, in no order; returns how many.

    Items are in ascending order: of those with equal counts the first ones are taken.

    Most items are passed by without decaying their counts: a count only falls by itself, and none can be above that of
    an item that is taken at every interaction, so one that has been idle for long cannot be among the highest.
    """
    places, held = rows.shape[1], np.zeros(kinds.size, np.int64)
    earliest = np.full(kinds.size, -1, np.int64)
    for place in range(items.size):
        item = items[place]
        if first[item] < 0:
            continue
        for n in range(kinds.size):
            kind = kinds[n]
            if last[item] < earliest[n] or (held[n] == places and counts[item, kind] <= values[n, 0]):
                continue
            rate = rates[kind]
            count = counts[item, kind] * np.exp2((last[item] - events) * rate)
            if held[n] < places or count > values[n, 0]:
                held[n] = _put(values[n], rows[n], held[n], count, item)
                if held[n] == places and values[n, 0] > 0 and rate > 0:
                    most = 1.0 / (1.0 - np.exp2(-rate))
                    earliest[n] = events - np.int64(np.log2(most / values[n, 0]) / rate) - 2
    return held[0] if kinds.size else 0


def products(
    factors: SingleTable, own: Singles, values: SingleTable, known: int, decay: Singles, bias: Singles, out: SingleTable
) -> None:
    """factors[n] · values[i] · decay[i] + bias[i] + own[n] for every n and i; items from `known` on have no row.

    Two users at a time, so that each row is loaded once for both; without time decay, `decay` is empty.
    """
    users, items, dim = factors.shape[0], out.shape[1], factors.shape[1]
    for start in range(0, items, _AT_ONCE):
        stop = min(start + _AT_ONCE, items)
        for one in range(0, users, 2):
            other = min(one + 1, users - 1)
            left, right = factors[one], factors[other]
            for item in range(start, min(stop, known)):
                row = values[item]
                first, second = _ZERO, _ZERO
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
    counts: FloatTable, first: Ints, last: Ints, events: int, changed: Ints, by_kind: SingleTable, since: SingleTable
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
