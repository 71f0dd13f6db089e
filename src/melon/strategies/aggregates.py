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


def aggregated(situation: Situation, how: Aggregate, of_shared: Aggregate | None = None) -> dict[str, Tensor]:
    """One gradient for each entry of the compact rows that the next loss can see, by table.

    `of_shared` is for weights that every interaction touches, where they are to be treated otherwise.
    """
    totals: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table, reached = gradient.table, situation.reached(gradient.table)
        total = gradient.summed(len(situation.values[table]))[:reached]
        totals[table] = totals[table] + total if table in totals else total
    scales = touch_scales(situation, how, of_shared)
    summed = {table for table in totals if _how(situation, table, how, of_shared) == "sum"}
    return {table: total if table in summed else total * scales[table][:, None] for table, total in totals.items()}


def touch_scales(situation: Situation, how: Aggregate, of_shared: Aggregate | None = None) -> dict[str, Tensor]:
    """What the summed gradient of each reached row is multiplied by."""
    scales: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table = gradient.table
        rows, reached, here = len(situation.values[table]), situation.reached(table), situation.evidence.losses
        aggregate = _how(situation, table, how, of_shared)
        if aggregate == "row_mean":
            scales[table] = 1 / gradient.touches(rows)[:reached].clamp(min=1).to(here.dtype)
        else:
            scales[table] = here.new_full((reached,), 1.0 if aggregate == "sum" else 1 / len(situation.examples))
    return scales


def touched_rows(situation: Situation) -> dict[str, Tensor]:
    """Which of the compact rows that the next loss can see are touched by the batch, by table."""
    touches: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table = gradient.table
        counted = gradient.touches(len(situation.values[table]))[: situation.reached(table)]
        touches[table] = touches[table] + counted if table in touches else counted
    return {table: torch.nonzero(counted).squeeze(1) for table, counted in touches.items()}


def _how(situation: Situation, table: str, how: Aggregate, of_shared: Aggregate | None) -> Aggregate:
    return of_shared if of_shared is not None and situation.specs[table].role == "shared" else how


def parameter_rates(
    situation: Situation, rates: Mapping[str, Tensor], how: Aggregate, of_shared: Aggregate | None = None
) -> LearningRates:
    """The matrix of a strategy that gives each parameter one rate (compact rows × dim): every interaction shows it."""
    n, scales = len(situation.examples), touch_scales(situation, how, of_shared)
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
