"""The rate model (docs/methods.md 4.12): the rates of one interaction's parameters, and the way back through them.

Slots of an interaction are its user, the item taken and the items drawn; each has a vector, and each item a bias. The
columns of `roles` are these vectors and then these biases. Arrays have the precision of the rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from melon.kernels.arithmetic import exp, log, tanh
from melon.kernels.factor import _dot, _pairwise
from melon.kernels.types import (
    DOUBLE_CUBE,
    DOUBLE_TABLE,
    DOUBLES,
    INTS,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SINGLES,
    Fields,
)
from melon.types import Floats, Ints

Numbers: TypeAlias = npt.NDArray[np.floating]

#: No logarithm of a rate is larger than this, and losses are read from here on.
MOST_LOG_RATE, LEAST_LOSS = 3.0, 1e-8
#: Facts of a row, and inputs of the role network: a, ℓg, ℓθ, nθ, ng, co, the loss, and the facts.
FACTS, ROLE_INPUTS = 7, 14
#: Units of each role's network.
UNITS = 8
_CAP, _ZERO, _ONE = np.float32(MOST_LOG_RATE), np.float32(0), np.float32(1)
_SMALL, _TINY, _LIFT, _HUNDREDTH = np.float32(0.05), np.float32(1e-8), np.float32(0.6), np.float32(0.01)
_NORM_LIFT, _THREE, _TENTH, _BIAS_LIFT = np.float32(1.2), np.float32(3), np.float32(0.1), np.float32(0.3)
_LEAST_LOG, _MOST_LOG, _LOG_MIDDLE, _LOG_SPREAD = -5.0, 2.0, 0.7, 1.5


class RateModel(NamedTuple):
    """φ as kernels read it, by role: constant and facts, the spline of log L and its slopes (0 outside the knots), and
    the parameter role: α, β and a network of `units` (roles × units × inputs). Without units there is no role.

    `roles` is the role of each column, `scales` the spread of users', items' and biases' numbers.
    """

    roles: Ints
    facts: Numbers
    knots: Floats
    splines: Floats
    slopes: Floats
    alpha: Numbers
    beta: Numbers
    hidden: Numbers
    hidden_bias: Numbers
    out: Numbers
    scales: Numbers


class RateSlopes(NamedTuple):
    """∂J by φ, as in `RateModel`."""

    facts: Floats
    splines: Floats
    alpha: Floats
    beta: Floats
    hidden: Floats
    hidden_bias: Floats
    out: Floats


class Line(NamedTuple):
    """One interaction as its rates see it, overwritten by the next: what rates are for, and inputs of the role.

    `inputs` are a, ℓg and ℓθ (3 × slots × d), `norms` nθ, ng, co, rms θ and rms g of each slot; `by_…` are ∂J by
    rows before the step, `later` ∂J by those after it. `work` is room for some rows.
    """

    theta: Numbers
    gradient: Numbers
    weights: Numbers
    bias: Numbers
    bias_weights: Numbers
    scores: Numbers
    slopes: Numbers
    unit_theta: Numbers
    unit_gradient: Numbers
    inputs: Numbers
    norms: Numbers
    bias_inputs: Numbers
    by_theta: Numbers
    by_gradient: Numbers
    by_bias: Numbers
    by_slopes: Numbers
    by_norms: Numbers
    later: Numbers
    later_bias: Numbers
    work: Numbers

    @classmethod
    def room(cls, slots: int, like: Numbers) -> Line:
        """Room for an interaction on rows like these."""
        (_, dim), width, kind = like.shape, slots - 1, like.dtype
        rows, each = np.zeros((8, slots, dim), kind), np.zeros((7, width), kind)
        return cls(
            rows[0], rows[1], rows[2], each[0], each[1], each[2], each[3], rows[3], rows[4],
            np.zeros((3, slots, dim), kind), np.zeros((slots, 5), kind), np.zeros((width, 2), kind),
            rows[5], rows[6], each[4], each[5], np.zeros((slots, 3), kind), rows[7], each[6],
            np.zeros((6, dim), kind),
        )  # fmt: skip


MODEL: Fields = Fields(
    RateModel,
    (INTS, SINGLE_TABLE, DOUBLES, DOUBLE_TABLE, DOUBLE_TABLE, *[SINGLE_TABLE] * 2, SINGLE_CUBE, *[SINGLE_TABLE] * 2,
     SINGLES),
)  # fmt: skip
LINE: Fields = Fields(
    Line,
    (*[SINGLE_TABLE] * 3, *[SINGLES] * 4, *[SINGLE_TABLE] * 2, SINGLE_CUBE, *[SINGLE_TABLE] * 4, *[SINGLES] * 2,
     *[SINGLE_TABLE] * 2, SINGLES, SINGLE_TABLE),
)  # fmt: skip
SLOPES: Fields = Fields(RateSlopes, (*[DOUBLE_TABLE] * 4, DOUBLE_CUBE, *[DOUBLE_TABLE] * 2))


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


def _loss_input(log_loss: float) -> float:
    return (min(max(log_loss, _LEAST_LOG), _MOST_LOG) + _LOG_MIDDLE) / _LOG_SPREAD


def _base(model: RateModel, role: int, facts: Numbers, log_loss: float) -> float:
    result = float(model.facts[role, 0]) + _spline(model, role, log_loss)
    for k in range(FACTS):
        result += model.facts[role, 1 + k] * facts[k]
    return result


def _products(theta: Numbers, gradient: Numbers) -> tuple[Any, Any, Any]:
    """θ·θ, g·g and θ·g."""
    of_theta, of_gradient, of_both = theta[0] * theta[0], gradient[0] * gradient[0], theta[0] * gradient[0]
    for m in range(1, theta.size):
        of_theta += theta[m] * theta[m]
        of_gradient += gradient[m] * gradient[m]
        of_both += theta[m] * gradient[m]
    return of_theta, of_gradient, of_both


def _role_inputs(model: RateModel, line: Line, s: int, alpha: Numbers, logs: Numbers) -> None:
    """What the role sees of a slot's vector and gradient; `logs` becomes α times what it sees of each parameter."""
    theta, gradient, size = line.theta[s], line.gradient[s], line.theta.shape[1]
    many, scale = np.float32(size), model.scales[min(s, 1)]
    norms, unit_theta, unit_gradient = line.norms[s], line.unit_theta[s], line.unit_gradient[s]
    of_theta, of_gradient, of_both = _products(theta, gradient)
    norms[3] = math.sqrt(of_theta / many + _TINY)
    norms[4] = math.sqrt(of_gradient / many + _TINY)
    over_theta, over_gradient = _ONE / norms[3], _ONE / norms[4]
    a, size_g, size_t = line.inputs[0, s], line.inputs[1, s], line.inputs[2, s]
    by_a, by_g, by_t = alpha[0], alpha[1], alpha[2]
    for m in range(size):
        t, g = theta[m] * over_theta, gradient[m] * over_gradient
        x, y, z = tanh(g * t), log(abs(g) + _SMALL) + _LIFT, log(abs(t) + _SMALL) + _LIFT
        unit_theta[m], unit_gradient[m], a[m], size_g[m], size_t[m] = t, g, x, y, z
        logs[m] = by_a * x + by_g * y + by_t * z
    norms[0] = log(norms[3] / scale)
    norms[1] = log(norms[4] / scale + _HUNDREDTH) + _NORM_LIFT
    norms[2] = _THREE * of_both * over_theta * over_gradient / many


