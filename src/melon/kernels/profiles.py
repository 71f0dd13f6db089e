"""Profiles as compiled kernels: who takes an item, what a user took last, and how the two go together."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.types import (
    DOUBLE,
    DOUBLE_TABLE,
    DOUBLES,
    INT,
    INT_TABLE,
    INTS,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SINGLES,
    SMALL_INT_TABLE,
    Fields,
    Signature,
)
from melon.types import Floats, Ints, Singles, SmallInts

#: Added under a root, so that a row of zeros has the direction of zeros.
TINY = 1e-9


class Pairs(NamedTuple):
    """Users and candidates n × c, with all that is known of both.

    `directions` are users' rows of length 1, `profiles` the sums over each one's last items `lasts`, newest first.
    `item_rows` and `takers` (as of each item's last interaction) are stored by item, `weight` and `last` belong to
    `takers`; `rings` are the last takers of an item by number, of `taken` in all.
    """

    users: Ints
    items: Ints
    directions: Singles
    profiles: Singles
    lasts: SmallInts
    item_rows: Singles
    takers: Singles
    weight: Floats
    last: Ints
    rings: SmallInts
    taken: Ints


_VECTORS: Signature = (SINGLE_TABLE, SINGLE_TABLE)
_PAIRS: Fields = Fields(
    Pairs,
    (
        *(INTS, INT_TABLE, SINGLE_TABLE, SINGLE_TABLE, SMALL_INT_TABLE),
        *(SINGLE_TABLE, SINGLE_TABLE, DOUBLES, INTS, SMALL_INT_TABLE, INTS),
    ),
)
_MEANS: Signature = (SINGLE_TABLE, INTS, DOUBLES)
SIGNATURES: dict[str, Signature] = {
    "take": (INTS, INTS, INT, DOUBLE, *_VECTORS, DOUBLES, INTS),
    "recent": (SMALL_INT_TABLE, INTS, INT, INTS, DOUBLE, *_VECTORS, SMALL_INT_TABLE, *_VECTORS),
    "match": (_PAIRS, INT, DOUBLE, DOUBLE, INT, SINGLE_CUBE),
    "prepare": (SINGLE_TABLE, SINGLE_TABLE, DOUBLES, SINGLES, INTS, SINGLE_TABLE),
    "match_all": (SINGLES, SINGLES, SINGLE_TABLE, SINGLE_TABLE, SINGLE_TABLE, SINGLE_TABLE),
    "taken_by": (INT, SMALL_INT_TABLE, INTS, INTS),
    "preferences": (INTS, *_MEANS, DOUBLE_TABLE),
    "write_preferences": (INTS, DOUBLE_TABLE, DOUBLES, INT, SINGLE_CUBE),
    "follow_preferences": (*[INTS] * 2, DOUBLE_TABLE, INTS, INTS, DOUBLES, INT, *_MEANS),
}


def _product(one: Singles, other: Singles) -> float:
    total = np.float32(0)
    for d in range(one.size):
        total += one[d] * other[d]
    return np.float64(total)


def take(
    users: Ints,
    items: Ints,
    first_event: int,
    rate: float,
    user_rows: Singles,
    takers: Singles,
    weight: Floats,
    last: Ints,
) -> None:
    """Add each user's direction to the profile of the item taken, one event after another; profiles decay by `rate`."""
    for n in range(users.size):
        item, event = items[n], first_event + n
        left = math.pow(2.0, -rate * (event - last[item]))
        weight[item] = weight[item] * left + 1.0
        last[item] = event
        profile = takers[item]
        if users[n] < user_rows.shape[0]:
            row = user_rows[users[n]]
            share = 1.0 / math.sqrt(_product(row, row) + TINY)
            for d in range(profile.size):
                profile[d] = profile[d] * left + row[d] * share
        else:
            for d in range(profile.size):
                profile[d] = profile[d] * left


def recent(
    rings: SmallInts,
    met: Ints,
    known: int,
    users: Ints,
    decay_factor: float,
    user_rows: Singles,
    item_rows: Singles,
    lasts: SmallInts,
    directions: Singles,
    out: Singles,
) -> None:
    """The last items of each user, newest first, −1 beyond them, and Σ_k decay^k · the direction of the k-th's row.

    And the direction of the user's own row; zeros where there is none.
    """
    most = rings.shape[1]
    for n in range(users.size):
        user, profile, direction, weight = users[n], out[n], directions[n], 1.0
        count = min(met[user], most) if user < known else 0
        share = 0.0
        row = user_rows[min(user, user_rows.shape[0] - 1)]
        if user < user_rows.shape[0]:
            share = 1.0 / math.sqrt(_product(row, row) + TINY)
        for d in range(profile.size):
            profile[d], direction[d] = 0, row[d] * share
        for k in range(count, most):
            lasts[n, k] = -1
        for k in range(count):
            item = np.int64(rings[user, (met[user] - 1 - k) % most])
            lasts[n, k] = item
            if item < item_rows.shape[0]:
                row = item_rows[item]
                share = weight / math.sqrt(_product(row, row) + TINY)
                for d in range(profile.size):
                    profile[d] += row[d] * share
            weight *= decay_factor


def match(pairs: Pairs, now: int, rate: float, decay_factor: float, first: int, out: Singles) -> None:
    """The user against the item's takers, and the user's profile against the item and against its takers.

    They are written from input `first` on. The user's own part in the takers' profile and the item's own part in the
    user's profile are left out.
    """
    decay = -rate * math.log(2.0)
    for n in range(pairs.users.size):
        direction, profile = pairs.directions[n], pairs.profiles[n]
        far, along, one = _product(profile, profile), _product(direction, profile), _product(direction, direction)
        for c in range(pairs.items.shape[1]):
            item, said = pairs.items[n, c], out[n, c]
            if item >= pairs.item_rows.shape[0] or item >= pairs.takers.shape[0]:
                said[first], said[first + 1], said[first + 2] = 0, 0, 0
                continue
            row, takers, weight, away = pairs.item_rows[item], pairs.takers[item], pairs.weight[item], far
            size, wide, to_takers, to_item, both = _products(direction, profile, row, takers)
            own = _times(pairs.rings[item], pairs.taken[item], pairs.users[n]) if item < pairs.taken.size else 0
            again = _share(pairs.lasts[n], item, decay_factor) / math.sqrt(size + TINY)
            if own or again > 0:
                part = weight * own / max(pairs.taken[item], 1)
                both -= again * _product(row, takers) + part * (along - again * _product(row, direction))
                away = max(far + again * (again * size - 2 * to_item), 0.0)
                wide = max(wide + part * (part * one - 2 * to_takers), 0.0)
                to_item, to_takers, weight = to_item - again * size, to_takers - part * one, weight - part
                if own == pairs.taken[item]:  # no other user took it
                    to_takers, both = 0.0, 0.0
            left, long = math.exp(decay * (now - pairs.last[item])), math.sqrt(away + TINY)
            said[first] = left * to_takers / (left * weight + 1.0)
            said[first + 1] = to_item / (long * math.sqrt(size + TINY))
            said[first + 2] = both / (long * math.sqrt(wide + TINY))


def prepare(item_rows: Singles, takers: Singles, weight: Floats, left: Singles, changed: Ints, out: Singles) -> None:
    """What `match_all` needs of each item: a factor for each of the three ways. `left` is what has not decayed.

    The first one falls with time; the others are those of items that have changed.
    """
    for item in range(left.size):
        out[item, 0] = left[item] / (left[item] * np.float32(weight[item]) + np.float32(1))
    for n in range(changed.size):
        item = changed[n]
        row, profile = item_rows[item], takers[item]
        out[item, 1] = 1.0 / math.sqrt(_product(row, row) + TINY)
        out[item, 2] = 1.0 / math.sqrt(_product(profile, profile) + TINY)


def match_all(
    direction: Singles, profile: Singles, item_rows: Singles, takers: Singles, factors: Singles, out: Singles
) -> None:
    """The same as `match` for one user and the first items, of which the user has had none."""
    long = 1.0 / math.sqrt(_product(profile, profile) + TINY)
    for item in range(factors.shape[0]):
        row, others = item_rows[item], takers[item]
        to_takers, to_item, both = np.float32(0), np.float32(0), np.float32(0)
        for d in range(row.size):
            to_takers += direction[d] * others[d]
            to_item += profile[d] * row[d]
            both += profile[d] * others[d]
        out[item, 0] = factors[item, 0] * to_takers
        out[item, 1] = long * factors[item, 1] * to_item
        out[item, 2] = long * factors[item, 2] * both


def taken_by(user: int, rings: SmallInts, taken: Ints, items: Ints) -> int:
    """The items among whose last takers a user is; returns how many there are."""
    count, wanted = 0, np.int32(user)
    for item in range(rings.shape[0]):
        ring, times = rings[item], 0
        for k in range(ring.size):
            times += ring[k] == wanted
        if times and _times(ring, taken[item], user):
            items[count] = item
            count += 1
    return count


def _products(
    direction: Singles, profile: Singles, row: Singles, takers: Singles
) -> tuple[float, float, float, float, float]:
    """row², takers², direction · takers, profile · row, profile · takers, in one pass."""
    size, wide, to_takers = np.float32(0), np.float32(0), np.float32(0)
    to_item, both = np.float32(0), np.float32(0)
    for d in range(row.size):
        size += row[d] * row[d]
        wide += takers[d] * takers[d]
        to_takers += direction[d] * takers[d]
        to_item += profile[d] * row[d]
        both += profile[d] * takers[d]
    return np.float64(size), np.float64(wide), np.float64(to_takers), np.float64(to_item), np.float64(both)


def _times(ring: SmallInts, taken: int, user: int) -> int:
    """How often a user is among an item's last takers."""
    times, wanted = 0, np.int32(user)
    for k in range(min(taken, ring.size)):
        times += ring[k] == wanted
    return times


def _share(lasts: SmallInts, item: int, decay_factor: float) -> float:
    """An item's weight in the profile of a user's last items."""
    times, wanted = 0, np.int32(item)
    for k in range(lasts.size):
        times += lasts[k] == wanted
    share, weight = 0.0, 1.0
    if times:
        for k in range(lasts.size):
            share += weight if lasts[k] == wanted else 0.0
            weight *= decay_factor
    return share


def preferences(users: Ints, means: Singles, taken: Ints, overall: Floats, out: Floats) -> None:
    """What users prefer: how their means differ from those of all, drawn towards nothing while little is known."""
    for n in range(users.size):
        user, line, times = users[n], out[n], 0.0
        if user < means.shape[0]:
            times = np.float64(taken[user])
        for f in range(means.shape[1]):
            line[f] = times / (times + 3.0) * (means[user, f] - overall[f]) if times > 0 else 0.0


def write_preferences(features: Ints, preferred: Floats, usual: Floats, first: int, out: Singles) -> None:
    """Write inputs from `first` on: users' preferences, and those times the candidate's own features in `out`."""
    width = features.size
    for n in range(out.shape[0]):
        for c in range(out.shape[1]):
            line = out[n, c]
            for f in range(width):
                line[first + f] = preferred[n, f]
                line[first + width + f] = preferred[n, f] * (line[features[f]] - usual[f])


def follow_preferences(
    users: Ints,
    places: Ints,
    counts: Floats,
    last: Ints,
    first: Ints,
    rates: Floats,
    first_event: int,
    means: Singles,
    taken: Ints,
    overall: Floats,
) -> None:
    """Let each user's means follow the features of the item taken, one event after another.

    `counts`, `last` and `first` are those of distinct items before the first event, and are brought along. `taken`
    is how much each user took, `overall` the means of all events and how many there were.
    """
    for n in range(users.size):
        user, at, event = users[n], places[n], first_event + n
        own, every = max(0.1, 1.0 / (taken[user] + 1.0)), max(0.0005, 1.0 / (overall[4] + 1.0))
        for f in range(4):
            if f < 2:
                counts[at, f] *= math.pow(2.0, -rates[f] * (event - last[at]))
                value = counts[at, f]
                counts[at, f] += 1.0
            else:
                value = np.float64(event - (last[at] if f == 2 else max(first[at], 0)))
            value = math.log1p(value)
            means[user, f] += own * (value - means[user, f])
            overall[f] += every * (value - overall[f])
        overall[4] += 1.0
        taken[user] += 1
        last[at] = event
        if first[at] < 0:
            first[at] = event
