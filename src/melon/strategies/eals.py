"""eALS as a re-weighting rule (docs/methods.md 3.2): interactions of the stream count w_new times."""

from __future__ import annotations

from pydantic import Field

from melon.strategies.optimizers import OptimizerSettings, WeightedLossStrategy


class EALSSettings(OptimizerSettings):
    """As `default`, and the weight of an interaction of the stream beside one of pre-training."""

    lr: float = Field(0.05, gt=0, le=1e6)
    w_new: float = Field(4.0, gt=0)


class EALS(WeightedLossStrategy):
    """W_{x,m} = η·w_new (sum) or η·w_new/n (mean): row-constant."""

    name = "eals"
    settings_type = EALSSettings
    settings: EALSSettings

    @property
    def weight(self) -> float:
        return self.settings.w_new