def _pre(weights: Numbers, norms: Numbers, loss_input: float, facts: Numbers) -> Any:
    """What a unit of a vector's network sees of the row and the interaction."""
    result = weights[3] * norms[0] + weights[4] * norms[1] + weights[5] * norms[2] + weights[6] * loss_input
    for k in range(FACTS):
        result += weights[7 + k] * facts[k]
    return result


def _unit(line: Line, s: int, pre: float, weights: Numbers, out: Numbers) -> None:
    """A unit's answers for each parameter of a slot."""
    start, by_a, by_gradient, by_theta = out.dtype.type(pre), weights[0], weights[1], weights[2]
    a, of_gradient, of_theta = line.inputs[0, s], line.inputs[1, s], line.inputs[2, s]
    for m in range(out.size):
        out[m] = tanh(start + by_a * a[m] + by_gradient * of_gradient[m] + by_theta * of_theta[m])


def _add_unit(line: Line, s: int, pre: float, weights: Numbers, out: Numbers, logs: Numbers) -> None:
    """Add a unit's answers times `out` to the log rates of a slot."""
    start, by_a, by_gradient, by_theta = logs.dtype.type(pre), weights[0], weights[1], weights[2]
    a, of_gradient, of_theta = line.inputs[0, s], line.inputs[1, s], line.inputs[2, s]
    for m in range(logs.size):
        logs[m] += out * tanh(start + by_a * a[m] + by_gradient * of_gradient[m] + by_theta * of_theta[m])


