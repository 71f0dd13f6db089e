"""Streaming implicit ALS as a recommender: its rows are solved for as it observes, so no strategy updates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from melon.models.base import Context, Recommender, RecommenderSettings
from melon.models.streaming.ials import ImplicitALS
from melon.settings import Width
from melon.stream.history import History
from melon.tables import TableSpec
from melon.types import Ints, Scores


class IALSSettings(RecommenderSettings):
    """`missing` is the weight of a pair that was not taken, `reg` the pull towards zero, `sweeps` those over a log."""

    dim: Width = 32
    missing: float = Field(0.01, gt=0, le=1)
    reg: float = Field(0.01, ge=1e-3, le=1e6)  # with less, single precision may not solve the systems of a cold start
    sweeps: int = Field(10, ge=0)


class IALS(Recommender):
    """score(u, i) = x_u · y_i, near 1 for what a user takes and near 0 for the rest."""

    name = "ials"
    kernels = ("ials",)
    keeps_journal = True
    settings_type: ClassVar[type[RecommenderSettings]] = IALSSettings
    settings: IALSSettings

    def __init__(self, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(settings, **options)
        chosen = self.settings
        self.solved = ImplicitALS(chosen.dim, missing=chosen.missing, reg=chosen.reg, seed=self.seed)

    def declare(self) -> tuple[TableSpec, ...]:
        return ()

    def score(self, users: Ints, items: Ints, context: Context | None = None) -> Scores:
        return self.solved.scores(users, items).astype(self.dtype, copy=False)

    def score_catalogue(self, users: Ints, n_items: int, context: Context | None = None) -> Scores:
        scores: Scores = self.solved.users.read(users) @ self.solved.items.read(np.arange(n_items)).T
        return scores.astype(self.dtype, copy=False)

    def item_vectors(self, context: Context | None = None) -> Scores:
        return self.solved.items.rows.astype(self.dtype)

    def rows_of(self, role: str) -> int:
        return {"user": self.solved.users.count, "item": self.solved.items.count}.get(role, 0)

    def fit_past(self, users: Ints, items: Ints) -> None:
        self.solved.fit(users, items, self.settings.sweeps)

    def observe(self, users: Ints, items: Ints, times: Ints, past: History) -> None:
        self.solved.observe(users, items, past)

    def forget_user(self, user: int) -> None:
        self.solved.forget_user(user)

    def streaming_state(self) -> dict[str, npt.NDArray[Any]]:
        return dict(self.solved.state())

    def restore_streaming_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.solved.restore(state)
