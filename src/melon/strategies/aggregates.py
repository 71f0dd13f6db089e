"""What a batch says of each parameter as a whole: one gradient per entry, for strategies that work parameter-wise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from melon.recommenders.evidence import RowGradient
from melon.strategies.base import LearningRates, Situation

#: How the gradients of several interactions on one parameter become one (METHODS.md 3.0.5): added up, over the whole
#: batch's size, or over the number of interactions that touch the row.
Aggregate = Literal["sum", "batch", "row_mean"]


def aggregated(situation: Situation, how: Aggregate) -> dict[str, Tensor]:
    """One gradient for each entry of the compact rows that the next loss can see, by table."""
    totals: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table, reached = gradient.table, situation.reached(gradient.table)
        total = gradient.summed(len(situation.values[table]))[:reached]
        totals[table] = totals[table] + total if table in totals else total
    scales = touch_scales(situation, how)
    return {table: total if how == "sum" else total * scales[table][:, None] for table, total in totals.items()}


def touch_scales(situation: Situation, how: Aggregate) -> dict[str, Tensor]:
    """What the summed gradient of each reached row is multiplied by."""
    scales: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table = gradient.table
        rows, reached = len(situation.values[table]), situation.reached(table)
        if how == "row_mean":
            touches = gradient.touches(rows)[:reached].clamp(min=1)
            scales[table] = 1 / touches.to(situation.evidence.losses.dtype)
        else:
            scale = 1.0 if how == "sum" else 1 / len(situation.examples)
            scales[table] = situation.evidence.losses.new_full((reached,), scale)
    return scales


def parameter_rates(situation: Situation, rates: Mapping[str, Tensor], how: Aggregate) -> LearningRates:
    """The matrix of a strategy that gives each parameter one rate (compact rows × dim): every interaction shows it."""
    n, scales = len(situation.examples), touch_scales(situation, how)
    raw, realised, slots = [], [], []
    shared, raw_shared = {}, {}
    for gradient in situation.evidence.gradients:
        table, rate = gradient.table, rates[gradient.table]
        if isinstance(gradient, RowGradient):
            width, dim = gradient.gradient.shape[1:]
            raw.append(rate[gradient.positions].reshape(n, -1))
            realised.append((rate * scales[table][:, None])[gradient.positions].reshape(n, -1))
            slots += [(table, slot) for slot in range(width) for _ in range(dim)]
        else:
            raw_shared[table] = rate.reshape(1, -1).expand(n, -1)
            shared[table] = (rate * scales[table][:, None]).reshape(1, -1).expand(n, -1)
    return LearningRates(torch.cat(realised, 1), tuple(slots), shared, torch.cat(raw, 1), raw_shared)
