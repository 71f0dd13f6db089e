"""The look-ahead batch of learned strategies (METHODS.md 3.0.2): what the batch's users and items did last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melon.stream.history import NOBODY, History
from melon.types import Ints


@dataclass(frozen=True)
class LastInteractions:
    """B_last: for each user of the batch its previous item, for each item its previous user."""

    users: Ints
    items: Ints
    events: Ints  # numbers for random draws, apart from those of the batch itself

    def __len__(self) -> int:
        return len(self.users)


def last_interactions(users: Ints, items: Ints, events: Ints, history: History, cold: str) -> LastInteractions:
    """The last interactions before a batch. A user or item without one is dropped, or stands for itself (`current`)."""
    last_items, last_users = history.of_users.last(users), history.of_items.last(items)
    if cold == "current":
        last_items = np.where(last_items == NOBODY, items, last_items)
        last_users = np.where(last_users == NOBODY, users, last_users)
    all_users, all_items = np.concatenate([users, last_users]), np.concatenate([last_items, items])
    numbers = np.concatenate([2 * events, 2 * events + 1])
    met = (all_users != NOBODY) & (all_items != NOBODY)
    return LastInteractions(all_users[met], all_items[met], numbers[met])
