"""The adapter to PyTorch: scores and gradients as tensors, over zero-copy views of the tables' arrays.

Everything that is differentiated starts here: recommenders written in PyTorch, and what its strategies ask of
recommenders that kernels serve. Nothing on the default path imports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from melon.kernels.threads import torch_follows
from melon.models.base import Context, Recommender
from melon.models.evidence import (
    Evidence,
    Examples,
    Gradient,
    RowGradient,
    Values,
    evidence_by_autograd,
    losses_by_evidence,
)
from melon.models.losses import BPRLoss, Loss
from melon.tables import TableSpec
from melon.types import AnyArray, Ints, Scores

torch_follows()


def tensor_of(array: AnyArray) -> Tensor:
    """The same memory as a tensor; a copy where torch cannot have it."""
    whole = np.ascontiguousarray(array)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())


def torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    """The number type as PyTorch names it."""
    named: torch.dtype = getattr(torch, np.dtype(dtype).name)
    return named


class Differentiable(ABC):
    """A score and its loss in PyTorch. Values are rows by table; users and items are positions in them."""

    specs: tuple[TableSpec, ...]
    loss: Loss
    #: Whether the loss can teach a table anything.
    learns: Callable[[TableSpec], bool]

    @abstractmethod
    def scores(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        """Differentiable scores of (users, items): positions into the given rows, of one shape.

        `features` are those that the recommender gives for these pairs; a recommender without any may leave the
        argument out.
        """

    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        """Losses and per-interaction gradients at the given values.

        `per_branch` keeps apart what reaches a user through each of the interaction's items, the positive and the
        negatives, instead of adding it up.
        """
        return evidence_by_autograd(self, values, examples, per_branch=per_branch)

    def loss_of(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        """The loss of each line of pairs n × (1 + negatives), the item taken first."""
        return self.loss(self._scores(values, users, items, features))

    def line_scores(self, values: Values, items: Tensor) -> Tensor:
        """Scores of candidates n × c as far as the loss of rows teaches them; meta-training predicts by them.

        Line x is that of the x-th user's row, `items` are positions.
        """
        lines = torch.arange(len(items))[:, None].expand_as(items)
        return self._scores(values, lines, items, None)

    @property
    def open_evidence(self) -> bool:
        """Whether `evidence` is differentiable, so that meta-training needs no second derivative of the loss."""
        return False

    def losses(self, values: Values, examples: Examples) -> Tensor:
        """The loss of each interaction, differentiable in the values."""
        users = examples.users[:, None].expand_as(examples.items)
        return self.loss_of(values, users, examples.items, examples.features)

    def losses_once(self, values: Values, examples: Examples) -> Tensor:
        """Losses with a closed-form backward where there is one; it can be differentiated only once."""
        if type(self).evidence is Differentiable.evidence:
            return self.losses(values, examples)
        return losses_by_evidence(self, values, examples)

    def _scores(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None) -> Tensor:
        if features is None:
            return self.scores(values, users, items)
        return self.scores(values, users, items, features)


class TorchRecommender(Differentiable, Recommender):
    """A recommender whose score PyTorch differentiates.

    Required: `declare` and `scores`. What is worth overriding beside them is `evidence`, with gradients in closed form.
    """

    def differentiable(self) -> Differentiable:
        return self

    @torch.no_grad()
    def score(self, users: Ints, items: Ints, context: Context | None = None) -> Scores:
        rows, values = {"user": users, "item": items.reshape(-1)}, dict[str, Tensor]()
        for name, view in self.views(context).items():
            role = self.tables[name].spec.role
            values[name] = tensor_of(view.everything() if role == "shared" else view.gather(rows[role]))
        positions = torch.arange(items.size).view(items.shape)
        features = self.features(users, items, context)
        if features is None:
            scores = self.line_scores(values, positions)
        else:
            lines = torch.arange(len(users))[:, None].expand_as(positions)
            scores = self.scores(values, lines, positions, tensor_of(features))
        array: Scores = scores.numpy()
        return array


class FactorScore(Differentiable):
    """p_u · q_i + b_i, and b_u where users have a bias: what the loss of rows teaches bpr and the blend."""

    def __init__(self, recommender: Recommender) -> None:
        self.specs, self.loss, self.learns = recommender.specs, recommender.loss, recommender.learns

    def scores(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        scores = (values["user_factors"][users] * values["item_factors"][items]).sum(-1) + values["item_bias"][items, 0]
        return scores + values["user_bias"][users, 0] if "user_bias" in values else scores

    @property
    def open_evidence(self) -> bool:
        return type(self.loss) is BPRLoss

    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        users, items = examples.users, examples.items
        factors, offered = values["user_factors"][users], values["item_factors"][items]
        # Many short products: multiplying and adding up is several times quicker than a batched matrix product.
        scores = (offered * factors.unsqueeze(1)).sum(-1) + values["item_bias"][items, 0]
        with_bias = "user_bias" in values
        losses, slopes = self.loss.slopes(scores + values["user_bias"][users] if with_bias else scores)
        branches = users[:, None].expand_as(items) if per_branch else users[:, None]
        to_user = slopes.unsqueeze(-1) * offered
        if not per_branch:
            to_user = to_user.sum(1, keepdim=True)
        gradients: list[Gradient] = [
            RowGradient("user_factors", branches, to_user),
            RowGradient("item_factors", items, slopes.unsqueeze(-1) * factors.unsqueeze(1)),
            RowGradient("item_bias", items, slopes.unsqueeze(-1)),
        ]
        if with_bias and per_branch:
            gradients.append(RowGradient("user_bias", branches, slopes.unsqueeze(-1)))
        elif with_bias and not self.loss.shift_invariant:
            gradients.append(RowGradient("user_bias", branches, slopes.sum(-1)[:, None, None]))
        return Evidence(losses, tuple(gradients))
