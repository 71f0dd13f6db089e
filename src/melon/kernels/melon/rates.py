"""The rate model (docs/methods.md 4.12): the rates of one interaction's parameters, and the way back through them.

Slots of an interaction are its user, the item taken and the items drawn; each has a vector, and each item a bias. The
columns of `roles` are these vectors and then these biases. Arrays have the precision of the rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from melon.kernels.arithmetic import exp, log, tanh
from melon.kernels.factor import _dot, _pairwise
from melon.kernels.types import FloatCube, FloatTable, NumberCube, Numbers, NumberTable
from melon.types import Floats, Ints

#: No logarithm of a rate is larger than this, and losses are read from here on.
MOST_LOG_RATE, LEAST_LOSS = 3.0, 1e-8
#: Facts of a row, and units of each role's network.
FACTS, UNITS = 7, 8
#: What is seen of a row in an interaction: 1, the facts, the loss, and four numbers of the role: nθ, ng and co of a
#: vector; a, ℓθ and the nθ of the item's and of the user's vector for a bias. Behind it a, ℓg and ℓθ of a parameter.
_LOSS, _NORMS, SEEN, INPUTS = 8, 9, 13, 16
_CAP, _ZERO, _ONE = np.float32(MOST_LOG_RATE), np.float32(0), np.float32(1)
_SMALL, _TINY, _LIFT, _HUNDREDTH = np.float32(0.05), np.float32(1e-8), np.float32(0.6), np.float32(0.01)
_NORM_LIFT, _THREE, _TENTH, _BIAS_LIFT = np.float32(1.2), np.float32(3), np.float32(0.1), np.float32(0.3)
_LEAST_LOG, _MOST_LOG, _LOG_MIDDLE, _LOG_SPREAD = -5.0, 2.0, 0.7, 1.5


class RateModel(NamedTuple):
    """φ as kernels read it: the role of each column, weights, units' effects, and the spline of log L.

    `weights` (roles × inputs × (1 + units)) are what the log rate (first) and each unit of the network take from what
    is seen. Without units there is no role of a parameter. `slopes` are the spline's (0 outside the knots), `scales`
    the spread of users', items' and biases' numbers.
    """

    roles: Ints
    weights: NumberCube
    out: NumberTable
    knots: Floats
    splines: FloatTable
    slopes: FloatTable
    scales: Numbers


class RateSlopes(NamedTuple):
    """∂J by φ, as in `RateModel`."""

    weights: FloatCube
    out: FloatTable
    splines: FloatTable


class Line(NamedTuple):
    """One interaction as its rates see it, overwritten by the next: what rates are for, and inputs of the role.

    `seen` and `sums` are of each column, `inputs` are a, ℓg and ℓθ (3 × slots × d), `units` the network's answers
    (slots × units × d), `norms` nθ, ng, co, rms θ and rms g of each slot; `by_…` are ∂J by rows before the step,
    `later` ∂J by those after it. `work` is room for some rows.
    """

    theta: NumberTable
    gradient: NumberTable
    weights: NumberTable
    bias: Numbers
    bias_weights: Numbers
    scores: Numbers
    slopes: Numbers
    unit_theta: NumberTable
    unit_gradient: NumberTable
    seen: NumberTable
    sums: NumberTable
    inputs: NumberCube
    units: NumberCube
    norms: NumberTable
    by_theta: NumberTable
    by_gradient: NumberTable
    by_bias: Numbers
    by_slopes: Numbers
    by_norms: NumberTable
    by_sums: Numbers
    later: NumberTable
    later_bias: Numbers
    work: NumberTable

    @classmethod
    def room(cls, slots: int, like: Numbers) -> Line:
        """Room for an interaction on rows like these."""
        (_, dim), width, kind = like.shape, slots - 1, like.dtype
        rows, each, columns = np.zeros((8, slots, dim), kind), np.zeros((7, width), kind), slots + width
        return cls(
            rows[0], rows[1], rows[2], each[0], each[1], each[2], each[3], rows[3], rows[4],
            np.ones((columns, SEEN), kind), np.zeros((columns, 1 + UNITS), kind), np.zeros((3, slots, dim), kind),
            np.zeros((slots, UNITS, dim), kind), np.zeros((slots, 5), kind), rows[5], rows[6], each[4], each[5],
            np.zeros((slots, 3), kind), np.zeros(1 + UNITS, kind), rows[7], each[6], np.zeros((5, dim), kind),
        )  # fmt: skip


def _sum(values: Numbers) -> Any:
    result = values[0]
    for m in range(1, values.size):
        result += values[m]
    return result


def see_line(line: Line) -> float:
    """The loss of an interaction whose rows are in `line`, and its gradients."""
    own, width = line.theta[0], line.scores.size
    first = _dot(own, line.theta[1]) + line.bias[0]
    line.scores[0] = 0
    for c in range(1, width):
        line.scores[c] = _dot(own, line.theta[1 + c]) + line.bias[c] - first
    loss = _pairwise(line.scores, line.slopes)
    for m in range(own.size):
        line.gradient[0, m] = line.slopes[0] * line.theta[1, m]
    for c in range(1, width):
        for m in range(own.size):
            line.gradient[0, m] += line.slopes[c] * line.theta[1 + c, m]
    for c in range(width):
        for m in range(own.size):
            line.gradient[1 + c, m] = line.slopes[c] * own[m]
    return loss


def knot(knots: Floats, at: float) -> int:
    """How many knots lie below: 0 before the first, all behind the last."""
    place = 0
    while place < knots.size and knots[place] < at:
        place += 1
    return place


def _spline(model: RateModel, role: int, at: float) -> float:
    place = knot(model.knots, at)
    if place == 0:
        return float(model.splines[role, 0])
    result = float(model.splines[role, place - 1])
    if place < model.knots.size:
        result += model.slopes[role, place] * (at - model.knots[place - 1])
    return result


def _products(theta: Numbers, gradient: Numbers) -> tuple[Any, Any, Any]:
    """θ·θ, g·g and θ·g."""
    of_theta, of_gradient, of_both = theta[0] * theta[0], gradient[0] * gradient[0], theta[0] * gradient[0]
    for m in range(1, theta.size):
        of_theta += theta[m] * theta[m]
        of_gradient += gradient[m] * gradient[m]
        of_both += theta[m] * gradient[m]
    return of_theta, of_gradient, of_both


def _role_inputs(model: RateModel, line: Line, s: int) -> None:
    """What the role sees of a slot's vector and gradient."""
    theta, gradient, size = line.theta[s], line.gradient[s], line.theta.shape[1]
    many, scale = np.float32(size), model.scales[min(s, 1)]
    norms, unit_theta, unit_gradient = line.norms[s], line.unit_theta[s], line.unit_gradient[s]
    of_theta, of_gradient, of_both = _products(theta, gradient)
    norms[3] = math.sqrt(of_theta / many + _TINY)
    norms[4] = math.sqrt(of_gradient / many + _TINY)
    over_theta, over_gradient = _ONE / norms[3], _ONE / norms[4]
    a, size_g, size_t = line.inputs[0, s], line.inputs[1, s], line.inputs[2, s]
    for m in range(size):
        t, g = theta[m] * over_theta, gradient[m] * over_gradient
        unit_theta[m], unit_gradient[m], a[m] = t, g, tanh(g * t)
        size_g[m], size_t[m] = log(abs(g) + _SMALL) + _LIFT, log(abs(t) + _SMALL) + _LIFT
    norms[0] = log(norms[3] / scale)
    norms[1] = log(norms[4] / scale + _HUNDREDTH) + _NORM_LIFT
    norms[2] = _THREE * of_both * over_theta * over_gradient / many
    for k in range(3):
        line.seen[s, _NORMS + k] = norms[k]


