"""Training negatives: items the user has not taken so far, drawn from what exists by now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melon.errors import StreamError
from melon.kernels import policy
from melon.stream.draws import Draws
from melon.stream.history import PartnerRings
from melon.stream.pairs import SeenPairs, pair_keys
from melon.types import Flags, Ints

_ROUND = 4
_ROUNDS = 8
POPULARITY_POWER = 0.4


@dataclass(frozen=True)
class Negatives:
    """How the negatives of one batch are drawn; `popularity` favours items in proportion to their count^0.4."""

    pool: int
    seen: SeenPairs
    draws: Draws
    popularity: PartnerRings | None = None

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
        loops = policy.load("stream") if self.popularity is None else None
        if loops is None:
            missing = 0
            for place in range(1, 1 + count):
                lines[:, place] = self._by_rounds(users, items, events, (place - 1) << 16)
                missing += int((lines[:, place] < 0).sum())
        else:
            drawn_for = np.ascontiguousarray(users), np.ascontiguousarray(events)
            tries = _ROUND * _ROUNDS
            missing = loops.negatives(*self.seen.storage, self.draws.root, self.pool, tries, *drawn_for, lines)
        for line, place in np.argwhere(lines < 0) if missing else ():
            lines[line, place] = self._exact(users[line], items[line], events[line])
        return lines

    def _by_rounds(self, users: Ints, items: Ints, events: Ints, start: int) -> Ints:
        """The first good draw of each line, a few at a time; -1 for lines that found none."""
        chosen = np.full(len(users), -1, dtype=np.int64)
        pending = np.arange(len(users))
        for attempt in range(_ROUNDS if self.popularity is None else 4 * _ROUNDS):
            if not len(pending):
                break
            first = start + attempt * _ROUND
            offered = self.draws.integers(events[pending], _ROUND, self.pool, first)
            bad = offered == items[pending, None]
            bad |= self.seen.contains(pair_keys(users[pending, None], offered))
            bad |= self._unpopular(offered, events[pending], first)
            first_good = np.argmin(bad, axis=1)
            lines = np.arange(len(pending))
            good = ~bad[lines, first_good]
            chosen[pending[good]] = offered[lines[good], first_good[good]]
            pending = pending[~good]
        return chosen

    def _unpopular(self, offered: Ints, events: Ints, first: int) -> Flags | np.bool_:
        if self.popularity is None:
            return np.False_
        share = self.popularity.met(offered.reshape(-1)).reshape(offered.shape) / max(self.popularity.most_met, 1)
        return self.draws.uniforms(events, _ROUND, (1 << 31) + first) > share**POPULARITY_POWER

    def _exact(self, user: np.int64, item: np.int64, event: np.int64) -> int:
        others = np.flatnonzero(np.arange(self.pool) != item)
        unseen = others[~self.seen.contains(pair_keys(np.full_like(others, user), others))]
        left = unseen if len(unseen) else others
        return int(left[self.draws.integers(np.array([event]), 1, len(left), start=1 << 30)[0, 0]])
