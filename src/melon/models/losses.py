"""Losses of one interaction: its item's score beside the scores of its negatives, and the slopes that follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from melon.errors import require_torch, unknown_name

if TYPE_CHECKING:
    from torch import Tensor


class Loss(ABC):
    """One number per interaction from scores shaped n × (1 + negatives), the item taken in column 0.

    PyTorch computes it, where kernels do not: they know the loss of BPR.
    """

    #: Adding one number to all scores of an interaction changes nothing: the user's own bias then learns nothing.
    shift_invariant: bool = False

    @abstractmethod
    def __call__(self, scores: Tensor) -> Tensor:
        """The loss of each interaction, differentiable."""

    def slopes(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The losses, and their derivatives by each score; automatic unless a loss knows better."""
        import torch

        with torch.enable_grad():
            free = scores.detach().requires_grad_()
            losses = self(free)
            (slopes,) = torch.autograd.grad(losses.sum(), free)
        return losses.detach(), slopes


class BPRLoss(Loss):
    """softplus(−(s⁺ − s⁻)), averaged over the negatives (docs/methods.md 2.1); finite for any finite score."""

    shift_invariant = True

    def __call__(self, scores: Tensor) -> Tensor:
        from torch.nn.functional import softplus

        return softplus(scores[..., 1:] - scores[..., :1]).mean(-1)

    def slopes(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        import torch
        from torch.nn.functional import softplus

        margin = scores[..., 1:] - scores[..., :1]
        kappa = torch.sigmoid(margin) / margin.shape[-1]
        return softplus(margin).mean(-1), torch.cat([-kappa.sum(-1, keepdim=True), kappa], -1)


class SquaredLoss(Loss):
    """(1 − s⁺)² + mean (s⁻)²: the taken item is drawn to 1 and the others to 0."""

    def __call__(self, scores: Tensor) -> Tensor:
        return (1 - scores[..., 0]).square() + scores[..., 1:].square().mean(-1)


class CrossEntropyLoss(Loss):
    """−log σ(s⁺) − mean log(1 − σ(s⁻)): whether each item was taken, by itself; finite for any finite score."""

    def __call__(self, scores: Tensor) -> Tensor:
        from torch.nn.functional import softplus

        return softplus(-scores[..., 0]) + softplus(scores[..., 1:]).mean(-1)

    def slopes(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        taken, others = -torch.sigmoid(-scores[..., :1]), torch.sigmoid(scores[..., 1:]) / (scores.shape[-1] - 1)
        return self(scores), torch.cat([taken, others], -1)


LOSSES: dict[str, type[Loss]] = {"bpr": BPRLoss, "squared": SquaredLoss, "bce": CrossEntropyLoss}


def make_loss(loss: str | Loss) -> Loss:
    """A loss by its name, or the caller's own."""
    if isinstance(loss, Loss):
        return loss
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    if loss != "bpr":
        require_torch(f"the loss {loss!r}")
    return LOSSES[loss]()
