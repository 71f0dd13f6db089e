"""Two-stage lists of a blend, as compiled loops: candidates of one user from several sources, and the head over them.

Suites put this behind `best`, `lists` and `besides`, whose functions it uses.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.besides import _USER, _personal
from melon.kernels.best import _TOP, _holds, _put, _sorted
from melon.kernels.lists import (
    _FREE,
    _LANES,
    _OF_ITEMS,
    _OF_PAIRS,
    _REMEMBERED,
    HeadWeights,
    Remembered,
    _eights,
    _through_all,
    meet,
)
from melon.kernels.types import (
    DOUBLE,
    DOUBLE_TABLE,
    DOUBLES,
    INT,
    INTS,
    SINGLE_TABLE,
    SINGLES,
    SMALL_INT_TABLE,
    SMALL_INTS,
    Fields,
    Signature,
)
from melon.types import Flags, Floats, Ints, Singles, SmallInts


class Counted(NamedTuple):
    """Counts of items as `ItemCounts.storage` has them: as of each one's last interaction."""

    counts: Floats
    first: Ints
    last: Ints
    rates: Floats
    events: int


class FadedRows(NamedTuple):
    """Rows of a table (`Table.arrays`), how many there are, and the moment at which they are read."""

    values: Singles
    touched: Ints
    half_life: float
    rows: int
    now: int


_COUNTED: Fields = Fields(Counted, (DOUBLE_TABLE, INTS, INTS, DOUBLES, INT))
_ROWS: Fields = Fields(FadedRows, (SINGLE_TABLE, INTS, DOUBLE, INT, INT))
SIGNATURES: dict[str, Signature] = {
    "shortlist": (
        *(INT, SMALL_INT_TABLE, INTS, INT, _COUNTED, _REMEMBERED, _REMEMBERED, _ROWS, _ROWS, _ROWS),
        *(INTS, INTS, INT, *_TOP[1:-1], SMALL_INTS, INTS, SINGLE_TABLE),
    ),
    "weigh": (*_USER, SINGLE_TABLE, SINGLE_TABLE, INTS, INTS, SINGLES),
}

# As in `melon.kernels.lessons`: which counts belong to recent meetings and to all, last items, shrinkage.
_COUNTS, _RECENT, _ALWAYS, _LAST = 6, 4, 6, 20
_SHRINK, _SHRINK_RECENT, _GAIN = 5.0, 2.0, 20.0
#: After so many half-lives nothing is left of a count, and so little is as good as nothing beside 1.
_GONE, _NEGLIGIBLE = 64.0, 1e-9


def _decayed(counted: Counted, item: int, kind: int) -> float:
    """A count as of now."""
    if item >= counted.first.size or counted.first[item] < 0:
        return 0.0
    idle = (counted.events - counted.last[item]) * counted.rates[kind]
    return counted.counts[item, kind] * np.exp2(-idle) if idle < _GONE else 0.0


def _left(table: FadedRows, row: int) -> float:
    """What fading has left of a row."""
    if table.half_life > 0 and table.touched[row] < table.now:
        return float(np.exp2((table.touched[row] - table.now) / table.half_life))
    return 1.0


def _last_items(
    user: int, ring: SmallInts, met: Ints, known: int, counted: Counted, lasts: Ints, weights: Floats
) -> int:
    """The user's last items, newest first, and what a meeting with each of them weighs; returns how many there are."""
    times = met[user] if user < known else np.int64(0)
    count = int(min(times, lasts.size, ring.shape[1]))
    for back in range(count):
        item = int(ring[user, (times - 1 - back) % ring.shape[1]])
        lasts[back], weights[back] = item, _GAIN / math.sqrt(_decayed(counted, item, _ALWAYS) + _SHRINK)
    return count


def _keep_highest(values: Floats, many: int, kept: Flags) -> None:
    """Mark the columns with the highest values; of equal ones, the first."""
    best, columns, held = np.empty(many), np.empty(many, np.int64), 0
    for column in range(values.size):
        if held < many or values[column] > best[0]:
            held = _put(best, columns, held, values[column], column)
    for place in range(held):
        kept[columns[place]] = True


