"""One tile through the network and back: features, two ReLU layers, two heads, and the gradient of each weight.

Everything here is written for straight loops over the pairs of a tile. `s` is the scratch array of `layout`, `w` the
weights and `d` their gradient (float64). Pairs that pad a tile have APPLIED = KEPT = 0, so they add exactly nothing.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.arithmetic import (
    E_TO_10,
    EPSILON,
    F0,
    F1,
    SMALL,
    TENTH,
    log,
    logistic,
)
from melon.kernels.generator import registers, unrolled
from melon.kernels.melon.layout import (
    APPLIED,
    BIAS,
    BLOCK,
    FORGET,
    GAMMA,
    HEAD,
    KEPT,
    LANES,
    LOWER,
    PAIRED,
    PART,
    RATE,
    SCALE,
    SECOND,
    SIGN,
    STRIDE,
    THETA,
    TILE,
    UPPER,
    WIDTH,
)
from melon.types import Floats, Singles


def preprocessed(g: np.float32) -> tuple[np.float32, np.float32]:
    """Scale and sign of a gradient or a loss (docs/methods.md 4.5)."""
    size = abs(g)
    large = size >= SMALL
    return log(size + EPSILON) * TENTH if large else -F1, (F1 if g > F0 else -F1) if large else g * E_TO_10


def features(s: Singles) -> None:
    """Scale and sign of the gradients, which lie in row SCALE."""
    for t in range(TILE):
        s[SCALE + t], s[SIGN + t] = preprocessed(s[SCALE + t])


def first_layer(s: Singles, w: Singles) -> None:
    """LOWER holds each pair's own constant before, and the first hidden layer after."""
    of_scale, of_sign, of_theta = registers(), registers(), registers()
    for j in range(0, WIDTH, BLOCK):
        at = LOWER + j * STRIDE
        for i in unrolled(BLOCK):
            of_scale[i], of_sign[i], of_theta[i] = w[j + i], w[WIDTH + j + i], w[2 * WIDTH + j + i]
        for t in range(TILE):
            scale, sign, theta = s[SCALE + t], s[SIGN + t], s[THETA + t]
            for i in unrolled(BLOCK):
                x = s[at + i * STRIDE + t] + scale * of_scale[i] + sign * of_sign[i] + theta * of_theta[i]
                s[at + i * STRIDE + t] = F0 if x < F0 else x


def first_layer_of_one(s: Singles, w: Singles, hidden: Singles) -> None:
    """The first hidden layer of pairs that share one constant."""
    of_scale, of_sign, of_theta, constant = registers(), registers(), registers(), registers()
    for j in range(0, WIDTH, BLOCK):
        at = LOWER + j * STRIDE
        for i in unrolled(BLOCK):
            of_scale[i], of_sign[i], of_theta[i] = w[j + i], w[WIDTH + j + i], w[2 * WIDTH + j + i]
            constant[i] = hidden[j + i]
        for t in range(TILE):
            scale, sign, theta = s[SCALE + t], s[SIGN + t], s[THETA + t]
            for i in unrolled(BLOCK):
                x = constant[i] + scale * of_scale[i] + sign * of_sign[i] + theta * of_theta[i]
                s[at + i * STRIDE + t] = F0 if x < F0 else x


def second_layer(s: Singles, w: Singles) -> None:
    """The second hidden layer into UPPER; RATE and FORGET, which hold the line's terms, become the logits."""
    weight, bias, to_rate, to_forget = registers(), registers(), registers(), registers()
    total, rate, forget, lower = registers(), registers(), registers(), registers()
    for k in range(0, WIDTH, BLOCK):
        at = UPPER + k * STRIDE
        for i in unrolled(BLOCK):
            bias[i], to_rate[i], to_forget[i] = w[BIAS + k + i], w[HEAD + k + i], w[HEAD + WIDTH + k + i]
            for j in unrolled(WIDTH):
                weight[i, j] = w[SECOND + (k + i) * WIDTH + j]
        for t in range(PART):
            for u in unrolled(LANES):
                for i in unrolled(BLOCK):
                    total[i, u] = bias[i]
            for j in unrolled(WIDTH):
                for u in unrolled(LANES):
                    lower[u] = s[LOWER + j * STRIDE + u * PART + t]
                for i in unrolled(BLOCK):
                    for u in unrolled(LANES):
                        total[i, u] += lower[u] * weight[i, j]
            for u in unrolled(LANES):
                rate[u], forget[u] = s[RATE + u * PART + t], s[FORGET + u * PART + t]
                for i in unrolled(BLOCK):
                    x = F0 if total[i, u] < F0 else total[i, u]
                    s[at + i * STRIDE + u * PART + t] = x
                    rate[u] += x * to_rate[i]
                    forget[u] += x * to_forget[i]
                s[RATE + u * PART + t] = rate[u]
                s[FORGET + u * PART + t] = forget[u]


def moves(s: Singles) -> None:
    """APPLIED · σ(rate) − KEPT · (1 − σ(forget)) into RATE."""
    for t in range(TILE):
        s[RATE + t] = s[APPLIED + t] * logistic(s[RATE + t]) - s[KEPT + t] * logistic(-s[FORGET + t])


def moves_without_forgetting(s: Singles) -> None:
    """APPLIED · σ(rate) into RATE."""
    for t in range(TILE):
        s[RATE + t] = s[APPLIED + t] * logistic(s[RATE + t])


