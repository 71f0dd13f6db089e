"""Online steps with learned rates on a factorised score: what is known of each touch, and the step."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.factor import StoredRows, TouchedRows, _found, _halved, _moved, _read, _shrunk
from melon.kernels.melon.rates import Line, RateModel, rate_line, see_line
from melon.kernels.types import IntTable, SingleCube, SingleTable
from melon.types import Floats, Ints, Singles


class LineStatistics(NamedTuple):
    """What facts are made of: partners met, last touches, recent counts and the event at which they were counted.

    `counts` has a row of 4 for each item of a line. Its last two are that event in two parts, for float32 holds no
    number of events exactly.
    """

    users_met: Ints
    items_met: IntTable
    users_touched: Ints
    items_touched: Ints
    now: int
    counts: SingleTable
    half_lives: Floats
    events: int


#: What the first part of an event's number counts.
_PART = float(1 << 20)


def _times(rows: Ints, row: int) -> int:
    """How often a row stands in a sorted list."""
    return int(np.searchsorted(rows, row, side="right") - np.searchsorted(rows, row))


def line_facts(users: Ints, items: IntTable, known: LineStatistics, out: SingleCube) -> None:
    """Facts of each touch as it is before the batch (`melon.strategies.melon.rates.row_facts`): n × slots × facts."""
    (lines, width), sorted_users, sorted_items = items.shape, np.sort(users), np.sort(items.reshape(-1))
    for n in range(lines):
        of_user, of_taken = known.users_met[n], known.items_met[n, 0]
        for slot in range(width + 1):
            user, c = slot == 0, max(slot - 1, 0)
            met, partner = (of_user, of_taken) if user else (known.items_met[n, c], of_user)
            idle = known.now - (known.users_touched[users[n]] if user else known.items_touched[items[n, c]])
            times = _times(sorted_users, users[n]) if user else _times(sorted_items, items[n, c])
            counted, facts = known.counts[n * width + c], out[n, slot]
            age = known.events - (np.float64(counted[2]) * _PART + np.float64(counted[3]))
            facts[0], facts[1] = math.log1p(met) / 3 - 1, 1.0 if met == 0 else 0.0
            facts[2], facts[3] = math.log1p(max(idle, 0)) / 10, math.log(times) / 3
            facts[4] = math.log1p(counted[0] * _halved(age, known.half_lives[0])) / 3
            facts[5] = math.log1p(counted[1] * _halved(age, known.half_lives[1])) / 3
            facts[6] = math.log1p(partner) / 3 - 1


def _fill(line: Line, own: Singles, vectors: Singles, biases: Singles, named: Ints) -> None:
    """Copy an interaction's rows."""
    theta = line.theta
    for m in range(own.size):
        theta[0, m] = own[m]
    for c in range(named.size):
        row = named[c]
        for m in range(own.size):
            theta[1 + c, m] = vectors[row, m]
        line.bias[c] = biases[row, 0]


def _take(row: Singles, weights: Singles, gradient: Singles) -> None:
    for m in range(row.size):
        row[m] -= weights[m] * gradient[m]


def rated_step(
    users: Ints, items: IntTable, facts: SingleCube, model: RateModel, line: Line, decay: Singles, now: int,
    stored_users: StoredRows, stored_items: StoredRows, stored_bias: StoredRows, touched_users: TouchedRows,
    touched_items: TouchedRows, new_users: SingleTable, new_items: SingleTable, new_bias: SingleTable,
) -> tuple[int, int, float, float, float, float]:  # fmt: skip
    """As `melon.kernels.factor.plain_step`, with a rate of the model for each gradient of each line."""
    of_user, of_item, n_users, n_items = _found(users, items, touched_users, touched_items)
    old_users = _read(stored_users, now, touched_users.rows[:n_users])
    old_items = _read(stored_items, now, touched_items.rows[:n_items])
    old_bias = _read(stored_bias, now, touched_items.rows[:n_items])
    _shrunk(old_users, decay[0], new_users)
    _shrunk(old_items, decay[1], new_items)
    _shrunk(old_bias, decay[2], new_bias)
    in_all = 0.0
    for n in range(users.size):
        _fill(line, old_users[of_user[n]], old_items, old_bias, of_item[n])
        loss = see_line(line)
        in_all += loss
        rate_line(model, facts[n], loss, line)
        _take(new_users[of_user[n]], line.weights[0], line.gradient[0])
        for c in range(items.shape[1]):
            at = of_item[n, c]
            _take(new_items[at], line.weights[1 + c], line.gradient[1 + c])
            new_bias[at, 0] -= line.bias_weights[c] * line.slopes[c]
    moved = _moved(old_users, new_users[:n_users]), _moved(old_items, new_items[:n_items])
    return n_users, n_items, in_all / users.size, moved[0], moved[1], _moved(old_bias, new_bias[:n_items])
