"""The pair kernel in PyTorch: two ReLU layers and two heads over all pairs, a cache's worth at a time.

Nothing of the size pairs × width is ever stored: the backward pass computes each tile's hidden layers again. Numbers
run along the last axis (width × pairs), so that each small matrix meets long rows. This is the reference; a compiled
kernel has to give the same results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

#: Pairs in a tile: two hidden layers of 20 floats each then stay within a core's own cache.
TILE = 1 << 12


def pair_logits(
    features: Tensor, weights: Tensor, line_hidden: Tensor, second: Tensor, second_bias: Tensor, head: Tensor
) -> Tensor:
    """Logits (outputs × lines × entries) of pairs.

    features: inputs × lines × entries, constants. weights: width × inputs. line_hidden: lines × width, added to the
    first layer of all entries of a line. second: width × width with its bias, head: outputs × width.
    """
    out: Tensor = _PairLogits.apply(features, weights, line_hidden, second, second_bias, head)  # type: ignore[no-untyped-call]
    return out


class _PairLogits(Function):
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
            here = features[:, lines]
            lower, upper = _hidden(here, weights, line_hidden[lines], second, bias)
            slope = slopes[:, lines].reshape(len(head), -1)
            to_head.addmm_(slope, upper.T)
            delta = _through_relu(head.T @ slope, upper)
            to_second.addmm_(delta, lower.T)
            to_bias.add_(delta.sum(1))
            delta = _through_relu(second.T @ delta, lower)
            to_weights.addmm_(delta, here.reshape(len(here), -1).T)
            to_lines[lines] = delta.view(len(delta), -1, here.shape[2]).sum(2).T
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
