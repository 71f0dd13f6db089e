"""Strong simple rivals: what anyone would try first, each mixed with recent popularity as well as it can be.

None of them is updated by a gradient. They are made of columns that stream along: counts of items, item neighbours,
last-item transitions, and the frozen recommender. A rival is one column plus a weight times log popularity; kind,
half-life and weight are chosen on the selection window from a grid that is searched as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from melon.data.interactions import Interactions
from melon.evaluation.predictors import Frozen, Predictor
from melon.evaluation.ranking import rank_first, selection_score
from melon.fitting.search import Choice, Trial, edges
from melon.recommenders.streaming.counts import ItemCounts
from melon.recommenders.streaming.neighbours import ItemNeighbours
from melon.stream.batch import Batch
from melon.stream.history import PartnerRings
from melon.stream.split import batches
from melon.types import Floats, Ints, Scores

HALF_LIVES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
WEIGHTS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Each rival by its columns, the one to be preferred first.
RIVALS: Mapping[str, tuple[str, ...]] = {
    "transitions_popularity": ("transitions_recent", "transitions"),
    "knn_popularity": ("neighbours", "neighbours_by_lag", "neighbours_recent"),
    "frozen_popularity": ("frozen",),
}
#: Where nothing can be chosen.
UNCHOSEN = {"half_life": 3_000, "weight": 1.0}
#: How many of a grid's trials a record keeps, the best ones.
_KEPT = 20
_AT_ONCE = 4_096
_LAST, _SHRINK, _GAIN = 20, 5.0, 20.0

Columns = dict[str, Floats]


class RivalColumns:
    """The columns of some rivals, gathered along one stream."""

    def __init__(self, past: Interactions, kinds: Sequence[str], frozen: Frozen | None = None) -> None:
        self.kinds, self._frozen = tuple(kinds), frozen
        self._counts = ItemCounts([*HALF_LIVES, float("inf")])
        self._rings = PartnerRings()
        transitions, neighbours = (any(kind.startswith(name) for kind in kinds) for name in ("trans", "neigh"))
        self._transitions = ItemNeighbours(reach=1, half_life=50_000, both_ways=False) if transitions else None
        self._neighbours = ItemNeighbours(slots=256) if neighbours else None
        for start, stop in batches(0, len(past), _AT_ONCE):
            self.observe(past.users[start:stop], past.items[start:stop])

    def observe(self, users: Ints, items: Ints) -> None:
        """Let interactions pass by."""
        for table in (self._transitions, self._neighbours):
            if table is not None:
                table.observe(users, items, self._rings)
        self._rings.append(users, items)
        self._counts.observe(items)

    def read(self, users: Ints, items: Ints, time: int) -> tuple[Columns, Floats]:
        """The columns of candidates n × c, and log popularity at each half-life (n × c × half-lives)."""
        counts = self._counts.read(items)
        found: Columns = {}
        if self._frozen is not None:
            found["frozen"] = self._frozen.score(users, items, time).astype(np.float64)
        lasts = self._rings.recent(users, _LAST).partners
        if self._transitions is not None:
            sums = self._transitions.add_up(lasts[:, :1], np.ones((len(users), 1)), items)
            found["transitions"], found["transitions_recent"] = np.log1p(10 * sums[0]), np.log1p(10 * sums[2])
        if self._neighbours is not None:
            own = 1 / np.sqrt(self._counts.read(np.maximum(lasts, 0))[..., -1] + _SHRINK)
            sums = self._neighbours.add_up(lasts, own, items) / np.sqrt(counts[..., -1] + _SHRINK)
            names = ("neighbours", "neighbours_by_lag", "neighbours_recent")
            found |= {name: np.log1p(_GAIN * each) for name, each in zip(names, sums, strict=True)}
        return {kind: found[kind] for kind in self.kinds}, np.log1p(counts[..., :-1])


class Rival:
    """One column plus a weight times log popularity at one half-life."""

    moved = 0.0

    def __init__(self, columns: RivalColumns, kind: str, half_life: int, weight: float) -> None:
        self._columns, self._kind = columns, kind
        self._half_life, self._weight = HALF_LIVES.index(half_life), weight

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        columns, popular = self._columns.read(users, items, time)
        return columns[self._kind] + self._weight * popular[..., self._half_life]

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        lines = [self.score(users[line : line + 1], np.arange(n_items)[None, :], time) for line in range(len(users))]
        return np.concatenate(lines)

    def learn(self, batch: Batch) -> None:
        self._columns.observe(batch.users, batch.items)


@dataclass
class RivalTrials:
    """A predictor that keeps the columns of the batch it was asked about last, so that a whole grid can be tried."""

    columns: RivalColumns
    moved = 0.0

    def __post_init__(self) -> None:
        self._now: tuple[Columns, Floats] = {}, np.empty(0)
        self._kept: list[tuple[Columns, Floats]] = []

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        self._now = self.columns.read(users, items, time)
        return self._now[1][..., 0]

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        return self.score(users, np.broadcast_to(np.arange(n_items), (len(users), n_items)), time)

    def learn(self, batch: Batch) -> None:
        self.columns.observe(batch.users, batch.items)

    def keep(self, usable: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """The batch that was scored last is judged."""
        columns, popular = self._now
        self._kept.append(({kind: column[usable] for kind, column in columns.items()}, popular[usable]))

    def best(self, kinds: Sequence[str]) -> Choice:
        """The best point of the grid for a rival that can be made of these columns."""
        popular = np.concatenate([each for _, each in self._kept])
        trials = []
        for kind in kinds:
            column = np.concatenate([each[kind] for each, _ in self._kept])
            for (at, half_life), weight in product(enumerate(HALF_LIVES), WEIGHTS):
                rank = rank_first(column + weight * popular[..., at], "the selection window").rank
                point = {"kind": kind, "half_life": half_life, "weight": weight}
                trials.append(Trial(point, selection_score(rank)))
        trials.sort(key=lambda trial: -(trial.score or 0.0))
        axes = {"kind": tuple(kinds), "half_life": HALF_LIVES, "weight": WEIGHTS}
        chosen = trials[0]
        return Choice(chosen.settings, chosen.score, tuple(trials[:_KEPT]), edges(axes, chosen.settings))


def make_rival(name: str, settings: Mapping[str, Any], past: Interactions, frozen: Frozen | None) -> Predictor:
    """A rival with the settings that were chosen for it, which has a log behind it."""
    told = {"kind": RIVALS[name][0], **UNCHOSEN, **settings}
    columns = RivalColumns(past, (told["kind"],), frozen if told["kind"] == "frozen" else None)
    return Rival(columns, told["kind"], told["half_life"], told["weight"])
