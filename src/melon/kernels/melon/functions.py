"""The compiled pair function as PyTorch sees it: functions whose gradients recompute layers instead of storing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from melon.kernels.melon.forms import (
    RateNetwork,
    RowTouches,
    SideTargets,
    SideWeights,
    UnitHeads,
    UnitLayer,
    UnitTerms,
)
from melon.kernels.melon.interactions import array_of, unit_terms
from melon.kernels.policy import Kernels
from melon.kernels.threads import spread
from melon.types import Floats, Singles

#: Pairs in a block of rows, and units in a block of shared weights: what one thread works on at a time.
PAIRS, UNITS = 1 << 13, 16


class CompiledPairs:
    """The pair function for one width, in float32 on the CPU."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def moved_rows(self, touches: Sequence[RowTouches], terms: UnitTerms, network: RateNetwork) -> tuple[Tensor, ...]:
        """θ − scale · Σ w g − share · Σ (1 − f) θ over the lines of every row, for each table."""
        if not touches:
            return ()
        weights = (network.first, network.second, network.second_bias, network.head)
        old = (each.old for each in touches)
        rows: tuple[Tensor, ...] = _MovedRows.apply(  # type: ignore[no-untyped-call]
            self._kernels, touches, network.most_rate, terms.hidden, terms.logits, *weights, *old
        )
        return rows

    def unit_terms(
        self,
        losses: Tensor,
        targets: tuple[SideTargets, SideTargets],
        slope: float,
        sides: tuple[SideWeights, SideWeights],
        layer: UnitLayer,
        heads: UnitHeads,
    ) -> UnitTerms:
        """What the entries of each unit share; h is normalised within the unit."""
        return unit_terms(self._kernels, losses, targets, slope, sides, layer, heads)

    def factors_move(
        self,
        theta: Tensor,
        left: Tensor,
        right: Tensor,
        terms: UnitTerms,
        network: RateNetwork,
        scale: float,
        share: float,
    ) -> Tensor:
        """−scale · Σ_x w g − share · Σ_x (1 − f) θ for every entry, with g = Σ_b left[b] ⊗ right[b] of each unit."""
        constants = (theta.view(left.shape[-1], -1), left, right)
        sizes = (-scale * network.most_rate, share)
        weights = (network.first, network.second, network.second_bias, network.head)
        move: Tensor = _CompiledSharedMove.apply(self._kernels, constants, sizes, terms.hidden, terms.logits, *weights)  # type: ignore[no-untyped-call]
        return move