def _bias_inputs(model: RateModel, line: Line, c: int) -> None:
    sign = -_ONE if c == 0 else _ONE
    line.bias_inputs[c, 0] = tanh(line.bias[c] * sign / model.scales[2])
    line.bias_inputs[c, 1] = log(abs(line.bias[c]) / model.scales[2] + _TENTH) + _BIAS_LIFT


def _bias_pre(weights: Numbers, line: Line, c: int, loss_input: float, facts: Numbers) -> Any:
    result = weights[0] * line.bias_inputs[c, 0] + weights[1] * line.bias_inputs[c, 1]
    result += weights[2] * line.norms[1 + c, 0] + weights[3] * line.norms[0, 0] + weights[4] * loss_input
    for k in range(FACTS):
        result += weights[5 + k] * facts[k]
    return result


def rate_line(model: RateModel, facts: Numbers, loss: float, line: Line) -> None:
    """Rates of an interaction that has been seen, from the facts of its slots and its loss."""
    log_loss, slots, units = math.log(loss + LEAST_LOSS), line.theta.shape[0], model.out.shape[1]
    loss_input = _loss_input(log_loss)
    for s in range(slots):
        role, weights = model.roles[s], line.weights[s]
        base = _base(model, role, facts[s], log_loss)
        if units == 0:
            weights[:] = math.exp(min(base, MOST_LOG_RATE))
            continue
        _role_inputs(model, line, s, model.alpha[role], weights)
        start = weights.dtype.type(base + _dot(model.beta[role], line.norms[s, :3]))
        for h in range(units):
            pre = model.hidden_bias[role, h] + _pre(model.hidden[role, h], line.norms[s], loss_input, facts[s])
            _add_unit(line, s, pre, model.hidden[role, h], model.out[role, h], weights)
        for m in range(weights.size):
            weights[m] = exp(min(start + weights[m], _CAP))
    for c in range(slots - 1):
        role = model.roles[slots + c]
        base = _base(model, role, facts[1 + c], log_loss)
        if units > 0:
            _bias_inputs(model, line, c)
            base += float(_dot(model.alpha[role, :2], line.bias_inputs[c]))
            base += model.beta[role, 0] * line.norms[1 + c, 0] + model.beta[role, 1] * line.norms[0, 0]
            for h in range(units):
                seen = model.hidden_bias[role, h] + _bias_pre(model.hidden[role, h], line, c, loss_input, facts[1 + c])
                base += model.out[role, h] * tanh(line.bias.dtype.type(seen))
        line.bias_weights[c] = math.exp(min(base, MOST_LOG_RATE))


