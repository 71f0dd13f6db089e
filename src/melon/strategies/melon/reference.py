"""The pair function in PyTorch: any settings, number type and device. A compiled kernel has to give the same results.

Nothing of the size pairs × width is ever stored: backward passes compute hidden layers again, some pairs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from melon.kernels.melon.forms import RateNetwork, RowTouches, UnitTerms
from melon.strategies.melon.lines import SharedLines
from melon.strategies.parameters import preprocess
from melon.types import Floats, Ints

RATE, FORGET = 0, 1
#: Pairs of a shared weight that are worked on at a time.
PAIRS_AT_ONCE = 1 << 18
#: Pairs in a tile: two hidden layers of 20 floats each then stay within a core's own cache.
TILE = 1 << 12


@dataclass(frozen=True)
class Rates:
    """w and f; without a parameter side they are lines × 1, else lines × entries."""

    learning: Tensor
    forgetting: Tensor


def rates(theta: Tensor, gradient: Tensor, terms: UnitTerms, network: RateNetwork) -> Rates:
    """w and f of every entry: theta and gradient are lines × entries."""
    if terms.hidden is None:
        logits = terms.logits.T.unsqueeze(2)
    else:
        logits = _logits(theta, gradient, terms.hidden, network) + terms.logits.T.unsqueeze(2)
    return Rates(network.most_rate * torch.sigmoid(logits[RATE]), torch.sigmoid(logits[FORGET]))


def moved_rows(touches: Sequence[RowTouches], terms: UnitTerms, network: RateNetwork) -> tuple[Tensor, ...]:
    """θ − scale · Σ w g − share · Σ (1 − f) θ over the lines of every row, for each table."""
    return tuple(moved_at(line_rates(each, terms, network), each) for each in touches)


def line_rates(touches: RowTouches, terms: UnitTerms, network: RateNetwork) -> Rates:
    """w and f of every line and entry."""
    row, unit, source = (_places(each, touches.values) for each in (touches.row, touches.unit, touches.source))
    theta, feature = touches.values.index_select(0, row), touches.feature.index_select(0, source)
    return rates(theta, feature, terms.at(unit), network)


def moved_at(found: Rates, touches: RowTouches) -> Tensor:
    """The rows at given rates of their lines."""
    row, source = (_places(each, touches.values) for each in (touches.row, touches.source))
    gradient, scale = touches.gradient.index_select(0, source), touches.scale[touches.row]
    moves = -(found.learning * gradient * _column(scale, gradient))
    if touches.share is not None:
        old, share = touches.old.index_select(0, row), touches.share[touches.row]
        moves = moves - (1 - found.forgetting) * old * _column(share, old)
    return touches.old.index_add(0, row, moves)


def _places(places: Ints, like: Tensor) -> Tensor:
    return torch.from_numpy(places).to(like.device)


def _column(numbers: Floats, like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device, like.dtype)[:, None]


def shared_move(
    theta: Tensor, lines: SharedLines, terms: UnitTerms, network: RateNetwork, scale: float, share: float
) -> Tensor:
    """−scale · Σ_x w g − share · Σ_x (1 − f) θ for every entry of a weight that all units touch; theta is flat."""
    weights = (network.first, network.second, network.second_bias, network.head)
    move: Tensor = _SharedMove.apply(  # type: ignore[no-untyped-call]
        theta.detach(), lines, network.most_rate, scale, share, terms.hidden, terms.logits, *weights
    )
    return move


def shared_rates(
    theta: Tensor, lines: SharedLines, terms: UnitTerms, network: RateNetwork
) -> Iterator[tuple[Tensor, Rates]]:
    """(gradient, rates) of a few units at a time: units × entries."""
    for some in _some_units(lines):
        gradient, feature = lines.expand(some.start, some.stop)
        yield gradient, rates(theta.expand_as(feature), feature, terms.at(some), network)


class _SharedMove(Function):
    """Forward without a graph; with γ = ∂loss/∂move known, Σ γ · move is a sum over units (docs/methods.md 4.7)."""

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, lines: SharedLines, most_rate: float, scale: float, share: float, *free: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(theta, *free)
        ctx.lines, ctx.most_rate, ctx.scale, ctx.share = lines, most_rate, scale, share
        move = torch.zeros_like(theta)
        for some in _some_units(lines):
            move += _move_of(theta, lines, some, most_rate, scale, share, free)
        return move

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gamma: Tensor) -> tuple[Tensor | None, ...]:
        theta, *free = ctx.saved_tensors
        totals = [None if tensor is None else torch.zeros_like(tensor) for tensor in free]
        for some in _some_units(ctx.lines):
            with torch.enable_grad():
                leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in free]
                move = _move_of(theta, ctx.lines, some, ctx.most_rate, ctx.scale, ctx.share, leaves)
            wanted = [leaf for leaf in leaves if leaf is not None]
            slopes = torch.autograd.grad(move, wanted, gamma, allow_unused=True)
            for total, part in zip([total for total in totals if total is not None], slopes, strict=True):
                if part is not None:
                    total.add_(part)
        return None, None, None, None, None, *totals


def _move_of(
    theta: Tensor,
    lines: SharedLines,
    some: slice,
    most_rate: float,
    scale: float,
    share: float,
    free: tuple[Tensor | None, ...] | list[Tensor | None],
) -> Tensor:
    hidden, logits, *weights = free
    assert logits is not None
    gradient, feature = lines.expand(some.start, some.stop)
    terms = UnitTerms(hidden, logits).at(some)
    both = rates(theta.expand_as(feature), feature, terms, RateNetwork(most_rate, *weights))
    move = (both.learning * gradient).sum(0) * -scale
    if share:
        move = move - ((1 - both.forgetting).expand_as(gradient) * theta).sum(0) * share
    return move


def _some_units(lines: SharedLines) -> Iterator[slice]:
    at_once = max(PAIRS_AT_ONCE // lines.entries, 1)
    for start in range(0, lines.units, at_once):
        yield slice(start, min(start + at_once, lines.units))


def _logits(theta: Tensor, gradient: Tensor, hidden: Tensor, network: RateNetwork) -> Tensor:
    """What the parameter's side gives to both logits: 2 × lines × entries."""
    first, head = network.first, network.head
    assert first is not None
    assert head is not None
    features = torch.stack([*preprocess(gradient), *([theta.detach()] if network.sees_theta else [])])
    if network.second is None:
        # Affine all the way: the 20-wide layer folds into one weight per feature and one constant per line.
        return torch.einsum("oi,ile->ole", head @ first, features) + (hidden @ head.T).T.unsqueeze(2)
    logits: Tensor = _PairLogits.apply(features, first, hidden, network.second, network.second_bias, head)  # type: ignore[no-untyped-call]
    return logits


