"""Which implementation computes the cell: MELON_KERNEL=auto, torch or numba, and what is ready."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from melon.strategies.melon.kernels.stock import Stock, wanted
from melon.strategies.s2meta import cell
from melon.strategies.s2meta.cell import Carried

if TYPE_CHECKING:
    from melon.strategies.s2meta.compiled.functions import CompiledCell


class CellKernel(Protocol):
    """One step of the cell over every scalar; `cell.py` says what is given and what comes out."""

    def scale_and_sign(self, *values: Tensor) -> Tensor:
        """Two lines of features for each of some tensors."""

    def cell_logits(
        self,
        features: Tensor,
        weights: Tensor,
        bias: Tensor,
        start: Tensor,
        head: Tensor,
        kept: Carried | None = None,
        *,
        normalise: bool,
    ) -> Tensor:
        """What the heads say of each scalar, differentiable in everything but features and `kept`."""

    def cell_state(
        self,
        features: Tensor,
        weights: Tensor,
        bias: Tensor,
        start: Tensor,
        kept: Carried | None = None,
        *,
        normalise: bool,
    ) -> tuple[Tensor, Tensor]:
        """The hidden state and the cell state after the step."""


class ReferenceCell:
    """PyTorch."""

    scale_and_sign = staticmethod(cell.scale_and_sign)
    cell_logits = staticmethod(cell.cell_logits)
    cell_state = staticmethod(cell.cell_state)


def cell_kernel(like: Tensor) -> CellKernel:
    """The implementation for numbers like these."""
    return (_STOCK.of("cell") if wanted(like) else None) or _REFERENCE


def work_of_cell(like: Tensor) -> AbstractContextManager[None]:
    """Around a whole step: where the compiled cell serves it, the threads are the cell's."""
    from melon.strategies.melon.kernels.compiled.threads import kernels_first

    return nullcontext() if cell_kernel(like) is _REFERENCE else kernels_first()


def warm_up(*, in_background: bool = False) -> None:
    """Have the compiled cell ready: now, or as soon as a thread is through with it, PyTorch until then."""
    if wanted():
        _STOCK.prepare("cell", in_background=in_background)


def _cell(_: str) -> CompiledCell:
    from melon.strategies.s2meta.compiled.functions import build

    return build()


def _stock() -> Stock[str, CompiledCell]:
    return Stock("the cell of S2Meta", _cell)


_REFERENCE, _STOCK = ReferenceCell(), _stock()