def _bias_inputs(model: RateModel, line: Line, c: int) -> None:
    """What the role sees of an item's bias: it has a column behind those of vectors."""
    sign, seen = -_ONE if c == 0 else _ONE, line.seen[line.theta.shape[0] + c]
    seen[_NORMS] = tanh(line.bias[c] * sign / model.scales[2])
    seen[_NORMS + 1] = log(abs(line.bias[c]) / model.scales[2] + _TENTH) + _BIAS_LIFT
    seen[_NORMS + 2], seen[_NORMS + 3] = line.norms[1 + c, 0], line.norms[0, 0]


def _sums(model: RateModel, line: Line, column: int, facts: Numbers, log_loss: float) -> None:
    """What the log rate and each unit take from a column's facts, loss and norms."""
    role, seen, sums, many = model.roles[column], line.seen[column], line.sums[column], model.weights.shape[2]
    for k in range(FACTS):
        seen[1 + k] = facts[k]
    seen[_LOSS] = (min(max(log_loss, _LEAST_LOG), _MOST_LOG) + _LOG_MIDDLE) / _LOG_SPREAD
    weights = model.weights[role]
    for h in range(many):
        sums[h] = weights[0, h]
    for k in range(1, SEEN if many > 1 else _LOSS):
        for h in range(many):
            sums[h] += weights[k, h] * seen[k]
    sums[0] += _spline(model, role, log_loss)


