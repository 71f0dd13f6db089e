"""The way there: predict and learn batch by batch, and record what is overwritten."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.meta_training.forms import (
    ABSENT,
    LEAST_LOSS,
    LN2,
    MOST_LOG_RATE,
    UNPREDICTED,
    MetaTrainingRates,
    MetaTrainingRows,
    MetaTrainingStream,
    Numbers,
    Tape,
)
from melon.types import Floats, Ints


def dot(one: Numbers, other: Numbers) -> float:
    total: float = one[0] * other[0]
    for t in range(1, one.size):
        total += one[t] * other[t]
    return total


def decayed_to(idle: int, halvings: float) -> float:
    """The decay factor after an idle time."""
    return math.exp(-LN2 * idle * halvings)


def softmax(scores: Floats, temperature: float, chances: Floats) -> float:
    """The chances of scores, the item's first, at a temperature; returns log(1 + Σ exp(τ (s_c − s_0)))."""
    most, total = float(scores[0]), 0.0
    for c in range(1, scores.size):
        most = max(most, float(scores[c]))
    for c in range(scores.size):
        chances[c] = math.exp(temperature * (scores[c] - most))
        total += chances[c]
    for c in range(scores.size):
        chances[c] /= total
    return temperature * (most - float(scores[0])) + math.log(total)


def knot(knots: Floats, at: float) -> int:
    """How many knots lie below: 0 before the first, all behind the last."""
    place = 0
    while place < knots.size and knots[place] < at:
        place += 1
    return place


def _meet(replay: MetaTrainingStream, rows: MetaTrainingRows, tape: Tape, n: int) -> None:
    """Dot products of an interaction's user and its candidates."""
    for c in range(replay.candidates.shape[1]):
        item = replay.candidates[n, c]
        tape.dots[n, c] = 0.0
        if item > ABSENT and replay.known[n]:
            tape.dots[n, c] = dot(rows.users[replay.users[n]], rows.items[item])


def score(
    replay: MetaTrainingStream,
    rows: MetaTrainingRows,
    rates: MetaTrainingRates,
    tape: Tape,
    n: int,
    now: int,
    scores: Floats,
) -> None:
    """Scores of an interaction's candidates as their rows stand."""
    decays = rates.halvings[0] > 0 or rates.halvings[1] > 0
    for c in range(scores.size):
        item = replay.candidates[n, c]
        scores[c] = 0.0
        if item > ABSENT and decays:
            idle = now - rows.touched[item]
            scores[c] = tape.dots[n, c] * decayed_to(idle, rates.halvings[0])
            scores[c] += rows.bias[item] * decayed_to(idle, rates.halvings[1])
        elif item > ABSENT:
            scores[c] = tape.dots[n, c] + rows.bias[item]


def decay_factor(rows: MetaTrainingRows, rates: MetaTrainingRates, row: int, idle: int, left: Numbers) -> None:
    """Fade an item's row by its idle time; `left` is what is left of its vector and of its bias."""
    left[0], left[1] = decayed_to(idle, rates.halvings[0]), decayed_to(idle, rates.halvings[1])
    for d in range(rows.items.shape[1]):
        rows.items[row, d] *= left[0]
    rows.bias[row] *= left[1]


def _see(replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, n: int) -> None:
    """The loss of an interaction on decayed rows, how much each negative counts in it, and its log rates."""
    own, negatives = rows.users[replay.users[n]], replay.items.shape[1] - 1
    first = replay.items[n, 0]
    score, loss = dot(own, rows.items[first]) + rows.bias[first], 0.0
    for k in range(negatives):
        item = replay.items[n, 1 + k]
        over = np.float64(dot(own, rows.items[item]) + rows.bias[item] - score)
        small = math.exp(-abs(over))
        loss += (over if over > 0 else over * 0.0) + math.log1p(small)  # NaN stays NaN
        tape.pull[n, k] = (1.0 if over >= 0 else small) / (1.0 + small) / negatives
    tape.loss[n] = loss / negatives
    at = math.log(loss / negatives + LEAST_LOSS)
    place = knot(rates.knots, at)
    for s in range(replay.roles.size):
        role = replay.roles[s]
        if place == 0:
            spline = rates.splines[role, 0]
        else:
            spline = rates.splines[role, place - 1]
            if place < rates.knots.size:
                spline += rates.slopes[role, place] * (at - rates.knots[place - 1])
        tape.logs[n, s] = min(rates.base[n, s] + spline, MOST_LOG_RATE)


