"""The way back: put the rows back batch by batch, and add up how the loss of all predictions depends on every rate."""

from __future__ import annotations

import numpy as np

from melon.kernels.factor import _dot
from melon.kernels.melon.rates import line_back
from melon.kernels.meta_training.forms import (
    ABSENT,
    LN2,
    UNPREDICTED,
    MetaTrainingRows,
    MetaTrainingStep,
    MetaTrainingStream,
    Slopes,
    Tape,
)
from melon.kernels.meta_training.forward import decay_item, decayed_to, move, rated, score, softmax, widest
from melon.kernels.types import Numbers
from melon.types import Floats


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
