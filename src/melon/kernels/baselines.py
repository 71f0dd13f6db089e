"""Simple list methods as compiled kernels: sparse columns of scores, one line of items for each user.

A column holds the items that a source says something about, each once, and log(1 + gain · its score). `slots` is
scratch in all of them: an EMPTY for each item, before and after.
"""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.types import FloatTable, IntTable, SingleTable, SmallIntTable
from melon.types import Floats, Ints, Singles, SmallInts

_FREE = np.int32(-1)


def _place(slots: SmallInts, items: SmallInts, values: Singles, start: int, count: int, item: int) -> int:
    """The place of an item in the line that is being written; a new one starts at 0 behind the others."""
    if slots[item] == _FREE:
        slots[item] = count
        items[start + count] = item
        values[start + count] = 0.0
    return int(slots[item])


def _close(slots: SmallInts, items: SmallInts, values: Singles, start: int, count: int, gain: float) -> int:
    """Turn the sums of a line into its values and clear the scratch; returns where the next line starts."""
    for n in range(start, start + count):
        slots[items[n]] = _FREE
        values[n] = math.log1p(gain * values[n])
    return start + count


def chain(users: Ints, heads: Ints, before: Ints, event: int) -> None:
    """Append events to their users' chains: `heads` is each user's last event, `before` the one before each, or -1."""
    for n in range(users.size):
        before[event + n], heads[users[n]] = heads[users[n]], event + n


def own_column(
    users: Ints,
    heads: Ints,
    taken: SmallInts,
    before: Ints,
    half_life: float,
    slots: SmallInts,
    starts: Ints,
    items: SmallInts,
    values: Singles,
) -> None:
    """Decayed counts of the user's own items: one that is k of the user's events old counts 2^(-k / half-life)."""
    for n in range(users.size):
        start, count, age = starts[n], 0, 0
        event = heads[users[n]] if users[n] < heads.size else np.int64(-1)
        while event >= 0:
            place = _place(slots, items, values, start, count, taken[event])
            count = max(count, place + 1)
            values[start + place] += np.exp2(-age / half_life)
            age, event = age + 1, before[event]
        starts[n + 1] = _close(slots, items, values, start, count, 1.0)


def met_column(
    ids: SmallIntTable,
    counts: SingleTable,
    recent: SingleTable,
    now: float,
    lasts: IntTable,
    totals: Floats,
    shrink: float,
    gain: float,
    way: int,
    slots: SmallInts,
    starts: Ints,
    items: SmallInts,
    values: Singles,
) -> None:
    """Sums over a user's last items of how often they met others: plain (0), by place (1) or decayed (2).

    With a shrinkage, meetings are divided by the square roots of both items' totals.
    """
    for n in range(lasts.shape[0]):
        start, count = starts[n], 0
        for place in range(lasts.shape[1]):
            row = lasts[n, place]
            if row < 0 or row >= ids.shape[0]:
                continue
            weight = 1.0 / (place + 1) if way == 1 else 1.0
            if shrink > 0:
                weight /= math.sqrt(totals[row] + shrink)
            for s in range(ids.shape[1]):
                item = ids[row, s]
                if item == _FREE:
                    break
                if item >= totals.size:
                    continue
                at = _place(slots, items, values, start, count, item)
                count = max(count, at + 1)
                met = math.pow(2.0, recent[row, s] - now) if way == 2 else float(counts[row, s])
                values[start + at] += weight * met
        if shrink > 0:
            for at in range(start, start + count):
                values[at] /= math.sqrt(totals[items[at]] + shrink)
        starts[n + 1] = _close(slots, items, values, start, count, gain)


def session_column(
    user_ring: SmallIntTable,
    user_met: Ints,
    users_known: int,
    item_ring: SmallIntTable,
    item_met: Ints,
    items_known: int,
    users: Ints,
    lasts: IntTable,
    totals: Floats,
    nearest: int,
    way: int,
    people: SmallInts,
    slots: SmallInts,
    starts: Ints,
    items: SmallInts,
    values: Singles,
) -> None:
    """Session kNN: users who lately took the user's last items, the newest counting most, and what these took.

    The `nearest` ones count, with their similarity; divided by the root of an item's total where `way` is 1. `people`
    is scratch: an EMPTY for each user, before and after.
    """
    found = np.empty(lasts.shape[1] * item_ring.shape[1], np.int64)
    alike = np.empty(found.size)
    for n in range(users.size):
        many = 0
        for place in range(lasts.shape[1]):
            row = lasts[n, place]
            if row < 0 or row >= items_known:
                continue
            for back in range(min(item_met[row], item_ring.shape[1])):
                other = item_ring[row, back]
                if people[other] == _FREE:
                    people[other], found[many], alike[many] = many, other, 0.0
                    many += 1
                alike[people[other]] += 1.0 / (place + 1)
        for each in range(many):
            people[found[each]] = _FREE
            alike[each] *= 1.0 if found[each] != users[n] else 0.0
        least = np.sort(alike[:many])[many - nearest] if many > nearest else 0.0
        start, count = starts[n], 0
        for each in range(many):
            other = found[each]
            if alike[each] == 0 or alike[each] < least or other >= users_known:
                continue
            for back in range(min(user_met[other], user_ring.shape[1])):
                item = user_ring[other, back]
                if item >= totals.size:
                    continue
                at = _place(slots, items, values, start, count, item)
                count = max(count, at + 1)
                values[start + at] += alike[each]
        if way == 1:
            for at in range(start, start + count):
                values[at] /= math.sqrt(totals[items[at]] + 5.0)
        starts[n + 1] = _close(slots, items, values, start, count, 1.0)


