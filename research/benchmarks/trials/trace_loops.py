"""Loops of `online.py`: how touched rows depend on φ is carried forward through every step.

A trace is ∂row/∂φ: numbers of φ × dim for each touched row of a user or an item, numbers of φ for a bias. φ is one
line: rates by role, splines by role, decay by table (users, items, biases), logarithms of half-lives (items, biases).
Functions of `melon.kernels.meta_training` do the rest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

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
from melon.kernels.meta_training.forward import (
    _meet,
    _overwrite,
    _see,
    _step,
    decayed_to,
    dot,
    knot,
    move,
    score,
    softmax,
)

from melon.types import Floats, Ints

#: What decay moves by a unit of φ.
DECAY_UNIT = 0.1


class Traces(NamedTuple):
    """Traces of users, items and biases, by compact row; `held` says which trace is an item's, or -1."""

    users: Numbers
    items: Numbers
    bias: Numbers
    held: Ints


def _project(row: Numbers, trace: Numbers, scale: float, out: Numbers) -> None:
    """Add scale · ⟨row, ∂row'/∂φ⟩ for each number of φ."""
    for p in range(out.size):
        out[p] += scale * dot(row, trace[p])


def _log_rates_by_phi(
    replay: MetaTrainingStream,
    rates: MetaTrainingRates,
    tape: Tape,
    inputs: Numbers,
    n: int,
    by_loss: Numbers,
    out: Numbers,
) -> None:
    """∂ log w of an interaction's columns by φ; `by_loss` is that of its loss. `inputs` are columns × inputs."""
    at, roles, knots = math.log(tape.loss[n] + LEAST_LOSS), rates.splines.shape[0], rates.knots.size
    width, place = 1 + inputs.shape[1], knot(rates.knots, at)
    for s in range(replay.roles.size):
        role = replay.roles[s]
        out[s, :] = 0.0
        if tape.logs[n, s] >= MOST_LOG_RATE:
            continue
        slope = rates.slopes[role, place] / (tape.loss[n] + LEAST_LOSS)
        for p in range(by_loss.size):
            out[s, p] = slope * by_loss[p]
        out[s, role * width] += 1.0
        for k in range(inputs.shape[1]):
            out[s, role * width + 1 + k] += inputs[s, k]
        first = roles * width + role * knots
        if place == 0:
            out[s, first] += 1.0
        elif place == knots:
            out[s, first + knots - 1] += 1.0
        else:
            part = (at - rates.knots[place - 1]) / (rates.knots[place] - rates.knots[place - 1])
            out[s, first + place - 1] += 1 - part
            out[s, first + place] += part


def _line(
    replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, traces: Traces, inputs: Numbers,
    n: int, weight: Numbers, to_user: Numbers, to_items: Numbers, to_bias: Numbers,
    by_margin: Numbers, by_loss: Numbers, by_logs: Numbers,
) -> None:  # fmt: skip
    """Add how an interaction's steps depend on φ to those of the batch's rows."""
    own, trace = rows.users[replay.users[n]], traces.users[replay.users[n]]
    negatives, at, taken = tape.pull.shape[1], replay.items_at[n], replay.items[n, 0]
    vector, of_taken, bias = rows.items[taken], traces.items[traces.held[taken]], 2 + negatives
    by_loss[:], by_margin[:, :] = 0.0, 0.0
    for k in range(negatives):
        item = replay.items[n, 1 + k]
        of_other = traces.items[traces.held[item]]
        _project(vector, trace, 1.0, by_margin[k])
        _project(rows.items[item], trace, -1.0, by_margin[k])
        _project(own, of_taken, 1.0, by_margin[k])
        _project(own, of_other, -1.0, by_margin[k])
        for p in range(by_loss.size):
            by_margin[k, p] += traces.bias[traces.held[taken], p] - traces.bias[traces.held[item], p]
            by_loss[p] -= tape.pull[n, k] * by_margin[k, p]
    _log_rates_by_phi(replay, rates, tape, inputs, n, by_loss, by_logs)
    for k in range(negatives):
        item, pull = replay.items[n, 1 + k], tape.pull[n, k]
        other, of_other, slope = rows.items[item], traces.items[traces.held[item]], 1 - negatives * pull
        user_step, taken_step, other_step = weight[0] * pull, weight[1] * pull, weight[2 + k] * pull
        taken_bias, other_bias = weight[bias] * pull, weight[bias + 1 + k] * pull
        for p in range(by_loss.size):
            by_pull = -slope * by_margin[k, p]  # of its logarithm
            user, from_taken = user_step * (by_logs[0, p] + by_pull), taken_step * (by_logs[1, p] + by_pull)
            from_other = other_step * (by_logs[2 + k, p] + by_pull)
            for d in range(own.size):
                to_user[p, d] += user * (vector[d] - other[d]) + user_step * (of_taken[p, d] - of_other[p, d])
                to_items[at[0], p, d] += from_taken * own[d] + taken_step * trace[p, d]
                to_items[at[1 + k], p, d] -= from_other * own[d] + other_step * trace[p, d]
            to_bias[at[0], p] += taken_bias * (by_logs[bias, p] + by_pull)
            to_bias[at[1 + k], p] -= other_bias * (by_logs[bias + 1 + k, p] + by_pull)


