"""Loops of `head_practice.py`: predictions of meta-training go through the blend's head, there and back.

They take the place of two functions of `melon.kernels.meta_training`; everything else is the same. `course` is a meta-training
stream with the head beside it: `lines` (n × candidates × (1 + units)) is what all inputs but the rows' own add to the
score and to each hidden unit; `weights` (3 × (1 + units)) are those of the dot product, of the dot product times
activity, and of the bias; `active` is how active each user is, and `output` weighs the units.
"""

from __future__ import annotations

from typing import Any

from melon.kernels.meta_training.forms import (
    ABSENT,
    LN2,
    MetaTrainingRates,
    MetaTrainingRows,
    Numbers,
    Slopes,
    Tape,
)
from melon.kernels.meta_training.forward import decayed_to

from melon.types import Floats


def score(
    replay: Any, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, n: int, now: int, scores: Floats
) -> None:
    """Scores of an interaction's candidates by the head, as their rows stand."""
    active = replay.active[n]
    for c in range(scores.size):
        item = replay.candidates[n, c]
        by_dot, by_bias = 0.0, 0.0
        if item > ABSENT:
            idle = now - rows.touched[item]
            by_dot = tape.dots[n, c] * decayed_to(idle, rates.halvings[0])
            by_bias = rows.bias[item] * decayed_to(idle, rates.halvings[1])
        line = replay.lines[n, c]
        total = line[0] + (replay.weights[0, 0] + active * replay.weights[1, 0]) * by_dot
        total += replay.weights[2, 0] * by_bias
        for u in range(replay.output.size):
            unit = line[1 + u] + (replay.weights[0, 1 + u] + active * replay.weights[1, 1 + u]) * by_dot
            unit += replay.weights[2, 1 + u] * by_bias
            if unit > 0:
                total += replay.output[u] * unit
        scores[c] = total


def _prediction_back(
    replay: Any, rows: MetaTrainingRows, rates: MetaTrainingRates, tape: Tape, later: MetaTrainingRows,
    n: int, now: int, temperature: float,
    scores: Floats, chances: Floats, left: Numbers, slopes: Slopes,
) -> None:  # fmt: skip
    """Add ∂J by the rows that a prediction read, through the head, by half-lives and by the temperature."""
    own, after_own, active = rows.users[replay.users[n]], later.users[replay.users[n]], replay.active[n]
    for c in range(scores.size):
        slopes.temperature[0] += temperature * chances[c] * (scores[c] - scores[0])
        item = replay.candidates[n, c]
        if item <= ABSENT:
            continue
        slope, idle = temperature * (chances[c] - (1.0 if c == 0 else 0.0)), now - rows.touched[item]
        left_dot, left_bias = decayed_to(idle, rates.halvings[0]), decayed_to(idle, rates.halvings[1])
        gain_dot, gain_bias = replay.weights[0, 0] + active * replay.weights[1, 0], replay.weights[2, 0]
        for u in range(replay.output.size):
            on_dot = replay.weights[0, 1 + u] + active * replay.weights[1, 1 + u]
            on_bias = replay.weights[2, 1 + u]
            unit = replay.lines[n, c, 1 + u] + on_dot * (tape.dots[n, c] * left_dot)
            if unit + on_bias * (rows.bias[item] * left_bias) > 0:
                gain_dot += replay.output[u] * on_dot
                gain_bias += replay.output[u] * on_bias
        by_dot, by_bias = slope * gain_dot * left_dot, slope * gain_bias * left_bias
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
