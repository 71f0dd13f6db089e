"""Lists of the blend as kernels: the head over all items, and candidates of two-stage lists.

It stands behind `best`, `blend_head`, `own_items` and `profiles`, whose functions it uses.
"""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.arithmetic import exp, log
from melon.kernels.best import _ONE, _put
from melon.kernels.blend_head import (
    ACTIVE,
    ACTIVE_COUNTS,
    ALWAYS,
    FOLLOWED,
    LAST,
    MET,
    RECENT,
    SHRINK,
    SHRINK_RECENT,
    Counts,
    HeadTables,
    Rings,
    Slots,
    _active,
    _forward,
    _last_items,
)
from melon.kernels.own_items import BESIDE, Chains, own_of_user
from melon.kernels.profiles import (
    ProfileRows,
    Tastes,
    _preferences,
    match_again,
    match_all,
    recent,
)
from melon.kernels.seen import PairsSeen, _holds
from melon.kernels.types import SingleTable
from melon.types import Flags, Floats, Ints, Singles, SmallInts

_FREE, _LN2 = np.int32(-1), np.float32(0.6931471805599453)
#: Items that are worked on at a time, so that they stay in the core's own cache.
_LANES = 256
#: From this share of all items on (1/n), items that met one of the user's are not scored without it first.
_MANY_MET = 4
#: Kinds of co-occurrence that decay, and so are divided by the recent count.
_DECAYED = (2, 4)


def _co_occurrence(
    kept: Slots, lasts: Ints, weights: Floats, slots: SmallInts, items: Ints, sums: Floats, first: int, found: int
) -> int:
    """Add up how often the last items met others, into columns of `sums`; `slots` says which column an item has."""
    late = np.empty(kept.ids.shape[1], np.float32)
    for place in range(lasts.size):
        row = lasts[place]
        if row < 0 or row >= kept.ids.shape[0]:
            continue
        for s in range(late.size):  # all at once, for a vector's work
            late[s] = exp(_LN2 * np.float32(kept.recent[row, s] - kept.now))
        for s in range(late.size):
            item = kept.ids[row, s]
            if item == _FREE:
                break
            if item >= slots.size:
                continue
            if slots[item] == _FREE:
                slots[item] = found
                items[found] = item
                for kind in range(sums.shape[0]):
                    sums[kind, found] = 0
                found += 1
            column, plain = slots[item], weights[place] * kept.counts[row, s]
            sums[first, column] += plain
            if first == 0:
                sums[1, column] += plain / (place + 1)
                sums[2, column] += weights[place] * late[s]
            else:
                sums[first + 1, column] += weights[place] * late[s]
    return found


def _others(slots: SmallInts) -> Ints:
    """The items without a column."""
    others, count = np.empty(slots.size, np.int64), 0
    for item in range(slots.size):
        others[count] = item
        count += slots[item] == _FREE
    return others[:count]


def _put_items(items: Ints, scores: Singles, columns: Singles, pairs: Singles, block: Singles) -> None:
    """Scores so far, features and further inputs of some items, lane by lane."""
    for lane in range(items.size):
        item = items[lane]
        block[0, lane] = scores[item]
        for f in range(columns.shape[0]):
            block[1 + f, lane] = columns[f, item]
        for f in range(pairs.shape[0]):
            block[MET + f, lane] = pairs[f, item]


def all_items(
    users: Ints, head: HeadTables, constant: np.float32, features: Ints, rings: Rings, takers: Rings, counted: Counts,
    neighbours: Slots, followers: Slots, tastes: Tastes, own: Chains, profiles: ProfileRows,
    factors: SingleTable, columns: SingleTable, counts: SingleTable, slots: SmallInts, seen: bool, scores: SingleTable,
) -> None:  # fmt: skip
    """Turn dot products of users with all items into the blend's scores, in place.

    `head` is one over unscaled inputs, `constant` what every score lacks, `features` the inputs that preferences are
    about. `columns` are the items' biases and features, × items; `counts` all and recent events of items, 2 × items;
    `factors` what `prepare` gave. Items that the user has had are looked at one by one where they may be listed
    (`seen`). `slots` is scratch: an EMPTY for each item, before and after.
    """
    many, dim = scores.shape[1], profiles.of_items.shape[1]
    lasts, weights = np.empty(LAST, np.int64), np.empty(LAST)
    ring, direction, profile = (
        np.empty(rings.partners.shape[1], np.int32),
        np.empty(dim, np.float32),
        np.empty(dim, np.float32),
    )
    shares = np.empty_like(counts)  # what co-occurrence with an item counts
    for item in range(many):
        shares[0, item] = 1 / math.sqrt(counts[0, item] + SHRINK)
        shares[1, item] = 1 / math.sqrt(counts[1, item] + SHRINK_RECENT)
    preferred, pairs = np.empty(tastes.means.shape[1]), np.empty((3 if dim else 0, many), np.float32)
    for n in range(users.size):
        user = users[n]
        last, size = _last_items(rings, counted, user, lasts, weights), own.sizes[user] if user < own.sizes.size else 0
        own_rows = np.empty(size, np.int64)
        own_inputs = np.empty((size, BESIDE + own.rates.size if own.rates.size else 0), np.float32)
        had = own_of_user(user, own, takers, many, own_rows, own_inputs)
        _preferences(user, tastes, preferred)
        if dim:
            recent(rings, user, profiles, ring, direction, profile)
            match_all(direction, profile, profiles, factors, pairs)
            if seen:
                match_again(user, own_rows[:had], takers, profiles, ring, direction, profile, pairs)
        _all_items(
            head, constant, _active(rings, user), lasts[:last], weights[:last], preferred, tastes.overall, features,
            columns, shares, neighbours, followers, slots, pairs, own_rows[:had], own_inputs, scores[n],
        )  # fmt: skip


