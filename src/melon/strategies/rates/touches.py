"""Which lines of which tables a batch touches, unit by unit, in the forms the rate model works on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from melon.errors import SettingsError
from melon.recommenders.evidence import DenseGradient, FactorGradient, Gradient, RowGradient
from melon.strategies.base import Situation


@dataclass(frozen=True)
class Lines:
    """Touches of rows: line t is unit[t] on compact row[t] of a table.

    `gradient` is what is applied and `feature` what the rates see of it; `touches` counts how often the batch touches
    each compact row, and `share` is a line's part in the mean over its row's lines.
    """

    table: str
    unit: Tensor
    row: Tensor
    gradient: Tensor
    feature: Tensor
    slot: Tensor
    touches: Tensor
    share: Tensor


def row_lines(situation: Situation, gradient: RowGradient, *, pairwise: bool, aggregated: bool) -> Lines:
    """The lines of a row gradient that can reach the next loss; a unit is an interaction or one of its pairs.

    `aggregated` has one line for each row instead, with the summed gradient to apply and the mean one to look at.
    """
    rows, reached = len(situation.values[gradient.table]), situation.reached(gradient.table)
    touches = gradient.touches(rows)[:reached]
    if aggregated:
        row = torch.nonzero(touches).squeeze(1)
        total = gradient.summed(rows)[row]
        nothing = torch.zeros_like(row)
        mean = total / touches[row, None]
        return Lines(gradient.table, nothing, row, total, mean, nothing, touches, torch.ones_like(total[:, :1]))
    n, width = gradient.positions.shape
    row = gradient.positions.reshape(-1)
    here = torch.arange(n * width, device=row.device)
    flat = gradient.gradient.reshape(n * width, -1)
    if reached < rows:
        keep = torch.nonzero(row < reached).squeeze(1)
        row, flat, here = row[keep], flat[keep], here[keep]
    unit = here if pairwise else here // width
    share = 1 / touches[row, None].to(flat.dtype)
    return Lines(gradient.table, unit, row, flat, flat, here % width, touches, share)


@dataclass(frozen=True)
class SharedLines:
    """A table that every unit touches: one line of rows × dim entries for each unit, expanded a few at a time.

    With `aggregated` there is one line, the batch's sum, which the rates see as its mean.
    """

    table: str
    units: int
    touches: int
    entries: int
    gradient: Gradient
    aggregated: bool

    def expand(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """What is applied and what the rates see, for units start … stop-1: units × entries."""
        gradient = self.gradient
        if self.aggregated:
            total = gradient.summed(_rows_of(gradient)).flatten()[None]
            return total, total / self.touches
        if isinstance(gradient, FactorGradient):
            gradient = replace(gradient, left=gradient.left[start:stop], right=gradient.right[start:stop])
        elif isinstance(gradient, DenseGradient):
            gradient = replace(gradient, gradient=gradient.gradient[start:stop])
        flat = gradient.expand().flatten(1)
        return flat, flat


def shared_lines(situation: Situation, gradient: Gradient, *, pairwise: bool, aggregated: bool) -> SharedLines:
    """The lines of a gradient on shared weights."""
    entries, units = situation.values[gradient.table].numel(), len(situation.examples)
    if pairwise:
        if not isinstance(gradient, FactorGradient):
            raise SettingsError(
                f"pairwise rates need the gradient of {gradient.table!r} as one factor for each pair, which this "
                "recommender does not give; use pairwise=false."
            )
        left, right = gradient.left, gradient.right
        units *= left.shape[1]
        gradient = replace(gradient, left=left.reshape(units, 1, -1), right=right.reshape(units, 1, -1))
    return SharedLines(gradient.table, 1 if aggregated else units, units, entries, gradient, aggregated)


def _rows_of(gradient: Gradient) -> int:
    if isinstance(gradient, FactorGradient):
        return gradient.left.shape[-1]
    return gradient.expand().shape[1]
