"""The interaction side's loops (docs/methods.md 4.3, 4.4): attention over past partners, a unit's layer and norm.

A sum has a loop of its own that writes nothing: a loop that sums and writes is compiled twice, and which of the two
runs, with other last digits, would depend on where the arrays lie. What lies between the loops, one matrix product for
each side, is left to PyTorch. Targets are worked on one after another: the features of a target and of its partners lie
in the first-level cache while they are scored, weighed and added up.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.arithmetic import F0, F1, LOWEST, NORM_EPSILON, exp
from melon.kernels.melon.rows import scaled
from melon.kernels.melon.tiles import fill, preprocessed
from melon.kernels.types import (
    DOUBLE_TABLE,
    DOUBLES,
    FLAG_TABLE,
    INTS,
    SINGLE,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SINGLES,
    Signature,
)
from melon.types import Flags, Floats, Ints, Singles

SIGNATURES: dict[str, Signature] = {
    "attend": (SINGLES, SINGLE, SINGLE_TABLE, SINGLE_CUBE, FLAG_TABLE, INTS, *[SINGLE_TABLE] * 3),
    "attend_back": (SINGLE_TABLE, SINGLE_CUBE, FLAG_TABLE, INTS, *[SINGLE_TABLE] * 3, DOUBLES),
    "unit_terms": (SINGLES, SINGLE_TABLE, SINGLE_TABLE, INTS, INTS, *[SINGLE_TABLE] * 4, SINGLES, *[SINGLE_TABLE] * 3),
    "unit_terms_back": (SINGLES, INTS, INTS, *[SINGLE_TABLE] * 3, SINGLES, *[SINGLE_TABLE] * 5, *[DOUBLE_TABLE] * 3),
}


def attend(
    attention: Singles,
    slope: np.float32,
    nodes: Singles,
    partners: Singles,
    there: Flags,
    places: Ints,
    joined: Singles,
    weights: Singles,
    leaks: Singles,
) -> None:
    """[e ; Σ_k α_k e_k] of the targets at `places`; α and the slope of each score are kept for the way back."""
    own = nodes.shape[1]
    for t in range(places.size):
        node, others, present = nodes[places[t]], partners[places[t]], there[places[t]]
        weight, leak, gathered = weights[t], leaks[t], joined[t, own:]
        scaled(joined[t, :own], node, F1)
        fill(gathered, F0)
        base, top, total = dot(attention[:own], node), LOWEST, F0
        for k in range(present.size):
            x = base + dot(attention[own:], others[k]) if present[k] else LOWEST
            leak[k] = F1 if x > F0 else slope
            weight[k] = x * leak[k] if present[k] else LOWEST
            top = max(top, weight[k])
        for k in range(present.size):
            weight[k] = exp(weight[k] - top) if present[k] else F0
            total += weight[k]
        for k in range(present.size):
            if present[k]:
                weight[k] = weight[k] / total
                add_scaled(gathered, others[k], weight[k])


def attend_back(
    nodes: Singles,
    partners: Singles,
    there: Flags,
    places: Ints,
    weights: Singles,
    leaks: Singles,
    to_gathered: Singles,
    to_attention: Floats,
) -> None:
    """Gradient of the attention vector, from that of Σ_k α_k e_k."""
    own = nodes.shape[1]
    slopes, of_others = np.zeros(there.shape[1], np.float32), np.zeros(partners.shape[2], np.float32)
    for t in range(places.size):
        node, others, present = nodes[places[t]], partners[places[t]], there[places[t]]
        mean, total = F0, F0
        for k in range(present.size):
            slopes[k] = dot(to_gathered[t], others[k]) if present[k] else F0
            mean += slopes[k] * weights[t, k]
        fill(of_others, F0)
        for k in range(present.size):
            if present[k]:
                slope = weights[t, k] * (slopes[k] - mean) * leaks[t, k]
                total += slope
                add_scaled(of_others, others[k], slope)
        for place in range(own):
            to_attention[place] += total * node[place]
        for place in range(of_others.size):
            to_attention[own + place] += of_others[place]


def unit_terms(
    losses: Singles,
    users: Singles,
    items: Singles,
    user_at: Ints,
    item_at: Ints,
    layer: Singles,
    heads: Singles,
    role: Singles,
    normal: Singles,
    spread: Singles,
    out: Singles,
    logits: Singles,
    hidden: Singles,
) -> None:
    """h = ReLU(LayerNorm(user's half + item's half + bias)) of each unit, and what its entries share.

    `layer` has the rows bias, scale and shift; `heads` those of both heads, with their biases in the last column;
    `role` the columns for the loss's two features and a bias. `normal`, 1/deviation and h (`out`) are kept.
    """
    width = layer.shape[1]
    for n in range(losses.size):
        line, result = normal[n], out[n]
        user, item = users[user_at[n]], items[item_at[n]]
        mean = F0
        for j in range(width):
            line[j] = user[j] + item[j] + layer[0, j]
        for j in range(width):
            mean += line[j]
        mean = mean / np.float32(width)
        for j in range(width):
            line[j] -= mean
        scale = F1 / np.sqrt(dot(line, line) / np.float32(width) + NORM_EPSILON)
        spread[n] = scale
        for j in range(width):
            line[j] *= scale
            x = line[j] * layer[1, j] + layer[2, j]
            result[j] = F0 if x < F0 else x
        for head in range(2):
            logits[n, head] = dot(heads[head, :width], result) + heads[head, width]
        size, sign = preprocessed(losses[n])
        for j in range(role.shape[1]):
            hidden[n, j] = role[0, j] * size + role[1, j] * sign + role[2, j]


def unit_terms_back(
    losses: Singles,
    user_at: Ints,
    item_at: Ints,
    layer: Singles,
    heads: Singles,
    normal: Singles,
    spread: Singles,
    out: Singles,
    to_logits: Singles,
    to_hidden: Singles,
    to_users: Singles,
    to_items: Singles,
    to_layer: Floats,
    to_heads: Floats,
    to_role: Floats,
) -> None:
    """Gradients of both halves, and of the three tables of weights."""
    width = layer.shape[1]
    slope, slots = np.zeros(width, np.float32), np.float32(width)
    for n in range(losses.size):
        line, mean = normal[n], F0
        to_rate, to_forget = to_logits[n, 0], to_logits[n, 1]
        for j in range(width):
            to_heads[0, j] += to_rate * out[n, j]
            to_heads[1, j] += to_forget * out[n, j]
            through = to_rate * heads[0, j] + to_forget * heads[1, j] if out[n, j] > F0 else F0
            to_layer[1, j] += through * line[j]
            to_layer[2, j] += through
            slope[j] = through * layer[1, j]
        for j in range(width):
            mean += slope[j]
        along = dot(slope, line)
        to_heads[0, width] += to_rate
        to_heads[1, width] += to_forget
        mean, along = mean / slots, along / slots
        for j in range(width):
            back = spread[n] * (slope[j] - mean - line[j] * along)
            to_layer[0, j] += back
            to_users[user_at[n], j] += back
            to_items[item_at[n], j] += back
        size, sign = preprocessed(losses[n])
        for j in range(to_hidden.shape[1]):
            to_role[0, j] += to_hidden[n, j] * size
            to_role[1, j] += to_hidden[n, j] * sign
            to_role[2, j] += to_hidden[n, j]


def dot(one: Singles, other: Singles) -> np.float32:
    """Σ one · other."""
    total = F0
    for t in range(one.size):
        total += one[t] * other[t]
    return total


def add_scaled(out: Singles, values: Singles, factor: np.float32) -> None:
    """out += factor · values."""
    for t in range(out.size):
        out[t] += values[t] * factor
