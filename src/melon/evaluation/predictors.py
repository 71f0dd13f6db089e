"""What can be evaluated on a stream: anything that scores candidates and then learns the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from melon.data.interactions import Interactions
from melon.learning.updater import Updater
from melon.models.streaming.counts import ItemCounts
from melon.models.streaming.neighbours import ItemNeighbours
from melon.stream.batch import Batch
from melon.stream.history import PartnerRings
from melon.stream.split import batches
from melon.types import Floats, Ints, Scores


class Predictor(Protocol):
    """Scores before it learns."""

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        """Scores of candidates, one line per user."""

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        """Scores of all items for each user."""

    def learn(self, batch: Batch) -> object:
        """Learn a batch that has been scored."""

    @property
    def moved(self) -> float:
        """How far the last batch moved the vector of a user or item that it touched, on average."""


class Frozen:
    """A model that is never updated: the reference for what updating is worth."""

    moved = 0.0

    def __init__(self, updater: Updater) -> None:
        self._updater = updater

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        return self._updater.score(users, items, time)

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        return self._updater.score_catalogue(users, n_items, time)

    def learn(self, batch: Batch) -> None:
        """Nothing is learned."""


class Retrained(Frozen):
    """A model that is trained from scratch every `every` interactions and frozen in between: what freshness costs.

    `train(n)` makes it from the first n events of the stream.
    """

    def __init__(self, train: Callable[[int], Updater], start: int, every: int) -> None:
        super().__init__(train(start))
        self._train, self._every = train, every
        self._seen = self._trained = start

    def learn(self, batch: Batch) -> None:
        self._seen += len(batch)
        if self._seen - self._trained >= self._every:
            self._updater, self._trained = self._train(self._seen), self._seen


class RowsAlone:
    """A model whose head, if it has one, does not learn: what its rows are worth by themselves."""

    def __init__(self, updater: Updater) -> None:
        self._updater = updater
        self.score, self.score_catalogue = updater.score, updater.score_catalogue

    @property
    def moved(self) -> float:
        return self._updater.moved

    def learn(self, batch: Batch) -> float:
        return self._updater.learn(batch, teach_head=False)


class Popularity:
    """Scores an item by its (decayed) count; the same for every user."""

    moved = 0.0

    def __init__(self, half_life: float, past_items: Ints) -> None:
        self._counts = ItemCounts([half_life])
        self._counts.observe(past_items)

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        return self._counts.read(items)[..., 0]

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        return np.broadcast_to(self._counts.read(np.arange(n_items))[:, 0], (len(users), n_items))

    def learn(self, batch: Batch) -> None:
        self._counts.observe(batch.items)


# Strong simple baselines: what anyone would try first, each mixed with recent popularity as well as it can be. They
# are made of columns that stream along: counts of items, item neighbours, last-item transitions,
# and the frozen recommender. A baseline is a column plus a weight × log popularity; kind, half-life and weight are
# chosen on the selection window from a grid that is searched as a whole.

HALF_LIVES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
WEIGHTS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Each baseline by its columns, the one to be preferred first.
SIMPLE_BASELINES: Mapping[str, tuple[str, ...]] = {
    "transitions_popularity": ("transitions_recent", "transitions"),
    "knn_popularity": ("neighbours", "neighbours_by_lag", "neighbours_recent"),
    "frozen_popularity": ("frozen",),
}
#: Where nothing can be chosen.
UNCHOSEN = {"half_life": 3_000, "weight": 1.0}
_AT_ONCE = 4_096
_LAST, _SHRINK, _GAIN = 20, 5.0, 20.0

BaselineScores = dict[str, Floats]


class BaselineColumns:
    """The columns of some baselines, gathered along one stream."""

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

    def read(self, users: Ints, items: Ints, time: int) -> tuple[BaselineScores, Floats]:
        """The columns of candidates n × c, and log popularity at each half-life (n × c × half-lives)."""
        counts = self._counts.read(items)
        columns: BaselineScores = {}
        if self._frozen is not None:
            columns["frozen"] = self._frozen.score(users, items, time).astype(np.float64)
        lasts = self._rings.recent(users, _LAST).partners
        if self._transitions is not None:
            sums = self._transitions.add_up(lasts[:, :1], np.ones((len(users), 1)), items)
            columns["transitions"], columns["transitions_recent"] = np.log1p(10 * sums[0]), np.log1p(10 * sums[2])
        if self._neighbours is not None:
            own = 1 / np.sqrt(self._counts.read(np.maximum(lasts, 0))[..., -1] + _SHRINK)
            sums = self._neighbours.add_up(lasts, own, items) / np.sqrt(counts[..., -1] + _SHRINK)
            names = ("neighbours", "neighbours_by_lag", "neighbours_recent")
            columns |= {name: np.log1p(_GAIN * score) for name, score in zip(names, sums, strict=True)}
        return {kind: columns[kind] for kind in self.kinds}, np.log1p(counts[..., :-1])


class Baseline:
    """One column plus a weight times log popularity at one half-life."""

    moved = 0.0

    def __init__(self, columns: BaselineColumns, kind: str, half_life: int, weight: float) -> None:
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


def make_baseline(name: str, settings: Mapping[str, Any], past: Interactions, frozen: Frozen | None) -> Predictor:
    """A baseline with the settings that were chosen for it, behind a log."""
    settings = {"kind": SIMPLE_BASELINES[name][0], **UNCHOSEN, **settings}
    columns = BaselineColumns(past, (settings["kind"],), frozen if settings["kind"] == "frozen" else None)
    return Baseline(columns, settings["kind"], settings["half_life"], settings["weight"])
