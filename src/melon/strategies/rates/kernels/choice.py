"""Which implementation computes the pairs: MELON_KERNEL=auto, torch or numba, and what is ready.

Compiling takes half a minute once per machine. An evaluation waits for it, so that its results come from one
implementation; a service calls `warm_up(in_background=True)` first, and PyTorch serves until the kernel is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from melon.recommenders import factor_kernel
from melon.strategies.rates.kernels import reference
from melon.strategies.rates.kernels.forms import (
    RateNetwork,
    RowTouches,
    SideTargets,
    SideWeights,
    UnitHeads,
    UnitLayer,
    UnitTerms,
)
from melon.strategies.rates.touches import SharedLines
from melon.stream import kernels as stream_kernels
from melon.stream.kernels import asked_kernel, numba_installed

if TYPE_CHECKING:
    from melon.strategies.rates.kernels.compiled.functions import CompiledKernel

logger = logging.getLogger("melon")


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
    asked = asked_kernel()
    if asked == "torch" or like.dtype != torch.float32 or like.device.type != "cpu" or not _available():
        return None
    return _STOCK.of(width)


def warm_up(width: int = 20, *, in_background: bool = False) -> None:
    """Have the compiled kernel of a width ready: now, or as soon as a thread is through with it, PyTorch until then."""
    asked = asked_kernel()
    if asked != "torch" and _available():
        _STOCK.prepare(width, in_background=in_background)


class _Stock:
    """Compiled kernels by padded width. One that failed to compile is not tried again."""

    def __init__(self) -> None:
        self._made: dict[int, CompiledKernel | None] = {}
        self._coming: set[int] = set()
        self._lock = threading.Lock()

    def of(self, width: int) -> CompiledKernel | None:
        """The kernel, compiled now if nobody is at it; None while it is being compiled in the background."""
        size = _padded(width)
        if size not in self._made and size not in self._coming:
            self._make(size)
        return self._made.get(size)

    def prepare(self, width: int, *, in_background: bool) -> None:
        size = _padded(width)
        if size in self._made or size in self._coming:
            return
        if in_background:
            self._coming.add(size)
            stream_kernels.compiles_in_background()
            threading.Thread(target=self._make_all, args=(size,), name="melon-kernel-warm-up", daemon=True).start()
        else:
            self._make_all(size)

    def _make_all(self, size: int) -> None:
        """The kernels of a width, and the loops of streams and recommenders before them."""
        try:
            stream_kernels.warm_up()
            factor_kernel.warm_up()
        finally:
            self._make(size)
            stream_kernels.compiled()

    def _make(self, size: int) -> None:
        with self._lock:
            if size in self._made:
                return
            made: CompiledKernel | None = None
            try:
                from melon.strategies.rates.kernels.compiled.functions import CompiledKernel
                from melon.strategies.rates.kernels.compiled.seam import build

                made = CompiledKernel(build(size))
            except Exception as error:  # whatever ails the compiler, learning goes on
                logger.warning("the pair kernel cannot be compiled here (%s); PyTorch computes it instead", error)
            self._made[size] = made
            self._coming.discard(size)


_REFERENCE, _STOCK = ReferenceKernel(), _Stock()
_told: set[str] = set()


def _padded(width: int) -> int:
    from melon.strategies.rates.kernels.compiled.generator import padded

    return padded(width)


def _available() -> bool:
    if numba_installed():
        return True
    if "numba" not in _told:
        _told.add("numba")
        logger.warning(
            "MeLON runs on PyTorch alone; it is several times faster with: pip install 'melon-recommender[fast]'"
        )
    return False
