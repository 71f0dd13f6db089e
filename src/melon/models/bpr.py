"""BPR-MF (docs/methods.md 2.1): a dot product and biases."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from melon.errors import require_torch
from melon.kernels import policy
from melon.models.base import Context, Recommender, RecommenderSettings, SummedSteps
from melon.models.catalogue import Catalogue
from melon.models.factorisation import FactorCatalogue, pretrain_rows, stored_scores
from melon.models.losses import BPRLoss
from melon.models.quantised import QuantisedRows
from melon.settings import Width
from melon.tables import Moment, TableSpec
from melon.types import Ints, Scores

if TYPE_CHECKING:
    from melon.models.autograd import Differentiable

#: Catalogues with fewer items are scanned as a whole: that costs less than following their rows does.
TWO_STAGE_FROM = 50_000


class BPRSettings(RecommenderSettings):
    """`init="paper"` draws every entry, biases included, with deviation 0.01; the default trains far better."""

    dim: Width = 64
    init: Literal["default", "paper"] = "default"
    lists: Literal["exact", "two_stage"] = "exact"


class BPR(Recommender):
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

    @property
    def factorised(self) -> bool:
        return type(self.loss) is BPRLoss

    def differentiable(self) -> Differentiable:
        require_torch(f"the recommender {self.name!r} with a strategy or loss that no kernel serves")
        from melon.models.autograd import FactorScore

        return FactorScore(self)

    def pretrain(self, users: Ints, items: Ints, steps: SummedSteps) -> float | None:
        return None if self.plain_steps is None else pretrain_rows(self.tables, users, items, steps)

    def score(self, users: Ints, items: Ints, context: Context | None = None) -> Scores:
        return stored_scores(self.tables, users, items, *self._moment(context))

    def score_catalogue(self, users: Ints, n_items: int, context: Context | None = None) -> Scores:
        if self.dtype != np.float32:
            return super().score_catalogue(users, n_items, context)
        return self._scan(n_items, context).scores(users)

    def catalogue(self, n_items: int, context: Context | None = None) -> Catalogue:
        if self.dtype != np.float32:
            return super().catalogue(n_items, context)
        return self._scan(n_items, context, two_stage=self.settings.lists == "two_stage")

    def _scan(self, n_items: int, context: Context | None, *, two_stage: bool = False) -> FactorCatalogue:
        now, at = self._moment(context)
        common = policy.load("lists"), self.tables, n_items, at, now
        near = self._quantised.follow(*common) if two_stage and n_items >= TWO_STAGE_FROM else None
        return FactorCatalogue(*common, near)

    def _moment(self, context: Context | None) -> tuple[int, Moment | None]:
        at = None if context is None else context.moment
        return self.clock.now if at is None else at.now, at

    @cached_property
    def _quantised(self) -> QuantisedRows:
        return QuantisedRows()