def widest(ends: Ints) -> int:
    """The most distinct rows of a batch."""
    most = int(ends[0])
    for t in range(1, ends.size):
        most = max(most, int(ends[t] - ends[t - 1]))
    return most


def _overwrite(
    replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, t: int, left: Numbers
) -> None:
    """Record the rows of a batch before it is learned, and decay those of items."""
    for r in range(replay.user_ends[t - 1] if t > 0 else 0, replay.user_ends[t]):
        tape.users[r, :] = rows.users[replay.user_rows[r]]
    for r in range(replay.item_ends[t - 1] if t > 0 else 0, replay.item_ends[t]):
        row = replay.item_rows[r]
        tape.items[r, :] = rows.items[row]
        tape.bias[r], tape.idle[r] = rows.bias[row], replay.now[t] - rows.touched[row]
        rows.touched[row] = replay.now[t]
        decay_factor(rows, rates, row, tape.idle[r], left)


def _step(
    replay: MetaTrainingStream, rows: MetaTrainingRows, tape: Tape, n: int,
    weight: Numbers, to_user: Numbers, to_items: Numbers,
    to_bias: Numbers,
) -> None:  # fmt: skip
    """Add an interaction's steps to those of the batch's rows."""
    own, at, negatives = rows.users[replay.users[n]], replay.items_at[n], tape.pull.shape[1]
    vector, to_taken = rows.items[replay.items[n, 0]], to_items[at[0]]
    for k in range(negatives):
        other, to_other, pull = rows.items[replay.items[n, 1 + k]], to_items[at[1 + k]], tape.pull[n, k]
        user_step, taken_step, other_step = weight[0] * pull, weight[1] * pull, weight[2 + k] * pull
        for d in range(own.size):
            to_user[d] += user_step * (vector[d] - other[d])
            to_taken[d] += taken_step * own[d]
            to_other[d] -= other_step * own[d]
        to_bias[at[0]] += weight[2 + negatives] * pull
        to_bias[at[1 + k]] -= weight[3 + negatives + k] * pull


def move(keep: Numbers, row: Numbers, by: Numbers) -> None:
    for d in range(row.size):
        row[d] = keep * row[d] + by[d]


def forward(
    replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, temperature: float
) -> float:
    """Predict and learn every batch; the rows become those after the last. Returns the summed loss of predictions."""
    to_users, to_items = tape.users[: widest(replay.user_ends)].copy(), tape.items[: widest(replay.item_ends)].copy()
    to_bias, weight = tape.bias[: len(to_items)].copy(), tape.logs[0].copy()
    keep, left = 1 - rates.decay, rates.decay.copy()
    scores, chances, total = np.empty(replay.candidates.shape[1]), np.empty(replay.candidates.shape[1]), 0.0
    first, user_0, item_0 = 0, 0, 0
    for t in range(replay.ends.size):
        last, user_1, item_1 = replay.ends[t], replay.user_ends[t], replay.item_ends[t]
        for n in range(first, last):
            if replay.candidates[n, 0] > UNPREDICTED:
                _meet(replay, rows, tape, n)
                score(replay, rows, rates, tape, n, replay.now[t], scores)
                total += softmax(scores, temperature, chances)
        _overwrite(replay, rows, rates, tape, t, left)
        to_users[:, :], to_items[:, :], to_bias[:] = 0, 0, 0
        for n in range(first, last):
            _see(replay, rows, rates, tape, n)
            for s in range(weight.size):
                weight[s] = math.exp(tape.logs[n, s])
            _step(replay, rows, tape, n, weight, to_users[replay.user_at[n]], to_items, to_bias)
        for r in range(user_0, user_1):
            move(keep[0], rows.users[replay.user_rows[r]], to_users[r - user_0])
        for r in range(item_0, item_1):
            row = replay.item_rows[r]
            move(keep[1], rows.items[row], to_items[r - item_0])
            rows.bias[row] = keep[2] * rows.bias[row] + to_bias[r - item_0]
        first, user_0, item_0 = last, user_1, item_1
    return total
