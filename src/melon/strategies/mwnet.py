"""MWNet (docs/methods.md 3.3): a small net weighs each interaction by its loss, so that its step helps later ones.

The virtual step is plain SGD, whatever the real optimiser is. It is large by default: with a step as small as the
published one the meta-gradient is lost (3.3, pitfall a).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from melon.settings import Width
from melon.strategies.base import LearningRates, Proposal, Situation
from melon.strategies.learned import LearnedOptimizerStrategy, LearnedSettings, MetaLoss, gammas_at
from melon.strategies.optimizers import OptimizerSettings
from melon.strategies.parameters import Parameters
from melon.tables import TableSpec

#: η_v for each interaction where the real optimiser is Adam, whose rate is no measure for a plain step.
_BESIDE_ADAM = 0.3


class MWNetSettings(LearnedSettings, OptimizerSettings):
    """The real step is Default's, with weights between 0 and `most_weight`; the virtual one is SGD.

    Without `virtual_lr` or `virtual_reduction`, the virtual step is the real one under `sgd`, and a usual step for each
    interaction under Adam.
    """

    meta_lr: float = Field(3e-3, ge=0)
    hidden: Width = 100
    most_weight: float = Field(2.0, gt=0)
    init: Literal["even", "drawn"] = "even"
    normalise: bool = False
    virtual_lr: float | None = Field(None, gt=0)
    virtual_reduction: Literal["sum", "mean"] | None = None


class MWNet(LearnedOptimizerStrategy):
    """W_{x,m} = η·a_x with a_x = most_weight · σ(V_φ(L_x)): row-constant."""

    name = "mwnet"
    settings_type = MWNetSettings
    settings: MWNetSettings

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        hidden, drawn = self.settings.hidden, self.settings.init == "drawn"
        # As frameworks draw a linear layer: uniform within one over the root of its inputs.
        parameters.uniform("hidden.weight", hidden, 1, 1.0)
        parameters.uniform("hidden.bias", 1, hidden, 1.0)
        # With an even output every weight starts at half of `most_weight`: the strategy starts as Default.
        parameters.uniform("out.weight", hidden, 1, hidden**-0.5 if drawn else 0.0)
        parameters.uniform("out.bias", 1, 1, hidden**-0.5 if drawn else 0.0)

    def weights(self, situation: Situation) -> Tensor:
        """a_x of each interaction; differentiable in φ, while the loss is a constant."""
        phi = self._phi
        hidden = torch.relu(situation.evidence.losses[:, None] * phi["hidden.weight"].T + phi["hidden.bias"])
        weights = self.settings.most_weight * torch.sigmoid(hidden @ phi["out.weight"] + phi["out.bias"])[:, 0]
        if self.settings.normalise:
            weights = weights / weights.mean().clamp(min=torch.finfo(weights.dtype).tiny)
        return weights

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        return self._virtual_step(situation, self.weights(situation))

    def meta_gradient(self, situation: Situation, meta_loss: MetaLoss) -> tuple[dict[str, Tensor], Tensor]:
        """By ∂loss/∂a_x = −η_v ⟨γ, g_x⟩, a product over what x touches, and then through V alone."""
        with torch.enable_grad():
            weights = self.weights(situation)
        with torch.no_grad():
            provisional = self._virtual_step(situation, weights.detach())
        gammas, loss = gammas_at(provisional, meta_loss)
        with torch.no_grad():
            pull = torch.zeros_like(weights)
            for gradient in situation.evidence.gradients:
                gamma, rows = gammas[gradient.table], len(situation.values[gradient.table])
                reaching = F.pad(gamma, (0, 0, 0, rows - len(gamma)))  # what lies beyond cannot reach the loss
                pull -= self._virtual_rate(situation, gradient.table) * gradient.dot(reaching)
        net = self.parameters()
        return dict(zip(net, torch.autograd.grad(weights, list(net.values()), pull), strict=True)), loss

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        return self._row_optimizer.propose(situation, self.weights(situation))

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        return self._row_optimizer.learning_rates(situation, self.weights(situation))

    def _virtual_step(self, situation: Situation, weights: Tensor) -> dict[str, Tensor]:
        values = situation.reachable()
        for gradient in situation.evidence.gradients:
            table = gradient.table
            total = gradient.summed(len(situation.values[table]), weights)[: situation.reached(table)]
            values[table] = values[table] - self._virtual_rate(situation, table) * total
        return values

    def _virtual_rate(self, situation: Situation, table: str) -> float:
        """η_v, over |B_last| where the mean is taken; shared weights are treated as in the real step."""
        settings, plain = self.settings, self.settings.optimizer == "sgd"
        rate = settings.virtual_lr or (settings.lr if plain else _BESIDE_ADAM)
        reduction = settings.virtual_reduction or (settings.reduction if plain else "sum")
        if situation.specs[table].role == "shared":
            reduction = settings.shared_reduction
        return rate if reduction == "sum" else rate / len(situation.examples)
