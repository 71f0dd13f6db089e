"""Which implementation computes the pairs: MELON_KERNEL=auto, torch or numba, and what is ready.

Compiling takes half a minute once per machine. An evaluation waits for it, so that its results come from one
implementation; a service calls `warm_up(in_background=True)` first, and PyTorch serves until the kernel is there.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from melon.errors import MissingExtraError, SettingsError
from melon.strategies.rates.kernels import reference
from melon.strategies.rates.kernels.forms import LineTerms, RateNetwork, RowTouches
from melon.strategies.rates.touches import SharedLines

if TYPE_CHECKING:
    from melon.strategies.rates.kernels.compiled.functions import CompiledKernel

VARIABLE, CHOICES = "MELON_KERNEL", ("auto", "torch", "numba")

logger = logging.getLogger("melon")


class PairKernel(Protocol):
    """The two sums over all pairs; differentiable in terms and network, and rows in their old values too."""

    def row_moves(self, touches: RowTouches, terms: LineTerms, network: RateNetwork) -> Tensor:
        """−scale · w g − share · (1 − f) θ for every line and entry."""

    def shared_move(
        self, theta: Tensor, lines: SharedLines, terms: LineTerms, network: RateNetwork, scale: float, share: float
    ) -> Tensor:
        """−scale · Σ_x w g − share · Σ_x (1 − f) θ for every entry."""


class ReferenceKernel:
    """PyTorch."""

    row_moves = staticmethod(reference.row_moves)
    shared_move = staticmethod(reference.shared_move)


def pair_kernel(network: RateNetwork, like: Tensor) -> PairKernel:
    """The implementation for a network on numbers like these, the same for a whole update."""
    asked = _asked()
    covered = network.second is not None and like.dtype == torch.float32 and like.device.type == "cpu"
    if asked == "torch" or not covered or not _available(asked):
        return _REFERENCE
    assert network.second is not None
    return _STOCK.of(len(network.second)) or _REFERENCE


def warm_up(width: int = 20, *, in_background: bool = False) -> None:
    """Have the compiled kernel of a width ready: now, or as soon as a thread is through with it, PyTorch until then."""
    asked = _asked()
    if asked != "torch" and _available(asked):
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
            threading.Thread(target=self._make, args=(size,), name="melon-kernel-warm-up", daemon=True).start()
        else:
            self._make(size)

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


def _asked() -> str:
    asked = os.environ.get(VARIABLE, "") or "auto"
    if asked not in CHOICES:
        raise SettingsError(f"{VARIABLE}={asked!r} is unknown; choose one of {', '.join(CHOICES)}.")
    return asked


def _available(asked: str) -> bool:
    if importlib.util.find_spec("numba") is not None:
        return True
    if asked == "numba":
        raise MissingExtraError(f"{VARIABLE}=numba", "fast")
    if "numba" not in _told:
        _told.add("numba")
        logger.warning(
            "MeLON runs on PyTorch alone; it is several times faster with: pip install 'melon-recommender[fast]'"
        )
    return False