def add_column(starts: Ints, items: SmallInts, values: Singles, weight: float, out: FloatTable) -> None:
    """Add a column, times a weight, to scores of all items."""
    for n in range(out.shape[0]):
        for at in range(starts[n], starts[n + 1]):
            out[n, items[at]] += weight * values[at]


def pick_column(
    starts: Ints, items: SmallInts, values: Singles, lines: IntTable, weight: float, slots: SmallInts, out: FloatTable
) -> None:
    """Add a column, times a weight, to scores of lines of candidates."""
    for n in range(out.shape[0]):
        for at in range(starts[n], starts[n + 1]):
            slots[items[at]] = at - starts[n]
        for c in range(out.shape[1]):
            item = lines[n, c]
            if item < slots.size and slots[item] != _FREE:
                out[n, c] += weight * values[starts[n] + slots[item]]
        for at in range(starts[n], starts[n + 1]):
            slots[items[at]] = _FREE


def _above(ordered: Floats, bound: float, equal: bool) -> int:
    """How many numbers of an ascending row are above a bound; with `equal`, or equal to it."""
    low, high = 0, ordered.size
    while low < high:
        middle = (low + high) >> 1
        if ordered[middle] > bound or (equal and ordered[middle] == bound):
            high = middle
        else:
            low = middle + 1
    return ordered.size - low


def join_columns(
    bounds: IntTable,
    firsts: Ints,
    parts: SmallInts,
    parts_values: Singles,
    slots: SmallInts,
    starts: Ints,
    items: SmallInts,
    table: SingleTable,
) -> None:
    """Several columns of the same lines as one, with the value of each in every item: columns × items.

    Column s stands from place `firsts[s]` on, its line n from bounds[s, n] to bounds[s, n + 1] behind that.
    """
    for n in range(starts.size - 1):
        start, count = starts[n], 0
        for s in range(bounds.shape[0]):
            for at in range(firsts[s] + bounds[s, n], firsts[s] + bounds[s, n + 1]):
                item = parts[at]
                if slots[item] == _FREE:
                    slots[item], items[start + count] = count, item
                    for each in range(bounds.shape[0]):
                        table[each, start + count] = 0
                    count += 1
                table[s, start + slots[item]] = parts_values[at]
        for at in range(start, start + count):
            slots[items[at]] = _FREE
        starts[n + 1] = start + count


def rank_mixtures(
    starts: Ints,
    items: SmallInts,
    table: SingleTable,
    weights: FloatTable,
    popular: Floats,
    ordered: Floats,
    targets: Ints,
    own_starts: Ints,
    own: SmallInts,
    slots: SmallInts,
    ranks: FloatTable,
    first_ranks: FloatTable,
) -> None:
    """The rank of each line's target by popularity + Σ weight · column, for several lines of weights, in both tracks.

    `ordered` is popularity in ascending order, `own` are the distinct items that each line's user has had. Only items
    of the columns and the user's own are looked at one by one: all others have their popularity alone.
    """
    mixed = np.empty(items.size)
    for n in range(targets.size):
        start, stop, target = starts[n], starts[n + 1], targets[n]
        for at in range(start, stop):
            slots[items[at]] = at - start
        for w in range(weights.shape[0]):
            for at in range(start, stop):
                score = popular[items[at]]
                for s in range(table.shape[0]):
                    score += weights[w, s] * table[s, at]
                mixed[at - start] = score
            bound = popular[target] if slots[target] == _FREE else mixed[slots[target]]
            above, reach = _above(ordered, bound, False), _above(ordered, bound, True)
            for at in range(start, stop):
                plain, score = popular[items[at]], mixed[at - start]
                above += int(score > bound) - int(plain > bound)
                reach += int(score >= bound) - int(plain >= bound)
            ranks[n, w] = 1.0 + above + (reach - above - 1) / 2.0
            for at in range(own_starts[n], own_starts[n + 1]):
                score = popular[own[at]] if slots[own[at]] == _FREE else mixed[slots[own[at]]]
                above -= int(score > bound)
                reach -= int(score >= bound)
            first_ranks[n, w] = 1.0 + above + (reach - above - 1) / 2.0
        for at in range(start, stop):
            slots[items[at]] = _FREE