def learn(
    replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, traces: Traces, inputs: Numbers,
    t: int,
) -> None:  # fmt: skip
    """Learn batch t: rows and their traces become those after it. `inputs` are n × columns × inputs."""
    first, user_0, item_0 = 0, 0, 0
    if t > 0:
        first, user_0, item_0 = replay.ends[t - 1], replay.user_ends[t - 1], replay.item_ends[t - 1]
    last, user_1, item_1 = replay.ends[t], replay.user_ends[t], replay.item_ends[t]
    numbers, dim, keep, left = traces.bias.shape[1], rows.users.shape[1], 1 - rates.decay, rates.decay.copy()
    by_decay, by_half_lives, like = numbers - 5, numbers - 2, rows.users.dtype
    _overwrite(replay, rows, rates, tape, t, left)
    for r in range(item_0, item_1):
        row, idle = replay.item_rows[r], tape.idle[r]
        place, vector_left, bias_left = traces.held[row], decayed_to(idle, rates.halvings[0]), 0.0
        bias_left = decayed_to(idle, rates.halvings[1])
        traces.items[place] *= vector_left
        traces.bias[place] *= bias_left
        traces.items[place, by_half_lives] += LN2 * idle * rates.halvings[0] * rows.items[row]
        traces.bias[place, by_half_lives + 1] += LN2 * idle * rates.halvings[1] * rows.bias[row]
    to_users, to_items = np.zeros((user_1 - user_0, dim), like), np.zeros((item_1 - item_0, dim), like)
    to_bias, weight = np.zeros(item_1 - item_0, like), tape.logs[0].copy()
    traced_users = np.zeros((user_1 - user_0, numbers, dim), like)
    traced_items = np.zeros((item_1 - item_0, numbers, dim), like)
    traced_bias = np.zeros((item_1 - item_0, numbers), like)
    by_margin, by_loss = np.zeros((tape.pull.shape[1], numbers), like), np.zeros(numbers, like)
    by_logs = np.zeros((weight.size, numbers), like)
    for n in range(first, last):
        _see(replay, rows, rates, tape, n)
        for s in range(weight.size):
            weight[s] = math.exp(tape.logs[n, s])
        _step(replay, rows, tape, n, weight, to_users[replay.user_at[n]], to_items, to_bias)
        _line(
            replay, rows, rates, tape, traces, inputs[n], n, weight, traced_users[replay.user_at[n]], traced_items,
            traced_bias, by_margin, by_loss, by_logs,
        )  # fmt: skip
    for r in range(user_0, user_1):
        row = replay.user_rows[r]
        traces.users[row] *= keep[0]
        traces.users[row] += traced_users[r - user_0]
        traces.users[row, by_decay] -= DECAY_UNIT * rows.users[row]
        move(keep[0], rows.users[row], to_users[r - user_0])
    for r in range(item_0, item_1):
        row, at = replay.item_rows[r], r - item_0
        place = traces.held[row]
        traces.items[place] *= keep[1]
        traces.items[place] += traced_items[at]
        traces.items[place, by_decay + 1] -= DECAY_UNIT * rows.items[row]
        traces.bias[place] *= keep[2]
        traces.bias[place] += traced_bias[at]
        traces.bias[place, by_decay + 2] -= DECAY_UNIT * rows.bias[row]
        move(keep[1], rows.items[row], to_items[at])
        rows.bias[row] = keep[2] * rows.bias[row] + to_bias[at]


def judge(
    replay: MetaTrainingStream, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, traces: Traces, t: int,
    temperature: float, later: MetaTrainingRows, by_phi: Floats,
) -> float:  # fmt: skip
    """The summed loss of batch t's predictions as rows stand before it; `by_phi` becomes its gradient, τ's last."""
    first, now, total = replay.ends[t - 1] if t > 0 else 0, replay.now[t], 0.0
    scores, chances = np.empty(replay.candidates.shape[1]), np.empty(replay.candidates.shape[1])
    numbers = traces.bias.shape[1]
    by_half_lives = numbers - 2
    later.users[:, :], later.items[:, :], later.bias[:] = 0.0, 0.0, 0.0
    by_phi[:] = 0.0
    for n in range(first, replay.ends[t]):
        if replay.candidates[n, 0] == UNPREDICTED:
            continue
        _meet(replay, rows, tape, n)
        score(replay, rows, rates, tape, n, now, scores)
        total += softmax(scores, temperature, chances)
        user = replay.users[n]
        for c in range(scores.size):
            item = replay.candidates[n, c]
            by_phi[numbers] += temperature * chances[c] * (scores[c] - scores[0])
            if item <= ABSENT:
                continue
            slope, idle = temperature * (chances[c] - (1.0 if c == 0 else 0.0)), now - rows.touched[item]
            by_dot, by_bias = slope * decayed_to(idle, rates.halvings[0]), slope * decayed_to(idle, rates.halvings[1])
            by_phi[by_half_lives] += LN2 * idle * rates.halvings[0] * by_dot * tape.dots[n, c]
            by_phi[by_half_lives + 1] += LN2 * idle * rates.halvings[1] * by_bias * rows.bias[item]
            later.bias[item] += by_bias
            if replay.known[n]:
                for d in range(rows.users.shape[1]):
                    later.users[user, d] += by_dot * rows.items[item, d]
                    later.items[item, d] += by_dot * rows.users[user, d]
    for r in range(replay.user_ends[t - 1] if t > 0 else 0, replay.user_ends[t]):
        row = replay.user_rows[r]
        for p in range(numbers):
            by_phi[p] += dot(later.users[row], traces.users[row, p])
    for item in range(traces.held.size):
        place = traces.held[item]
        if place >= 0 and later.bias[item] != 0.0:
            for p in range(numbers):
                by_phi[p] += dot(later.items[item], traces.items[place, p]) + later.bias[item] * traces.bias[place, p]
    return total
