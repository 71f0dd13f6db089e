"""The compiled cell as PyTorch sees it: a function whose gradient computes each tile again instead of storing it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from melon.kernels.policy import Loops
from melon.kernels.s2meta import cells
from melon.kernels.threads import spread
from melon.kernels.types import array_of
from melon.types import Singles

#: Scalars in a block, which one thread works on at a time.
SCALARS = 1 << 12

#: The cell state that scalars bring along (units × scalars), and which of them bring none: 1 there, else 0.
CellState = tuple[Tensor, Tensor]


class CompiledCell:
    """One step of the cell, in float32 on the CPU."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops

    def scale_and_sign(self, *values: Tensor) -> Tensor:
        """Two lines of features for each of some tensors."""
        lines = np.empty((2 * len(values), values[0].numel()), np.float32)
        for place, each in enumerate(values):
            self._loops.scale_and_sign(array_of(each).reshape(-1), lines[2 * place], lines[2 * place + 1])
        return torch.from_numpy(lines)

    def cell_logits(
        self,
        features: Tensor,
        weights: Tensor,
        bias: Tensor,
        start: Tensor,
        head: Tensor,
        kept: CellState | None = None,
        *,
        normalise: bool,
    ) -> Tensor:
        """What the heads say of each scalar, differentiable in everything but features and `kept`."""
        out: Tensor = _CellLogits.apply(  # type: ignore[no-untyped-call]
            self._loops, features, kept, normalise, weights, bias, start, head
        )
        return out

    def cell_state(
        self,
        features: Tensor,
        weights: Tensor,
        bias: Tensor,
        start: Tensor,
        kept: CellState | None = None,
        *,
        normalise: bool,
    ) -> tuple[Tensor, Tensor]:
        """The hidden state, normalised if so asked, and the cell state after one step: units × scalars each."""
        arguments = _arguments(features, weights, bias, start, kept, normalise)
        shape = (len(start), features.shape[1])
        hidden, cell = np.empty(shape, np.float32), np.empty(shape, np.float32)
        spread(_blocks(features), lambda some: self._loops.cell_states(some, *arguments, hidden, cell))
        return torch.from_numpy(hidden), torch.from_numpy(cell)


class _CellLogits(Function):
    @staticmethod
    def forward(
        ctx: Any,
        loops: Loops,
        features: Tensor,
        kept: CellState | None,
        normalise: bool,
        weights: Tensor,
        bias: Tensor,
        start: Tensor,
        head: Tensor,
    ) -> Tensor:
        ctx.loops, ctx.blocks, ctx.inputs = loops, _blocks(features), len(features)
        ctx.arguments = (*_arguments(features, weights, bias, start, kept, normalise), array_of(head))
        logits = np.empty((len(head), features.shape[1]), np.float32)
        spread(ctx.blocks, lambda some: loops.cell_logits(some, *ctx.arguments, logits))
        return torch.from_numpy(logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Any, ...]:
        _, _, weights, bias, start, *_, head = ctx.arguments
        sums = tuple(np.zeros((ctx.blocks, *each.shape)) for each in (weights, bias, start, head))
        arguments = (*ctx.arguments, array_of(slopes))
        spread(ctx.blocks, lambda some: ctx.loops.cell_back(some, *arguments, *sums))
        to_weights, *others = (torch.from_numpy(each.sum(0).astype(np.float32)) for each in sums)
        return None, None, None, None, to_weights[:, : ctx.inputs], *others


def _arguments(
    features: Tensor, weights: Tensor, bias: Tensor, start: Tensor, kept: CellState | None, normalise: bool
) -> tuple[Any, ...]:
    """What every loop is given, with features filled up to whole groups."""
    cell, fresh = np.empty((0, 0), np.float32), np.empty(0, np.float32)
    if kept is not None:
        cell, fresh = (array_of(each) for each in kept)
    size = -(-len(features) // cells.GROUP) * cells.GROUP
    padded = _filled(array_of(features), (size, features.shape[1]))
    wide = _filled(array_of(weights), (len(weights), size))
    return SCALARS, padded, wide, array_of(bias), array_of(start), cell, fresh, normalise


def _filled(values: Singles, shape: tuple[int, int]) -> Singles:
    """The values, and zeros up to a shape."""
    if values.shape == shape:
        return values
    out = np.zeros(shape, np.float32)
    out[: values.shape[0], : values.shape[1]] = values
    return out


def _blocks(features: Tensor) -> int:
    return -(-features.shape[1] // SCALARS)