class _PairLogits(Function):
    """Two ReLU layers and the heads, tile by tile. Numbers run along the last axis (width × pairs), so that each small
    matrix meets long rows.

    features: inputs × lines × entries, constants. weights: width × inputs. line_hidden: lines × width, added to the
    first layer of all entries of a line. second: width × width with its bias, head: outputs × width.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weights: Tensor, line_hidden: Tensor, second: Tensor, bias: Tensor, head: Tensor
    ) -> Tensor:
        ctx.save_for_backward(features, weights, line_hidden, second, bias, head)
        logits = features.new_empty((len(head), *features.shape[1:]))
        for lines in _tiles(features):
            _, upper = _hidden(features[:, lines], weights, line_hidden[lines], second, bias)
            logits[:, lines] = (head @ upper).view(len(head), -1, features.shape[2])
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        features, weights, line_hidden, second, bias, head = ctx.saved_tensors
        to_weights, to_lines = torch.zeros_like(weights), torch.zeros_like(line_hidden)
        to_second, to_bias, to_head = torch.zeros_like(second), torch.zeros_like(bias), torch.zeros_like(head)
        for lines in _tiles(features):
            tile = features[:, lines]
            lower, upper = _hidden(tile, weights, line_hidden[lines], second, bias)
            slope = slopes[:, lines].reshape(len(head), -1)
            to_head.addmm_(slope, upper.T)
            delta = _through_relu(head.T @ slope, upper)
            to_second.addmm_(delta, lower.T)
            to_bias.add_(delta.sum(1))
            delta = _through_relu(second.T @ delta, lower)
            to_weights.addmm_(delta, tile.reshape(len(tile), -1).T)
            to_lines[lines] = delta.view(len(delta), -1, tile.shape[2]).sum(2).T
        return None, to_weights, to_lines, to_second, to_bias, to_head


def _tiles(features: Tensor) -> list[slice]:
    lines, entries = features.shape[1:]
    at_once = max(TILE // max(entries, 1), 1)
    return [slice(start, start + at_once) for start in range(0, lines, at_once)]


def _hidden(
    features: Tensor, weights: Tensor, line_hidden: Tensor, second: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Both hidden layers of a tile: width × pairs."""
    lower = weights @ features.reshape(len(features), -1)
    lower.view(len(lower), -1, features.shape[2]).add_(line_hidden.T.unsqueeze(2))
    lower.relu_()
    upper = torch.addmm(bias.unsqueeze(1), second, lower).relu_()
    return lower, upper


def _through_relu(slope: Tensor, activation: Tensor) -> Tensor:
    """The slope where the unit was on, 0 where it was off."""
    passed: Tensor = torch.ops.aten.threshold_backward(slope, activation, 0)
    return passed
