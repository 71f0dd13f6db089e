"""A factorised score's arithmetic as compiled loops: one pass over the rows that a batch names, without copies."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.types import (
    DOUBLE_TABLE,
    DOUBLES,
    INT,
    INT_TABLE,
    INTS,
    RANGE,
    ROWS,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SINGLES,
    SMALL_INTS,
    Signature,
)
from melon.types import Floats, Ints, Singles, SmallInts

#: Counts are dated in two parts, for float32 holds no number of events exactly.
_PART = float(1 << 20)

# fmt: off
SIGNATURES: dict[str, Signature] = {
    "pairwise_evidence": (INTS, INT_TABLE, *[SINGLE_TABLE] * 3, SINGLES, SINGLE_TABLE, SINGLE_TABLE, SINGLE_CUBE),
    "scores": (INTS, INT_TABLE, RANGE, *[SINGLE_TABLE] * 5),
    "plain_step": (
        INTS, INT_TABLE, SINGLE_TABLE, DOUBLES, DOUBLE_TABLE, SINGLES, INT, *ROWS, *ROWS, *ROWS, SMALL_INTS, SMALL_INTS,
        INTS, INTS, *[SINGLE_TABLE] * 3,
    ),
    "line_logs": (
        INTS, INT_TABLE, INTS, INT_TABLE, INTS, INTS, INT, SINGLE_TABLE, DOUBLES, INT, DOUBLE_TABLE, DOUBLE_TABLE,
    ),
    "exchange": (INTS, SINGLE_TABLE, INTS, SINGLE_TABLE, INTS),
    "dots": (INT_TABLE, INTS, SINGLES, *[SINGLE_TABLE] * 3),
}
# fmt: on


def _dot(one: Singles, other: Singles) -> np.float32:
    total = np.float32(0)
    for t in range(one.size):
        total += one[t] * other[t]
    return total


def pairwise_evidence(
    users: Ints,
    items: Ints,
    user_factors: Singles,
    item_factors: Singles,
    item_bias: Singles,
    losses: Singles,
    slopes: Singles,
    to_user: Singles,
    to_items: Singles,
) -> None:
    """softplus(s⁻ − s⁺), averaged over negatives, its slope by each score, and its gradients (docs/methods.md 2.1)."""
    width, dim = items.shape[1], user_factors.shape[1]
    for n in range(users.size):
        own, back = user_factors[users[n]], to_user[n]
        first = _dot(own, item_factors[items[n, 0]]) + item_bias[items[n, 0], 0]
        loss, down = 0.0, 0.0
        for c in range(1, width):
            margin = np.float64(_dot(own, item_factors[items[n, c]]) + item_bias[items[n, c], 0] - first)
            small = math.exp(-abs(margin))
            loss += (margin if margin > 0 else margin * 0.0) + math.log1p(small)  # NaN stays NaN
            slope = (1.0 if margin >= 0 else small) / (1.0 + small) / (width - 1)
            slopes[n, c] = slope
            down += slope
        losses[n], slopes[n, 0] = loss / (width - 1), -down
        for d in range(dim):
            back[d] = 0
        for c in range(width):
            slope, vector, to_item = slopes[n, c], item_factors[items[n, c]], to_items[n, c]
            for d in range(dim):
                back[d] += slope * vector[d]
                to_item[d] = slope * own[d]


def _placed(at: SmallInts, rows: Ints, count: int, row: np.int64) -> int:
    """The place of a row among the first `count` rows, or `count`, which it then takes; `at` needs no start value."""
    place = int(at[row])
    if place < 0 or place >= count or rows[place] != row:
        at[row], rows[count], place = count, row, count
    return place


def _read(values: Singles, touched: Ints, half_life: float, now: int, rows: Ints, count: int) -> Singles:
    """A copy of rows as they are now, faded."""
    out = np.empty((count, values.shape[1]), dtype=np.float32)
    for place in range(count):
        row = rows[place]
        left = np.float32(1)
        if half_life > 0 and touched[row] < now:
            left = np.float32(np.exp2((touched[row] - now) / half_life))
        for d in range(values.shape[1]):
            out[place, d] = left * values[row, d]
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


def _rated(weights: Singles, knots: Floats, hats: Floats, loss: float, out: Singles) -> None:
    """Weights of a line's columns with what its loss adds."""
    if not knots.size:
        out[:] = weights
        return
    at, right = min(max(math.log(loss + 1e-8), knots[0]), knots[-1]), 1
    while knots[right] < at:
        right += 1
    part = (at - knots[right - 1]) / (knots[right] - knots[right - 1])
    for column in range(out.size):
        hat = hats[column, right - 1] * (1 - part) + hats[column, right] * part
        out[column] = min(weights[column] * math.exp(hat), math.exp(3.0))


