"""The LSTM cell of S2Meta, run over every scalar of a block of rows (docs/methods.md 3.5): compiled loops or PyTorch.

Numbers run along the last axis (units × scalars), so that each small matrix meets long rows. The units' pre-activations
stand in the order input gate, forget gate, output gate, candidate.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from melon.kernels import policy
from melon.kernels.s2meta.functions import CompiledCell
from melon.kernels.threads import kernels_first
from melon.strategies.parameters import preprocess

#: Of the logarithm in pre(), as published.
LOG_EPSILON = 1e-20


class Carried(NamedTuple):
    """The cell state that scalars bring along (units × scalars), and which of them bring none: 1 there, else 0."""

    cell: Tensor
    fresh: Tensor


class TorchCell:
    """One step of the cell for any number type and device."""

    @staticmethod
    def scale_and_sign(*values: Tensor) -> Tensor:
        """pre() of some tensors, two lines of features for each: inputs × scalars."""
        return torch.cat([part.reshape(1, -1) for value in values for part in preprocess(value, LOG_EPSILON)])

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
        """What the heads say of each scalar: outputs × scalars, differentiable in the weights.

        features: inputs × scalars. weights: 4 units × inputs. bias: 4 units. start: the cell state of scalars that
        bring none along. head: outputs × units, on the hidden state, which `normalise` brings to mean 0 and deviation
        1.
        """
        return head @ self._step(features, weights, bias, start, kept, normalise)[0]

    @torch.no_grad()
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
        """The hidden state, normalised if so asked, and the cell state after one step: units × scalars each."""
        return self._step(features, weights, bias, start, kept, normalise)

    @staticmethod
    def _step(
        features: Tensor, weights: Tensor, bias: Tensor, start: Tensor, kept: Carried | None, normalise: bool
    ) -> tuple[Tensor, Tensor]:
        entry, forget, leave, candidate = (weights @ features + bias[:, None]).chunk(4)
        before = start[:, None]
        if kept is not None:
            before = torch.addcmul(kept.cell, before, kept.fresh)
        cell = forget.sigmoid() * before + entry.sigmoid() * candidate.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        return F.layer_norm(hidden.T, (len(start),)).T if normalise else hidden, cell


def cell_kernel(like: Tensor) -> TorchCell | CompiledCell:
    """The implementation for numbers like these, as the policy says."""
    loops = policy.load("s2meta", like=like)
    return TorchCell() if loops is None else CompiledCell(loops)


def at_work(like: Tensor) -> AbstractContextManager[None]:
    """Around a whole step: where compiled loops compute the cell, the threads are theirs."""
    return nullcontext() if isinstance(cell_kernel(like), TorchCell) else kernels_first()
