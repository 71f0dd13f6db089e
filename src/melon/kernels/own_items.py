"""What each user had, how often and how lately, as kernels: chains of blocks of entries, the newest first.

An entry is one (user, item): counts that decay with the user's own events, and the number of the user's event that
took the item last. Entries lie in blocks, `IN_BLOCK` places each: a walk along single ones would wait for memory at
each step. `heads` is each user's newest block, `after` the next one of the same user, which is an older one; all but
the newest are full. Walks go from the newest entry to the oldest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.blend_head import Rings
from melon.kernels.types import IntTable, SingleCube, SingleTable, SmallIntTable
from melon.types import Floats, Ints, Singles, SmallInts


class Chains(NamedTuple):
    """By user: newest block, how many entries, events so far, repeats among them; by block: the next one; by place: the
    entry; then repeats by item.
    """

    heads: SmallInts
    sizes: SmallInts
    taken: SmallInts
    repeats: SmallInts
    after: SmallInts
    items: SmallInts
    last: SmallInts
    counts: SingleTable
    item_repeats: SmallInts
    rates: Floats


#: Inputs of a pair: had at all, counts that decay, own events since, and both tendencies to repeat.
BESIDE = 4
#: Entries of a block.
IN_BLOCK = 8
_NONE = np.int32(-1)


def _newest(own: Chains, user: int) -> int:
    """The place of a user's newest entry; -1 for a user without any."""
    if user >= own.heads.size or own.heads[user] < 0:
        return -1
    return int(own.heads[user]) * IN_BLOCK + int(own.sizes[user] - 1) % IN_BLOCK


def _older(own: Chains, place: int) -> int:
    """The place of the entry before this one; -1 behind the oldest."""
    if place % IN_BLOCK:
        return place - 1
    block = int(own.after[place // IN_BLOCK])
    return block * IN_BLOCK + IN_BLOCK - 1 if block >= 0 else -1


def take_own(
    users: Ints,
    items: Ints,
    own: Chains,
    blocks: int,
    most: int,
    touched: Ints,
    before: SmallIntTable,
    counts: SingleTable,
) -> int:
    """Let users take items one after the other; returns how many blocks there are.

    A user with `most` entries gives up the one with the least count at the longest half-life that is finite. `touched`
    gets the place that each event wrote, `before` and `counts` the item, its last event and the counts that were there.
    """
    for n in range(users.size):
        user, item = users[n], np.int32(items[n])
        now = own.taken[user]
        place = newest = _newest(own, user)
        while place >= 0 and own.items[place] != item:
            place = _older(own, place)
        known = place >= 0
        if known:
            own.repeats[user] += np.int32(1)
            own.item_repeats[item] += np.int32(1)
        elif own.sizes[user] >= most:
            place = _weakest(own, newest, now)
        else:
            if own.sizes[user] % IN_BLOCK:
                place = newest + 1
            else:
                own.after[blocks], own.heads[user] = own.heads[user], np.int32(blocks)
                place = blocks * IN_BLOCK
                blocks += 1
            own.sizes[user] += np.int32(1)
        touched[n], before[n, 0], before[n, 1] = place, own.items[place], own.last[place]
        idle = np.float64(own.last[place] - now)
        own.items[place], own.last[place] = item, now
        for k in range(own.rates.size):
            count = own.counts[place, k]
            counts[n, k] = count
            own.counts[place, k] = np.float32(count * np.exp2(idle * own.rates[k]) + 1.0) if known else np.float32(1)
        own.taken[user] = now + np.int32(1)
    return blocks


def _weakest(own: Chains, newest: int, now: int) -> int:
    place, weakest, least = newest, newest, np.inf
    while place >= 0:
        count = own.counts[place, 1] * np.exp2(np.float64(own.last[place] - now) * own.rates[1])
        if count < least:
            weakest, least = place, count
        place = _older(own, place)
    return weakest


def pick_own(users: Ints, places: IntTable, own: Chains, items: IntTable) -> None:
    """The items of some of the users' entries, counted from the newest one; -1 for a user without any."""
    for n in range(users.size):
        newest = _newest(own, users[n])
        for c in range(places.shape[1]):
            place, back = newest, places[n, c]
            while place >= 0 and back > place % IN_BLOCK:
                back -= place % IN_BLOCK + 1
                place = _older(own, place - place % IN_BLOCK)
            items[n, c] = own.items[place - back] if place >= 0 else -1


def _write(own: Chains, user: int, entry: int, taken: float, out: Singles) -> None:
    """The inputs of one of the user's own items; those of any other item are zeros."""
    now, idle = own.taken[user], np.float64(own.last[entry] - own.taken[user])
    out[0] = 1
    for k in range(own.rates.size):
        out[1 + k] = math.log1p(own.counts[entry, k] * np.exp2(idle * own.rates[k]))
    out[1 + own.rates.size] = math.log1p(-idle)
    out[2 + own.rates.size] = (own.repeats[user] + 1.0) / (now + 4.0)
    out[3 + own.rates.size] = (own.item_repeats[own.items[entry]] + 1.0) / (taken + 4.0)


def own_inputs(
    users: Ints, lines: IntTable, own: Chains, takers: Rings, first: int, columns: SmallInts, out: SingleCube
) -> None:
    """Write the inputs of lines of items n × c from input `first` on; 0 for what the user never had.

    `takers` say how often each item was taken. `columns` is scratch: an EMPTY for each item, before and after.
    """
    width = BESIDE + own.rates.size
    for n in range(users.size):
        user = users[n]
        for c in range(lines.shape[1]):
            out[n, c, first : first + width] = 0
        newest = _newest(own, user)
        place = newest
        while place >= 0:
            if own.items[place] < columns.size:
                columns[own.items[place]] = place
            place = _older(own, place)
        for c in range(lines.shape[1] if newest >= 0 else 0):
            item = lines[n, c]
            if item < columns.size and columns[item] >= 0:
                taken = np.float64(takers.met[item]) if item < takers.known else 0.0
                _write(own, user, columns[item], taken, out[n, c, first : first + width])
        place = newest
        while place >= 0:
            if own.items[place] < columns.size:
                columns[own.items[place]] = _NONE
            place = _older(own, place)


def own_of_user(user: int, own: Chains, takers: Rings, n_items: int, items: Ints, inputs: SingleTable) -> int:
    """The user's own items below `n_items` and their inputs; returns how many there are."""
    found = 0
    place = _newest(own, user)
    while place >= 0:
        item = own.items[place]
        if item < n_items:
            taken = np.float64(takers.met[item]) if item < takers.known else 0.0
            items[found] = item
            _write(own, user, place, taken, inputs[found])
            found += 1
        place = _older(own, place)
    return found
