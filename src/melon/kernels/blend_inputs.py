"""The inputs of the blend's head as a kernel: straight from rows and streaming state (docs/methods.md 8.5).

It stands behind `factor`, `neighbours` and `blend_head`, whose functions it uses.
"""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.blend_head import (
    ACTIVE,
    ACTIVE_COUNTS,
    ALWAYS,
    COUNTS,
    FOLLOWED,
    LAST,
    MET,
    RECENT,
    SHRINK,
    SHRINK_RECENT,
    Counts,
    Rings,
    Rows,
    Slots,
    _active,
    _last_items,
)
from melon.kernels.factor import _dot, _placed
from melon.kernels.neighbours import add_up
from melon.kernels.types import IntTable, SingleCube
from melon.types import Floats, Ints, Singles, SmallInts


def _left(table: Rows, row: int) -> np.float32:
    """The decay factor of a row."""
    if table.half_life > 0 and table.touched[row] < table.now:
        return np.float32(np.exp2((table.touched[row] - table.now) / table.half_life))
    return np.float32(1)


def _of_items(items: Ints, count: int, counted: Counts) -> tuple[Singles, Floats]:
    """Logarithms of decayed counts, of idle time and of age, and what the items' co-occurrence is divided by."""
    columns, divisors = np.zeros((count, COUNTS + 2), np.float32), np.empty((count, 2))
    for n in range(count):
        item, total, recent = items[n], 0.0, 0.0
        idle, age = np.int64(counted.events), np.int64(counted.events)
        if item < counted.first.size and counted.first[item] >= 0:
            idle, age = counted.events - counted.last[item], counted.events - counted.first[item]
            total = counted.counts[item, ALWAYS]
            for k in range(COUNTS):
                decayed = counted.counts[item, k] * np.exp2(-idle * counted.rates[k])
                columns[n, k] = math.log(1.0 + decayed)
                if k == RECENT:
                    recent = decayed
        columns[n, COUNTS], columns[n, COUNTS + 1] = math.log(1.0 + idle), math.log(1.0 + age)
        divisors[n, 0], divisors[n, 1] = math.sqrt(total + SHRINK), math.sqrt(recent + SHRINK_RECENT)
    return columns, divisors


def _put_rows(
    own: Singles, own_left: np.float32, item_rows: Rows, bias_rows: Rows, item: int, active: np.float32, line: Singles
) -> None:
    """The inputs of a pair that come from rows."""
    row = min(item, item_rows.rows)
    left = own_left * _left(item_rows, row)
    line[0] = left * _dot(own, item_rows.values[row])
    line[1] = _left(bias_rows, row) * bias_rows.values[row, 0]
    line[ACTIVE] = active * line[0]


def row_inputs(
    users: Ints, lines: IntTable, rings: Rings, user_rows: Rows, item_rows: Rows, bias_rows: Rows, out: SingleCube
) -> None:
    """Those of the `inputs` that come from rows; the others are left alone."""
    for n in range(lines.shape[0]):
        user = min(users[n], user_rows.rows)
        own, own_left, active = user_rows.values[user], _left(user_rows, user), _active(rings, users[n])
        for c in range(lines.shape[1]):
            _put_rows(own, own_left, item_rows, bias_rows, lines[n, c], active, out[n, c])


def inputs(
    users: Ints, lines: IntTable, rings: Rings, counted: Counts, neighbours: Slots, followers: Slots,
    user_rows: Rows, item_rows: Rows, bias_rows: Rows,
    item_at: SmallInts, columns: SmallInts, kinds: int, out: SingleCube,
) -> None:  # fmt: skip
    """The head's inputs of lines of items n × c, from storage.

    Rows that a table does not have read as the zeros that stand behind its last one. `item_at` is scratch with a number
    for each item; `columns` has an EMPTY for each, before and after. `kinds` says how many inputs of transitions there
    are; what stands behind them in `out` is left alone.
    """
    n_lines, width = lines.shape
    places, distinct, n_items = np.empty((n_lines, width), np.int64), np.empty(lines.size, np.int64), 0
    lasts, weights = np.full((n_lines, LAST), -1, np.int64), np.zeros((n_lines, LAST))
    for n in range(n_lines):
        for c in range(width):
            places[n, c] = _placed(item_at, distinct, n_items, lines[n, c])
            n_items = max(n_items, places[n, c] + 1)
        _last_items(rings, counted, users[n], lasts[n], weights[n])
    features, divisors = _of_items(distinct, n_items, counted)
    sums = add_up(neighbours.ids, neighbours.counts, neighbours.recent, lasts, weights, lines, neighbours.now, columns)
    transitions = followers.ids.shape[0] > 0 and kinds > 0
    if transitions:
        last_ones, last_weights = np.ascontiguousarray(lasts[:, :1]), np.ascontiguousarray(weights[:, :1])
        followed = add_up(
            followers.ids, followers.counts, followers.recent, last_ones, last_weights, lines, followers.now, columns
        )
    else:
        followed = sums
    for n in range(n_lines):
        user = min(users[n], user_rows.rows)
        own, own_left = user_rows.values[user], _left(user_rows, user)
        active = _active(rings, users[n])
        for c in range(width):
            at, line = places[n, c], out[n, c]
            _put_rows(own, own_left, item_rows, bias_rows, lines[n, c], active, line)
            for f in range(COUNTS + 2):
                line[2 + f] = features[at, f]
            for kind in range(3):  # most pairs have no neighbours in common, and log(1 + 0) is 0
                both = sums[kind, n, c]
                line[MET + kind] = math.log(1.0 + both / divisors[at, kind // 2]) if both != 0 else 0.0
            for f in range(2):
                line[ACTIVE + 1 + f] = active * line[2 + ACTIVE_COUNTS[f]]
            line[ACTIVE + 3] = active * line[MET]
            for kind in range(kinds):
                both = followed[2 * kind, n, c] if transitions else 0.0
                line[FOLLOWED + kind] = math.log(1.0 + both / divisors[at, kind]) if both != 0 else 0.0
