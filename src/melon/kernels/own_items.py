"""What each user had, how often and how lately, as kernels: chains of entries, the newest first.

An entry is one (user, item): counts that decay with the user's own events, and the number of the user's event that took
the item last. `heads` is each user's newest entry, `after` the next one of the same user, which is an older one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.types import (
    DOUBLES,
    INT,
    INT_TABLE,
    INTS,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SMALL_INTS,
    Fields,
    Signature,
)
from melon.types import Floats, Ints, Singles, SmallInts


class Chains(NamedTuple):
    """Entries by user (heads, how many, events so far, repeats among them), then by entry, then repeats by item."""

    heads: SmallInts
    sizes: SmallInts
    taken: SmallInts
    repeats: SmallInts
    after: SmallInts
    items: SmallInts
    last: SmallInts
    counts: Singles
    item_repeats: SmallInts
    rates: Floats


CHAINS: Fields = Fields(Chains, (*[SMALL_INTS] * 7, SINGLE_TABLE, SMALL_INTS, DOUBLES))
SIGNATURES: dict[str, Signature] = {
    "take_own": (INTS, INTS, CHAINS, INT, INT),
    "own_entries": (INTS, CHAINS, INTS),
    "pick_own": (INTS, INT_TABLE, CHAINS, INT_TABLE),
    "own_inputs": (INTS, INT_TABLE, CHAINS, INTS, INTS, INT, SMALL_INTS, SINGLE_CUBE),
    "own_of_user": (INT, CHAINS, INTS, INTS, INT, INTS, SINGLE_TABLE),
}
#: Inputs of a pair: had at all, counts that decay, own events since, and both tendencies to repeat.
BESIDE = 4
_NONE = np.int32(-1)


def take_own(users: Ints, items: Ints, own: Chains, count: int, most: int) -> int:
    """Let users take items one after the other; returns how many entries there are.

    A user with `most` entries gives up the one with the least count at the longest half-life that is finite.
    """
    for n in range(users.size):
        user, item = users[n], np.int32(items[n])
        now = own.taken[user]
        entry = own.heads[user]
        while entry >= 0 and own.items[entry] != item:
            entry = own.after[entry]
        if entry >= 0:
            own.repeats[user] += np.int32(1)
            own.item_repeats[item] += np.int32(1)
        elif own.sizes[user] >= most:
            entry = _weakest(own, user, now)
            own.items[entry] = item
            own.counts[entry] = 0
        else:
            entry = np.int32(count)
            own.after[entry], own.heads[user] = own.heads[user], entry
            own.items[entry], own.counts[entry] = item, 0
            own.sizes[user] += np.int32(1)
            count += 1
        idle = np.float64(own.last[entry] - now)
        for k in range(own.rates.size):
            own.counts[entry, k] = np.float32(own.counts[entry, k] * np.exp2(idle * own.rates[k]) + 1.0)
        own.last[entry] = now
        own.taken[user] = now + np.int32(1)
    return count


def _weakest(own: Chains, user: int, now: int) -> np.int32:
    entry, weakest, least = own.heads[user], own.heads[user], np.inf
    while entry >= 0:
        count = own.counts[entry, 1] * np.exp2(np.float64(own.last[entry] - now) * own.rates[1])
        if count < least:
            weakest, least = entry, count
        entry = own.after[entry]
    return np.int32(weakest)


def own_entries(users: Ints, own: Chains, entries: Ints) -> int:
    """The entries of some users, one after the other; returns how many there are."""
    found = 0
    for n in range(users.size):
        entry = own.heads[users[n]] if users[n] < own.heads.size else _NONE
        while entry >= 0:
            entries[found] = entry
            found, entry = found + 1, own.after[entry]
    return found


def pick_own(users: Ints, places: Ints, own: Chains, items: Ints) -> None:
    """The items at some places of the users' chains, the newest entry first; -1 for a user without any."""
    for n in range(users.size):
        for c in range(places.shape[1]):
            entry = own.heads[users[n]] if users[n] < own.heads.size else _NONE
            for _ in range(places[n, c]):
                entry = own.after[entry]
            items[n, c] = own.items[entry] if entry >= 0 else -1


def _write(own: Chains, user: int, entry: np.int32, taken: float, out: Singles) -> None:
    """The inputs of one of the user's own items; those of any other item are zeros."""
    now, idle = own.taken[user], np.float64(own.last[entry] - own.taken[user])
    out[0] = 1
    for k in range(own.rates.size):
        out[1 + k] = math.log1p(own.counts[entry, k] * np.exp2(idle * own.rates[k]))
    out[1 + own.rates.size] = math.log1p(-idle)
    out[2 + own.rates.size] = (own.repeats[user] + 1.0) / (now + 4.0)
    out[3 + own.rates.size] = (own.item_repeats[own.items[entry]] + 1.0) / (taken + 4.0)


def own_inputs(
    users: Ints, lines: Ints, own: Chains, met: Ints, known: Ints, first: int, columns: SmallInts, out: Singles
) -> None:
    """Write the inputs of lines of items n × c from input `first` on; 0 for what the user never had.

    `met` is how often each item was taken, of the first known[0] items. `columns` is scratch: an EMPTY for each item,
    before and after.
    """
    width = BESIDE + own.rates.size
    for n in range(users.size):
        user = users[n]
        for c in range(lines.shape[1]):
            out[n, c, first : first + width] = 0
        entry = own.heads[user] if user < own.heads.size else _NONE
        if entry < 0:
            continue
        start = entry
        while entry >= 0:
            if own.items[entry] < columns.size:
                columns[own.items[entry]] = entry
            entry = own.after[entry]
        for c in range(lines.shape[1]):
            item = lines[n, c]
            if item < columns.size and columns[item] >= 0:
                taken = np.float64(met[item]) if item < known[0] else 0.0
                _write(own, user, columns[item], taken, out[n, c, first : first + width])
        entry = start
        while entry >= 0:
            if own.items[entry] < columns.size:
                columns[own.items[entry]] = _NONE
            entry = own.after[entry]


def own_of_user(user: int, own: Chains, met: Ints, known: Ints, n_items: int, items: Ints, inputs: Singles) -> int:
    """The user's own items below `n_items` and their inputs; returns how many there are."""
    found = 0
    entry = own.heads[user] if user < own.heads.size else _NONE
    while entry >= 0:
        item = own.items[entry]
        if item < n_items:
            taken = np.float64(met[item]) if item < known[0] else 0.0
            items[found] = item
            _write(own, user, entry, taken, inputs[found])
            found += 1
        entry = own.after[entry]
    return found
