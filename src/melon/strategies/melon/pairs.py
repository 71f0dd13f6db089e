"""The published pair function (docs/methods.md 4.5, 4.6): w and f of every (unit, entry), and sums of their steps.

A unit is an interaction, or one of its pairs. What all its entries share is a term of the hidden layer and one of both
logits. Compiled kernels compute the network with two layers in float32; PyTorch has everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from melon.kernels import policy
from melon.strategies.parameters import preprocess
from melon.types import Singles

RATE, FORGET = 0, 1
#: Pairs of a shared weight that are worked on at a time.
PAIRS_AT_ONCE = 1 << 18
#: The kernel module.
KERNELS = "pairs"


class PairNetwork(NamedTuple):
    """Terms of units, `hidden` (units × width) and `logits` (units × 2), and the weights that all pairs meet.

    `first` is width × (scale of g, sign of g[, θ]); without a parameter side there is none, and nothing `hidden`.
    `second` (width × width) and its bias are absent where the role is affine; `head` is 2 × width.
    """

    hidden: Tensor | None
    logits: Tensor
    first: Tensor | None = None
    second: Tensor | None = None
    bias: Tensor | None = None
    head: Tensor | None = None

    def at(self, units: Tensor) -> PairNetwork:
        """With the terms of some units."""
        hidden = None if self.hidden is None else self.hidden.index_select(0, units)
        return self._replace(hidden=hidden, logits=self.logits.index_select(0, units))


def rates(theta: Tensor, gradient: Tensor, network: PairNetwork) -> Tensor:
    """w and f, 2 × lines × entries (or × 1 without a parameter side), differentiable in the network.

    θ is lines × entries, or one line for all; gradient is lines × entries.
    """
    if _kernels(network) is not None:
        found: Tensor = _Rates.apply(theta.detach(), gradient, *network)  # type: ignore[no-untyped-call]
        return found
    return _plain_rates(theta, gradient, network)


def _kernels(network: PairNetwork) -> policy.Kernels | None:
    return None if network.second is None else policy.load(KERNELS, dtype=network.logits.dtype)


def _plain_rates(theta: Tensor, gradient: Tensor, network: PairNetwork) -> Tensor:
    hidden, logits, first, second, bias, head = network
    logits = logits.T.unsqueeze(2)
    if hidden is None:
        return torch.sigmoid(logits)
    assert first is not None
    assert head is not None
    seen = [*preprocess(gradient), theta.detach().expand_as(gradient)][: first.shape[1]]
    if second is None:
        # Affine all the way: the layer folds into one weight per feature and one constant per line.
        role = torch.einsum("oi,ile->ole", head @ first, torch.stack(seen)) + (hidden @ head.T).T.unsqueeze(2)
    else:
        lower = torch.relu(torch.stack(seen, dim=2) @ first.T + hidden.unsqueeze(1))
        role = (torch.relu(F.linear(lower, second, bias)) @ head.T).permute(2, 0, 1)
    return torch.sigmoid(logits + role)


def _rates_back(theta: Tensor, gradient: Tensor, network: PairNetwork, by: Tensor) -> list[Tensor | None]:
    """∂J by the terms and weights of a network, from ∂J by w and f."""
    kernels = _kernels(network)
    if kernels is not None:
        packed, to = _packed(theta, gradient, network), list[Singles]()
        for place, part in enumerate(packed[2:]):
            to.append(np.zeros(part.shape, np.float32 if place < 2 else np.float64))
        kernels.pair_rates_back(*packed, _array(by), *to)
        return [
            torch.from_numpy(slope[tuple(slice(size) for size in part.shape)]).to(part.dtype)
            for slope, part in zip(to, network, strict=True)
            if part is not None
        ]
    with torch.enable_grad():
        leaves = [None if part is None else part.detach().requires_grad_() for part in network]
        found = _plain_rates(theta, gradient, PairNetwork._make(leaves))
    there = [leaf for leaf in leaves if leaf is not None]
    slopes = iter(torch.autograd.grad(found, there, by.sum_to_size(found.shape), allow_unused=True))
    return [None if leaf is None else next(slopes) for leaf in leaves]


class _Rates(Function):
    """The compiled pair function; nothing of the size pairs × width is ever stored."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, gradient: Tensor, *network: Tensor) -> Tensor:
        ctx.save_for_backward(theta, gradient, *network)
        out = np.empty((2, *gradient.shape), np.float32)
        policy.load(KERNELS).pair_rates(*_packed(theta, gradient, PairNetwork(*network)), out)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        theta, gradient, *network = ctx.saved_tensors
        return None, None, *_rates_back(theta, gradient, PairNetwork(*network), by)


