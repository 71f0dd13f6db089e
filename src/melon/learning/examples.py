"""What a step learns from: the interactions of a batch, replayed and last ones, each with its negatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melon.learning.meta import last_interactions
from melon.recommenders.base import Recommender
from melon.strategies.base import Strategy
from melon.strategies.learned import LearnedStrategy
from melon.stream.batch import Batch
from melon.stream.draws import Draws
from melon.stream.history import History
from melon.stream.negatives import Negatives
from melon.types import Flags, Ints


@dataclass(frozen=True)
class Offered:
    """Interactions with their negatives as stored rows: users n, items n × (1 + negatives)."""

    users: Ints
    items: Ints
    fresh: Flags | None = None


class Offers:
    """Puts interactions together and draws their negatives, along one history; every draw belongs to its event."""

    def __init__(self, recommender: Recommender, strategy: Strategy, history: History, seed: int) -> None:
        self._recommender, self._strategy, self._history = recommender, strategy, history
        self._negatives = Draws(seed, "training negatives")
        self._last_negatives = Draws(seed, "negatives of last interactions")
        self._replay = Draws(seed, "replay")

    def pool(self, batch: Batch) -> int:
        """How many items there are with this batch; negatives are drawn from them."""
        return max(self._history.items_born, int(batch.items.max()) + 1)

    def of(self, batch: Batch) -> Offered:
        """The batch and what is replayed beside it."""
        users, items, fresh = self._with_replay(batch)
        # Replayed interactions are numbered apart from the stream's own events.
        events = np.concatenate([batch.events, -1 - batch.first_event - np.arange(len(users) - len(batch))])
        return self._with_negatives(batch, users, items, events, self._negatives, fresh)

    def last(self, batch: Batch) -> Offered | None:
        """What the batch's users and items did last, for a strategy that looks ahead from there."""
        if not isinstance(self._strategy, LearnedStrategy):
            return None
        cold = self._strategy.settings.cold
        last = last_interactions(batch.users, batch.items, batch.events, self._history, cold)
        if not len(last):
            return None
        return self._with_negatives(batch, last.users, last.items, last.events, self._last_negatives)

    def _with_negatives(
        self, batch: Batch, users: Ints, items: Ints, events: Ints, draws: Draws, fresh: Flags | None = None
    ) -> Offered:
        popularity = self._history.of_items if self._strategy.negatives == "popular" else None
        negatives = Negatives(self.pool(batch), self._history.seen, draws, popularity)
        drawn = negatives.draw(users, items, events, self._recommender.settings.negatives)
        return Offered(users, np.concatenate([items[:, None], drawn], axis=1), fresh)

    def _with_replay(self, batch: Batch) -> tuple[Ints, Ints, Flags | None]:
        if not self._strategy.replay:
            return batch.users, batch.items, None
        users, items = self._history.replay(self._strategy.replay, self._replay, batch.first_event)
        fresh = np.arange(len(batch) + len(users)) < len(batch)
        return np.concatenate([batch.users, users]), np.concatenate([batch.items, items]), fresh
