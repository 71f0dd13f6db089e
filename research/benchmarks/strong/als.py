"""Implicit ALS: the library `implicit`, solved again every so many batches, and this project's rows that stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from melon.models.streaming.ials import ImplicitALS
from melon.stream.history import History
from melon.types import Floats, Ints
from strong.ease import Sets


class RefittedALS:
    """Rows of `implicit`; between refits the users of a batch are solved from all that they have had.

    Settings: `factors`, `alpha` (weight of what was taken), `l2`, `every` (batches).
    """

    def __init__(self, past: tuple[Ints, Ints], settings: Any) -> None:
        self._settings, self._sets, self._batches = settings, Sets(), 0
        self._sets.append(*past)
        self._solve()

    def score(self, users: Ints, items: Ints) -> Floats:
        distinct, line = np.unique(users, return_inverse=True)
        had = [[item for item in self._sets.of(user) if item < self.known] for user in distinct.tolist()]
        rows = self._model.recalculate_user(distinct, self._matrix(had))[line]
        offered = self._model.item_factors[np.minimum(items, self.known - 1)]
        scores: Floats = (offered @ rows[:, :, None])[..., 0].astype(np.float64)
        return scores

    def learn(self, users: Ints, items: Ints) -> None:
        self._sets.append(users, items)
        self._batches += 1
        if self._batches % self._settings["every"] == 0:
            self._solve()

    def _solve(self) -> None:
        from implicit.cpu.als import AlternatingLeastSquares

        self.known = self._sets.items
        settings = {"factors": self._settings["factors"], "alpha": self._settings["alpha"]}
        self._model = AlternatingLeastSquares(
            **settings, regularization=self._settings["l2"], iterations=15, num_threads=1, random_state=0
        )
        self._model.fit(self._matrix([items for _, items in self._sets.all()]), show_progress=False)

    def _matrix(self, lines: list[list[int]]) -> Any:
        from scipy.sparse import csr_matrix

        starts = np.cumsum([0, *(len(line) for line in lines)])
        items = np.array([item for line in lines for item in line], dtype=np.int32)
        return csr_matrix((np.ones(len(items), np.float32), items, starts), (len(lines), self.known))


class StreamingALS:
    """The rows behind the recommender `ials`: ten sweeps over the past, then the rows that a batch touches.

    Settings: `dim`, `missing` (weight of what was not taken), `reg`.
    """

    def __init__(self, past: tuple[Ints, Ints], settings: Any) -> None:
        self._rows = ImplicitALS(settings["dim"], missing=settings["missing"], reg=settings["reg"])
        self._past = History()
        self._rows.fit(*past)
        self._past.append(*past)
        self.known = self._rows.items.count

    def score(self, users: Ints, items: Ints) -> Floats:
        return self._rows.scores(users, items).astype(np.float64)

    def learn(self, users: Ints, items: Ints) -> None:
        self._rows.observe(users, items, self._past)
        self._past.append(users, items)
        self.known = self._rows.items.count