def line_back(model: RateModel, facts: Numbers, loss: float, line: Line, slopes: RateSlopes) -> None:
    """∂J by the rows that a rated interaction saw, from ∂J by those rows after it has moved them by −w g.

    ∂J by φ is added to `slopes`. What rows keep of themselves at a touch is not in it.
    """
    log_loss, slots, units = math.log(loss + LEAST_LOSS), line.theta.shape[0], model.out.shape[1]
    loss_input, by_log_loss = _loss_input(log_loss), 0.0
    line.by_norms[:, :], line.by_theta[:, :] = 0, 0
    for c in range(slots - 1):
        by_log_loss += _bias_back(model, facts[1 + c], log_loss, loss_input, line, c, slopes)
    for s in range(slots):
        role, by_log, weights = model.roles[s], line.work[0], line.weights[s]
        for m in range(weights.size):
            line.by_gradient[s, m] = -line.later[s, m] * weights[m]
        for m in range(weights.size):
            by_log[m] = line.by_gradient[s, m] * line.gradient[s, m]
        if units == 0:
            by_base = 0.0 if _capped(weights[0]) else float(_sum(by_log))
        else:
            for m in range(weights.size):
                by_log[m] = _ZERO if _capped(weights[m]) else by_log[m]
            by_base = float(_sum(by_log))
        by_log_loss += _base_back(model, role, facts[s], log_loss, by_base, slopes)
        if units > 0:
            by_log_loss += _slot_back(model, role, facts[s], log_loss, loss_input, line, s, by_base, slopes)
    _rows_back(line, by_log_loss / (loss + LEAST_LOSS))


def _capped(weight: float) -> bool:
    return bool(weight >= 20.0855)  # e³ = 20.08554


def _base_back(
    model: RateModel, role: int, facts: Numbers, log_loss: float, by_base: float, slopes: RateSlopes
) -> float:
    """Of constant, facts and spline; returns ∂J by log L through the spline."""
    slopes.facts[role, 0] += by_base
    for k in range(FACTS):
        slopes.facts[role, 1 + k] += by_base * facts[k]
    if not model.knots.size:
        return 0.0
    place, last = knot(model.knots, log_loss), model.knots.size
    if place in (0, last):
        slopes.splines[role, min(place, last - 1)] += by_base
        return 0.0
    part = (log_loss - model.knots[place - 1]) / (model.knots[place] - model.knots[place - 1])
    slopes.splines[role, place - 1] += by_base * (1 - part)
    slopes.splines[role, place] += by_base * part
    return float(by_base * model.slopes[role, place])


def _by_loss_input(log_loss: float, by_input: float) -> float:
    return by_input / _LOG_SPREAD if _LEAST_LOG < log_loss < _MOST_LOG else 0.0


def _bias_back(
    model: RateModel, facts: Numbers, log_loss: float, loss_input: float, line: Line, c: int,
    slopes: RateSlopes,
) -> float:  # fmt: skip
    """Of an item's bias; returns ∂J by log L."""
    slots, units = line.theta.shape[0], model.out.shape[1]
    role, weight = model.roles[slots + c], line.bias_weights[c]
    line.by_slopes[c], line.by_bias[c] = -line.later_bias[c] * weight, 0
    by_base = 0.0 if _capped(weight) else float(line.by_slopes[c] * line.slopes[c])
    by_log_loss = _base_back(model, role, facts, log_loss, by_base, slopes)
    if units == 0:
        return by_log_loss
    own, user = line.norms[1 + c, 0], line.norms[0, 0]
    a, of_theta = line.bias_inputs[c, 0], line.bias_inputs[c, 1]
    by_a, by_theta = by_base * model.alpha[role, 0], by_base * model.alpha[role, 1]
    by_own, by_user, by_input = by_base * model.beta[role, 0], by_base * model.beta[role, 1], 0.0
    slopes.alpha[role, 0] += by_base * a
    slopes.alpha[role, 1] += by_base * of_theta
    slopes.beta[role, 0] += by_base * own
    slopes.beta[role, 1] += by_base * user
    for h in range(units):
        weights, by_weights = model.hidden[role, h], slopes.hidden[role, h]
        seen = model.hidden_bias[role, h] + _bias_pre(weights, line, c, loss_input, facts)
        value = tanh(line.bias.dtype.type(seen))
        by_pre = by_base * model.out[role, h] * (1 - value * value)
        slopes.out[role, h] += by_base * value
        slopes.hidden_bias[role, h] += by_pre
        by_weights[0] += by_pre * a
        by_weights[1] += by_pre * of_theta
        by_weights[2] += by_pre * own
        by_weights[3] += by_pre * user
        by_weights[4] += by_pre * loss_input
        for k in range(FACTS):
            by_weights[5 + k] += by_pre * facts[k]
        by_a += by_pre * weights[0]
        by_theta += by_pre * weights[1]
        by_own += by_pre * weights[2]
        by_user += by_pre * weights[3]
        by_input += by_pre * weights[4]
    sign, scale, bias = -1.0 if c == 0 else 1.0, model.scales[2], line.bias[c]
    line.by_bias[c] = by_a * (1 - a * a) * sign / scale
    line.by_bias[c] += by_theta * np.sign(bias) / (abs(bias) + _TENTH * scale)
    line.by_norms[1 + c, 0] += by_own
    line.by_norms[0, 0] += by_user
    return by_log_loss + _by_loss_input(log_loss, by_input)


