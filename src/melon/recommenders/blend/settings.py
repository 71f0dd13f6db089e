"""The settings of a blend."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from melon.recommenders.base import RecommenderSettings
from melon.settings import Width


class BlendSettings(RecommenderSettings):
    """The personal part is trained as BPR's is; the head by itself, unless the strategy is to drive it too."""

    negatives: int = Field(4, ge=1)
    dim: Width = 64
    head: Literal["own", "strategy"] = "own"
    head_units: int = Field(32, ge=0, le=4096)
    head_negatives: int = Field(30, ge=1)
    head_repeats: bool = True
    head_rest: int = Field(256, ge=0)
    head_lr: float = Field(0.001, ge=0)
    head_decay: float = Field(0.01, ge=0)
    head_passes: int = Field(20, ge=0)
    head_practice_lr: float = Field(0.005, gt=0)
    slots: Width = 256
    transitions: bool = False
    inputs: tuple[Literal["profiles", "own_profiles", "likeness", "leanings", "tastes"], ...] = ()
    lists: Literal["exact", "two_stage"] = "exact"
    without: tuple[Literal["personal", "popularity", "neighbours", "activity"], ...] = ()

    @field_validator("inputs")
    @classmethod
    def _once(cls, inputs: tuple[str, ...]) -> tuple[str, ...]:
        if "leanings" in inputs and "tastes" in inputs:
            raise ValueError("tastes are leanings and more: name one of the two")
        return inputs