def shortlist(
    user: int,
    ring: SmallInts,
    met: Ints,
    known: int,
    counted: Counted,
    neighbours: Remembered,
    followers: Remembered,
    users: FadedRows,
    vectors: FadedRows,
    biases: FadedRows,
    near: Ints,
    at_large: Ints,
    many: int,
    allowed: Flags,
    seen: Ints,
    bits: int,
    starts: Ints,
    past: SmallInts,
    slots: SmallInts,
    rows: Ints,
    columns: Singles,
) -> int:
    """Candidates for one user, each once, and the inputs of the head that belong to rows, items and meetings.

    They are items that are `near`, those `at_large`, and the `many` that the user's last items met most, by each of
    three ways of counting. Left out are items that are not `allowed` and those that the user has had. `columns` are the
    dot, the bias, features of items and of pairs. `slots` is scratch: an EMPTY for each item, before and after.
    """
    pairs, lasts, weights = columns.shape[0] - _OF_ITEMS, np.empty(_LAST, np.int64), np.empty(_LAST)
    count = _last_items(user, ring, met, known, counted, lasts, weights)
    lasts, weights = lasts[:count], weights[:count]
    most = count * neighbours.ids.shape[1] + followers.ids.shape[1] + near.size + at_large.size
    items, sums, kept = np.empty(most, np.int64), np.zeros((pairs, most)), np.zeros(most, np.bool_)
    found = meet(neighbours, lasts, weights, slots, items, sums, 0, 0)
    divided = np.empty((_OF_PAIRS, found))
    for column in range(found):
        divided[0, column] = _decayed(counted, items[column], _ALWAYS)
        divided[2, column] = _decayed(counted, items[column], _RECENT)
    for column in range(found):
        total = math.sqrt(divided[0, column] + _SHRINK)
        divided[0, column], divided[1, column] = sums[0, column] / total, sums[1, column] / total
        divided[2, column] = sums[2, column] / math.sqrt(divided[2, column] + _SHRINK_RECENT)
    for kind in range(_OF_PAIRS):
        _keep_highest(divided[kind], many, kept)
    if pairs > _OF_PAIRS:
        found = meet(followers, lasts[:1], weights[:1], slots, items, sums, _OF_PAIRS, found)
    for n in range(near.size + at_large.size):
        item = near[n] if n < near.size else at_large[n - near.size]
        if item >= slots.size:
            continue
        if slots[item] == _FREE:
            slots[item], items[found] = found, item
            found += 1
        kept[slots[item]] = True
    count = 0
    for column in range(found):
        item = items[column]
        slots[item] = _FREE
        if not kept[column] or (allowed.size and not allowed[item]):
            continue
        if not _holds(seen, bits, starts, past, np.int64(user), item):
            rows[count], items[count] = item, column  # from here on, where the sums of each candidate stand
            count += 1
    _multiply(users, vectors, min(user, users.rows), rows[:count], columns[0])
    for n in range(count):
        row = min(rows[n], biases.rows)
        columns[1, n] = _left(biases, row) * biases.values[row, 0]
    _describe(counted, rows[:count], items, sums, columns[2:])
    return count


def _multiply(users: FadedRows, vectors: FadedRows, user: int, items: Ints, out: Singles) -> None:
    """Dot products; in a loop of their own, so that a core fetches several rows at a time."""
    own, left = users.values[user], _left(users, user)
    for n in range(items.size):
        row, dot = vectors.values[min(items[n], vectors.rows)], np.float32(0)
        for d in range(row.size):
            dot += own[d] * row[d]
        out[n] = dot
    for n in range(items.size):
        out[n] *= left * _left(vectors, min(items[n], vectors.rows))


def _describe(counted: Counted, items: Ints, at: Ints, sums: Floats, out: Singles) -> None:
    """Logarithms of items' decayed counts, of idle times and ages, and of meetings with the user's last items."""
    counts, since, pairs = np.zeros((items.size, _COUNTS + 1)), np.zeros((items.size, 2)), sums.shape[0]
    for n in range(items.size):  # a loop of its own, so that a core fetches several rows at a time
        since[n, 0], since[n, 1] = counted.events, counted.events
        if items[n] < counted.first.size and counted.first[items[n]] >= 0:
            since[n, 0], since[n, 1] = counted.events - counted.last[items[n]], counted.events - counted.first[items[n]]
            for kind in range(_COUNTS + 1):
                counts[n, kind] = counted.counts[items[n], kind]
    for n in range(items.size):
        for kind in range(_COUNTS):
            idle = since[n, 0] * counted.rates[kind]
            counts[n, kind] *= np.exp2(-idle) if idle < _GONE else 0.0
            out[kind, n] = math.log(1.0 + counts[n, kind]) if counts[n, kind] > _NEGLIGIBLE else 0.0
        out[_COUNTS, n], out[_COUNTS + 1, n] = math.log(1.0 + since[n, 0]), math.log(1.0 + since[n, 1])
        total, recent = math.sqrt(counts[n, _ALWAYS] + _SHRINK), math.sqrt(counts[n, _RECENT] + _SHRINK_RECENT)
        for kind in range(pairs):
            both = sums[kind, at[n]] / (recent if kind in (2, 4) else total)
            out[_COUNTS + 2 + kind, n] = math.log(1.0 + both) if both != 0 else 0.0


def weigh(
    head: HeadWeights,
    active: np.float32,
    about: Floats,
    usual: Floats,
    looks: Ints,
    columns: Singles,
    besides: Singles,
    candidates: Ints,
    rows: Ints,
    values: Singles,
) -> int:
    """The best candidates of one user by the head, best first, of equal ones the lower item first.

    `columns` are those of `shortlist`, `besides` further inputs of the pairs. Returns how many there are, or -1 where a
    score is not finite.
    """
    pairs, more, held = columns.shape[0] - _OF_ITEMS, besides.shape[1], 0
    first, all_units = _eights(_OF_ITEMS + more), _eights(head.output.size)
    inputs = first + _eights(pairs)
    block, said = np.zeros((inputs, _LANES), np.float32), np.empty(_LANES, np.float32)
    linear, hidden = np.zeros(inputs, np.float32), np.zeros((all_units, inputs), np.float32)
    shift, output = np.zeros(all_units, np.float32), np.zeros(all_units, np.float32)
    constant = _personal(head, active, about, usual, looks, pairs, more, linear, hidden, shift, output)
    for start in range(0, candidates.size, _LANES):
        width = min(_LANES, candidates.size - start)
        for f in range(_OF_ITEMS):
            block[f, :width] = columns[f, start : start + width]
        for f in range(more):
            for lane in range(width):
                block[_OF_ITEMS + f, lane] = besides[start + lane, f]
        for kind in range(pairs):
            block[first + kind, :width] = columns[_OF_ITEMS + kind, start : start + width]
        _through_all(block, linear, hidden, shift, output, constant, said)
        for lane in range(width):
            score, item = said[lane], candidates[start + lane]
            if score - score != 0:
                return -1
            if held < rows.size or score > values[0] or (score == values[0] and item < rows[0]):
                held = _put(values, rows, held, score, item)
    _sorted(values, rows, held)
    return held
