"""Default (docs/methods.md 3.1): fine-tuning, one gradient step on each incoming batch."""

from __future__ import annotations

from melon.strategies.base import PlainRates, Situation
from melon.strategies.optimizers import OptimizerSettings, WeightedLossStrategy


class Default(WeightedLossStrategy):
    """W_{x,m} = η (sum) or η/n (mean), the same for every interaction and parameter."""

    name = "default"
    settings_type = OptimizerSettings

    def weights(self, situation: Situation) -> None:
        return None

    def plain_rates(self, interactions: int) -> PlainRates | None:
        return self.plain_rates_at(1.0, interactions) if type(self) is Default else None
