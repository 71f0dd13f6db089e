"""Settings of MeLON and its ablations: each difference between paper and published code (docs/methods.md 4.9)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from melon.settings import Width
from melon.strategies.learned import LearnedSettings


class RateSettings(LearnedSettings):
    """Numbers in comments are rows of docs/methods.md 4.9."""

    form: Literal["network"] = "network"
    pairwise: bool = False  # 1: positive and negative pairs are units of their own
    loss_feature: Literal["interaction", "batch"] = "interaction"  # 2
    theta_feature: bool = True  # 3
    role: Literal["mlp", "linear"] = "mlp"  # 4
    role_width: Width = 20
    interaction_layers: Literal[1, 2] = 1  # 5
    interaction_width: Width = 20
    norm: Literal["layer", "batch", "none"] = "layer"  # 6
    extended: Literal["joint", "split"] = "joint"  # 7: one layer on [self ; neighbours], or one for each and a fusion
    extended_width: Width = 64
    slope: float = Field(0.01, ge=0)  # 8
    neighbours: int = Field(10, ge=0, le=50)  # 10
    forgetting: bool = True  # 11
    rate_bias: float = 0.0  # 12: w starts at σ(rate_bias)
    forget_bias: float = 6.0  # 12: f starts at σ(forget_bias)
    spread: float = Field(0.0, ge=0)  # 12: head biases are drawn from ± spread around these
    reduction: Literal["sum", "mean", "row_mean", "sqrt"] = "sum"  # 13: rows of users and items
    shared_reduction: Literal["sum", "mean", "row_mean", "sqrt"] = "row_mean"  # 13: weights shared by all interactions
    shared_scale: float = Field(0.1, gt=0)  # rates of shared weights beside those of rows
    shared_forgetting: bool = False  # 11: the forgetting of shared weights, which ate the published NCF
    most_rate: float = Field(1.0, gt=0)  # w = most_rate · σ(…)
    meta_cooling: float = Field(1.0, gt=0, le=1)  # 23: what is left of Adam's rate when meta-training is over
    init: Literal["normal", "xavier"] = "xavier"  # 27
