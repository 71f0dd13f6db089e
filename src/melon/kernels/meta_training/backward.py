"""The way back: put the rows back batch by batch, and add up how the loss of all predictions depends on every rate."""

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
    Slopes,
    Tape,
)
from melon.kernels.meta_training.forward import decay_factor, decayed_to, dot, knot, move, score, softmax, widest
from melon.types import Floats


def _restore(
    replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, t: int, left: Numbers
) -> None:
    """Put the rows of a batch back as they were when it was learned, those of items decayed."""
    for r in range(replay.user_ends[t - 1] if t > 0 else 0, replay.user_ends[t]):
        rows.users[replay.user_rows[r], :] = tape.users[r]
    for r in range(replay.item_ends[t - 1] if t > 0 else 0, replay.item_ends[t]):
        row = replay.item_rows[r]
        rows.items[row, :] = tape.items[r]
        rows.bias[row] = tape.bias[r]
        decay_factor(rows, rates, row, tape.idle[r], left)


def backward(
    replay: MetaTrainingStream,
    rows: MetaTrainingRows,
    rates: MetaTrainingRates,
    tape: Tape,
    temperature: float,
    later: MetaTrainingRows,
    slopes: Slopes,
) -> None:
    """Put the rows back as they were before `forward`, and fill in how the summed loss depends on the rates.

    `later`, zeros at first, becomes how it depends on the rows themselves.
    """
    to_users, to_items = tape.users[: widest(replay.user_ends)].copy(), tape.items[: widest(replay.item_ends)].copy()
    to_bias, weight = tape.bias[: len(to_items)].copy(), tape.logs[0].copy()
    keep, left = 1 - rates.decay, rates.decay.copy()
    scores, chances = np.empty(replay.candidates.shape[1]), np.empty(replay.candidates.shape[1])
    slopes.decay[:], slopes.half_lives[:], slopes.temperature[:] = 0, 0, 0
    for t in range(replay.ends.size - 1, -1, -1):
        first, user_0, item_0, now = 0, 0, 0, replay.now[t]
        if t > 0:
            first, user_0, item_0 = replay.ends[t - 1], replay.user_ends[t - 1], replay.item_ends[t - 1]
        _restore(replay, rows, rates, tape, t, left)
        to_users[:, :], to_items[:, :], to_bias[:] = 0, 0, 0
        for n in range(first, replay.ends[t]):
            for s in range(weight.size):
                weight[s] = math.exp(tape.logs[n, s])
            by_margin = _line_back(replay, rows, rates, tape, later, n, weight, slopes.logs[n])
            _to_rows(replay, rows, tape, later, n, weight, by_margin, to_users, to_items, to_bias)
        for r in range(user_0, replay.user_ends[t]):
            row = replay.user_rows[r]
            slopes.decay[0] -= dot(later.users[row], rows.users[row])
            move(keep[0], later.users[row], to_users[r - user_0])
        for r in range(item_0, replay.item_ends[t]):
            at = r - item_0
            _item_back(replay, rows, rates, tape, later, r, keep, to_items[at], to_bias[at], left, slopes)
            rows.touched[replay.item_rows[r]] = now - tape.idle[r]
        for n in range(first, replay.ends[t]):
            if replay.candidates[n, 0] > UNPREDICTED:
                score(replay, rows, rates, tape, n, now, scores)
                softmax(scores, temperature, chances)
                _prediction_back(replay, rows, rates, tape, later, n, now, temperature, scores, chances, left, slopes)


def _item_back(
    replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, later: MetaTrainingRows,
    r: int, keep: Numbers, to_item: Numbers,
    to_bias: float, left: Numbers, slopes: Slopes,
) -> None:  # fmt: skip
    """An item's row before a step from the one after it: decay, what interactions saw of it, and time decay."""
    row, idle = replay.item_rows[r], tape.idle[r]
    slopes.decay[1] -= dot(later.items[row], rows.items[row])
    slopes.decay[2] -= later.bias[row] * rows.bias[row]
    move(keep[1], later.items[row], to_item)
    later.bias[row] = keep[2] * later.bias[row] + to_bias
    slopes.half_lives[0] += LN2 * idle * rates.halvings[0] * dot(later.items[row], rows.items[row])
    slopes.half_lives[1] += LN2 * idle * rates.halvings[1] * later.bias[row] * rows.bias[row]
    decay_factor(later, rates, row, idle, left)
    rows.items[row, :] = tape.items[r]
    rows.bias[row] = tape.bias[r]