def _slot_back(
    model: RateModel, role: int, facts: Numbers, log_loss: float, loss_input: float, line: Line, s: int, by_base: float,
    slopes: RateSlopes,
) -> float:  # fmt: skip
    """Through the role of a slot's vector to its row and gradient, from ∂J by log rates (`work[0]`).

    Returns ∂J by log L.
    """
    by_log, value, by_pre = line.work[0], line.work[1], line.work[2]
    by_a, by_of_gradient, by_of_theta = line.work[3], line.work[4], line.work[5]
    norms, by_norms, alpha, size, by_input = line.norms[s], line.by_norms[s], model.alpha[role], by_log.size, 0.0
    for m in range(size):
        by_a[m] = by_log[m] * alpha[0]
        by_of_gradient[m] = by_log[m] * alpha[1]
        by_of_theta[m] = by_log[m] * alpha[2]
    for k in range(3):
        slopes.alpha[role, k] += _dot(by_log, line.inputs[k, s])
        slopes.beta[role, k] += by_base * norms[k]
        by_norms[k] += by_base * model.beta[role, k]
    for h in range(model.out.shape[1]):
        weights, by_weights, out = model.hidden[role, h], slopes.hidden[role, h], model.out[role, h]
        _unit(line, s, model.hidden_bias[role, h] + _pre(weights, norms, loss_input, facts), weights, value)
        for m in range(size):
            by_pre[m] = by_log[m] * out * (_ONE - value[m] * value[m])
        for m in range(size):
            by_a[m] += by_pre[m] * weights[0]
            by_of_gradient[m] += by_pre[m] * weights[1]
            by_of_theta[m] += by_pre[m] * weights[2]
        slopes.out[role, h] += _dot(by_log, value)
        in_all = _sum(by_pre)
        slopes.hidden_bias[role, h] += in_all
        for k in range(3):
            by_weights[k] += _dot(by_pre, line.inputs[k, s])
            by_weights[3 + k] += in_all * norms[k]
            by_norms[k] += in_all * weights[3 + k]
        by_weights[6] += in_all * loss_input
        by_input += in_all * weights[6]
        for k in range(FACTS):
            by_weights[7 + k] += in_all * facts[k]
    _inputs_back(model, line, s)
    return _by_loss_input(log_loss, by_input)


def _inputs_back(model: RateModel, line: Line, s: int) -> None:
    """From ∂J by the role's inputs to ∂J by a slot's vector and gradient."""
    by_a, by_of_gradient, by_of_theta = line.work[3], line.work[4], line.work[5]
    by_unit_theta, by_unit_gradient = line.work[1], line.work[2]
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
