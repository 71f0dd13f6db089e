"""Meta-training through a stream as kernels (docs/methods.md 4.12): what they read and write, the way there and back.

The way there predicts and learns batch by batch, and records what is overwritten. The way back restores the rows batch
by batch, and adds up how the loss of all predictions depends on every rate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.factor import _dot
from melon.kernels.melon.rates import Line, RateModel, RateSlopes, line_back, rate_line, see_line
from melon.kernels.types import IntTable, NumberCube, Numbers, NumberTable, SmallIntTable
from melon.types import Flags, Floats, Ints

#: In the place of a candidate: an item without a row, and an item taken that is not predicted.
ABSENT, UNPREDICTED = -1, -2
LN2 = math.log(2.0)


class MetaTrainingStream(NamedTuple):
    """A meta-training stream in compact rows: n interactions with their items (the one taken first) and candidates.

    Batch t ends at interaction `ends[t]` and begins at the moment `now[t]`; the distinct rows that it touches are
    `user_rows` and `item_rows` up to `user_ends[t]` and `item_ends[t]`, and `user_at` and `items_at` are places among
    those. `known` users had a row when they were predicted. A candidate without a row is -1; without an item taken (-2)
    the interaction is not predicted. `facts` (n × slots × facts) are what rates know of each touch.
    """

    ends: Ints
    now: Ints
    users: Ints
    known: Flags
    items: IntTable
    candidates: SmallIntTable
    user_rows: Ints
    user_ends: Ints
    user_at: Ints
    item_rows: Ints
    item_ends: Ints
    items_at: IntTable
    facts: NumberCube


class MetaTrainingRows(NamedTuple):
    """Compact rows: of users, of items, the items' biases, and when each item was last touched."""

    users: NumberTable
    items: NumberTable
    bias: Numbers
    touched: Ints


class MetaTrainingStep(NamedTuple):
    """How steps are made: rates, room for one interaction, what is lost of each table at a touch (users, items,
    biases), and halvings per unit of idle time (items, biases).
    """

    model: RateModel
    line: Line
    decay: Numbers
    halvings: Floats


class Tape(NamedTuple):
    """What a way forward records: touched rows before they changed, and dot products of candidates."""

    users: NumberTable
    items: NumberTable
    bias: Numbers
    idle: Ints
    dots: NumberTable  # n × candidates


class Slopes(NamedTuple):
    """∂J by φ of the rates, by what tables lose at a touch, by log half-lives, and by log τ."""

    rates: RateSlopes
    decay: Floats
    half_lives: Floats
    temperature: Floats


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


def _restore(
    replay: MetaTrainingStream, rows: MetaTrainingRows, halvings: Floats, tape: Tape, t: int, left: Numbers
) -> None:
    """Put the rows of a batch back as they were when it was learned, those of items decayed."""
    for r in range(replay.user_ends[t - 1] if t > 0 else 0, replay.user_ends[t]):
        rows.users[replay.user_rows[r], :] = tape.users[r]
    for r in range(replay.item_ends[t - 1] if t > 0 else 0, replay.item_ends[t]):
        row = replay.item_rows[r]
        rows.items[row, :] = tape.items[r]
        rows.bias[row] = tape.bias[r]
        decay_item(rows, halvings, row, tape.idle[r], left)


def _add(row: Numbers, other: Numbers) -> None:
    for d in range(row.size):
        row[d] += other[d]


