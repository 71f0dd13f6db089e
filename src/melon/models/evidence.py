"""What a batch teaches: each interaction's loss and its gradient on just the rows it touches, never scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from melon.models.autograd import Differentiable

Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class Examples:
    """A batch in positions of a compact copy: users n, items n × (1 + negatives) with the item taken in column 0.

    `features` are what a recommender knows of the pairs beside their rows, where its loss depends on that.
    """

    users: Tensor
    items: Tensor
    features: Tensor | None = None

    def __len__(self) -> int:
        return len(self.users)


class Gradient(Protocol):
    """Per-interaction gradients on one table, however they are stored."""

    @property
    def table(self) -> str:
        """The table's name."""

    def summed(self, rows: int, weights: Tensor | None = None) -> Tensor:
        """Σ_x weight_x · g_x for each of the compact rows; rows × dim."""

    def touches(self, rows: int) -> Tensor:
        """How many times the batch touches each compact row."""

    def expand(self) -> Tensor:
        """One line per interaction: n × slots × dim."""

    def dot(self, direction: Tensor) -> Tensor:
        """⟨direction, g_x⟩ for each interaction, the direction given as rows × dim."""


@dataclass(frozen=True)
class RowGradient:
    """Gradients on the rows of users or items: slot r of interaction x is row positions[x, r]."""

    table: str
    positions: Tensor
    gradient: Tensor

    def summed(self, rows: int, weights: Tensor | None = None) -> Tensor:
        gradient = self.gradient if weights is None else self.gradient * weights[:, None, None]
        total = gradient.new_zeros((rows, gradient.shape[-1]))
        return total.index_add_(0, self.positions.reshape(-1), gradient.reshape(-1, gradient.shape[-1]))

    def touches(self, rows: int) -> Tensor:
        return torch.bincount(self.positions.reshape(-1), minlength=rows)

    def expand(self) -> Tensor:
        return self.gradient

    def dot(self, direction: Tensor) -> Tensor:
        return (direction[self.positions] * self.gradient).sum((1, 2))


@dataclass(frozen=True)
class FactorGradient:
    """Gradients on a shared matrix as outer products: g_x = Σ_b left[x, b] ⊗ right[x, b] (docs/methods.md 2.2)."""

    table: str
    left: Tensor
    right: Tensor

    def summed(self, rows: int, weights: Tensor | None = None) -> Tensor:
        left = self.left if weights is None else self.left * weights[:, None, None]
        return left.flatten(0, -2).T @ self.right.flatten(0, -2)

    def touches(self, rows: int) -> Tensor:
        return torch.full((rows,), len(self.left))

    def expand(self) -> Tensor:
        return torch.einsum("nbr,nbd->nrd", self.left, self.right)

    def dot(self, direction: Tensor) -> Tensor:
        return ((self.left @ direction) * self.right).sum((1, 2))


@dataclass(frozen=True)
class DenseGradient:
    """Gradients on a shared matrix, spelled out: n × rows × dim. The general path's form."""

    table: str
    gradient: Tensor

    def summed(self, rows: int, weights: Tensor | None = None) -> Tensor:
        return self.gradient.sum(0) if weights is None else torch.einsum("n,nrd->rd", weights, self.gradient)

    def touches(self, rows: int) -> Tensor:
        return torch.full((rows,), len(self.gradient))

    def expand(self) -> Tensor:
        return self.gradient

    def dot(self, direction: Tensor) -> Tensor:
        return torch.einsum("nrd,rd->n", self.gradient, direction)


@dataclass(frozen=True)
class Evidence:
    """Losses (n) and gradients of one batch at fixed values."""

    losses: Tensor
    gradients: tuple[Gradient, ...]

    @property
    def row_gradients(self) -> tuple[RowGradient, ...]:
        """Those on users' and items' rows."""
        return tuple(g for g in self.gradients if isinstance(g, RowGradient))

    @property
    def shared_gradients(self) -> tuple[Gradient, ...]:
        """Those on weights that every interaction touches."""
        return tuple(g for g in self.gradients if not isinstance(g, RowGradient))


def losses_by_evidence(model: Differentiable, values: Values, examples: Examples) -> Tensor:
    """The loss of each interaction, differentiable once in the values: the way back is the evidence in closed form."""
    names = tuple(values)
    losses: Tensor = _KnownLosses.apply(model, examples, names, *values.values())  # type: ignore[no-untyped-call]
    return losses


class _KnownLosses(Function):
    @staticmethod
    def forward(ctx: Any, model: Differentiable, examples: Examples, names: tuple[str, ...], *values: Tensor) -> Tensor:
        evidence = model.evidence(dict(zip(names, values, strict=True)), examples)
        ctx.gradients, ctx.names, ctx.rows = evidence.gradients, names, [len(value) for value in values]
        return evidence.losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Any, ...]:
        totals: dict[str, Tensor | None] = dict.fromkeys(ctx.names)
        rows = dict(zip(ctx.names, ctx.rows, strict=True))
        for gradient in ctx.gradients:
            total, before = gradient.summed(rows[gradient.table], weights), totals[gradient.table]
            totals[gradient.table] = total if before is None else before + total
        return None, None, None, *totals.values()


def evidence_by_autograd(
    model: Differentiable, values: Values, examples: Examples, *, per_branch: bool = False
) -> Evidence:
    """Evidence of any differentiable recommender and loss by `torch.func`, one interaction at a time under vmap."""
    roles = {spec.name: spec.role for spec in model.specs}
    # Branch by branch, a user's bias does not cancel.
    apart = {spec.name for spec in model.specs if per_branch and spec.role == "user"}
    moving = {spec.name for spec in model.specs if model.learns(spec)} | apart
    user_positions = examples.users[:, None].expand_as(examples.items) if per_branch else examples.users[:, None]
    positions = {"user": user_positions, "item": examples.items}
    branches = torch.arange(examples.items.shape[1])

    def mini_loss(rows: dict[str, Tensor], shared: dict[str, Tensor], *features: Tensor) -> Tensor:
        users = branches if per_branch else torch.zeros_like(branches)
        alone = (feature.unsqueeze(0) for feature in features)
        return model.loss_of({**rows, **shared}, users[None], branches[None], *alone)[0]

    features_given = () if examples.features is None else (examples.features,)
    shared = {name: values[name].detach() for name, role in roles.items() if role == "shared"}
    rows = {name: values[name].detach()[positions[role]] for name, role in roles.items() if role != "shared"}
    per_interaction = torch.func.vmap(
        torch.func.grad_and_value(mini_loss, argnums=(0, 1)),
        in_dims=(0, None, *(0 for _ in features_given)),
        randomness="error",
    )
    (row_gradients, shared_gradients), losses = per_interaction(rows, shared, *features_given)
    gradients: list[Gradient] = []
    for name, role in roles.items():
        if name not in moving:
            continue
        if role == "shared":
            gradients.append(DenseGradient(name, shared_gradients[name].detach()))
        else:
            gradients.append(RowGradient(name, positions[role], row_gradients[name].detach()))
    return Evidence(losses.detach(), tuple(gradients))
