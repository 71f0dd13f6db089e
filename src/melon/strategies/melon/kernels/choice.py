"""Which implementation computes the pairs: MELON_KERNEL=auto, torch or numba, and what is ready.

Compiling takes half a minute once per machine. An evaluation waits for it, so that its results come from one
implementation; a service calls `warm_up(in_background=True)` first, and PyTorch serves until the kernel is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from melon.kernels.policy import asked_kernel
from melon.strategies.melon.kernels import reference
from melon.strategies.melon.kernels.forms import (
    RateNetwork,
    RowTouches,
    SideTargets,
    SideWeights,
    UnitHeads,
    UnitLayer,
    UnitTerms,
)
from melon.strategies.melon.kernels.stock import Stock, wanted
from melon.strategies.melon.touches import SharedLines

if TYPE_CHECKING:
    from melon.strategies.melon.kernels.compiled.functions import CompiledKernel


class PairKernel(Protocol):
    """The two sums over all pairs; differentiable in terms and network, and rows in their old values too."""

    def moved_rows(self, touches: Sequence[RowTouches], terms: UnitTerms, network: RateNetwork) -> tuple[Tensor, ...]:
        """θ − scale · Σ w g − share · Σ (1 − f) θ over the lines of every row, for each table."""

    def shared_move(
        self, theta: Tensor, lines: SharedLines, terms: UnitTerms, network: RateNetwork, scale: float, share: float
    ) -> Tensor:
        """−scale · Σ_x w g − share · Σ_x (1 − f) θ for every entry."""


class InteractionKernel(Protocol):
    """The interaction side and the heads in one function (METHODS.md 4.3–4.6), differentiable in all weights."""

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


class ReferenceKernel:
    """PyTorch."""

    moved_rows = staticmethod(reference.moved_rows)
    shared_move = staticmethod(reference.shared_move)


def pair_kernel(network: RateNetwork, like: Tensor) -> PairKernel:
    """The implementation for a network on numbers like these, the same for a whole update."""
    if network.second is None:
        asked_kernel()
        return _REFERENCE
    return _compiled(len(network.second), like) or _REFERENCE


def interaction_kernel(role_width: int, like: Tensor) -> InteractionKernel | None:
    """The compiled interaction side, which comes with the pair kernel of a width; None where PyTorch computes it."""
    return _compiled(role_width, like)


def _compiled(width: int, like: Tensor) -> CompiledKernel | None:
    return _STOCK.of(_padded(width)) if wanted(like) else None


def work_of_kernels(network: RateNetwork, like: Tensor) -> AbstractContextManager[None]:
    """Around a whole step: where a compiled kernel computes the pairs, the threads are the kernel's."""
    from melon.strategies.melon.kernels.compiled.threads import kernels_first

    return nullcontext() if pair_kernel(network, like) is _REFERENCE else kernels_first()


def warm_up(width: int = 20, *, in_background: bool = False) -> None:
    """Have the compiled kernel of a width ready: now, or as soon as a thread is through with it, PyTorch until then."""
    if wanted():
        _STOCK.prepare(_padded(width), in_background=in_background)


def _pairs(size: int) -> CompiledKernel:
    from melon.strategies.melon.kernels.compiled.functions import CompiledKernel
    from melon.strategies.melon.kernels.compiled.seam import build

    return CompiledKernel(build(size))


def _stock() -> Stock[int, CompiledKernel]:
    """Pair kernels by padded width."""
    return Stock("the pair kernel", _pairs)


_REFERENCE, _STOCK = ReferenceKernel(), _stock()


def _padded(width: int) -> int:
    from melon.strategies.melon.kernels.compiled.generator import padded

    return padded(width)