def backward(
    replay: MetaTrainingStream,
    rows: MetaTrainingRows,
    step: MetaTrainingStep,
    tape: Tape,
    temperature: float,
    later: MetaTrainingRows,
    slopes: Slopes,
) -> None:
    """Put the rows back as they were before `forward`, and fill in how the summed loss depends on φ.

    `later` and `slopes` are zeros at first; `later` becomes how the loss depends on the rows themselves.
    """
    to_users, to_items = tape.users[: widest(replay.user_ends)].copy(), tape.items[: widest(replay.item_ends)].copy()
    to_bias, keep, left, line = tape.bias[: len(to_items)].copy(), 1 - step.decay, step.decay.copy(), step.line
    scores, chances = np.empty(replay.candidates.shape[1]), np.empty(replay.candidates.shape[1])
    for t in range(replay.ends.size - 1, -1, -1):
        first, user_0, item_0, now = 0, 0, 0, replay.now[t]
        if t > 0:
            first, user_0, item_0 = replay.ends[t - 1], replay.user_ends[t - 1], replay.item_ends[t - 1]
        _restore(replay, rows, step.halvings, tape, t, left)
        to_users[:, :], to_items[:, :], to_bias[:] = 0, 0, 0
        for n in range(first, replay.ends[t]):
            loss = rated(replay, rows, step, n)
            line.later[0, :] = later.users[replay.users[n]]
            for c in range(line.bias.size):
                line.later[1 + c, :] = later.items[replay.items[n, c]]
                line.later_bias[c] = later.bias[replay.items[n, c]]
            line_back(step.model, loss, line, slopes.rates)
            _add(to_users[replay.user_at[n]], line.by_theta[0])
            for c in range(line.bias.size):
                _add(to_items[replay.items_at[n, c]], line.by_theta[1 + c])
                to_bias[replay.items_at[n, c]] += line.by_bias[c]
        for r in range(user_0, replay.user_ends[t]):
            row = replay.user_rows[r]
            slopes.decay[0] -= _dot(later.users[row], rows.users[row])
            move(keep[0], later.users[row], to_users[r - user_0])
        for r in range(item_0, replay.item_ends[t]):
            at = r - item_0
            _item_back(replay, rows, step, tape, later, r, keep, to_items[at], to_bias[at], left, slopes)
            rows.touched[replay.item_rows[r]] = now - tape.idle[r]
        for n in range(first, replay.ends[t]):
            if replay.candidates[n, 0] > UNPREDICTED:
                score(replay, rows, step.halvings, tape, n, now, scores)
                softmax(scores, temperature, chances)
                _prediction_back(
                    replay, rows, step.halvings, tape, later, n, now, temperature, scores, chances, left, slopes
                )


def _item_back(
    replay: MetaTrainingStream, rows: MetaTrainingRows, step: MetaTrainingStep, tape: Tape, later: MetaTrainingRows,
    r: int, keep: Numbers, to_item: Numbers, to_bias: float, left: Numbers, slopes: Slopes,
) -> None:  # fmt: skip
    """An item's row before a step from the one after it: decay, what interactions saw of it, and time decay."""
    row, idle, halvings = replay.item_rows[r], tape.idle[r], step.halvings
    slopes.decay[1] -= _dot(later.items[row], rows.items[row])
    slopes.decay[2] -= later.bias[row] * rows.bias[row]
    move(keep[1], later.items[row], to_item)
    later.bias[row] = keep[2] * later.bias[row] + to_bias
    slopes.half_lives[0] += LN2 * idle * halvings[0] * _dot(later.items[row], rows.items[row])
    slopes.half_lives[1] += LN2 * idle * halvings[1] * later.bias[row] * rows.bias[row]
    decay_item(later, halvings, row, idle, left)
    rows.items[row, :] = tape.items[r]
    rows.bias[row] = tape.bias[r]


def _prediction_back(
    replay: MetaTrainingStream, rows: MetaTrainingRows, halvings: Floats, tape: Tape, later: MetaTrainingRows,
    n: int, now: int, temperature: float, scores: Floats, chances: Floats, left: Numbers, slopes: Slopes,
) -> None:  # fmt: skip
    """Add ∂J by the rows that a prediction read, by half-lives and by the temperature."""
    own, after_own = rows.users[replay.users[n]], later.users[replay.users[n]]
    for c in range(scores.size):
        slopes.temperature[0] += temperature * chances[c] * (scores[c] - scores[0])
        item = replay.candidates[n, c]
        if item <= ABSENT:
            continue
        slope, idle = temperature * (chances[c] - (1.0 if c == 0 else 0.0)), now - rows.touched[item]
        by_dot, by_bias = slope * decayed_to(idle, halvings[0]), slope * decayed_to(idle, halvings[1])
        slopes.half_lives[0] += LN2 * idle * halvings[0] * by_dot * tape.dots[n, c]
        slopes.half_lives[1] += LN2 * idle * halvings[1] * by_bias * rows.bias[item]
        later.bias[item] += by_bias
        if not replay.known[n]:
            continue
        left[0] = by_dot  # in the precision of the rows
        step, vector, after_vector = left[0], rows.items[item], later.items[item]
        for d in range(own.size):
            after_own[d] += step * vector[d]
            after_vector[d] += step * own[d]
