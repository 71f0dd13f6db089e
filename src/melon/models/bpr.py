"""BPR-MF (docs/methods.md 2.1): a dot product and biases."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from melon.models.base import Context, RecommenderSettings
from melon.models.catalogue import Catalogue
from melon.models.factorisation import FactorModel, FactorSettings
from melon.tables import TableSpec
from melon.types import Ints, Scores

#: Catalogues with fewer items are scanned as a whole: that costs less than following their rows does.
TWO_STAGE_FROM = 50_000


class BPRSettings(FactorSettings):
    """`init="paper"` draws every entry, biases included, with deviation 0.01; the default trains far better."""

    init: Literal["default", "paper"] = "default"


class BPR(FactorModel):
    """score(u, i) = p_u · q_i + b_u + b_i."""

    name = "bpr"
    kernels = ("factor", "lists")
    settings_type: ClassVar[type[RecommenderSettings]] = BPRSettings
    settings: BPRSettings

    def declare(self) -> tuple[TableSpec, ...]:
        paper = self.settings.init == "paper"
        std, bias_std, dim = (0.01, 0.01, self.settings.dim) if paper else (0.05, 0.0, self.settings.dim)
        return (
            TableSpec("user_factors", "user", "embedding", dim, std),
            TableSpec("item_factors", "item", "embedding", dim, std),
            TableSpec("user_bias", "user", "bias", 1, bias_std),
            TableSpec("item_bias", "item", "bias", 1, bias_std),
        )

    def score(self, users: Ints, items: Ints, context: Context | None = None) -> Scores:
        return self.row_scores(users, items, context)

    def catalogue(self, n_items: int, context: Context | None = None) -> Catalogue:
        if self.dtype != np.float32:
            return super().catalogue(n_items, context)
        return self.row_catalogue(n_items, context, two_stage=n_items >= TWO_STAGE_FROM)
