"""What can be evaluated on a stream: anything that scores candidates and then learns the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from melon.evaluation.baselines import SparseCatalogue
from melon.learning.updater import Updater
from melon.models.catalogue import Catalogue
from melon.models.streaming.counts import ItemCounts
from melon.stream.batch import Batch
from melon.types import Ints, Scores


class Predictor(Protocol):
    """Scores before it learns."""

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        """Scores of candidates, one line per user."""

    def catalogue(self, n_items: int, time: int) -> Catalogue:
        """The scorer of items 0 … n_items-1, from which lists are made."""

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

    def catalogue(self, n_items: int, time: int) -> Catalogue:
        return self._updater.catalogue(n_items, time)

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
        self.score, self.catalogue = updater.score, updater.catalogue

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

    def catalogue(self, n_items: int, time: int) -> Catalogue:
        return SparseCatalogue(self._counts.read(np.arange(n_items))[:, 0])

    def learn(self, batch: Batch) -> None:
        self._counts.observe(batch.items)
