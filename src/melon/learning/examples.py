"""What one step learns from: interactions with their negatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melon.models.base import Recommender
from melon.strategies.base import Strategy
from melon.stream.batch import Batch
from melon.stream.candidates import Negatives
from melon.stream.draws import Draws
from melon.stream.history import NOBODY, History
from melon.tables import Table
from melon.types import Ints

RowStateTables = dict[str, dict[str, Table]]


@dataclass(frozen=True)
class Offered:
    """Interactions with their negatives as stored rows: users n, items n × (1 + negatives), the item taken first."""

    users: Ints
    items: Ints
    pool: int = 0  # how many items the negatives are drawn from


@dataclass(frozen=True)
class LastInteractions:
    """The look-ahead batch: for each user its previous item, for each item its previous user.

    See docs/methods.md 3.0.2.
    """

    users: Ints
    items: Ints
    events: Ints  # numbers for random draws, apart from those of the batch itself

    def __len__(self) -> int:
        return len(self.users)


class Offers:
    """Draws negatives for the interactions of a batch, along one history; every draw belongs to its event."""

    def __init__(self, recommender: Recommender, strategy: Strategy, history: History, seed: int) -> None:
        self._recommender, self._strategy, self._history = recommender, strategy, history
        self._negatives = Draws(seed, "training negatives")
        self._last_negatives = Draws(seed, "negatives of last interactions")
        self._partners = Draws(seed, "last interactions")

    def of(self, batch: Batch) -> Offered | None:
        """The batch with its negatives; None while there is but one item.

        Negatives are drawn from all items that there are with this batch.
        """
        pool = max(self._history.of_items.rows, batch.rows[1])
        if pool < 2:
            return None
        negatives = Negatives(pool, self._history.seen, self._negatives)
        lines = negatives.lines(batch.users, batch.items, batch.events, self._recommender.settings.negatives)
        return Offered(batch.users, lines, pool)

    def last(self, batch: Batch) -> Offered | None:
        """The last interactions of the batch's users and items, for a strategy that looks ahead from there."""
        if not self._strategy.looks_ahead:
            return None
        cold = getattr(self._strategy.settings, "cold", "drop")
        last = last_interactions(batch.users, batch.items, batch.events, self._history, cold, self._partners)
        if not len(last):
            return None
        pool = max(self._history.of_items.rows, batch.rows[1])
        negatives = Negatives(pool, self._history.seen, self._last_negatives)
        count = self._recommender.settings.negatives
        return Offered(last.users, negatives.lines(last.users, last.items, last.events, count))


def last_interactions(
    users: Ints, items: Ints, events: Ints, history: History, cold: str, draws: Draws
) -> LastInteractions:
    """The last interactions before a batch. A user or item without one is dropped, or stands for itself (`current`)."""
    last_items, last_users = history.last("user", users, draws), history.last("item", items, draws)
    if cold == "current":
        last_items = np.where(last_items == NOBODY, items, last_items)
        last_users = np.where(last_users == NOBODY, users, last_users)
    all_users, all_items = np.concatenate([users, last_users]), np.concatenate([last_items, items])
    numbers = np.concatenate([2 * events, 2 * events + 1])
    met = (all_users != NOBODY) & (all_items != NOBODY)
    return LastInteractions(all_users[met], all_items[met], numbers[met])
