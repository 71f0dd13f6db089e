"""The implementation of MeLON's pair function and interaction side: compiled kernels or PyTorch, as the policy says."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from melon.kernels import policy
from melon.kernels.generator import padded
from melon.kernels.melon.forms import (
    RateNetwork,
    RowTouches,
    SideTargets,
    SideWeights,
    UnitHeads,
    UnitLayer,
    UnitTerms,
)
from melon.kernels.melon.functions import CompiledPairs
from melon.kernels.threads import kernels_first
from melon.models.evidence import FactorGradient
from melon.strategies.melon import reference
from melon.strategies.melon.lines import SharedLines


class PairKernel(Protocol):
    """The two sums over all pairs; differentiable in terms and network, and rows in their old values too."""

    def moved_rows(self, touches: Sequence[RowTouches], terms: UnitTerms, network: RateNetwork) -> tuple[Tensor, ...]:
        """θ − scale · Σ w g − share · Σ (1 − f) θ over the lines of every row, for each table."""

    def shared_move(
        self, theta: Tensor, lines: SharedLines, terms: UnitTerms, network: RateNetwork, scale: float, share: float
    ) -> Tensor:
        """−scale · Σ_x w g − share · Σ_x (1 − f) θ for every entry."""


class InteractionKernel(Protocol):
    """The interaction side and the heads in one function (docs/methods.md 4.3–4.6), differentiable in all weights."""

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


class CompiledKernel(CompiledPairs):
    """Kernels for rows and for gradients that come as factors; PyTorch for other gradients."""

    def shared_move(
        self, theta: Tensor, lines: SharedLines, terms: UnitTerms, network: RateNetwork, scale: float, share: float
    ) -> Tensor:
        gradient = lines.gradient
        if lines.aggregated or not isinstance(gradient, FactorGradient):
            return reference.shared_move(theta, lines, terms, network, scale, share)
        return self.factors_move(theta, gradient.left, gradient.right, terms, network, scale, share)


def pair_kernel(network: RateNetwork, like: Tensor) -> PairKernel:
    """The implementation for a network on numbers like these, the same for a whole update."""
    kernels = None if network.second is None else policy.load("melon", padded(len(network.second)), like=like)
    return reference if kernels is None else CompiledKernel(kernels)


def interaction_kernel(role_width: int, like: Tensor) -> InteractionKernel | None:
    """The compiled interaction side, which comes with the pair kernel of a width; None where PyTorch computes it."""
    kernels = policy.load("melon", padded(role_width), like=like)
    return None if kernels is None else CompiledKernel(kernels)


def at_work(network: RateNetwork, like: Tensor) -> AbstractContextManager[None]:
    """Around a whole step: where compiled kernels compute the pairs, the threads are theirs."""
    return nullcontext() if pair_kernel(network, like) is reference else kernels_first()