def slopes(s: Singles) -> None:
    """∂(γ · move)/∂logit into RATE and FORGET; −γ (1 − f), for the old values' gradient, into GAMMA."""
    for t in range(TILE):
        gamma = s[GAMMA + t]
        rate, forgotten = logistic(s[RATE + t]), logistic(-s[FORGET + t])
        s[RATE + t] = gamma * s[APPLIED + t] * rate * (F1 - rate)
        s[FORGET + t] = gamma * s[KEPT + t] * forgotten * (F1 - forgotten)
        s[GAMMA + t] = -gamma * forgotten


def heads_back(s: Singles, w: Singles, d: Floats) -> None:
    """Gradients of the heads and of the second bias; UPPER becomes the slope of its pre-activation."""
    for k in range(WIDTH):
        at = UPPER + k * STRIDE
        to_rate, to_forget = w[HEAD + k], w[HEAD + WIDTH + k]
        of_rate, of_forget, of_bias = F0, F0, F0
        for t in range(TILE):
            rate, forget, x = s[RATE + t], s[FORGET + t], s[at + t]
            slope = rate * to_rate + forget * to_forget if x > F0 else F0
            s[at + t] = slope
            of_rate += rate * x
            of_forget += forget * x
            of_bias += slope
        d[HEAD + k] += of_rate
        d[HEAD + WIDTH + k] += of_forget
        d[BIAS + k] += of_bias


def second_back(s: Singles, d: Floats) -> None:
    """Gradient of the second layer: sums over the tile of (slope of an upper unit) · (lower unit)."""
    total, slope, lower = registers(), registers(), registers()
    for k in range(0, WIDTH, BLOCK):
        for j in range(0, WIDTH, PAIRED):
            above, below = UPPER + k * STRIDE, LOWER + j * STRIDE
            for i in unrolled(BLOCK):
                for c in unrolled(PAIRED):
                    total[i, c] = F0
            for t in range(TILE):
                for c in unrolled(PAIRED):
                    lower[c] = s[below + c * STRIDE + t]
                for i in unrolled(BLOCK):
                    slope[i] = s[above + i * STRIDE + t]
                    for c in unrolled(PAIRED):
                        total[i, c] += slope[i] * lower[c]
            for i in unrolled(BLOCK):
                for c in unrolled(PAIRED):
                    d[SECOND + (k + i) * WIDTH + j + c] += total[i, c]


def through_second(s: Singles, w: Singles) -> None:
    """LOWER becomes the slope of its pre-activation."""
    weight, total, upper = registers(), registers(), registers()
    for j in range(0, WIDTH, BLOCK):
        at = LOWER + j * STRIDE
        for i in unrolled(BLOCK):
            for k in unrolled(WIDTH):
                weight[i, k] = w[SECOND + k * WIDTH + j + i]
        for t in range(PART):
            for u in unrolled(LANES):
                for i in unrolled(BLOCK):
                    total[i, u] = F0
            for k in unrolled(WIDTH):
                for u in unrolled(LANES):
                    upper[u] = s[UPPER + k * STRIDE + u * PART + t]
                for i in unrolled(BLOCK):
                    for u in unrolled(LANES):
                        total[i, u] += upper[u] * weight[i, k]
            for u in unrolled(LANES):
                for i in unrolled(BLOCK):
                    on = s[at + i * STRIDE + u * PART + t] > F0
                    s[at + i * STRIDE + u * PART + t] = total[i, u] if on else F0


def first_back(s: Singles, d: Floats) -> None:
    """Gradient of the first layer's three columns."""
    for j in range(WIDTH):
        at = LOWER + j * STRIDE
        of_scale, of_sign, of_theta = F0, F0, F0
        for t in range(TILE):
            slope = s[at + t]
            of_scale += slope * s[SCALE + t]
            of_sign += slope * s[SIGN + t]
            of_theta += slope * s[THETA + t]
        d[j] += of_scale
        d[WIDTH + j] += of_sign
        d[2 * WIDTH + j] += of_theta


def network(s: Singles, w: Singles) -> None:
    """From gradients, values and each pair's own constant in the tile to the logits."""
    features(s)
    first_layer(s, w)
    second_layer(s, w)


def network_back(s: Singles, w: Singles, d: Floats) -> None:
    """The network once more, and the gradient of every weight; LOWER ends as the slope of each pair's own constant."""
    features(s)
    first_layer(s, w)
    layers_back(s, w, d)


def network_back_of_one(s: Singles, w: Singles, hidden: Singles, d: Floats) -> None:
    """The same for pairs that share one constant."""
    features(s)
    first_layer_of_one(s, w, hidden)
    layers_back(s, w, d)


def layers_back(s: Singles, w: Singles, d: Floats) -> None:
    """From the first hidden layer up and back down."""
    second_layer(s, w)
    slopes(s)
    heads_back(s, w, d)
    second_back(s, d)
    through_second(s, w)
    first_back(s, d)


def load(s: Singles, row: int, values: Singles) -> None:
    """Put values at the start of a row, and zeros after them."""
    inside = s[row : row + TILE]
    for t in range(values.size):
        inside[t] = values[t]
    for t in range(values.size, TILE):
        inside[t] = F0


def fill(values: Singles, value: np.float32) -> None:
    """The same number everywhere."""
    for t in range(values.size):
        values[t] = value


def added(values: Singles) -> np.float32:
    """The sum of some numbers of a tile."""
    total = F0
    for t in range(values.size):
        total += values[t]
    return total