def _line_back(
    replay: MetaTrainingStream,
    rows: MetaTrainingRows,
    rates: MetaTrainingRates,
    tape: Tape,
    later: MetaTrainingRows,
    n: int,
    weight: Numbers,
    by_log: Floats,
) -> Numbers:
    """∂J by an interaction's log rates, which is 0 where the cap binds, and by the margin over each negative.

    `later` is ∂J by the rows after the step, to which the interaction adds Σ_k pull_k · gain_k.
    """
    own, after_own = rows.users[replay.users[n]], later.users[replay.users[n]]
    taken, negatives = replay.items[n, 0], replay.items.shape[1] - 1
    bias = 2 + negatives
    gain: Numbers = tape.pull[n].copy()
    by_log[:] = 0.0
    on_own, on_taken, on_bias = dot(after_own, rows.items[taken]), dot(later.items[taken], own), later.bias[taken]
    for k in range(negatives):
        item, pull = replay.items[n, 1 + k], tape.pull[n, k]
        from_user = weight[0] * (on_own - dot(after_own, rows.items[item]))
        from_other = weight[2 + k] * dot(later.items[item], own)
        from_bias = weight[bias + 1 + k] * later.bias[item]
        gain[k] = from_user + weight[1] * on_taken - from_other + weight[bias] * on_bias - from_bias
        by_log[0] += pull * from_user
        by_log[1] += pull * weight[1] * on_taken
        by_log[2 + k] = -pull * from_other
        by_log[bias] += pull * weight[bias] * on_bias
        by_log[bias + 1 + k] = -pull * from_bias
    by_loss, place = 0.0, knot(rates.knots, math.log(tape.loss[n] + LEAST_LOSS))
    for s in range(by_log.size):
        if tape.logs[n, s] >= MOST_LOG_RATE:
            by_log[s] = 0.0
        by_loss += by_log[s] * rates.slopes[replay.roles[s], place]
    by_loss /= tape.loss[n] + LEAST_LOSS
    for k in range(negatives):
        pull = tape.pull[n, k]
        gain[k] = -pull * (1 - negatives * pull) * gain[k] - pull * by_loss
    return gain


def _to_rows(
    replay: MetaTrainingStream, rows: MetaTrainingRows, tape: Tape, later: MetaTrainingRows,
    n: int, weight: Numbers, by_margin: Numbers,
    to_users: Numbers, to_items: Numbers, to_bias: Numbers,
) -> None:  # fmt: skip
    """Add ∂J by the decayed rows that an interaction saw: through its margins, and through its gradients."""
    own, after_own = rows.users[replay.users[n]], later.users[replay.users[n]]
    vector, after_vector = rows.items[replay.items[n, 0]], later.items[replay.items[n, 0]]
    to_user, at = to_users[replay.user_at[n]], replay.items_at[n]
    to_taken = to_items[at[0]]
    for k in range(by_margin.size):
        other, after_other = rows.items[replay.items[n, 1 + k]], later.items[replay.items[n, 1 + k]]
        to_other, pull, margin = to_items[at[1 + k]], tape.pull[n, k], by_margin[k]
        user_step, taken_step, other_step = weight[0] * pull, weight[1] * pull, weight[2 + k] * pull
        for d in range(own.size):
            to_user[d] += margin * (vector[d] - other[d]) + taken_step * after_vector[d] - other_step * after_other[d]
            to_both = margin * own[d] + user_step * after_own[d]
            to_taken[d] += to_both
            to_other[d] -= to_both
        to_bias[at[0]] += margin
        to_bias[at[1 + k]] -= margin


def _prediction_back(
    replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, later: MetaTrainingRows,
    n: int, now: int, temperature: float,
    scores: Floats, chances: Floats, left: Numbers, slopes: Slopes,
) -> None:  # fmt: skip
    """Add ∂J by the rows that a prediction read, by half-lives and by the temperature."""
    own, after_own = rows.users[replay.users[n]], later.users[replay.users[n]]
    for c in range(scores.size):
        slopes.temperature[0] += temperature * chances[c] * (scores[c] - scores[0])
        item = replay.candidates[n, c]
        if item <= ABSENT:
            continue
        slope, idle = temperature * (chances[c] - (1.0 if c == 0 else 0.0)), now - rows.touched[item]
        by_dot, by_bias = slope * decayed_to(idle, rates.halvings[0]), slope * decayed_to(idle, rates.halvings[1])
        slopes.half_lives[0] += LN2 * idle * rates.halvings[0] * by_dot * tape.dots[n, c]
        slopes.half_lives[1] += LN2 * idle * rates.halvings[1] * by_bias * rows.bias[item]
        later.bias[item] += by_bias
        if not replay.known[n]:
            continue
        left[0] = by_dot  # in the precision of the rows
        step, vector, after_vector = left[0], rows.items[item], later.items[item]
        for d in range(own.size):
            after_own[d] += step * vector[d]
            after_vector[d] += step * own[d]
