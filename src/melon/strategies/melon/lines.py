"""The lines of a batch: which unit touches which row of a table or which shared weights, with which gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from melon.errors import SettingsError
from melon.models.evidence import DenseGradient, FactorGradient, Gradient, RowGradient
from melon.strategies.base import Situation
from melon.types import Ints

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lines:
    """Touches of rows: line t is unit[t] on compact row[t] of a table, with the gradient that stands at source[t].

    `touches` counts how often the batch touches each compact row, and `share` is the part of one line in the mean over
    its row's lines; a source is one of `width` slots of an interaction.
    """

    unit: Ints
    row: Ints
    source: Ints
    touches: Ints
    share: Doubles
    width: int = 1

    @property
    def slot(self) -> Ints:
        """The slot of each line within its interaction."""
        return self.source % self.width


@dataclass(frozen=True)
class TableLines:
    """The lines of one table; `gradient` is what is applied and `feature` what the rates see of it, by source.

    `positions` (interactions × slots) are the compact rows that the batch touches; with `aggregated` a line stands for
    all touches of its row.
    """

    table: str
    lines: Lines
    gradient: Tensor
    feature: Tensor
    positions: Tensor
    aggregated: bool = False


class LineBook:
    """The lines of a batch; tables whose rows are touched alike (an item's factors and its bias) share the look-up.

    A unit is an interaction or, with `pairwise`, one of its pairs. `aggregated` has one line for each row instead, with
    the summed gradient to apply and the mean one to look at.
    """

    def __init__(self, situation: Situation, *, pairwise: bool, aggregated: bool) -> None:
        self._situation, self._pairwise, self._aggregated = situation, pairwise, aggregated
        self._cache: dict[tuple[int, int], tuple[Tensor, Lines]] = {}  # the tensor is kept, so its id stays its own

    def of(self, gradient: RowGradient) -> TableLines:
        """The lines of a row gradient that can reach the next loss."""
        rows, reached = self._situation.values[gradient.table].shape[0], self._situation.reached(gradient.table)
        if self._aggregated:
            return _aggregated(gradient, rows, reached)
        key = (id(gradient.positions), reached)
        if key not in self._cache:
            self._cache[key] = gradient.positions, self._lines(gradient.positions, rows, reached)
        flat = gradient.gradient.flatten(0, 1)
        return TableLines(gradient.table, self._cache[key][1], flat, flat, gradient.positions)

    def _lines(self, positions: Tensor, rows: int, reached: int) -> Lines:
        width, row = positions.shape[1], positions.reshape(-1).cpu().numpy()
        touches = np.bincount(row, minlength=rows)[:reached]
        source = np.flatnonzero(row < reached) if reached < rows else np.arange(len(row))
        unit = source if self._pairwise or width == 1 else source // width
        return Lines(unit, row[source], source, touches, 1 / np.maximum(touches, 1), width)


def _aggregated(gradient: RowGradient, rows: int, reached: int) -> TableLines:
    counted = gradient.touches(rows)[:reached]
    total = gradient.summed(rows)[:reached]
    touches = counted.cpu().numpy()
    row = np.flatnonzero(touches)
    lines = Lines(np.zeros_like(row), row, row, touches, np.ones(len(touches)))
    mean = total / counted.clamp(min=1)[:, None]
    return TableLines(gradient.table, lines, total, mean, gradient.positions, aggregated=True)


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
