"""Items that were not taken: negatives to learn from, and candidates to be ranked among."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from melon.errors import StreamError, unknown_name
from melon.kernels import policy
from melon.stream.draws import Draws
from melon.stream.history import History
from melon.stream.pairs import FirstSeen, SeenPairs, pair_keys
from melon.types import Flags, Ints

if TYPE_CHECKING:
    from melon.data.interactions import Interactions

NEGATIVES = 99
#: Draws for each event before all items are searched.
_TRIES = 512

MODES = {
    "catalogue": "uniform over the stream's items, minus what the user had before the event and the event's own item",
    "full-log": "the paper's: minus everything the user takes anywhere in the log, the future included",
    "known": "only items seen before the batch; events on items not seen by then are left out and counted",
}


@dataclass(frozen=True)
class CandidateSet:
    """One line per event: column 0 is the item taken, the others were not. Lines not `usable` are left out.

    Candidates come from items 0 … pool-1, which a ranking of the whole catalogue is about as well.
    """

    items: Ints
    usable: Flags
    pool: int


class Candidates:
    """Draws the candidates of any batch of a recorded stream."""

    def __init__(
        self, interactions: Interactions, *, mode: str = "catalogue", seed: int = 0, count: int = NEGATIVES
    ) -> None:
        if mode not in MODES:
            raise unknown_name("candidate set", mode, MODES)
        require_enough_items(interactions.n_items, count)
        self.mode, self.count = mode, count
        self._log = interactions
        taken = _TakenBefore(FirstSeen(interactions.users, interactions.items), ever=mode == "full-log")
        self._lottery = _Lottery(Draws(seed, "candidates"), count, taken)

    def draw(self, start: int, stop: int) -> CandidateSet:
        """The candidates of events start … stop-1, which form one batch."""
        log, events = self._log, np.arange(start, stop)
        known = int(log.known_items[start])
        pool = known if self.mode == "known" else log.n_items
        items = log.items[start:stop]
        usable = items < known if self.mode == "known" else np.ones(len(events), dtype=bool)
        return self._lottery.draw(events, log.users[start:stop], items, usable, pool)


class LiveCandidates:
    """Draws the candidates of live events from the history so far: items known before the batch, minus the user's own.

    A draw belongs to the event's place in its log, so it is the same for every model and in every replay.
    """

    def __init__(self, *, seed: int = 0, count: int = NEGATIVES) -> None:
        self._draws, self._count = Draws(seed, "live candidates"), count

    def draw(self, places: Ints, users: Ints, items: Ints, history: History) -> CandidateSet:
        """The candidates of a batch; `history` knows nothing of it. Users and items without a row have one beyond."""
        lottery = _Lottery(self._draws, self._count, _TakenSoFar(history.seen))
        return lottery.draw(places, users, items, items < history.known_items, history.known_items)


class _TakenBefore:
    """Pairs of a recorded log: those that had occurred before an event or, with `ever`, all of them."""

    def __init__(self, pairs: FirstSeen, *, ever: bool) -> None:
        self._pairs, self.ever = pairs, ever
        self.storage, self.since = pairs.storage

    def excludes(self, keys: Ints, events: Ints) -> Flags:
        return self._pairs.ever(keys) if self.ever else self._pairs.before(keys, events)


class _TakenSoFar:
    """Pairs that have occurred by now."""

    ever = True

    def __init__(self, pairs: SeenPairs) -> None:
        self._pairs = pairs
        self.storage, self.since = pairs.storage, np.zeros(1, dtype=np.int64)

    def excludes(self, keys: Ints, events: Ints) -> Flags:
        return self._pairs.contains(keys)


class _Lottery:
    """Fills lines with distinct items that their users had not taken; each event has draws of its own."""

    def __init__(self, draws: Draws, count: int, taken: _TakenBefore | _TakenSoFar) -> None:
        self._draws, self._count, self._taken = draws, count, taken

    def draw(self, events: Ints, users: Ints, items: Ints, usable: Flags, pool: int) -> CandidateSet:
        """One line for each event that is usable, from items 0 … pool-1."""
        usable = usable & (pool > self._count)
        negatives = np.zeros((len(events), self._count), dtype=np.int64)
        for line in self._offer(events, users, items, np.flatnonzero(usable), pool, negatives):
            some = slice(line, line + 1)
            usable[line] = self._exact(events[some], users[some], items[some], pool, negatives[line])
        return CandidateSet(np.concatenate([items[:, None], negatives], axis=1), usable, pool)

    def _offer(self, events: Ints, users: Ints, items: Ints, pending: Ints, pool: int, negatives: Ints) -> Ints:
        """Fill lines by rejection; returns those that are still short."""
        taken, root, short = self._taken, self._draws.root, np.empty(len(pending), dtype=bool)
        pairs = taken.storage, taken.since, taken.ever
        policy.load("stream").candidates(*pairs, root, pool, _TRIES, pending, events, users, items, negatives, short)
        return pending[short]

    def _exact(self, event: Ints, user: Ints, item: Ints, pool: int, line: Ints) -> bool:
        """Fill one line by a keyed lottery over the whole pool; False where too few items are left."""
        everything = np.arange(pool)
        lottery = self._draws.words(everything + (event << 32), 1, start=1 << 20)[:, 0]
        allowed = everything[~self._taken.excludes(pair_keys(user, everything), event) & (everything != item)]
        if len(allowed) < self._count:
            return False
        line[:] = allowed[np.argsort(lottery[allowed], kind="stable")[: self._count]]
        return True


def require_enough_items(items: int, count: int) -> None:
    """There must be more items than negatives."""
    if items <= count:
        raise StreamError(
            f"the stream has {items} items, too few for {count} negatives beside each positive; "
            f"ask for fewer (--negatives, at most {max(items - 1, 0)})."
        )


#: Draws for each negative before all items are searched.
_NEGATIVE_TRIES = 32


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
            raise StreamError(f"there is no negative among {self.pool} items; a stream needs two items.")
        lines = np.empty((len(items), 1 + count), dtype=np.int64)
        lines[:, 0] = items
        drawn_for = (
            self.draws.root,
            self.pool,
            _NEGATIVE_TRIES,
            np.ascontiguousarray(users),
            np.ascontiguousarray(events),
        )
        missing = policy.load("stream").negatives(self.seen.storage, *drawn_for, lines)
        for line, place in np.argwhere(lines < 0) if missing else ():
            lines[line, place] = self._exact(users[line], items[line], events[line])
        return lines

    def _exact(self, user: np.int64, item: np.int64, event: np.int64) -> int:
        others = np.flatnonzero(np.arange(self.pool) != item)
        unseen = others[~self.seen.contains(pair_keys(np.full_like(others, user), others))]
        left = unseen if len(unseen) else others
        return int(left[self.draws.integers(np.array([event]), 1, len(left), start=1 << 30)[0, 0]])
