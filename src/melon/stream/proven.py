"""Which items may be shown to everybody: those that enough different users have taken. Others are their takers' own.

One event is no evidence: an id that one user invented, or a typing error, would stand in the lists of others.
"""

from __future__ import annotations

import numpy as np

from melon.stream.history import RING, History
from melon.types import Flags, Ints

#: So many different users have to have taken an item.
ITEM_USERS = 2


def proven(history: History, items: Ints, users: int) -> Flags:
    """Whether at least `users` different users have taken each item, or it was taken more often than is remembered."""
    if users <= 1:
        return history.of_items.met(items) >= users
    takers = np.sort(history.of_items.recent(items).partners, axis=1)
    different = (np.diff(takers, axis=1) > 0).sum(axis=1) + 1 - (takers[:, 0] < 0)
    flags: Flags = (different >= users) | (history.of_items.met(items) > RING)
    return flags


class ProvenItems:
    """The same for all items of a history that grows, looking only at items that were taken since."""

    def __init__(self, users: int) -> None:
        self.users = users
        #: Changes whenever the flags do.
        self.version = 0
        self._history: History | None = None
        self._flags: Flags = np.zeros(0, dtype=np.bool_)
        self._open: Ints = np.empty(0, dtype=np.int64)  # items that are not proven yet, and how often they were taken
        self._met: Ints = np.empty(0, dtype=np.int64)

    def flags(self, history: History, n_items: int) -> Flags | None:
        """One truth value for each of the first items; None where all are proven or nothing is asked for."""
        if not self.users:
            return None
        if history is not self._history:
            self._history, self._flags = history, np.zeros(0, dtype=np.bool_)
            self._open = self._met = np.empty(0, dtype=np.int64)
            self.version += 1
        if n_items > len(self._flags):
            new = np.arange(len(self._flags), n_items)
            self._flags = np.append(self._flags, np.zeros(len(new), dtype=np.bool_))
            self._open, self._met = np.append(self._open, new), np.append(self._met, np.full(len(new), -1))
            self.version += 1
        met = history.of_items.met(self._open)
        taken = np.flatnonzero(met != self._met)
        if len(taken):
            good = self._open[taken[proven(history, self._open[taken], self.users)]]
            self._met = met
            if len(good):
                self._flags = self._flags.copy()  # lists under way may hold the old one
                self._flags[good] = True
                left = ~self._flags[self._open]
                self._open, self._met = self._open[left], met[left]
                self.version += 1
        return self._flags[:n_items] if len(self._open) else None

    def own(self, history: History, user: int) -> Ints:
        """Items among the user's last ones that may be shown to this user, and are not proven by `flags`."""
        rows: Ints = history.of_users.recent(np.array([user])).partners[0]
        rows = rows[(rows >= 0) & (rows < len(self._flags))]
        return rows[~self._flags[rows]]
