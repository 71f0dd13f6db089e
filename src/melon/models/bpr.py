"""BPR-MF (docs/methods.md 2.1): a dot product and biases, with per-interaction gradients in closed form."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from melon.kernels import policy
from melon.models.base import Context, Recommender, RecommenderSettings, SummedSteps
from melon.models.catalogue import Catalogue
from melon.models.evidence import Evidence, Examples, Values
from melon.models.factorisation import (
    FactorCatalogue,
    compiled_pretraining,
    compiled_scores,
    factor_evidence,
    factor_scores,
)
from melon.models.losses import BPRLoss
from melon.models.plain import PlainSteps, plain_steps
from melon.models.quantised import QuantisedRows
from melon.settings import Width
from melon.tables import TableSpec
from melon.types import Ints

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

    def scores(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        return factor_scores(values, users, items)

    @property
    def factorised(self) -> bool:
        return type(self.loss) is BPRLoss

    @property
    def open_evidence(self) -> bool:
        return type(self) is BPR and type(self.loss) is BPRLoss

    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        losses, gradients = factor_evidence(self.loss, values, examples, per_branch=per_branch)
        return Evidence(losses, tuple(gradients))

    @cached_property
    def plain_steps(self) -> PlainSteps | None:
        return plain_steps(self.loss, self.tables) if type(self) is BPR else None

    def pretrain(self, users: Ints, items: Ints, steps: SummedSteps) -> float | None:
        return compiled_pretraining(self.loss, self.tables, users, items, steps) if type(self) is BPR else None

    def score(self, users: Tensor, items: Tensor, context: Context | None = None) -> Tensor:
        compiled = compiled_scores(self.tables, users, items, None if context is None else context.moment)
        if compiled is not None:
            return compiled
        views = self.views(context)
        factors = views["user_factors"].gather(users).unsqueeze(1)
        scores = views["item_factors"].gather(items).mul_(factors).sum(-1)
        return scores + views["item_bias"].gather(items).squeeze(-1) + views["user_bias"].gather(users)

    def score_catalogue(self, users: Tensor, n_items: int, context: Context | None = None) -> Tensor:
        views = self.views(context)
        factors, own = views["user_factors"].gather(users), views["user_bias"].gather(users)
        out = factors.new_zeros((len(users), n_items))
        start = 0
        blocks = zip(views["item_factors"].blocks(), views["item_bias"].blocks(), strict=True)
        for vectors, bias in blocks:
            stop = min(start + len(vectors), n_items)
            torch.addmm(bias[: stop - start].T, factors, vectors[: stop - start].T, out=out[:, start:stop])
            start = stop
        return out.add_(own)

    def catalogue(self, n_items: int, context: Context | None = None) -> Catalogue:
        kernels = policy.load("lists", like=self.like)
        if kernels is None:
            return super().catalogue(n_items, context)
        at = None if context is None else context.moment
        common = kernels, self.tables, n_items, at, self.clock.now if at is None else at.now
        if self.settings.lists == "exact" or n_items < TWO_STAGE_FROM:
            return FactorCatalogue(*common)
        return FactorCatalogue(*common, self._quantised.follow(*common))

    @cached_property
    def _quantised(self) -> QuantisedRows:
        return QuantisedRows()
