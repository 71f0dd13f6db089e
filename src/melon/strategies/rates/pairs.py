"""The pair function (METHODS.md 4.5, 4.6): a learning rate and a forgetting rate for every (unit, entry) pair.

This is the one small interface behind which a faster kernel can stand: `rates` for values, and automatic
differentiation through it for the meta-gradient. A line is one touch of one row; what all its entries share is given
as a term of the hidden layer and a term of the two logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from melon.strategies.rates.kernel import pair_logits
from melon.strategies.rates.parameters import Parameters
from melon.strategies.rates.preprocess import preprocess
from melon.strategies.rates.settings import RateSettings

RATE, FORGET = 0, 1


@dataclass(frozen=True)
class LineTerms:
    """What the entries of a line share: lines × role width (absent without a parameter side), and lines × 2."""

    hidden: Tensor | None
    logits: Tensor

    def at(self, lines: Tensor | slice) -> LineTerms:
        """The terms of some lines."""
        return LineTerms(None if self.hidden is None else self.hidden[lines], self.logits[lines])


@dataclass(frozen=True)
class Rates:
    """w and f; without a parameter side they are lines × 1, else lines × entries."""

    learning: Tensor
    forgetting: Tensor


class PairModel:
    """Role representation and heads. `sees_interaction` and `sees_parameter` say which inputs are kept (4.8)."""

    def __init__(
        self, settings: RateSettings, parameters: Parameters, *, sees_interaction: bool, sees_parameter: bool
    ) -> None:
        self._settings, self._phi = settings, parameters
        self.sees_interaction, self.sees_parameter = sees_interaction, sees_parameter
        width = settings.role_width
        if sees_parameter:
            # Inputs: loss (2), gradient (2), then the optional ones.
            inputs = 4 + int(settings.theta_feature) + int(settings.touch_feature)
            parameters.weight("role.1", width, inputs)
            parameters.zeros("role.1.bias", width)
            if settings.role == "mlp":
                parameters.weight("role.2", width, width)
                parameters.zeros("role.2.bias", width)
            parameters.uniform("head.role", 2, width, 0.01)
        if sees_interaction:
            parameters.uniform("head.interaction", 2, settings.interaction_width, 0.01)
        centre = torch.tensor([[settings.rate_bias], [settings.forget_bias]]).numpy()
        parameters.uniform("head.bias", 2, 1, settings.spread, centre)

    def line_terms(self, losses: Tensor, interaction: Tensor | None) -> LineTerms:
        """Terms of lines from each one's loss and its interaction's representation."""
        logits = self._phi["head.bias"].T.expand(len(losses), 2)
        if interaction is not None:
            logits = logits + interaction @ self._phi["head.interaction"].T
        if not self.sees_parameter:
            return LineTerms(None, logits)
        first = self._phi["role.1"]
        hidden = torch.stack(preprocess(losses), dim=1) @ first[:, :2].T + self._phi["role.1.bias"]
        return LineTerms(hidden, logits)

    def rates(self, theta: Tensor, gradient: Tensor, terms: LineTerms) -> Rates:
        """w and f of every entry: theta and gradient are lines × entries."""
        if terms.hidden is None:
            rate, forget = terms.logits[:, RATE, None], terms.logits[:, FORGET, None]
        else:
            rate, forget = self._logits(theta, gradient, terms)
        return Rates(self._settings.most_rate * torch.sigmoid(rate), torch.sigmoid(forget))

    def _logits(self, theta: Tensor, gradient: Tensor, terms: LineTerms) -> tuple[Tensor, Tensor]:
        assert terms.hidden is not None
        features = [*preprocess(gradient), *([theta.detach()] if self._settings.theta_feature else [])]
        stacked = torch.stack(features)
        weights, head = self._phi["role.1"][:, 2 : 2 + len(features)], self._phi["head.role"]
        if self._settings.role == "linear":
            # Affine all the way: the 20-wide layer folds into one weight per feature and one constant per line.
            constant = terms.logits + terms.hidden @ head.T
            folded = torch.einsum("oi,ile->ole", head @ weights, stacked)
            logits = folded + constant.T.unsqueeze(2)
        else:
            second, bias = self._phi["role.2"], self._phi["role.2.bias"]
            logits = pair_logits(stacked, weights, terms.hidden, second, bias, head) + terms.logits.T.unsqueeze(2)
        return logits[RATE], logits[FORGET]
