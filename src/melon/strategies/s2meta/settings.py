"""Settings of S2Meta: the two published cells, and how their gates become a step on a stream (docs/methods.md 3.5)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from melon.settings import Width
from melon.strategies.learned import LearnedSettings
from melon.strategies.reductions import GradientReduction


class S2MetaSettings(LearnedSettings):
    """θ' = f·θ − most_rate·i·ḡ, where i = σ(rate_bias + …) and f = σ(forget_bias + …)."""

    variant: Literal["A", "B"] = "A"  # ScenarioMeta, a network for each table; or MetaLSTM, one for all
    state: Literal["reset", "persist"] = "reset"  # each batch from the learned start, or from the row's last touch
    width: Width = 16  # units of the cell
    reduction: GradientReduction = "sum"  # ḡ of rows of users and items
    shared_reduction: GradientReduction = "row_mean"  # ḡ of weights that every interaction touches
    shared_scale: float = Field(0.1, gt=0)  # rates of shared weights beside those of rows
    most_rate: float = Field(0.6, gt=0)
    rate_bias: float = 0.0
    forgetting: bool = True
    shared_forgetting: bool = False  # a gate a little below one, at every batch, eats weights (docs/adr/0005)
    forget_bias: float = 5.0
    clamp: float | None = Field(None, gt=0)  # the most that an entry of ḡ counts
    gate_init: Literal["small", "xavier"] = "small"  # gates that start alike everywhere, or as published
    meta_lr: float = Field(3e-3, ge=0)
