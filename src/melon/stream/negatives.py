"""Training negatives: items the user has not taken so far, drawn from what exists by now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melon.errors import StreamError
from melon.kernels import policy
from melon.stream.draws import Draws
from melon.stream.pairs import SeenPairs, pair_keys
from melon.types import Ints

#: Draws for each negative before all items are searched.
_TRIES = 32


@dataclass(frozen=True)
class Negatives:
    """How the negatives of one batch are drawn: uniformly from items 0 … pool-1."""

    pool: int
    seen: SeenPairs
    draws: Draws

    def draw(self, users: Ints, items: Ints, events: Ints, count: int = 1) -> Ints:
        """`count` items for each interaction: not the user's own so far, not the current one, among those that exist.

        A user who has taken (nearly) everything is served by an exact search, and where nothing is left by any other
        item: a negative never equals its positive.
        """
        return self.lines(users, items, events, count)[:, 1:]

    def lines(self, users: Ints, items: Ints, events: Ints, count: int = 1) -> Ints:
        """The same behind the item of each interaction: n × (1 + count)."""
        if self.pool < 2:
            raise StreamError(f"there is no negative among {self.pool} items; a stream teaches once it has two.")
        lines = np.empty((len(items), 1 + count), dtype=np.int64)
        lines[:, 0] = items
        drawn_for = self.draws.root, self.pool, _TRIES, np.ascontiguousarray(users), np.ascontiguousarray(events)
        missing = policy.load("stream").negatives(*self.seen.storage, *drawn_for, lines)
        for line, place in np.argwhere(lines < 0) if missing else ():
            lines[line, place] = self._exact(users[line], items[line], events[line])
        return lines

    def _exact(self, user: np.int64, item: np.int64, event: np.int64) -> int:
        others = np.flatnonzero(np.arange(self.pool) != item)
        unseen = others[~self.seen.contains(pair_keys(np.full_like(others, user), others))]
        left = unseen if len(unseen) else others
        return int(left[self.draws.integers(np.array([event]), 1, len(left), start=1 << 30)[0, 0]])
