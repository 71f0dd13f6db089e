"""Profiles as compiled kernels: who takes an item, what a user took last, and how the two go together."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.blend_head import Rings
from melon.kernels.types import FloatTable, IntTable, SingleCube, SingleTable
from melon.types import Floats, Ints, Singles, SmallInts

#: Added under a root, so that a row of zeros has the direction of zeros.
TINY = 1e-9


class ProfileRows(NamedTuple):
    """Rows of users and items; by item the sum of its takers' directions as of its last event, their weight, and that
    event; then now, the rate at which takers decay, and what is left of an item in a user's profile at the next one.
    """

    of_users: SingleTable
    of_items: SingleTable
    takers: SingleTable
    weight: Floats
    last: Ints
    now: int
    rate: float
    kept: float


class Tastes(NamedTuple):
    """Means of each user, how much each took, and the means of all events and their number."""

    means: SingleTable
    taken: Ints
    overall: Floats


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
    user_rows: SingleTable,
    takers: SingleTable,
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


def recent(rings: Rings, user: int, profiles: ProfileRows, lasts: SmallInts, direction: Singles, out: Singles) -> None:
    """The last items of a user, newest first, −1 beyond them, and Σ_k kept^k · the direction of the k-th's row.

    And the direction of the user's own row; zeros where there is none.
    """
    most, weight = rings.partners.shape[1], 1.0
    count = min(rings.met[user], most) if user < rings.known else 0
    out[:], direction[:] = 0, 0
    if user < profiles.of_users.shape[0]:
        row = profiles.of_users[user]
        share = 1.0 / math.sqrt(_product(row, row) + TINY)
        for d in range(out.size):
            direction[d] = row[d] * share
    for k in range(count, most):
        lasts[k] = -1
    for k in range(count):
        item = np.int64(rings.partners[user, (rings.met[user] - 1 - k) % most])
        lasts[k] = item
        if item < profiles.of_items.shape[0]:
            row = profiles.of_items[item]
            share = weight / math.sqrt(_product(row, row) + TINY)
            for d in range(out.size):
                out[d] += row[d] * share
        weight *= profiles.kept


def match(
    users: Ints, items: IntTable, rings: Rings, takers: Rings, profiles: ProfileRows, first: int, out: SingleCube
) -> None:
    """The user against the item's takers, and the user's profile against the item and against its takers.

    They are written for users n and items n × c, from input `first` on. The user's own part in the takers' profile and
    the item's own part in the user's profile are left out. `rings` are the last items of users, `takers` the last users
    of items.
    """
    dim = profiles.of_items.shape[1]
    lasts = np.empty(rings.partners.shape[1], np.int32)
    direction, profile = np.empty(dim, np.float32), np.empty(dim, np.float32)
    for n in range(users.size):
        recent(rings, users[n], profiles, lasts, direction, profile)
        far, along, one = _product(profile, profile), _product(direction, profile), _product(direction, direction)
        for c in range(items.shape[1]):
            said = out[n, c, first : first + 3]
            _match(users[n], items[n, c], takers, profiles, lasts, direction, profile, far, along, one, said)


def _match(
    user: int, item: int, rings: Rings, profiles: ProfileRows, lasts: SmallInts, direction: Singles, profile: Singles,
    far: float, along: float, one: float, said: Singles,
) -> None:  # fmt: skip
    """`match` of one pair; `far`, `along` and `one` are the products of profile and direction."""
    if item >= profiles.of_items.shape[0] or item >= profiles.takers.shape[0]:
        said[0], said[1], said[2] = 0, 0, 0
        return
    row, takers, weight, away = profiles.of_items[item], profiles.takers[item], profiles.weight[item], far
    size, wide, to_takers, to_item, both = _products(direction, profile, row, takers)
    taken = rings.met[item] if item < rings.known else np.int64(0)
    own = _times(rings.partners[item], int(taken), user) if taken else 0
    again = _share(lasts, item, profiles.kept) / math.sqrt(size + TINY)
    if own or again > 0:
        part = weight * own / max(taken, 1)
        both -= again * _product(row, takers) + part * (along - again * _product(row, direction))
        away = max(far + again * (again * size - 2 * to_item), 0.0)
        wide = max(wide + part * (part * one - 2 * to_takers), 0.0)
        to_item, to_takers, weight = to_item - again * size, to_takers - part * one, weight - part
        if own == taken:  # no other user took it
            to_takers, both = 0.0, 0.0
    left = math.exp(-profiles.rate * math.log(2.0) * (profiles.now - profiles.last[item]))
    long = math.sqrt(away + TINY)
    said[0] = left * to_takers / (left * weight + 1.0)
    said[1] = to_item / (long * math.sqrt(size + TINY))
    said[2] = both / (long * math.sqrt(wide + TINY))


def prepare(profiles: ProfileRows, left: Singles, changed: Ints, out: SingleTable) -> None:
    """What `match_all` needs of each item: a factor for each of the three ways. `left` is what has not decayed.

    The first one falls with time; the others are those of items that have changed.
    """
    for item in range(left.size):
        out[item, 0] = left[item] / (left[item] * np.float32(profiles.weight[item]) + np.float32(1))
    for n in range(changed.size):
        item = changed[n]
        row, profile = profiles.of_items[item], profiles.takers[item]
        out[item, 1] = 1.0 / math.sqrt(_product(row, row) + TINY)
        out[item, 2] = 1.0 / math.sqrt(_product(profile, profile) + TINY)


def match_all(direction: Singles, profile: Singles, profiles: ProfileRows, factors: Singles, out: Singles) -> None:
    """The same as `match` for one user and the first items, of which the user has had none: three lines of `out`."""
    long = 1.0 / math.sqrt(_product(profile, profile) + TINY)
    for item in range(factors.shape[0]):
        row, others = profiles.of_items[item], profiles.takers[item]
        to_takers, to_item, both = np.float32(0), np.float32(0), np.float32(0)
        for d in range(row.size):
            to_takers += direction[d] * others[d]
            to_item += profile[d] * row[d]
            both += profile[d] * others[d]
        out[0, item] = factors[item, 0] * to_takers
        out[1, item] = long * factors[item, 1] * to_item
        out[2, item] = long * factors[item, 2] * both
    out[:, factors.shape[0] :] = 0


def match_again(
    user: int, own: Ints, rings: Rings, profiles: ProfileRows, lasts: SmallInts, direction: Singles, profile: Singles,
    out: Singles,
) -> None:  # fmt: skip
    """Put what `match` says of the user's own items in place of what `match_all` said.

    Where it is not known what the user had (`own` is empty), items among whose last takers the user is count.
    """
    far, along, one = _product(profile, profile), _product(direction, profile), _product(direction, direction)
    said, wanted = np.empty(3, np.float32), np.int32(user)
    for n in range(lasts.size + (own.size if own.size else rings.known)):
        if n < lasts.size:
            item = np.int64(lasts[n])
        elif own.size:
            item = own[n - lasts.size]
        else:
            item = np.int64(n - lasts.size)
            ring, times = rings.partners[item], 0
            for k in range(ring.size):
                times += ring[k] == wanted
            if not times:
                continue
        if 0 <= item < out.shape[1]:
            _match(user, int(item), rings, profiles, lasts, direction, profile, far, along, one, said)
            for f in range(3):
                out[f, item] = said[f]


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


def preferences(users: Ints, tastes: Tastes, out: FloatTable) -> None:
    """What users prefer: how their means differ from those of all, drawn towards nothing while little is known."""
    for n in range(users.size):
        _preferences(users[n], tastes, out[n])


def _preferences(user: int, tastes: Tastes, out: Floats) -> None:
    times = np.float64(tastes.taken[user]) if user < tastes.means.shape[0] else 0.0
    for f in range(tastes.means.shape[1]):
        out[f] = times / (times + 3.0) * (tastes.means[user, f] - tastes.overall[f]) if times > 0 else 0.0


def write_preferences(features: Ints, preferred: FloatTable, usual: Floats, first: int, out: SingleCube) -> None:
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
    counts: FloatTable,
    last: Ints,
    first: Ints,
    rates: Floats,
    first_event: int,
    tastes: Tastes,
) -> None:
    """Let each user's means follow the features of the item taken, one event after another.

    `counts`, `last` and `first` are those of distinct items before the first event, and are brought along.
    """
    means, taken, overall = tastes.means, tastes.taken, tastes.overall
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
