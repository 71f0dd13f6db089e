"""eALS as a re-weighting rule (docs/methods.md 3.2): interactions of the stream count w_new times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from melon.strategies.base import Situation
from melon.strategies.optimizers import OptimizerSettings, WeightedLossStrategy

if TYPE_CHECKING:
    from torch import Tensor


class EALSSettings(OptimizerSettings):
    """As `default`, and the weight of an interaction of the stream beside one of pre-training."""

    lr: float = Field(0.05, gt=0, le=1e6)
    w_new: float = Field(4.0, gt=0)


class EALS(WeightedLossStrategy):
    """W_{x,m} = η·w_new (sum) or η·w_new/n (mean): row-constant."""

    name = "eals"
    settings_type = EALSSettings
    settings: EALSSettings

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self.plain_weight = self.settings.w_new if type(self) is EALS else None

    def weights(self, situation: Situation) -> Tensor:
        losses = situation.evidence.losses
        return losses.new_full(losses.shape, self.settings.w_new)
