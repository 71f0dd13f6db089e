"""Kernels of a factorised score: scores, the pairwise loss (docs/methods.md 2.1), online steps and pre-training."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.types import IntTable, SingleTable
from melon.types import Ints, Singles, SmallInts


class StoredRows(NamedTuple):
    """A table of rows (`Table.arrays`): values, last touches, and the half-life of idle rows, 0 without time decay."""

    values: SingleTable
    touched: Ints
    half_life: float


class TouchedRows(NamedTuple):
    """Distinct rows that lines name, as `plain_step` finds them; `places` (a number for each row) needs no start."""

    places: SmallInts
    rows: Ints


_F0, _F1 = np.float32(0), np.float32(1)


def _dot(one: Singles, other: Singles) -> np.float32:
    total = _F0
    for t in range(one.size):
        total += one[t] * other[t]
    return total


def _halved(idle: float, half_life: float) -> float:
    """What time decay leaves: 2^(−idle / half-life)."""
    return float(np.exp2(-idle / half_life))


def _pairwise(scores: Singles, slopes: Singles) -> float:
    """softplus(s⁻ − s⁺), averaged over negatives, and its slope by each score; the item taken stands first."""
    loss, down, share = 0.0, 0.0, 1.0 / (scores.size - 1)
    for c in range(1, scores.size):  # sums have a loop of their own (decision 13)
        margin = np.float64(scores[c] - scores[0])
        small = math.exp(-abs(margin))
        loss += (margin if margin > 0 else margin * 0.0) + math.log1p(small)  # NaN stays NaN
        down += (1.0 if margin >= 0 else small) / (1.0 + small) * share
    slopes[0] = -down
    for c in range(1, scores.size):
        margin = np.float64(scores[c] - scores[0])
        small = math.exp(-abs(margin))
        slopes[c] = (1.0 if margin >= 0 else small) / (1.0 + small) * share
    return loss * share


def _compare(own: Singles, vectors: Singles, biases: Singles, named: Ints, scores: Singles) -> None:
    """Scores of a line's items, less that of the item taken."""
    first = _dot(own, vectors[named[0]]) + biases[named[0], 0]
    scores[0] = 0
    for c in range(1, named.size):
        scores[c] = _dot(own, vectors[named[c]]) + biases[named[c], 0] - first


def _add(row: Singles, weight: np.float32, direction: Singles) -> None:
    for d in range(row.size):
        row[d] += weight * direction[d]


def _placed(at: SmallInts, rows: Ints, count: int, row: np.int64) -> int:
    """The place of a row among the first `count` rows, or `count`, which it then takes; `at` needs no start value."""
    place = int(at[row])
    if place < 0 or place >= count or rows[place] != row:
        at[row], rows[count], place = count, row, count
    return place


def _read(stored: StoredRows, now: int, rows: Ints) -> Singles:
    """A copy of rows as they are now, after time decay."""
    out = np.empty((rows.size, stored.values.shape[1]), dtype=np.float32)
    for place in range(rows.size):
        row, left = rows[place], _F1
        if stored.half_life > 0 and stored.touched[row] < now:
            left = np.float32(_halved(now - stored.touched[row], stored.half_life))
        for d in range(out.shape[1]):
            out[place, d] = left * stored.values[row, d]
    return out


def _shrunk(old: Singles, decay: np.float32, out: Singles) -> None:
    """Rows as weight decay leaves them."""
    for place in range(old.shape[0]):
        for d in range(old.shape[1]):
            out[place, d] = old[place, d] - decay * old[place, d]


def _moved(old: Singles, new: Singles) -> float:
    """How far rows have moved, added up; not finite where a row is not."""
    total = 0.0
    for place in range(old.shape[0]):
        square = 0.0
        for d in range(old.shape[1]):
            step = np.float64(new[place, d]) - np.float64(old[place, d])
            square += step * step
        total += math.sqrt(square)
    return total


def _found(
    users: Ints, items: Ints, touched_users: TouchedRows, touched_items: TouchedRows
) -> tuple[Ints, Ints, int, int]:
    """Places of lines' users and items among the distinct rows that they name, and how many these are."""
    of_user, of_item = np.empty(users.size, np.int64), np.empty(items.shape, np.int64)
    n_users, n_items = 0, 0
    for n in range(users.size):
        of_user[n] = _placed(touched_users.places, touched_users.rows, n_users, users[n])
        n_users = max(n_users, of_user[n] + 1)
        for c in range(items.shape[1]):
            of_item[n, c] = _placed(touched_items.places, touched_items.rows, n_items, items[n, c])
            n_items = max(n_items, of_item[n, c] + 1)
    return of_user, of_item, n_users, n_items


