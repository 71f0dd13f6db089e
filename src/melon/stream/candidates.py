"""Evaluation candidates: for each event its item and 99 others, a function of the stream and the seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from melon.errors import StreamError, unknown_name
from melon.kernels import policy
from melon.stream.draws import Draws
from melon.stream.pairs import FirstSeen, pair_keys
from melon.types import Flags, Ints

if TYPE_CHECKING:
    from melon.data.interactions import Interactions

NEGATIVES = 99
_OFFERED = 128
_OFFERS = 4

MODES = {
    "catalogue": "uniform over the stream's items, minus what the user had before the event and the event's own item",
    "full-log": "the paper's: minus everything the user takes anywhere in the log, the future included",
    "born": "only items seen before the batch; events on items not seen by then are set aside and counted",
}


@dataclass(frozen=True)
class CandidateSet:
    """One line per event: column 0 is the item taken, the others were not. Lines not `usable` are set aside.

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
        self._first_seen = FirstSeen(interactions.users, interactions.items)
        self._draws = Draws(seed, "candidates")

    def draw(self, start: int, stop: int) -> CandidateSet:
        """The candidates of events start … stop-1, which form one batch."""
        events = np.arange(start, stop)
        positives = self._log.items[start:stop]
        born = int(self._log.items_born[start])
        pool = born if self.mode == "born" else self._log.n_items
        usable = positives < born if self.mode == "born" else np.ones(len(events), dtype=bool)
        if pool <= self.count:
            usable = np.zeros_like(usable)
        negatives = np.zeros((len(events), self.count), dtype=np.int64)
        pending = np.flatnonzero(usable)
        missing = self._offer(events, pending, pool, negatives)
        for line in missing:
            usable[line] = self._exact(int(events[line]), pool, negatives[line])
        return CandidateSet(np.concatenate([positives[:, None], negatives], axis=1), usable, pool)

    def _excluded(self, events: Ints, items: Ints) -> Flags:
        users = self._log.users[events]
        keys = pair_keys(users[:, None], items)
        if self.mode == "full-log":
            excluded = self._first_seen.ever(keys)
        else:
            excluded = self._first_seen.before(keys, events[:, None])
        excluded |= items == self._log.items[events, None]
        return excluded

    def _offer(self, events: Ints, pending: Ints, pool: int, negatives: Ints) -> Ints:
        """Fill lines by rejection; returns those that are still short."""
        loops = policy.load("stream")
        if loops is None:
            return self._by_rounds(events, pending, pool, negatives)
        users, items = self._log.users[events], self._log.items[events]
        slots, bits, since = self._first_seen.storage
        ever, root, tries = self.mode == "full-log", self._draws.root, _OFFERS * _OFFERED
        short = np.empty(len(pending), dtype=bool)
        loops.candidates(slots, bits, since, ever, root, pool, tries, pending, events, users, items, negatives, short)
        return pending[short]

    def _by_rounds(self, events: Ints, pending: Ints, pool: int, negatives: Ints) -> Ints:
        """The same, a block of offers at a time for all lines together."""
        offered = np.empty((len(pending), 0), dtype=np.int64)
        for attempt in range(_OFFERS):
            if not len(pending):
                break
            more = self._draws.integers(events[pending], _OFFERED, pool, attempt * _OFFERED)
            offered = np.concatenate([offered, more], axis=1)
            good = ~(_repeated(offered) | self._excluded(events[pending], offered))
            rank = np.cumsum(good, axis=1)
            good &= rank <= self.count
            full = rank[:, -1] >= self.count
            negatives[pending[full]] = offered[full][good[full]].reshape(-1, self.count)
            pending, offered = pending[~full], offered[~full]
        return pending

    def _exact(self, event: int, pool: int, line: Ints) -> bool:
        """Fill one line by a keyed lottery over the whole pool; False where too few items are left."""
        everything = np.arange(pool)
        lottery = self._draws.words(everything + (np.int64(event) << 32), 1, start=1 << 20)[:, 0]
        allowed = everything[~self._excluded(np.array([event]), everything[None, :])[0]]
        if len(allowed) < self.count:
            return False
        line[:] = allowed[np.argsort(lottery[allowed], kind="stable")[: self.count]]
        return True


def require_enough_items(items: int, count: int) -> None:
    """There must be more items than negatives."""
    if items <= count:
        raise StreamError(
            f"the stream has {items} items, too few for {count} negatives beside each positive; "
            f"ask for fewer (--negatives, at most {max(items - 1, 0)})."
        )


def _repeated(lines: Ints) -> Flags:
    """Whether an entry stands earlier in its line already."""
    width = lines.shape[1]
    shift = max(width - 1, 1).bit_length()
    tagged = np.sort((lines << shift) | np.arange(width), axis=1)
    again = np.zeros(lines.shape, dtype=bool)
    same = (tagged[:, 1:] >> shift) == (tagged[:, :-1] >> shift)
    places = tagged[:, 1:] & ((1 << shift) - 1)
    again[np.nonzero(same)[0], places[same]] = True
    return again