def _all_items(
    head: HeadTables, constant: np.float32, active: np.float32, lasts: Ints, weights: Floats, preferred: Floats,
    usual: Floats, features: Ints, columns: Singles, shares: Singles, neighbours: Slots, followers: Slots,
    slots: SmallInts, pairs: Singles, own_items: Ints, own: Singles, scores: Singles,
) -> None:  # fmt: skip
    """The same for one user: last items with weights, preferences, further inputs of pairs, own items with inputs.

    Items that met one of the user's last ones, and own items, are scored with co-occurrence, all others without it.
    """
    many, more, units = scores.size, pairs.shape[0], head.output.shape[1]
    kinds = 3 + (2 if followers.ids.shape[1] > 0 else 0)
    most, first = lasts.size * neighbours.ids.shape[1] + followers.ids.shape[1], _fours(MET + more)
    most, had = most + own_items.size, own.shape[1]
    own_at = np.full(most, -1, np.int64)
    met, sums, dots = np.empty(most, np.int64), np.empty((kinds, most)), np.empty(most, np.float32)
    block, said = np.zeros((first + _fours(kinds + had), _LANES), np.float32), np.empty((1, _LANES), np.float32)
    deep = np.empty((units, _LANES), np.float32)
    linear, hidden = np.zeros((1, block.shape[0]), np.float32), np.zeros((units, block.shape[0]), np.float32)
    shift = np.empty((units, 1), np.float32)
    lacks = constant - _personal(head.linear[0], active, preferred, usual, features, kinds, more, had, linear[0])
    linear[0, 0] += _ONE  # the personal score stands beside the head
    linear[0, 1] += _ONE
    for u in range(units):
        shift[u, 0] = head.shift[u, 0] + _personal(
            head.hidden[u], active, preferred, usual, features, kinds, more, had, hidden[u]
        )
    alone, hidden_alone = np.ascontiguousarray(linear[:, :first]), np.ascontiguousarray(hidden[:, :first])
    found = _co_occurrence(neighbours, lasts, weights, slots, met, sums, 0, 0)
    if kinds > 3:
        found = _co_occurrence(followers, lasts[:1], weights[:1], slots, met, sums, 3, found)
    found = _with_own(own_items, slots, met, sums, own_at, found)
    some = _MANY_MET * found > many
    others = _others(slots[:many]) if some else np.empty(0, np.int64)
    for c in range(found):
        dots[c] = scores[met[c]]
        slots[met[c]] = _FREE
    for start in range(0, others.size, _LANES):
        items = others[start : start + _LANES]
        _put_items(items, scores, columns, pairs, block)
        said[:] = -lacks
        _forward(block, items.size, alone, hidden_alone, shift, head.output, deep, said)
        for lane in range(items.size):
            scores[items[lane]] = said[0, lane]
    for start in range(0, 0 if some else many, _LANES):
        width = min(_LANES, many - start)
        block[0, :width] = scores[start : start + width]
        for f in range(columns.shape[0]):
            block[1 + f, :width] = columns[f, start : start + width]
        for f in range(more):
            block[MET + f, :width] = pairs[f, start : start + width]
        said[:] = -lacks
        _forward(block, _LANES, alone, hidden_alone, shift, head.output, deep, said)
        scores[start : start + width] = said[0, :width]
    for start in range(0, found, _LANES):
        width = min(_LANES, found - start)
        _put_items(met[start : start + width], scores, columns, pairs, block)
        _put_met(met[start : start + width], sums[:, start:], shares, block[first:])
        for lane in range(width):
            block[0, lane] = dots[start + lane]
            _put_own(own, own_at[start + lane], block[first + kinds :, lane])
        said[:] = -lacks
        _forward(block, width, linear, hidden, shift, head.output, deep, said)
        for lane in range(width):
            scores[met[start + lane]] = said[0, lane]