def _array(tensor: Tensor) -> Singles:
    return np.ascontiguousarray(tensor.detach().numpy())


def _packed(theta: Tensor, gradient: Tensor, network: PairNetwork) -> list[Singles]:
    """What kernels take; units that fill up the width to a multiple of four have zero weights and add nothing."""
    hidden, logits, first, second, bias, head = (part.detach() for part in network if part is not None)
    more = -len(second) % 4
    padded = [
        F.pad(hidden, (0, more)),
        logits,
        F.pad(first, (0, 4 - first.shape[1], 0, more)),
        F.pad(second, (0, more, 0, more)),
        F.pad(bias, (0, more)),
        F.pad(head, (0, more)),
    ]
    return [_array(part) for part in (theta, gradient, *padded)]


#: What is applied and what the rates see, for units start … stop-1: units × entries.
Expand = Callable[[int, int], tuple[Tensor, Tensor]]


def shared_move(theta: Tensor, units: int, expand: Expand, network: PairNetwork, scale: float, share: float) -> Tensor:
    """−scale · Σ_x w g − share · Σ_x (1 − f) θ for every entry of a weight that all units touch; θ is flat."""
    move: Tensor = _SharedMove.apply(theta.detach(), units, expand, scale, share, *network)  # type: ignore[no-untyped-call]
    return move


def some_units(units: int, entries: int) -> Iterator[slice]:
    """All units, some at a time."""
    at_once = max(PAIRS_AT_ONCE // entries, 1)
    return (slice(start, min(start + at_once, units)) for start in range(0, units, at_once))


class _SharedMove(Function):
    """Forward without a graph; with γ = ∂J/∂move known, Σ γ · move is a sum over units (docs/methods.md 4.7)."""

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, units: int, expand: Expand, scale: float, share: float, *network: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(theta, *network)
        ctx.given = units, expand, scale, share
        move = torch.zeros_like(theta)
        for some, parts in _parts(units, theta, network):
            gradient, feature = expand(some.start, some.stop)
            found = rates(theta[None], feature, parts)
            move -= scale * (found[RATE] * gradient).sum(0)
            move -= share * theta * (1 - found[FORGET]).expand_as(gradient).sum(0)
        return move

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gamma: Tensor) -> tuple[Tensor | None, ...]:
        theta, *network = ctx.saved_tensors
        units, expand, scale, share = ctx.given
        totals = [None if part is None else torch.zeros_like(part) for part in network]
        for some, parts in _parts(units, theta, network):
            gradient, feature = expand(some.start, some.stop)
            by = torch.stack([gradient * (gamma * -scale), (gamma * theta * share).expand_as(gradient)])
            for place, slope in enumerate(_rates_back(theta[None], feature, parts, by)):
                total = totals[place]
                if slope is not None and total is not None:
                    (total[some] if place < 2 else total).add_(slope)
        return None, None, None, None, None, *totals


def _parts(
    units: int, theta: Tensor, network: list[Tensor | None] | tuple[Tensor | None, ...]
) -> Iterator[tuple[slice, PairNetwork]]:
    """Some units at a time, and the network with their terms."""
    hidden, logits, *weights = network
    assert logits is not None
    for some in some_units(units, theta.numel()):
        yield some, PairNetwork(None if hidden is None else hidden[some], logits[some], *weights)
