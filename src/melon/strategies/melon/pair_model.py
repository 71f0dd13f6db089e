"""The pair function's parameters (docs/methods.md 4.5, 4.6): a learning and a forgetting rate per (unit, entry).

A line is one touch of one row; what all its entries share is given as a term of the hidden layer and a term of the two
logits. The sums over all pairs are taken by `kernel`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from melon.kernels.melon.forms import RateNetwork, UnitHeads, UnitTerms
from melon.strategies.melon.reference import Rates, rates
from melon.strategies.melon.settings import RateSettings
from melon.strategies.parameters import Parameters, preprocess


class PairModel:
    """Role representation and heads. `sees_interaction` and `sees_parameter` say which inputs are kept (4.8)."""

    def __init__(
        self, settings: RateSettings, parameters: Parameters, *, sees_interaction: bool, sees_parameter: bool
    ) -> None:
        self._settings, self._phi = settings, parameters
        self.sees_interaction, self.sees_parameter = sees_interaction, sees_parameter
        width = settings.role_width
        if sees_parameter:
            # Inputs: loss (2), gradient (2), and the parameter's value; optional ones have weights of their own.
            parameters.weight("role.1", width, 4 + int(settings.theta_feature))
            parameters.zeros("role.1.bias", width)
            if settings.role == "mlp":
                parameters.weight("role.2", width, width)
                parameters.zeros("role.2.bias", width)
            parameters.uniform("head.role", 2, width, 0.01)
        if sees_interaction:
            parameters.uniform("head.interaction", 2, settings.interaction_width, 0.01)
        centre = np.array([[settings.rate_bias], [settings.forget_bias]])
        parameters.uniform("head.bias", 2, 1, settings.spread, centre)

    def unit_terms(self, losses: Tensor, interaction: Tensor | None) -> UnitTerms:
        """Terms of lines from each one's loss and its interaction's representation."""
        bias = self._phi["head.bias"].T
        if interaction is None:
            logits = bias.expand(len(losses), 2)
        else:
            logits = torch.addmm(bias, interaction, self._phi["head.interaction"].T)
        if not self.sees_parameter:
            return UnitTerms(None, logits)
        first = self._phi["role.1"]
        hidden = torch.addmm(self._phi["role.1.bias"], torch.stack(preprocess(losses), dim=1), first[:, :2].T)
        return UnitTerms(hidden, logits)

    @property
    def heads(self) -> UnitHeads:
        """The weights that units meet."""
        role = (self._phi["role.1"], self._phi["role.1.bias"]) if self.sees_parameter else (None, None)
        return UnitHeads(self._phi["head.interaction"], self._phi["head.bias"], *role)

    @property
    def network(self) -> RateNetwork:
        """The weights that the pairs meet."""
        if not self.sees_parameter:
            return RateNetwork(self._settings.most_rate)
        features = 3 if self._settings.theta_feature else 2
        first, head = self._phi["role.1"][:, 2 : 2 + features], self._phi["head.role"]
        if self._settings.role == "linear":
            return RateNetwork(self._settings.most_rate, first, head=head)
        return RateNetwork(self._settings.most_rate, first, self._phi["role.2"], self._phi["role.2.bias"], head)

    def rates(self, theta: Tensor, gradient: Tensor, terms: UnitTerms) -> Rates:
        """w and f of every entry, spelled out: theta and gradient are lines × entries."""
        return rates(theta, gradient, terms, self.network)
