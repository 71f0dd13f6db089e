"""The way there: predict and learn batch by batch, and record what is overwritten."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.practice.forms import (
    ABSENT,
    LEAST_LOSS,
    LN2,
    MOST_LOG_RATE,
    UNPREDICTED,
    Numbers,
    PracticeRates,
    PracticeRows,
    PracticeStream,
    Tape,
)
from melon.types import Floats, Ints


def dot(one: Numbers, other: Numbers) -> float:
    total: float = one[0] * other[0]
    for t in range(1, one.size):
        total += one[t] * other[t]
    return total


def faded_to(idle: int, halvings: float) -> float:
    """What fading leaves after an idle time."""
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


def _meet(course: PracticeStream, rows: PracticeRows, tape: Tape, n: int) -> None:
    """Dot products of an interaction's user and its candidates."""
    for c in range(course.candidates.shape[1]):
        item = course.candidates[n, c]
        tape.dots[n, c] = 0.0
        if item > ABSENT and course.known[n]:
            tape.dots[n, c] = dot(rows.users[course.users[n]], rows.items[item])


def score(
    course: PracticeStream, rows: PracticeRows, rates: PracticeRates, tape: Tape, n: int, now: int, scores: Floats
) -> None:
    """Scores of an interaction's candidates as their rows stand."""
    fades = rates.halvings[0] > 0 or rates.halvings[1] > 0
    for c in range(scores.size):
        item = course.candidates[n, c]
        scores[c] = 0.0
        if item > ABSENT and fades:
            idle = now - rows.touched[item]
            scores[c] = tape.dots[n, c] * faded_to(idle, rates.halvings[0])
            scores[c] += rows.bias[item] * faded_to(idle, rates.halvings[1])
        elif item > ABSENT:
            scores[c] = tape.dots[n, c] + rows.bias[item]


def fade(rows: PracticeRows, rates: PracticeRates, row: int, idle: int, left: Numbers) -> None:
    """Fade an item's row by its idle time; `left` is what is left of its vector and of its bias."""
    left[0], left[1] = faded_to(idle, rates.halvings[0]), faded_to(idle, rates.halvings[1])
    for d in range(rows.items.shape[1]):
        rows.items[row, d] *= left[0]
    rows.bias[row] *= left[1]


def _see(course: PracticeStream, rows: PracticeRows, rates: PracticeRates, tape: Tape, n: int) -> None:
    """The loss of an interaction on faded rows, how much each negative counts in it, and its log rates."""
    own, negatives = rows.users[course.users[n]], course.items.shape[1] - 1
    first = course.items[n, 0]
    score, loss = dot(own, rows.items[first]) + rows.bias[first], 0.0
    for k in range(negatives):
        item = course.items[n, 1 + k]
        over = np.float64(dot(own, rows.items[item]) + rows.bias[item] - score)
        small = math.exp(-abs(over))
        loss += (over if over > 0 else over * 0.0) + math.log1p(small)  # NaN stays NaN
        tape.pull[n, k] = (1.0 if over >= 0 else small) / (1.0 + small) / negatives
    tape.loss[n] = loss / negatives
    at = math.log(loss / negatives + LEAST_LOSS)
    place = knot(rates.knots, at)
    for s in range(course.roles.size):
        role = course.roles[s]
        if place == 0:
            hat = rates.hats[role, 0]
        else:
            hat = rates.hats[role, place - 1]
            if place < rates.knots.size:
                hat += rates.slopes[role, place] * (at - rates.knots[place - 1])
        tape.logs[n, s] = min(rates.base[n, s] + hat, MOST_LOG_RATE)


def widest(ends: Ints) -> int:
    """The most distinct rows of a batch."""
    most = int(ends[0])
    for t in range(1, ends.size):
        most = max(most, int(ends[t] - ends[t - 1]))
    return most


def _overwrite(
    course: PracticeStream, rows: PracticeRows, rates: PracticeRates, tape: Tape, t: int, left: Numbers
) -> None:
    """Record the rows of a batch before it is learned, and fade those of items."""
    for r in range(course.user_ends[t - 1] if t > 0 else 0, course.user_ends[t]):
        tape.users[r, :] = rows.users[course.user_rows[r]]
    for r in range(course.item_ends[t - 1] if t > 0 else 0, course.item_ends[t]):
        row = course.item_rows[r]
        tape.items[r, :] = rows.items[row]
        tape.bias[r], tape.idle[r] = rows.bias[row], course.now[t] - rows.touched[row]
        rows.touched[row] = course.now[t]
        fade(rows, rates, row, tape.idle[r], left)


def _step(
    course: PracticeStream, rows: PracticeRows, tape: Tape, n: int,
    weight: Numbers, to_user: Numbers, to_items: Numbers,
    to_bias: Numbers,
) -> None:  # fmt: skip
    """Add an interaction's steps to those of the batch's rows."""
    own, at, negatives = rows.users[course.users[n]], course.items_at[n], tape.pull.shape[1]
    vector, to_taken = rows.items[course.items[n, 0]], to_items[at[0]]
    for k in range(negatives):
        other, to_other, pull = rows.items[course.items[n, 1 + k]], to_items[at[1 + k]], tape.pull[n, k]
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


def forward(course: PracticeStream, rows: PracticeRows, rates: PracticeRates, tape: Tape, temperature: float) -> float:
    """Predict and learn every batch; the rows become those after the last. Returns the summed loss of predictions."""
    to_users, to_items = tape.users[: widest(course.user_ends)].copy(), tape.items[: widest(course.item_ends)].copy()
    to_bias, weight = tape.bias[: len(to_items)].copy(), tape.logs[0].copy()
    keep, left = 1 - rates.decay, rates.decay.copy()
    scores, chances, total = np.empty(course.candidates.shape[1]), np.empty(course.candidates.shape[1]), 0.0
    first, user_0, item_0 = 0, 0, 0
    for t in range(course.ends.size):
        last, user_1, item_1 = course.ends[t], course.user_ends[t], course.item_ends[t]
        for n in range(first, last):
            if course.candidates[n, 0] > UNPREDICTED:
                _meet(course, rows, tape, n)
                score(course, rows, rates, tape, n, course.now[t], scores)
                total += softmax(scores, temperature, chances)
        _overwrite(course, rows, rates, tape, t, left)
        to_users[:, :], to_items[:, :], to_bias[:] = 0, 0, 0
        for n in range(first, last):
            _see(course, rows, rates, tape, n)
            for s in range(weight.size):
                weight[s] = math.exp(tape.logs[n, s])
            _step(course, rows, tape, n, weight, to_users[course.user_at[n]], to_items, to_bias)
        for r in range(user_0, user_1):
            move(keep[0], rows.users[course.user_rows[r]], to_users[r - user_0])
        for r in range(item_0, item_1):
            row = course.item_rows[r]
            move(keep[1], rows.items[row], to_items[r - item_0])
            rows.bias[row] = keep[2] * rows.bias[row] + to_bias[r - item_0]
        first, user_0, item_0 = last, user_1, item_1
    return total