def _pair_rates(model: RateModel, line: Line, s: int) -> None:
    """The rates of a slot's parameters."""
    role, sums, logs = model.roles[s], line.sums[s], line.weights[s]
    weights, out = model.weights[role], model.out[role]
    a, of_gradient, of_theta = line.inputs[0, s], line.inputs[1, s], line.inputs[2, s]
    start, by_a, by_gradient, by_theta = sums[0], weights[SEEN, 0], weights[SEEN + 1, 0], weights[SEEN + 2, 0]
    for m in range(logs.size):
        logs[m] = start + by_a * a[m] + by_gradient * of_gradient[m] + by_theta * of_theta[m]
    for h in range(1, sums.size):
        unit, effect = line.units[s, h - 1], out[h - 1]
        start, by_a, by_gradient, by_theta = sums[h], weights[SEEN, h], weights[SEEN + 1, h], weights[SEEN + 2, h]
        for m in range(logs.size):
            value = tanh(start + by_a * a[m] + by_gradient * of_gradient[m] + by_theta * of_theta[m])
            unit[m] = value
            logs[m] += effect * value
    for m in range(logs.size):
        logs[m] = exp(min(logs[m], _CAP))


def rate_line(model: RateModel, facts: Numbers, loss: float, line: Line) -> None:
    """Rates of an interaction that has been seen, from the facts of its slots and its loss."""
    log_loss, slots, units = math.log(loss + LEAST_LOSS), line.theta.shape[0], model.out.shape[1]
    for s in range(slots):
        if units > 0:
            _role_inputs(model, line, s)
        _sums(model, line, s, facts[s], log_loss)
        if units > 0:
            _pair_rates(model, line, s)
        else:
            rate = exp(min(line.sums[s, 0], _CAP))
            for m in range(line.weights.shape[1]):
                line.weights[s, m] = rate
    for c in range(slots - 1):
        column = slots + c
        if units > 0:
            _bias_inputs(model, line, c)
        _sums(model, line, column, facts[1 + c], log_loss)
        log_rate = line.sums[column, 0]
        for h in range(units):
            log_rate += model.out[model.roles[column], h] * tanh(line.sums[column, 1 + h])
        line.bias_weights[c] = exp(min(log_rate, _CAP))


def line_back(model: RateModel, loss: float, line: Line, slopes: RateSlopes) -> None:
    """∂J by the rows that an interaction saw, which `rate_line` has just rated, from ∂J by those rows after it has
    moved them by −w g.

    ∂J by φ is added to `slopes`. What rows keep of themselves at a touch is not in it.
    """
    log_loss, slots, by_log_loss = math.log(loss + LEAST_LOSS), line.theta.shape[0], 0.0
    line.by_norms[:, :], line.by_theta[:, :] = 0, 0
    for c in range(slots - 1):
        by_log_loss += _bias_back(model, log_loss, line, c, slopes)
    for s in range(slots):
        by_log_loss += _slot_back(model, log_loss, line, s, slopes)
    _rows_back(line, by_log_loss / (loss + LEAST_LOSS))


def _capped(weight: float) -> bool:
    return bool(weight >= 20.0855)  # e³ = 20.08554


