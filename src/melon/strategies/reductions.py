"""Several touches of a row in one step: how their gradients become one (docs/methods.md 3.0.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from melon.models.evidence import Evidence, RowGradient
from melon.strategies.base import LearningRates, Situation

#: Reductions of a summed gradient (docs/methods.md 3.0.5); `Reduction` in base.py says what each word means.
GradientReduction = Literal["sum", "mean", "row_mean"]


def reduced_gradients(
    situation: Situation, reduction: GradientReduction, shared_reduction: GradientReduction | None = None
) -> dict[str, Tensor]:
    """One gradient for each entry of the compact rows that the next loss can see, by table.

    `shared_reduction` is for weights that every interaction touches, where it differs.
    """
    totals: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table, reached = gradient.table, situation.reached(gradient.table)
        total = gradient.summed(len(situation.values[table]))[:reached]
        totals[table] = totals[table] + total if table in totals else total
    scales = reduction_scales(situation, reduction, shared_reduction)
    summed = {table for table in totals if _reduction_of(situation, table, reduction, shared_reduction) == "sum"}
    return {table: total if table in summed else total * scales[table][:, None] for table, total in totals.items()}


def reduction_scales(
    situation: Situation, reduction: GradientReduction, shared_reduction: GradientReduction | None = None
) -> dict[str, Tensor]:
    """The factor on the summed gradient of each reached row, by table."""
    scales: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table = gradient.table
        rows, reached, losses = len(situation.values[table]), situation.reached(table), situation.evidence.losses
        reduction_here = _reduction_of(situation, table, reduction, shared_reduction)
        if reduction_here == "row_mean":
            scales[table] = 1 / gradient.touches(rows)[:reached].clamp(min=1).to(losses.dtype)
        else:
            factor = 1.0 if reduction_here == "sum" else 1 / len(situation.examples)
            scales[table] = losses.new_full((reached,), factor)
    return scales


def touched_rows(situation: Situation) -> dict[str, Tensor]:
    """The compact rows that the batch touches and the next loss can see, by table."""
    touches: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table = gradient.table
        counts = gradient.touches(len(situation.values[table]))[: situation.reached(table)]
        touches[table] = touches[table] + counts if table in touches else counts
    return {table: torch.nonzero(counts).squeeze(1) for table, counts in touches.items()}


def parameter_rates(
    situation: Situation,
    rates: Mapping[str, Tensor],
    reduction: GradientReduction,
    shared_reduction: GradientReduction | None = None,
) -> LearningRates:
    """The matrix of a strategy with one rate for each parameter (compact rows × dim), whatever the interaction."""
    n, scales = len(situation.examples), reduction_scales(situation, reduction, shared_reduction)
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


def row_constant_rates(evidence: Evidence, rates: Tensor, scale: Mapping[str, float]) -> LearningRates:
    """The matrix of a strategy that gives each interaction one rate (n), times a constant for each table."""
    columns, slots = [], []
    for gradient in evidence.row_gradients:
        n, width, dim = gradient.gradient.shape
        columns.append((rates * scale[gradient.table])[:, None].expand(n, width * dim))
        slots += [(gradient.table, slot) for slot in range(width) for _ in range(dim)]
    shared = {}
    for wide in evidence.shared_gradients:
        entries = wide.expand()[0].numel()
        shared[wide.table] = (rates * scale[wide.table])[:, None].expand(len(rates), entries)
    return LearningRates(torch.cat(columns, dim=1), tuple(slots), shared)


def _reduction_of(
    situation: Situation, table: str, reduction: GradientReduction, shared_reduction: GradientReduction | None
) -> GradientReduction:
    is_shared = situation.specs[table].role == "shared"
    return shared_reduction if shared_reduction is not None and is_shared else reduction
