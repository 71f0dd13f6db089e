"""eALS as a re-weighting rule (docs/methods.md 3.2.1): fresh interactions count w_new times as much as old ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from melon.strategies.base import Situation
from melon.strategies.optimizers import OptimizerSettings, WeightedLossStrategy


class EALSSettings(OptimizerSettings):
    """`neg="pop"` draws negatives by popularity^0.4; `replay` learns that many old interactions again, at weight 1."""

    lr: float = Field(0.05, gt=0, le=1e6)
    w_new: float = Field(4.0, gt=0)
    neg: Literal["uniform", "pop"] = "uniform"
    replay: int = Field(0, ge=0)


class EALS(WeightedLossStrategy):
    """W_{x,m} = η·ω_x/n with ω_x = w_new for interactions of the stream and 1 for replayed ones: row-constant."""

    name = "eals"
    settings_type = EALSSettings
    settings: EALSSettings

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self.negatives = "popular" if self.settings.neg == "pop" else "uniform"
        self.replay = self.settings.replay
        self.plain_weight = self.settings.w_new if type(self) is EALS else None

    def weights(self, situation: Situation) -> Tensor:
        losses, fresh = situation.evidence.losses, situation.examples.fresh
        weights = torch.full_like(losses, self.settings.w_new)
        return weights if fresh is None else torch.where(fresh, weights, torch.ones_like(losses))