def plain_step(
    users: Ints, lines: Ints, weights: Singles, knots: Floats, hats: Floats, decay: Singles, now: int,
    user_factors: Singles, users_touched: Ints, users_half_life: float,
    item_factors: Singles, items_touched: Ints, items_half_life: float,
    item_bias: Singles, bias_touched: Ints, bias_half_life: float,
    user_at: SmallInts, item_at: SmallInts,
    user_rows: Ints, item_rows: Ints, new_users: Singles, new_items: Singles, new_bias: Singles,
) -> tuple[int, int, float, float, float, float]:  # fmt: skip
    """One step on the pairwise loss of a batch (docs/methods.md 2.1, 3.1), written beside the tables.

    Line x takes item lines[x, 0] and leaves the others. Its gradient on the user counts weights[x, 0] times, that on
    the vector of its item c weights[x, 1 + c] times, and that on its bias weights[x, 1 + items + c] times. With knots,
    these grow by e^hat, at most to e³: the hats (columns × knots) are linear in the logarithm of the line's loss
    (4.12). Each touched row loses the share decay[table] of itself. Returns how many users and items are touched, the
    mean loss, and how far the rows of each table have moved in all.
    """
    (lines_count, width), dim = lines.shape, user_factors.shape[1]
    of_user, of_item = np.empty(lines_count, np.int64), np.empty((lines_count, width), np.int64)
    n_users, n_items = 0, 0
    for n in range(lines_count):
        of_user[n] = _placed(user_at, user_rows, n_users, users[n])
        n_users = max(n_users, of_user[n] + 1)
        for c in range(width):
            of_item[n, c] = _placed(item_at, item_rows, n_items, lines[n, c])
            n_items = max(n_items, of_item[n, c] + 1)
    old_users = _read(user_factors, users_touched, users_half_life, now, user_rows, n_users)
    old_items = _read(item_factors, items_touched, items_half_life, now, item_rows, n_items)
    old_bias = _read(item_bias, bias_touched, bias_half_life, now, item_rows, n_items)
    _shrunk(old_users, decay[0], new_users)
    _shrunk(old_items, decay[1], new_items)
    _shrunk(old_bias, decay[2], new_bias)
    total, slopes, rates = 0.0, np.empty(width, np.float32), np.empty(weights.shape[1], np.float32)
    for n in range(lines_count):
        own = old_users[of_user[n]]
        first = _dot(own, old_items[of_item[n, 0]]) + old_bias[of_item[n, 0], 0]
        loss, down = 0.0, 0.0
        for c in range(1, width):
            margin = np.float64(_dot(own, old_items[of_item[n, c]]) + old_bias[of_item[n, c], 0] - first)
            small = math.exp(-abs(margin))
            loss += (margin if margin > 0 else margin * 0.0) + math.log1p(small)  # NaN stays NaN
            slope = (1.0 if margin >= 0 else small) / (1.0 + small) / (width - 1)
            slopes[c] = slope
            down += slope
        slopes[0] = -down
        total += loss / (width - 1)
        _rated(weights[n], knots, hats, loss / (width - 1), rates)
        user = new_users[of_user[n]]
        for c in range(width):
            at = of_item[n, c]
            on_user, on_item = slopes[c] * rates[0], slopes[c] * rates[1 + c]
            vector, item = old_items[at], new_items[at]
            for d in range(dim):
                user[d] -= on_user * vector[d]
            for d in range(dim):
                item[d] -= on_item * own[d]
            new_bias[at, 0] -= slopes[c] * rates[1 + width + c]
    moved = _moved(old_users, new_users[:n_users]), _moved(old_items, new_items[:n_items])
    return n_users, n_items, total / lines_count, moved[0], moved[1], _moved(old_bias, new_bias[:n_items])


