"""Default (docs/methods.md 3.1): fine-tuning, one gradient step on each incoming batch."""

from __future__ import annotations

from melon.strategies.optimizers import OptimizerSettings, WeightedLossStrategy


class Default(WeightedLossStrategy):
    """W_{x,m} = η (sum) or η/n (mean), the same for every interaction and parameter."""

    name = "default"
    settings_type = OptimizerSettings
