"""The interaction side as PyTorch sees it: one function with a gradient, from gathered features to a unit's terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from melon.kernels.melon.forms import SideTargets, SideWeights, UnitHeads, UnitLayer, UnitTerms
from melon.kernels.policy import Kernels
from melon.types import Floats, Singles


def array_of(tensor: Tensor) -> Singles:
    """A tensor's numbers as an array without gaps, copied only where there are some."""
    array: Singles = tensor.detach().numpy()
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def unit_terms(
    kernels: Kernels,
    losses: Tensor,
    targets: tuple[SideTargets, SideTargets],
    slope: float,
    sides: tuple[SideWeights, SideWeights],
    layer: UnitLayer,
    heads: UnitHeads,
) -> UnitTerms:
    """Attention, the joint layer, the interaction layer and the heads of every unit (docs/methods.md 4.3–4.6)."""
    logits, hidden = _UnitTermsFunction.apply(  # type: ignore[no-untyped-call]
        kernels, losses, targets, slope, *sides[0], *sides[1], *layer, *heads
    )
    return UnitTerms(None if heads.role is None else hidden, logits)


class _UnitTermsFunction(Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, losses: Tensor, targets: tuple[SideTargets, ...], slope: float, *free: Any
    ) -> tuple[Tensor, Tensor]:
        sides, layer, heads = (SideWeights(*free[:3]), SideWeights(*free[3:6])), UnitLayer(*free[6:10]), free[10:]
        units, width = losses.shape[0], layer.bias.shape[0]
        ctx.kernels, ctx.targets, ctx.extends = kernels, targets, [side.extend for side in sides]
        ctx.halves = layer.mix.chunk(2, 1)
        ctx.attended = [_attended(kernels, each, slope, side) for each, side in zip(targets, sides, strict=True)]
        ctx.extended = [
            torch.addmm(side.bias, attended[0], side.extend.T).relu_()
            for attended, side in zip(ctx.attended, sides, strict=True)
        ]
        parts = [(extended @ half.T).numpy() for extended, half in zip(ctx.extended, ctx.halves, strict=True)]
        ctx.layer, ctx.heads = np.stack([array_of(row) for row in layer[1:]]), _packed_heads(*heads[:2])
        ctx.role_shape, role = None if heads[2] is None else heads[2].shape, _packed_role(*heads[2:])
        ctx.arguments = (array_of(losses), *(each.at for each in targets))
        ctx.normals = [np.empty((units, width), np.float32), np.empty(units, np.float32)]
        ctx.normals.append(np.empty((units, width), np.float32))
        logits, hidden = np.empty((units, 2), np.float32), np.empty((units, role.shape[1]), np.float32)
        kernels.unit_terms(
            ctx.arguments[0], *parts, *ctx.arguments[1:], ctx.layer, ctx.heads, role, *ctx.normals, logits, hidden
        )
        return torch.from_numpy(logits), torch.from_numpy(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_logits: Tensor, to_hidden: Tensor) -> tuple[Any, ...]:
        width = ctx.layer.shape[1]
        to_parts = [np.zeros((extended.shape[0], width), np.float32) for extended in ctx.extended]
        to_layer, to_heads, to_role = np.zeros((3, width)), np.zeros((2, width + 1)), np.zeros((3, to_hidden.shape[1]))
        slopes = (array_of(to_logits), array_of(to_hidden))
        ctx.kernels.unit_terms_back(
            *ctx.arguments, ctx.layer, ctx.heads, *ctx.normals, *slopes, *to_parts, to_layer, to_heads, to_role
        )
        to_sides, to_halves = [], []
        for part, side, attended, extended, half, extend in zip(
            to_parts, ctx.targets, ctx.attended, ctx.extended, ctx.halves, ctx.extends, strict=True
        ):
            slope = torch.from_numpy(part)
            to_halves.append(slope.T @ extended)
            through = torch.ops.aten.threshold_backward(slope @ half, extended, 0)
            to_gathered = through @ extend[:, side.nodes.shape[1] :]
            to_attention = _attended_back(ctx.kernels, attended, to_gathered)
            to_sides += [to_attention, through.T @ attended[0], through.sum(0)]
        of_layer, of_heads = (torch.from_numpy(sums.astype(np.float32)) for sums in (to_layer, to_heads))
        of_role = (None, None) if ctx.role_shape is None else _unpacked_role(to_role, ctx.role_shape)
        of_units = (torch.cat(to_halves, 1), *of_layer, of_heads[:, :-1], of_heads[:, -1:], *of_role)
        return None, None, None, None, *to_sides, *of_units


def _packed_heads(interaction: Tensor, bias: Tensor) -> Singles:
    """Both heads, with their biases in the last column."""
    return np.concatenate([array_of(interaction), array_of(bias)], axis=1)


def _packed_role(role: Tensor | None, bias: Tensor | None) -> Singles:
    """What role.1 makes of a loss's two features, and its bias."""
    if role is None or bias is None:
        return np.empty((3, 0), np.float32)
    packed = np.empty((3, len(role)), np.float32)
    packed[:2], packed[2] = role.detach()[:, :2].T.numpy(), array_of(bias)
    return packed


def _unpacked_role(to_role: Floats, shape: torch.Size) -> tuple[Tensor, Tensor]:
    of_role = np.zeros(shape, np.float32)
    of_role[:, :2] = to_role[:2].T
    return torch.from_numpy(of_role), torch.from_numpy(to_role[2].astype(np.float32))


def _attended(
    kernels: Kernels, side: SideTargets, slope: float, weights: SideWeights
) -> tuple[Tensor, tuple[Any, ...], Singles, Singles]:
    """[e ; Σ_k α_k e_k] of the targets, what they were looked up from, α, and the slope of each score."""
    targets, most = len(side.places), side.there.shape[1]
    joined = side.nodes.new_empty((targets, weights.attention.shape[1]))
    shares, leaks = np.empty((targets, most), np.float32), np.empty((targets, most), np.float32)
    arguments = (array_of(side.nodes), array_of(side.partners), side.there.numpy(), side.places)
    kernels.attend(array_of(weights.attention)[0], np.float32(slope), *arguments, joined.numpy(), shares, leaks)
    return joined, arguments, shares, leaks


def _attended_back(
    kernels: Kernels, attended: tuple[Tensor, tuple[Any, ...], Singles, Singles], to_gathered: Tensor
) -> Tensor:
    joined, arguments, shares, leaks = attended
    to_attention = np.zeros(joined.shape[1])
    kernels.attend_back(*arguments, shares, leaks, array_of(to_gathered), to_attention)
    return torch.from_numpy(to_attention.astype(np.float32))[None]