def plain_step(
    users: Ints, items: IntTable, rate: np.float32, decay: Singles, now: int, stored_users: StoredRows,
    stored_items: StoredRows, stored_bias: StoredRows, touched_users: TouchedRows, touched_items: TouchedRows,
    new_users: SingleTable, new_items: SingleTable, new_bias: SingleTable,
) -> tuple[int, int, float, float, float, float]:  # fmt: skip
    """One step on the pairwise loss of a batch (docs/methods.md 2.1, 3.1), written beside the tables.

    Lines name a user and items n × (1 + negatives), the item taken first. Each touched row loses the share decay[table]
    of itself. Returns how many users and items are touched, the mean loss, and how far the rows of each table have
    moved in all.
    """
    of_user, of_item, n_users, n_items = _found(users, items, touched_users, touched_items)
    width = items.shape[1]
    old_users = _read(stored_users, now, touched_users.rows[:n_users])
    old_items = _read(stored_items, now, touched_items.rows[:n_items])
    old_bias = _read(stored_bias, now, touched_items.rows[:n_items])
    _shrunk(old_users, decay[0], new_users)
    _shrunk(old_items, decay[1], new_items)
    _shrunk(old_bias, decay[2], new_bias)
    scores, slopes, total = np.empty(width, np.float32), np.empty(width, np.float32), 0.0
    for n in range(users.size):
        own = old_users[of_user[n]]
        _compare(own, old_items, old_bias, of_item[n], scores)
        total += _pairwise(scores, slopes)
        for c in range(width):
            at, step = of_item[n, c], -rate * slopes[c]
            _add(new_users[of_user[n]], step, old_items[at])
            _add(new_items[at], step, own)
            new_bias[at, 0] += step
    moved = _moved(old_users, new_users[:n_users]), _moved(old_items, new_items[:n_items])
    return n_users, n_items, total / users.size, moved[0], moved[1], _moved(old_bias, new_bias[:n_items])


def _move(row: Singles, left: np.float32, step: np.float32, direction: Singles) -> None:
    for t in range(row.size):
        row[t] = left * row[t] - step * direction[t]


def _begin(row: Singles, slope: np.float32, direction: Singles) -> None:
    for t in range(row.size):
        row[t] = slope * direction[t]


def pairwise_batches(
    users: Ints, items: IntTable, batch: int, lr: np.float32, l2: np.float32,
    user_factors: SingleTable, item_factors: SingleTable, item_bias: SingleTable,
    user_visits: SmallInts, item_visits: SmallInts,
) -> float:  # fmt: skip
    """Pre-train in batches (docs/methods.md 8.5), each from the rows as they are at its start; returns summed losses.

    A row that a batch names k times is multiplied by 1 − k · lr · l2 when it is first written, and then takes its k
    steps; `user_visits` and `item_visits` hold k meanwhile, and zeros before and after. Users' steps wait in a buffer,
    since items' steps need the rows of users as they were.
    """
    width, dim = items.shape[1], user_factors.shape[1]
    scores, slopes = np.empty(width, np.float32), np.empty((batch, width), np.float32)
    to_users, total = np.empty((batch, dim), np.float32), 0.0
    for start in range(0, users.size, batch):
        size = min(batch, users.size - start)
        for n in range(size):
            user, named = users[start + n], items[start + n]
            own = user_factors[user]
            user_visits[user] += 1
            for c in range(width):
                item_visits[named[c]] += 1
                scores[c] = _dot(own, item_factors[named[c]]) + item_bias[named[c], 0]
            total += _pairwise(scores, slopes[n])
            step = to_users[n]
            _begin(step, slopes[n, 0], item_factors[named[0]])
            for c in range(1, width):
                _move(step, _F1, -slopes[n, c], item_factors[named[c]])
        for n in range(size):
            own, named = user_factors[users[start + n]], items[start + n]
            for c in range(width):
                item = named[c]
                left, step = _F1 - np.float32(item_visits[item]) * lr * l2, lr * slopes[n, c]
                item_visits[item] = 0
                _move(item_factors[item], left, step, own)
                item_bias[item, 0] = left * item_bias[item, 0] - step
        for n in range(size):
            user = users[start + n]
            left = _F1 - np.float32(user_visits[user]) * lr * l2
            user_visits[user] = 0
            _move(user_factors[user], left, lr, to_users[n])
    return total


def _left(rows: StoredRows, row: int, now: int) -> np.float32:
    """What time decay has left of a row."""
    if rows.half_life == 0:
        return _F1
    return np.float32(_halved(float(max(now - rows.touched[row], 0)), rows.half_life))


def scores(
    users: Ints, items: IntTable, known: tuple[int, int], now: int, user_factors: StoredRows, item_factors: StoredRows,
    item_bias: StoredRows, user_bias: StoredRows, out: SingleTable,
) -> None:  # fmt: skip
    """p_u · q_i + b_u + b_i from storage; rows from `known` on are absent and read as the zeros that stand there.

    A table of users' biases without rows is none.
    """
    own = np.empty(user_factors.values.shape[1], np.float32)
    for n in range(users.size):
        user = min(users[n], known[0])
        left = _left(user_factors, user, now)
        for d in range(own.size):
            own[d] = user_factors.values[user, d] * left
        bias = user_bias.values[user, 0] * _left(user_bias, user, now) if user_bias.values.shape[0] else _F0
        for c in range(items.shape[1]):
            item = min(items[n, c], known[1])
            product = _dot(own, item_factors.values[item]) * _left(item_factors, item, now)
            out[n, c] = product + item_bias.values[item, 0] * _left(item_bias, item, now) + bias