def _sums_back(model: RateModel, line: Line, column: int, log_loss: float, slopes: RateSlopes) -> Any:
    """From ∂J by a column's sums (`by_sums`) to ∂J by weights; returns ∂J by log L."""
    role, by_sums, many = model.roles[column], line.by_sums, model.weights.shape[2]
    by_weights, by_base, last = slopes.weights[role], line.by_sums[0], model.knots.size
    for k in range(SEEN):
        value = line.seen[column, k]
        for h in range(many):
            by_weights[k, h] += by_sums[h] * value
    by_log_loss = 0.0
    if _LEAST_LOG < log_loss < _MOST_LOG:
        by_log_loss = _by_seen(model, line, role, _LOSS) / _LOG_SPREAD
    place = knot(model.knots, log_loss)
    if place in (0, last):
        slopes.splines[role, min(place, last - 1)] += by_base
        return by_log_loss
    part = (log_loss - model.knots[place - 1]) / (model.knots[place] - model.knots[place - 1])
    slopes.splines[role, place - 1] += by_base * (1 - part)
    slopes.splines[role, place] += by_base * part
    return by_log_loss + by_base * model.slopes[role, place]


def _by_seen(model: RateModel, line: Line, role: int, k: int) -> Any:
    """∂J by what is seen of a row, from ∂J by sums."""
    return _dot(model.weights[role, k], line.by_sums[: model.weights.shape[2]])


def _bias_back(model: RateModel, log_loss: float, line: Line, c: int, slopes: RateSlopes) -> Any:
    """Of an item's bias; returns ∂J by log L."""
    column, weight, by_sums = line.theta.shape[0] + c, line.bias_weights[c], line.by_sums
    role, seen, sums = model.roles[column], line.seen[column], line.sums[column]
    line.by_slopes[c], line.by_bias[c] = -line.later_bias[c] * weight, 0
    by_sums[0] = _ZERO if _capped(weight) else line.by_slopes[c] * line.slopes[c]
    for h in range(model.out.shape[1]):
        value = tanh(sums[1 + h])
        slopes.out[role, h] += by_sums[0] * value
        by_sums[1 + h] = by_sums[0] * model.out[role, h] * (_ONE - value * value)
    by_log_loss = _sums_back(model, line, column, log_loss, slopes)
    if model.out.shape[1] == 0:
        return by_log_loss
    a, sign, scale, bias = seen[_NORMS], -_ONE if c == 0 else _ONE, model.scales[2], line.bias[c]
    line.by_bias[c] = _by_seen(model, line, role, _NORMS) * (_ONE - a * a) * sign / scale
    line.by_bias[c] += _by_seen(model, line, role, _NORMS + 1) * np.sign(bias) / (abs(bias) + _TENTH * scale)
    line.by_norms[1 + c, 0] += _by_seen(model, line, role, _NORMS + 2)
    line.by_norms[0, 0] += _by_seen(model, line, role, _NORMS + 3)
    return by_log_loss


def _slot_back(model: RateModel, log_loss: float, line: Line, s: int, slopes: RateSlopes) -> Any:
    """Of a slot's vector, through its rates and their inputs to its row and gradient; returns ∂J by log L."""
    role, weights, gradient, later = model.roles[s], line.weights[s], line.gradient[s], line.later[s]
    by_log, by_pair, by_gradient, by_sums = line.work[0], line.work[1], line.by_gradient[s], line.by_sums
    size, units = weights.size, model.out.shape[1]
    for m in range(size):
        by_gradient[m] = -later[m] * weights[m]
    for m in range(size):
        by_log[m] = _ZERO if _capped(weights[m]) else by_gradient[m] * gradient[m]
    by_sums[0] = _sum(by_log)
    if units == 0:
        return _sums_back(model, line, s, log_loss, slopes)
    line.work[2:5, :] = 0
    _pairs_back(model, line, s, role, 0, by_log, slopes)
    for h in range(units):
        unit, effect = line.units[s, h], model.out[role, h]
        for m in range(size):
            by_pair[m] = by_log[m] * effect * (_ONE - unit[m] * unit[m])
        slopes.out[role, h] += _dot(by_log, unit)
        by_sums[1 + h] = _sum(by_pair)
        _pairs_back(model, line, s, role, 1 + h, by_pair, slopes)
    by_log_loss = _sums_back(model, line, s, log_loss, slopes)
    for k in range(3):
        line.by_norms[s, k] += _by_seen(model, line, role, _NORMS + k)
    _inputs_back(model, line, s)
    return by_log_loss