def _with_own(own_items: Ints, slots: SmallInts, met: Ints, sums: Floats, own_at: Ints, found: int) -> int:
    """Columns for the user's own items, too; `own_at` says which of them a column is about."""
    for n in range(own_items.size):
        item = own_items[n]
        if slots[item] == _FREE:
            slots[item], met[found] = found, item
            for kind in range(sums.shape[0]):
                sums[kind, found] = 0
            found += 1
        own_at[slots[item]] = n
    return found


def _put_met(items: Ints, sums: Floats, shares: Singles, block: Singles) -> None:
    """Inputs of co-occurrence, lane by lane."""
    for kind in range(sums.shape[0]):
        share = shares[1 if kind in _DECAYED else 0]
        for lane in range(items.size):
            block[kind, lane] = _ONE + np.float32(sums[kind, lane]) * share[items[lane]]
        for lane in range(items.size):
            block[kind, lane] = log(block[kind, lane])


def _put_own(own: Singles, row: int, out: Singles) -> None:
    for f in range(own.shape[1]):
        out[f] = own[row, f] if row >= 0 else np.float32(0)


def _fours(size: int) -> int:
    """Rounded up to a multiple of four, as many inputs as the forward pass takes at a time."""
    return (size + 3) // 4 * 4


def _personal(
    weights: Singles, active: np.float32, preferred: Floats, usual: Floats, features: Ints, kinds: int, more: int,
    had: int, out: Singles,
) -> np.float32:  # fmt: skip
    """One user's weights: features of items, further inputs of pairs, zeros, co-occurrence, own items; and a constant.

    An input times the user's activity is the input with another weight. Preferences are linear in the items' own
    features, so they change the weights of these.
    """
    first, beside = _fours(MET + more), FOLLOWED + kinds - 3
    for f in range(MET):
        out[f] = weights[f]
    for f in range(more):
        out[MET + f] = weights[beside + f]
    for kind in range(kinds):
        out[first + kind] = weights[MET + kind] if kind < 3 else weights[FOLLOWED + kind - 3]
    out[0] += active * weights[ACTIVE]
    for f in range(2):
        out[2 + ACTIVE_COUNTS[f]] += active * weights[ACTIVE + 1 + f]
    out[first] += active * weights[ACTIVE + 3]
    width, same = preferred.size, 0.0
    for f in range(width):
        weight, suits = weights[beside + more + f], weights[beside + more + width + f] * preferred[f]
        out[features[f]] += np.float32(suits)
        same += weight * preferred[f] - suits * usual[f]
    for f in range(had):
        out[first + kinds + f] = weights[beside + more + 2 * width + f]
    return np.float32(same)


def _keep_highest(values: Floats, many: int, kept: Flags) -> None:
    """Mark the columns with the highest values; of equal ones, the first."""
    best, columns, held = np.empty(many), np.empty(many, np.int64), 0
    for column in range(values.size):
        if held < many or values[column] > best[0]:
            held = _put(best, columns, held, values[column], column)
    for place in range(held):
        kept[columns[place]] = True


def _decayed(counted: Counts, item: int, kind: int) -> float:
    """A count as of now."""
    if item >= counted.first.size or counted.first[item] < 0:
        return 0.0
    idle = (counted.events - counted.last[item]) * counted.rates[kind]
    return float(counted.counts[item, kind] * np.exp2(-idle))


def shortlist(
    user: int,
    rings: Rings,
    counted: Counts,
    neighbours: Slots,
    near: Ints,
    at_large: Ints,
    many: int,
    allowed: Flags,
    seen: PairsSeen,
    slots: SmallInts,
    rows: Ints,
) -> int:
    """Candidates for one user, each once; returns how many.

    They are items that are `near`, those `at_large`, and the `many` that the user's last items met most, by each of
    three ways of counting. Left out are items that are not `allowed` and those that the user has had. `slots` is
    scratch: an EMPTY for each item, before and after.
    """
    lasts, weights = np.empty(LAST, np.int64), np.empty(LAST)
    last = _last_items(rings, counted, user, lasts, weights)
    most = last * neighbours.ids.shape[1] + near.size + at_large.size
    items, sums, kept = np.empty(most, np.int64), np.zeros((3, most)), np.zeros(most, np.bool_)
    found = _co_occurrence(neighbours, lasts[:last], weights[:last], slots, items, sums, 0, 0)
    for column in range(found):
        total = math.sqrt(_decayed(counted, items[column], ALWAYS) + SHRINK)
        sums[0, column] /= total
        sums[1, column] /= total
        sums[2, column] /= math.sqrt(_decayed(counted, items[column], RECENT) + SHRINK_RECENT)
    for kind in range(3):
        _keep_highest(sums[kind, :found], many, kept)
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
        if not _holds(seen, np.int64(user), item):
            rows[count] = item
            count += 1
    return count
