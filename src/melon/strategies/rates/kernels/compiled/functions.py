"""The compiled kernel as PyTorch sees it: two functions with gradients, which recompute instead of storing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from melon.recommenders.evidence import FactorGradient
from melon.strategies.rates.kernels import reference
from melon.strategies.rates.kernels.compiled.seam import Kernels
from melon.strategies.rates.kernels.compiled.threads import spread
from melon.strategies.rates.kernels.compiled.types import Floats
from melon.strategies.rates.kernels.forms import LineTerms, RateNetwork, RowTouches
from melon.strategies.rates.touches import SharedLines

#: Pairs in a block of rows, and units in a block of shared weights: what one thread works on at a time.
PAIRS, UNITS = 1 << 13, 16


class CompiledKernel:
    """The pair function for one width, in float32 on the processor."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def row_moves(self, touches: RowTouches, terms: LineTerms, network: RateNetwork) -> Tensor:
        """−scale · w g − share · (1 − f) θ for every line and entry."""
        share = torch.zeros_like(touches.scale) if touches.share is None else touches.share
        shares = torch.stack([touches.scale * -network.most_rate, share], dim=1)
        constants = (touches.theta, touches.gradient, touches.feature, shares)
        weights = (network.first, network.second, network.second_bias, network.head)
        moves: Tensor = _RowMoves.apply(self._kernels, constants, touches.old, terms.hidden, terms.logits, *weights)  # type: ignore[no-untyped-call]
        return moves

    def shared_move(
        self, theta: Tensor, lines: SharedLines, terms: LineTerms, network: RateNetwork, scale: float, share: float
    ) -> Tensor:
        """−scale · Σ_x w g − share · Σ_x (1 − f) θ for every entry."""
        gradient = lines.gradient
        if lines.aggregated or not isinstance(gradient, FactorGradient):
            return reference.shared_move(theta, lines, terms, network, scale, share)
        constants = (theta.view(gradient.left.shape[-1], -1), gradient.left, gradient.right)
        sizes = (-scale * network.most_rate, share)
        weights = (network.first, network.second, network.second_bias, network.head)
        move: Tensor = _SharedMove.apply(self._kernels, constants, sizes, terms.hidden, terms.logits, *weights)  # type: ignore[no-untyped-call]
        return move


class _RowMoves(Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        constants: tuple[Tensor, ...],
        old: Tensor,
        hidden: Tensor,
        logits: Tensor,
        *w: Tensor,
    ) -> Tensor:
        theta, gradient, feature, shares = constants
        lines, entries = theta.shape
        per_block = max(PAIRS // max(entries, 1), 1)
        pairs = (_flat(theta), _flat(old), _flat(gradient), _flat(feature))
        terms = (_padded(hidden, kernels.width), _array(logits), _array(shares))
        ctx.inputs = (per_block, entries, *pairs, *terms, _packed(kernels.width, *w))
        ctx.kernels, ctx.blocks, ctx.shapes = kernels, -(-lines // per_block), (theta.shape, hidden.shape, w[0].shape)
        out = np.empty(theta.numel(), np.float32)
        spread(ctx.blocks, lambda blocks: kernels.rows_forward(blocks, *ctx.inputs, out))
        return torch.from_numpy(out).view_as(theta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gamma: Tensor) -> tuple[Any, ...]:
        kernels, (shape, hidden, first) = ctx.kernels, ctx.shapes
        to_weights = np.zeros((ctx.blocks, len(ctx.inputs[-1])))
        to_hidden = np.zeros((shape[0], kernels.width), np.float32)
        to_logits, to_old = np.zeros((shape[0], 2), np.float32), np.empty(shape.numel(), np.float32)
        slopes = (_flat(gamma), to_weights, to_hidden, to_logits, to_old)
        spread(ctx.blocks, lambda blocks: kernels.rows_backward(blocks, *ctx.inputs, *slopes))
        of_old = torch.from_numpy(to_old).view(shape) if ctx.needs_input_grad[2] else None
        of_lines = (torch.from_numpy(to_hidden)[:, : hidden[1]], torch.from_numpy(to_logits))
        return None, None, of_old, *of_lines, *_unpacked(to_weights.sum(0), kernels.width, first)


class _SharedMove(Function):
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
        theta, left, right = (_array(each) for each in constants)
        terms = (_padded(hidden, kernels.width), _array(logits))
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


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


def _flat(tensor: Tensor) -> Floats:
    return _array(tensor).reshape(-1)


def _padded(lines: Tensor, width: int) -> Floats:
    """Lines × units, with zeros for the units that only fill a kernel up."""
    if lines.shape[1] == width:
        return _array(lines)
    out = np.zeros((len(lines), width), np.float32)
    out[:, : lines.shape[1]] = _array(lines)
    return out


def _packed(width: int, first: Tensor, second: Tensor, bias: Tensor, head: Tensor) -> Floats:
    """All weights in the order of `layout`; a network that does not see θ has zeros for it."""
    more, columns = width - len(first), 3 - first.shape[1]
    parts = (first.T, second, bias, head)
    if more or columns:
        parts = (
            pad(parts[0], (0, more, 0, columns)),
            pad(second, (0, more, 0, more)),
            pad(bias, (0, more)),
            pad(head, (0, more)),
        )
    return _array(torch.cat([part.reshape(-1) for part in parts]))


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