def _pairs_back(model: RateModel, line: Line, s: int, role: int, h: int, by_pair: Numbers, slopes: RateSlopes) -> None:
    """What the log rate (or a unit) takes from a, ℓg and ℓθ; adds ∂J by these to `work`."""
    for k in range(3):
        slopes.weights[role, SEEN + k, h] += _dot(by_pair, line.inputs[k, s])
        weight, by_input = model.weights[role, SEEN + k, h], line.work[2 + k]
        for m in range(by_pair.size):
            by_input[m] += by_pair[m] * weight


def _inputs_back(model: RateModel, line: Line, s: int) -> None:
    """From ∂J by the role's inputs to ∂J by a slot's vector and gradient."""
    by_unit_theta, by_unit_gradient = line.work[0], line.work[1]
    by_a, by_of_gradient, by_of_theta = line.work[2], line.work[3], line.work[4]
    unit_theta, unit_gradient, a = line.unit_theta[s], line.unit_gradient[s], line.inputs[0, s]
    norms, by_norms, size, scale = line.norms[s], line.by_norms[s], by_a.size, model.scales[min(s, 1)]
    many = np.float32(size)
    along = _THREE * by_norms[2] / many
    for m in range(size):
        by_product = by_a[m] * (_ONE - a[m] * a[m]) + along
        sign = _ONE if unit_gradient[m] > _ZERO else -_ONE if unit_gradient[m] < _ZERO else _ZERO
        by_unit_gradient[m] = by_product * unit_theta[m]
        by_unit_gradient[m] += by_of_gradient[m] * sign / (abs(unit_gradient[m]) + _SMALL)
        sign = _ONE if unit_theta[m] > _ZERO else -_ONE if unit_theta[m] < _ZERO else _ZERO
        by_unit_theta[m] = by_product * unit_gradient[m]
        by_unit_theta[m] += by_of_theta[m] * sign / (abs(unit_theta[m]) + _SMALL)
    by_rms_theta = by_norms[0] / norms[3] - _dot(by_unit_theta, unit_theta) / norms[3]
    by_rms_gradient = by_norms[1] / (norms[4] + _HUNDREDTH * scale) - _dot(by_unit_gradient, unit_gradient) / norms[4]
    over_theta, over_gradient = _ONE / norms[3], _ONE / norms[4]
    from_theta, from_gradient = by_rms_theta / many, by_rms_gradient / many
    for m in range(size):
        line.by_theta[s, m] += by_unit_theta[m] * over_theta + from_theta * unit_theta[m]
        line.by_gradient[s, m] += by_unit_gradient[m] * over_gradient + from_gradient * unit_gradient[m]


def _rows_back(line: Line, by_loss: float) -> None:
    """From ∂J by gradients and by the loss to ∂J by rows: through slopes, scores and vectors."""
    width, own, by_own = line.scores.size, line.theta[0], line.by_gradient[0]
    for c in range(width):
        line.by_slopes[c] += _dot(by_own, line.theta[1 + c]) + _dot(line.by_gradient[1 + c], own)
    share = width - 1
    for c in range(1, width):
        slope = line.slopes[c]
        # What a score's slope is multiplied by: κ / share with κ' = κ (1 − κ), against the item taken.
        move = (line.by_slopes[c] - line.by_slopes[0]) * slope * (1 - share * slope) + by_loss * slope
        line.work[0, 0] = move
        by_score = line.work[0, 0]
        line.by_bias[c] += by_score
        line.by_bias[0] -= by_score
        for m in range(own.size):
            line.by_theta[0, m] += by_score * (line.theta[1 + c, m] - line.theta[1, m])
        for m in range(own.size):
            line.by_theta[1 + c, m] += by_score * own[m]
            line.by_theta[1, m] -= by_score * own[m]
    for c in range(width):
        slope = line.slopes[c]
        for m in range(own.size):
            line.by_theta[1 + c, m] += slope * by_own[m]
        for m in range(own.size):
            line.by_theta[0, m] += slope * line.by_gradient[1 + c, m]
