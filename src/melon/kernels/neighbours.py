"""Counts and neighbours of items, compiled by numba: one interaction after another and without copies."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.types import FloatTable, SingleTable, SmallIntTable
from melon.types import Floats, Ints, Singles, SmallInts

#: An empty slot.
EMPTY = -1
_FREE = np.int32(EMPTY)
_SIGN, _LARGEST = np.int32(31), np.int32(0x7FFFFFFF)


def count_items(counts: FloatTable, first: Ints, last: Ints, rates: Floats, items: Ints, event: int) -> None:
    """Count items one by one, from an event on: a count decays from its item's last interaction to this one."""
    for n in range(items.size):
        item, moment = items[n], event + n
        if first[item] < 0:
            first[item] = moment
        idle = np.float64(last[item] - moment)
        for k in range(rates.size):
            counts[item, k] = counts[item, k] * np.exp2(idle * rates[k]) + 1.0
        last[item] = moment


def meetings(
    ring: SmallIntTable, met: Ints, known: int, users: Ints, items: Ints, reach: int, latest: SmallInts, before: Ints,
    events: Ints, earlier: Ints,
) -> tuple[int, np.int64]:  # fmt: skip
    """Which event of a run lets which earlier item of its user meet its own item, newest first.

    Rings hold what came before the run. `latest` is scratch: an EMPTY for each user, before and after. Returns how many
    meetings there are and the largest item among the earlier ones.
    """
    width, count, most = ring.shape[1], 0, np.int64(EMPTY)
    for n in range(users.size):
        user = users[n]
        before[n], latest[user] = latest[user], n
        left, other = reach, before[n]
        while left > 0 and other >= 0:
            if items[other] != items[n]:
                events[count], earlier[count] = n, items[other]
                most, count = max(most, items[other]), count + 1
            left, other = left - 1, before[other]
        times = met[user] if user < known else np.int64(0)
        for back in range(min(left, times, width)):
            item = np.int64(ring[user, (times - 1 - back) % width])
            if item != items[n]:
                events[count], earlier[count] = n, item
                most, count = max(most, item), count + 1
    for n in range(users.size):
        latest[users[n]] = _FREE
    return count, most


def _least(numbers: Singles) -> int:
    """The place of the least number, the first of several.

    As whole numbers that have the same order as the floats: these are compared many at a time, floats one by one.
    """
    bits, least, place = numbers.view(np.int32), _LARGEST, _LARGEST
    for s in range(bits.size):
        least = min(least, np.int32(bits[s] ^ np.int32(np.int32(bits[s] >> _SIGN) & _LARGEST)))
    least = np.int32(least ^ np.int32(np.int32(least >> _SIGN) & _LARGEST))
    for s in range(bits.size):
        place = min(place, np.int32(s) if bits[s] == least else _LARGEST)
    return int(place)


def _place(here: SmallInts, late: Singles, other: np.int32) -> int:
    """The slot where a row has the other, or else the one that it takes: a free one, or that of the least count."""
    width, at, taken = here.size, np.int32(0), np.int32(0)
    for s in range(width):  # no way out, so that several slots are looked at together; neighbours are distinct
        at = np.int32(at + (np.int32(s + 1) if here[s] == other else np.int32(0)))
        taken = np.int32(taken + np.int32(here[s] != _FREE))
    if at > 0:
        return int(at) - 1
    if taken < width:
        return int(taken)
    return _least(late)


def _by_row(events: Ints, earlier: Ints, items: Ints, ways: int, latest: SmallInts, after: SmallInts) -> SmallInts:
    """The first meeting of each row; `after` gets the next one of the same row, or EMPTY."""
    firsts, count = np.empty(after.size, np.int32), 0
    for at in range(after.size):
        n = at // ways
        row = items[events[n]] if at % ways == 1 else earlier[n]
        if latest[row] == _FREE:
            firsts[count] = at
            count += 1
        else:
            after[latest[row]] = at
        latest[row], after[at] = at, _FREE
    for at in range(after.size):
        n = at // ways
        latest[items[events[n]] if at % ways == 1 else earlier[n]] = _FREE
    return firsts[:count]


def meet(
    ids: SmallIntTable, counts: SingleTable, recent: SingleTable, events: Ints, earlier: Ints, items: Ints, first: int,
    half_life: float, reference: float, both_ways: bool, latest: SmallInts,
    slots: SmallInts, old_ids: SmallInts, old_counts: Singles, old_recent: Singles,
) -> None:  # fmt: skip
    """Let the items of meetings remember each other; what each meeting overwrites is written down.

    A row's slots depend on its own meetings alone, so each row has all of its meetings in order while it is at hand.
    `latest` is scratch: an EMPTY for each item, before and after.
    """
    ways = 2 if both_ways else 1
    after = np.empty(ways * events.size, np.int32)
    for at in _by_row(events, earlier, items, ways, latest, after):
        while at >= 0:
            n = at // ways
            row, other = earlier[n], items[events[n]]
            if at % ways == 1:
                row, other = other, row
            moment, here = (first + events[n]) / half_life - reference, ids[row]
            slot = _place(here, recent[row], np.int32(other))
            slots[at], old_ids[at], old_counts[at] = slot, here[slot], counts[row, slot]
            old_recent[at] = recent[row, slot]
            found = here[slot] == other
            before = np.exp2(recent[row, slot] - moment) if found else 0.0
            here[slot] = other
            counts[row, slot] = (counts[row, slot] if found else np.float32(0)) + np.float32(1)
            recent[row, slot] = np.float32(math.log2(before + 1.0) + moment)
            at = after[at]  # noqa: PLW2901


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
                sums[2, x, c] += weight * np.exp2(recent[row, s] - now)
        for c in range(width):  # the same item may stand in a line twice
            first = columns[items[x, c]]
            for number in range(3):
                sums[number, x, c] = sums[number, x, first]
        for c in range(width):
            columns[items[x, c]] = _FREE
    return sums
