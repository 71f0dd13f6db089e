"""Default (docs/methods.md 3.1): fine-tuning, one gradient step on each incoming batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from melon.strategies.base import Situation
from melon.strategies.optimizers import OptimizerSettings, WeightedLossStrategy


class Default(WeightedLossStrategy):
    """W_{x,m} = η (sum) or η/n (mean), the same for every interaction and parameter."""

    name = "default"
    settings_type = OptimizerSettings

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self.plain_weight = 1.0 if type(self) is Default else None

    def weights(self, situation: Situation) -> None:
        return None