class _MovedRows(Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        touches: Sequence[RowTouches],
        most_rate: float,
        hidden: Tensor,
        logits: Tensor,
        *free: Tensor,
    ) -> tuple[Tensor, ...]:
        w = free[:4]
        ctx.kernels, ctx.shapes = kernels, (hidden.shape, w[0].shape)
        terms, packed = (_padded(hidden, kernels.width), array_of(logits)), _packed(kernels.width, *w)
        ctx.tables = [_table(each, most_rate, terms, packed) for each in touches]
        return tuple(
            torch.from_numpy(_moved(kernels, blocks, inputs, array_of(old)))
            for (blocks, inputs), old in zip(ctx.tables, free[4:], strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gammas: Tensor) -> tuple[Any, ...]:
        kernels, (hidden, first) = ctx.kernels, ctx.shapes
        to_hidden, to_logits = np.zeros((hidden[0], kernels.width), np.float32), np.zeros((hidden[0], 2), np.float32)
        to_weights, to_old = np.zeros(len(ctx.tables[0][1][-1])), []
        for (blocks, inputs), gamma, wanted in zip(ctx.tables, gammas, ctx.needs_input_grad[9:], strict=True):
            of_weights, of_old = _moved_back(kernels, blocks, inputs, gamma, wanted, to_hidden, to_logits)
            to_weights += of_weights
            to_old.append(of_old)
        of_units = (torch.from_numpy(to_hidden)[:, : hidden[1]], torch.from_numpy(to_logits))
        return None, None, None, *of_units, *_unpacked(to_weights, kernels.width, first), *to_old


def _table(
    touches: RowTouches, most_rate: float, terms: tuple[Singles, Singles], packed: Singles
) -> tuple[int, tuple[Any, ...]]:
    """How many blocks the lines of a table make, and what a kernel is given of them."""
    per_block = max(PAIRS // max(touches.values.shape[1], 1), 1)
    places = (touches.row, touches.unit, touches.source)
    applied = array_of(touches.gradient)
    seen = applied if touches.feature is touches.gradient else array_of(touches.feature)
    inputs = (per_block, *places, array_of(touches.values), applied, seen, *terms, _shares(touches, most_rate), packed)
    return -(-len(touches.row) // per_block), inputs


def _moved(kernels: Kernels, blocks: int, inputs: tuple[Any, ...], old: Singles) -> Singles:
    row, out, rows = inputs[1], np.empty((len(inputs[1]), old.shape[1]), np.float32), old.copy()
    spread(blocks, lambda some: kernels.rows_forward(some, *inputs, out.reshape(-1)))
    kernels.fold(out, row, rows)
    return rows


def _moved_back(
    kernels: Kernels,
    blocks: int,
    inputs: tuple[Any, ...],
    gamma: Tensor,
    wanted: bool,
    to_hidden: Singles,
    to_logits: Singles,
) -> tuple[Floats, Tensor | None]:
    """Gradients of the weights and, where wanted, of the old rows; those of the units' terms are added to."""
    _, row, unit, *_, packed = inputs
    slopes, to_weights = array_of(gamma), np.zeros((blocks, len(packed)))
    of_hidden, of_logits = np.zeros((len(row), kernels.width), np.float32), np.zeros((len(row), 2), np.float32)
    of_old = np.empty((len(row) if wanted else 0, slopes.shape[1]), np.float32)
    out = (to_weights, of_hidden, of_logits, of_old.reshape(-1))
    spread(blocks, lambda some: kernels.rows_backward(some, *inputs, slopes, *out))
    kernels.fold(of_hidden, unit, to_hidden)
    kernels.fold(of_logits, unit, to_logits)
    total: Floats = to_weights.sum(0)
    if not wanted:
        return total, None
    to_old = slopes.copy()
    kernels.fold(of_old, row, to_old)
    return total, torch.from_numpy(to_old)


class _CompiledSharedMove(Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        constants: tuple[Tensor, ...],
        sizes: tuple[float, float],
        hidden: Tensor,
        logits: Tensor,
        *w: Tensor,
    ) -> Tensor:
        theta, left, right = (array_of(each) for each in constants)
        terms = (_padded(hidden, kernels.width), array_of(logits))
        ctx.inputs = (UNITS, theta, left, right, *terms, _packed(kernels.width, *w), *map(np.float32, sizes))
        ctx.kernels, ctx.blocks, ctx.shapes = kernels, -(-len(left) // UNITS), (hidden.shape, w[0].shape)
        out = np.zeros((ctx.blocks, theta.size), np.float32)
        spread(ctx.blocks, lambda blocks: kernels.shared_forward(blocks, *ctx.inputs, out))
        return torch.from_numpy(out.sum(0, dtype=np.float64).astype(np.float32))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gamma: Tensor) -> tuple[Any, ...]:
        kernels, (hidden, first) = ctx.kernels, ctx.shapes
        theta, weights = ctx.inputs[1], ctx.inputs[6]
        to_weights = np.zeros((ctx.blocks, len(weights)))
        to_hidden, to_logits = np.zeros((hidden[0], kernels.width), np.float32), np.zeros((hidden[0], 2), np.float32)
        slopes = (_flat(gamma).reshape(theta.shape), to_weights, to_hidden, to_logits)
        spread(ctx.blocks, lambda blocks: kernels.shared_backward(blocks, *ctx.inputs, *slopes))
        of_lines = (torch.from_numpy(to_hidden)[:, : hidden[1]], torch.from_numpy(to_logits))
        return None, None, None, *of_lines, *_unpacked(to_weights.sum(0), kernels.width, first)


def _flat(tensor: Tensor) -> Singles:
    return array_of(tensor).reshape(-1)


def _shares(touches: RowTouches, most_rate: float) -> Singles:
    """Rows × 2: what a line's gradient is multiplied by, and what it forgets from."""
    shares = np.zeros((len(touches.scale), 2), np.float32)
    np.multiply(touches.scale, -most_rate, out=shares[:, 0], casting="same_kind")
    if touches.share is not None:
        shares[:, 1] = touches.share
    return shares


def _padded(lines: Tensor, width: int) -> Singles:
    """Lines × units, with zeros for the units that only fill a kernel up."""
    if lines.shape[1] == width:
        return array_of(lines)
    out = np.zeros((len(lines), width), np.float32)
    out[:, : lines.shape[1]] = array_of(lines)
    return out


def _packed(width: int, first: Tensor, second: Tensor, bias: Tensor, head: Tensor) -> Singles:
    """All weights in the order of `layout`; a network that does not see θ has zeros for it."""
    units, inputs = first.shape
    whole = np.zeros((6 + width, width), np.float32)
    whole[:inputs, :units] = first.detach().numpy().T
    whole[3 : 3 + units, :units] = second.detach().numpy()
    whole[3 + width, :units] = bias.detach().numpy()
    whole[4 + width :, :units] = head.detach().numpy()
    return whole.reshape(-1)


def _unpacked(total: np.ndarray[Any, np.dtype[np.float64]], width: int, first: torch.Size) -> tuple[Tensor, ...]:
    """A packed gradient as the gradients of first, second, bias and head."""
    units, inputs = first
    whole = torch.from_numpy(total.astype(np.float32))
    columns, second, bias, head = whole.split([3 * width, width * width, width, 2 * width])  # type: ignore[no-untyped-call]
    return (
        columns.view(3, width)[:inputs, :units].T,
        second.view(width, width)[:units, :units],
        bias[:units],
        head.view(2, width)[:, :units],
    )
