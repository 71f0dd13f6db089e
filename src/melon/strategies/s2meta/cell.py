"""The LSTM cell of S2Meta, run over every scalar of a block of rows, a cache's worth at a time (docs/methods.md 3.5).

Nothing of the size scalars × units is ever stored: the backward pass computes each tile again. Numbers run along the
last axis (units × scalars), so that each small matrix meets long rows. The units' pre-activations stand in the order
input gate, forget gate, output gate, candidate, so that three of them take one sigmoid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from melon.strategies.preprocess import preprocess

#: Scalars in a tile: what 64 units hold for them then stays within a core's own cache.
TILE = 1 << 11
#: LayerNorm's.
_EPSILON = 1e-5
#: Of the logarithm in pre(), as published.
LOG_EPSILON = 1e-20


class Carried(NamedTuple):
    """The cell state that scalars bring along (units × scalars), and which of them bring none: 1 there, else 0."""

    cell: Tensor
    fresh: Tensor

    def at(self, tile: slice) -> Carried:
        """That of some scalars."""
        return Carried(self.cell[:, tile], self.fresh[tile])


def scale_and_sign(*values: Tensor) -> Tensor:
    """pre() of some tensors, two lines of features for each: inputs × scalars."""
    return torch.cat([part.reshape(1, -1) for value in values for part in preprocess(value, LOG_EPSILON)])


def cell_logits(
    features: Tensor,
    weights: Tensor,
    bias: Tensor,
    start: Tensor,
    head: Tensor,
    kept: Carried | None = None,
    *,
    normalise: bool,
) -> Tensor:
    """What the heads say of each scalar: outputs × scalars, differentiable in everything but features and `kept`.

    features: inputs × scalars. weights: 4 units × inputs. bias: 4 units. start: the cell state of scalars that bring
    none along. head: outputs × units, on the hidden state, which `normalise` brings to mean 0 and deviation 1.
    """
    cell, fresh = (None, None) if kept is None else (kept.cell, kept.fresh)
    out: Tensor = _CellLogits.apply(features, weights, bias, start, head, cell, fresh, normalise)  # type: ignore[no-untyped-call]
    return out


@torch.no_grad()
def cell_state(
    features: Tensor, weights: Tensor, bias: Tensor, start: Tensor, kept: Carried | None = None, *, normalise: bool
) -> tuple[Tensor, Tensor]:
    """The hidden state, normalised if so asked, and the cell state after one step: units × scalars each."""
    weights, features = _joined(weights, bias), _with_one(features)
    hidden = features.new_empty((len(start), features.shape[1]))
    cell = torch.empty_like(hidden)
    for tile in _tiles(features):
        result = _Tile.of(features[:, tile], weights, start, None if kept is None else kept.at(tile), normalise)
        torch.mul(result.hidden, 1 if normalise else 2, out=hidden[:, tile])
        torch.mul(result.twice_cell, 0.5, out=cell[:, tile])
    return hidden, cell


@dataclass(frozen=True)
class _Tile:
    """Everything that one step of the cell computes for some scalars.

    tanh z is taken as 2σ(2z) − 1, which is several times quicker. The factors of 2 are carried along: the candidate's
    weights are doubled beforehand, and halves stand for the candidate, for tanh of the cell state and for the hidden
    state, unless that is normalised.
    """

    active: Tensor  # input, forget and output gate, and the candidate's σ: 4 units × scalars
    half_candidate: Tensor
    before: Tensor  # the cell state that it started from
    twice_cell: Tensor
    squashed: Tensor  # σ of twice the cell state
    hidden: Tensor  # a half of it, or the normalised whole
    scale: Tensor | None  # one over the deviation of the halved hidden state, where it was normalised

    @classmethod
    def of(cls, features: Tensor, weights: Tensor, start: Tensor, kept: Carried | None, normalise: bool) -> _Tile:
        active = (weights @ features).sigmoid_()
        entry, forget, exit_, candidate = active.chunk(4)
        candidate = candidate - 0.5
        before = start.unsqueeze(1)
        if kept is not None:
            before = torch.addcmul(kept.cell, before, kept.fresh)
        twice_cell = (forget * (2 * before)).addcmul_(entry, candidate, value=4)
        squashed = twice_cell.sigmoid()
        hidden = (squashed - 0.5).mul_(exit_)
        scale = None
        if normalise:
            hidden -= _mean(hidden)
            scale = _mean(hidden * hidden).add_(_EPSILON / 4).rsqrt_()
            hidden *= scale
        return cls(active, candidate, before, twice_cell, squashed, hidden, scale)

    def slopes(self, to_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """From the slope of `hidden` those of the pre-activations, and of the cell state at the start."""
        units = len(self.hidden)
        if self.scale is not None:
            along = _mean(to_hidden * self.hidden)
            to_hidden = to_hidden - _mean(to_hidden)
            to_hidden.addcmul_(self.hidden, along, value=-1).mul_(self.scale)
        entry, forget, exit_, _ = self.active.chunk(4)
        to_active = torch.empty_like(self.active)
        to_twice_cell = torch.ops.aten.sigmoid_backward(to_hidden * exit_, self.squashed)
        torch.mul(to_hidden, self.squashed - 0.5, out=to_active[2 * units : 3 * units])
        to_cell = to_twice_cell.mul_(2)
        torch.mul(to_cell, entry, out=to_active[3 * units :])
        torch.mul(to_cell, self.before, out=to_active[units : 2 * units])
        torch.mul(to_cell, self.half_candidate, out=to_active[:units])
        to_active[:units] *= 2  # the whole candidate; for its own units the second 2 is in the weights
        return torch.ops.aten.sigmoid_backward(to_active, self.active), to_cell.mul_(forget)


class _CellLogits(Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weights: Tensor,
        bias: Tensor,
        start: Tensor,
        head: Tensor,
        cell: Tensor | None,
        fresh: Tensor | None,
        normalise: bool,
    ) -> Tensor:
        weights, features = _joined(weights, bias), _with_one(features)
        head = head if normalise else 2 * head
        ctx.save_for_backward(features, weights, start, head, cell, fresh)
        ctx.normalise = normalise
        logits = features.new_empty((len(head), features.shape[1]))
        for tile in _tiles(features):
            result = _Tile.of(features[:, tile], weights, start, _kept(cell, fresh, tile), normalise)
            torch.mm(head, result.hidden, out=logits[:, tile])
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        features, weights, start, head, cell, fresh = ctx.saved_tensors
        to_weights, to_start, to_head = torch.zeros_like(weights), torch.zeros_like(start), torch.zeros_like(head)
        for tile in _tiles(features):
            inputs, slope = features[:, tile], slopes[:, tile]
            result = _Tile.of(inputs, weights, start, _kept(cell, fresh, tile), ctx.normalise)
            to_head.addmm_(slope, result.hidden.T)
            to_active, to_before = result.slopes(head.T @ slope)
            to_weights.addmm_(to_active, inputs.T)
            to_start.add_(to_before.sum(1) if fresh is None else to_before @ fresh[tile])
        to_weights[3 * len(start) :] *= 4  # 2 for the doubled weights, and 2 for the halved candidate
        to_head = to_head if ctx.normalise else 2 * to_head
        return None, to_weights[:, :-1], to_weights[:, -1], to_start, to_head, None, None, None


def _joined(weights: Tensor, bias: Tensor) -> Tensor:
    """Weights with the bias as a last column, and the candidate's units doubled."""
    joined = torch.cat([weights, bias.unsqueeze(1)], 1)
    joined[3 * len(joined) // 4 :] *= 2
    return joined


def _with_one(features: Tensor) -> Tensor:
    """A feature that is always 1, for the bias."""
    return torch.cat([features, torch.ones_like(features[:1])])


def _mean(values: Tensor) -> Tensor:
    """Over the units: 1 × scalars. As a product it is quicker than a sum along the first axis."""
    return values.new_full((1, len(values)), 1 / len(values)) @ values


def _tiles(features: Tensor) -> list[slice]:
    return [slice(start, start + TILE) for start in range(0, features.shape[1], TILE)]


def _kept(cell: Tensor | None, fresh: Tensor | None, tile: slice) -> Carried | None:
    return None if cell is None or fresh is None else Carried(cell[:, tile], fresh[tile])
