"""The implementation of S2Meta's cell: compiled loops or PyTorch (`cell`), as the policy says."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from melon.kernels import policy
from melon.kernels.s2meta.functions import CompiledCell
from melon.kernels.threads import kernels_first
from melon.strategies.s2meta import cell
from melon.strategies.s2meta.cell import Carried


class CellKernel(Protocol):
    """One step of the cell over every scalar; `cell` says what is given and what comes out."""

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


def cell_kernel(like: Tensor) -> CellKernel:
    """The implementation for numbers like these."""
    loops = policy.load("s2meta", like=like)
    return cell if loops is None else CompiledCell(loops)


def at_work(like: Tensor) -> AbstractContextManager[None]:
    """Around a whole step: where compiled loops compute the cell, the threads are theirs."""
    return nullcontext() if cell_kernel(like) is cell else kernels_first()