def _times(rows: Ints, row: int) -> int:
    """How often a row stands in a sorted list."""
    return int(np.searchsorted(rows, row, side="right") - np.searchsorted(rows, row))


def line_logs(
    users: Ints, lines: Ints, users_met: Ints, items_met: Ints, users_touched: Ints, items_touched: Ints, now: int,
    counts: Singles, half_lives: Floats, events: int, weights: Floats, out: Floats,
) -> None:  # fmt: skip
    """Log rates of lines before hats (docs/methods.md 4.12): n × columns, of users, items' vectors and their biases.

    `counts` (items of lines × 4) are recent counts and, in two parts, the event at which they were counted. `weights`
    are columns × (constant, age, new, idle, touches, two rates, partner).
    """
    (n_lines, width), inputs = lines.shape, np.empty(8)
    sorted_users, sorted_items = np.sort(users), np.sort(lines.reshape(-1))
    inputs[0] = 1.0
    for n in range(n_lines):
        for slot in range(width + 1):
            user, c = slot == 0, max(slot - 1, 0)
            met, partner = (users_met[n], items_met[n, 0]) if user else (items_met[n, c], users_met[n])
            idle = now - (users_touched[users[n]] if user else items_touched[lines[n, c]])
            times = _times(sorted_users, users[n]) if user else _times(sorted_items, lines[n, c])
            counted = counts[n * width + c]
            age = events - (np.float64(counted[2]) * _PART + np.float64(counted[3]))
            inputs[1], inputs[2] = math.log1p(met) / 3 - 1, 1.0 if met == 0 else 0.0
            inputs[3], inputs[4] = math.log1p(max(idle, 0)) / 10, math.log(times) / 3
            inputs[5] = math.log1p(counted[0] * math.pow(2.0, -age / half_lives[0])) / 3
            inputs[6] = math.log1p(counted[1] * math.pow(2.0, -age / half_lives[1])) / 3
            inputs[7] = math.log1p(partner) / 3 - 1
            for column in range(slot, slot + (1 if user else width + 1), width):
                total = 0.0
                for k in range(8):
                    total += weights[column, k] * inputs[k]
                out[n, column] = total


def exchange(rows: Ints, block: Singles, stamps: Ints, values: Singles, touched: Ints) -> None:
    """Exchange stored rows and their last touches with those of a block: once to write it, again to take it back."""
    for n in range(rows.size):
        row = rows[n]
        stamps[n], touched[row] = touched[row], stamps[n]
        for d in range(values.shape[1]):
            before = values[row, d]
            values[row, d] = block[n, d]
            block[n, d] = before


def scores(
    users: Ints,
    items: Ints,
    known: tuple[int, int],
    user_factors: Singles,
    item_factors: Singles,
    user_bias: Singles,
    item_bias: Singles,
    out: Singles,
) -> None:
    """p_u · q_i + b_u + b_i from storage; rows from `known` on are absent and read as the zeros that stand there."""
    for n in range(users.size):
        user = min(users[n], known[0])
        own, bias = user_factors[user], user_bias[user, 0]
        for c in range(items.shape[1]):
            item = min(items[n, c], known[1])
            out[n, c] = _dot(own, item_factors[item]) + item_bias[item, 0] + bias


def dots(named: Ints, places: Ints, left: Singles, factors: Singles, values: Singles, out: Singles) -> None:
    """Each line's vector times the rows that it names, which stand at places of storage and have faded."""
    for n in range(named.shape[0]):
        for c in range(named.shape[1]):
            row = named[n, c]
            out[n, c] = left[row] * _dot(factors[n], values[places[row]])
