"""The way there: predict and learn batch by batch, and record what is overwritten."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.factor import _dot
from melon.kernels.melon.rates import rate_line, see_line
from melon.kernels.meta_training.forms import (
    ABSENT,
    LN2,
    UNPREDICTED,
    MetaTrainingRows,
    MetaTrainingStep,
    MetaTrainingStream,
    Tape,
)
from melon.kernels.types import Numbers
from melon.types import Floats, Ints


def decayed_to(idle: int, halvings: float) -> float:
    """What time decay leaves after an idle time."""
    return math.exp(-LN2 * idle * halvings) if halvings > 0 else 1.0


def softmax(scores: Floats, temperature: float, chances: Floats) -> float:
    """The chances of scores, the item's first, at a temperature; returns log(1 + Σ exp(τ (s_c − s_0)))."""
    most, in_all = float(scores[0]), 0.0
    for c in range(1, scores.size):
        most = max(most, float(scores[c]))
    for c in range(scores.size):
        chances[c] = math.exp(temperature * (scores[c] - most))
    for c in range(scores.size):
        in_all += chances[c]
    for c in range(scores.size):
        chances[c] /= in_all
    return temperature * (most - float(scores[0])) + math.log(in_all)


def _meet(replay: MetaTrainingStream, rows: MetaTrainingRows, tape: Tape, n: int) -> None:
    """Dot products of an interaction's user and its candidates."""
    for c in range(replay.candidates.shape[1]):
        item = replay.candidates[n, c]
        tape.dots[n, c] = 0.0
        if item > ABSENT and replay.known[n]:
            tape.dots[n, c] = _dot(rows.users[replay.users[n]], rows.items[item])


def score(
    replay: MetaTrainingStream, rows: MetaTrainingRows, halvings: Floats, tape: Tape, n: int, now: int, scores: Floats
) -> None:
    """Scores of an interaction's candidates as their rows stand."""
    decays = halvings[0] > 0 or halvings[1] > 0
    for c in range(scores.size):
        item = replay.candidates[n, c]
        scores[c] = 0.0
        if item > ABSENT and decays:
            idle = now - rows.touched[item]
            scores[c] = tape.dots[n, c] * decayed_to(idle, halvings[0])
            scores[c] += rows.bias[item] * decayed_to(idle, halvings[1])
        elif item > ABSENT:
            scores[c] = tape.dots[n, c] + rows.bias[item]


def decay_item(rows: MetaTrainingRows, halvings: Floats, row: int, idle: int, left: Numbers) -> None:
    """Decay an item's row by its idle time; `left` becomes what is left of its vector and of its bias."""
    left[0], left[1] = decayed_to(idle, halvings[0]), decayed_to(idle, halvings[1])
    for d in range(rows.items.shape[1]):
        rows.items[row, d] *= left[0]
    rows.bias[row] *= left[1]


def widest(ends: Ints) -> int:
    """The most distinct rows of a batch."""
    most = int(ends[0])
    for t in range(1, ends.size):
        most = max(most, int(ends[t] - ends[t - 1]))
    return most


def _overwrite(
    replay: MetaTrainingStream, rows: MetaTrainingRows, halvings: Floats, tape: Tape, t: int, left: Numbers
) -> None:
    """Record the rows of a batch before it is learned, and decay those of items."""
    for r in range(replay.user_ends[t - 1] if t > 0 else 0, replay.user_ends[t]):
        tape.users[r, :] = rows.users[replay.user_rows[r]]
    for r in range(replay.item_ends[t - 1] if t > 0 else 0, replay.item_ends[t]):
        row = replay.item_rows[r]
        tape.items[r, :] = rows.items[row]
        tape.bias[r], tape.idle[r] = rows.bias[row], replay.now[t] - rows.touched[row]
        rows.touched[row] = replay.now[t]
        decay_item(rows, halvings, row, tape.idle[r], left)


def rated(replay: MetaTrainingStream, rows: MetaTrainingRows, step: MetaTrainingStep, n: int) -> float:
    """See an interaction on decayed rows and give it its rates; returns its loss."""
    line = step.line
    line.theta[0, :] = rows.users[replay.users[n]]
    for c in range(replay.items.shape[1]):
        line.theta[1 + c, :] = rows.items[replay.items[n, c]]
        line.bias[c] = rows.bias[replay.items[n, c]]
    loss = see_line(line)
    rate_line(step.model, replay.facts[n], loss, line)
    return loss


def _less(row: Numbers, weights: Numbers, gradient: Numbers) -> None:
    for d in range(row.size):
        row[d] -= weights[d] * gradient[d]


def move(keep: Numbers, row: Numbers, by: Numbers) -> None:
    for d in range(row.size):
        row[d] = keep * row[d] + by[d]


def forward(
    replay: MetaTrainingStream, rows: MetaTrainingRows, step: MetaTrainingStep, tape: Tape, temperature: float
) -> float:
    """Predict and learn every batch; the rows become those after the last. Returns the summed loss of predictions."""
    to_users, to_items = tape.users[: widest(replay.user_ends)].copy(), tape.items[: widest(replay.item_ends)].copy()
    to_bias, keep, left, line = tape.bias[: len(to_items)].copy(), 1 - step.decay, step.decay.copy(), step.line
    scores, chances, in_all = np.empty(replay.candidates.shape[1]), np.empty(replay.candidates.shape[1]), 0.0
    first, user_0, item_0 = 0, 0, 0
    for t in range(replay.ends.size):
        last, user_1, item_1 = replay.ends[t], replay.user_ends[t], replay.item_ends[t]
        for n in range(first, last):
            if replay.candidates[n, 0] > UNPREDICTED:
                _meet(replay, rows, tape, n)
                score(replay, rows, step.halvings, tape, n, replay.now[t], scores)
                in_all += softmax(scores, temperature, chances)
        _overwrite(replay, rows, step.halvings, tape, t, left)
        to_users[:, :], to_items[:, :], to_bias[:] = 0, 0, 0
        for n in range(first, last):
            rated(replay, rows, step, n)
            _less(to_users[replay.user_at[n]], line.weights[0], line.gradient[0])
            for c in range(line.bias.size):
                at = replay.items_at[n, c]
                _less(to_items[at], line.weights[1 + c], line.gradient[1 + c])
                to_bias[at] -= line.bias_weights[c] * line.slopes[c]
        for r in range(user_0, user_1):
            move(keep[0], rows.users[replay.user_rows[r]], to_users[r - user_0])
        for r in range(item_0, item_1):
            row = replay.item_rows[r]
            move(keep[1], rows.items[row], to_items[r - item_0])
            rows.bias[row] = keep[2] * rows.bias[row] + to_bias[r - item_0]
        first, user_0, item_0 = last, user_1, item_1
    return in_all
