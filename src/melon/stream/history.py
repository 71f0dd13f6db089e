"""Who met what so far: the last partners of each user and item, and the set of all pairs seen.

Partners take a fixed number of bytes for each user and item; the set of pairs grows with the stream. All partners are
kept only for a strategy that samples from the whole history (`Strategy.whole_history`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from melon.data.interactions import Taken
from melon.errors import CheckpointError
from melon.journal import GrowingRows, RowPart, keep, note, recording
from melon.kernels import policy
from melon.kernels.blend_head import Rings
from melon.stream.draws import Draws
from melon.stream.pairs import AT_ONCE, SeenPairs, pair_keys
from melon.stream.saved import MOST, SavedArrays, part_of, require, saved_array
from melon.types import Arrays, Ints, SmallInts

if TYPE_CHECKING:
    from melon.data.interactions import Interactions

RING = 50
NOBODY = -1
_USERS_AT_ONCE = 1 << 16
_EVENT = (1 << 32) - 1


@dataclass(frozen=True)
class Neighbours:
    """Sampled partners: rows of `partners` are padded with NOBODY beyond `counts`."""

    partners: Ints
    counts: Ints


@dataclass(frozen=True)
class WholePast:
    """All partners of every row. `keys` is row << 32 | event, ascending; arrays are never written, only replaced."""

    keys: Ints
    partners: SmallInts

    @classmethod
    def of(cls, rows: Ints, partners: Ints, first_event: int = 0) -> WholePast:
        """What rows meet in events numbered from `first_event` on."""
        keys = pair_keys(rows, first_event + np.arange(len(rows)))
        order = np.argsort(keys)
        return cls(keys[order], partners[order].astype(np.int32))

    def and_then(self, later: WholePast) -> WholePast:
        """With more events."""
        at = np.searchsorted(self.keys, later.keys)
        return WholePast(np.insert(self.keys, at, later.keys), np.insert(self.partners, at, later.partners))

    def without(self, row: int, partner: int | None = None) -> WholePast:
        """Without what a row met, or without one of its partners."""
        stay = self.keys >> 32 != row
        if partner is not None:
            stay |= self.partners != partner
        return WholePast(self.keys[stay], self.partners[stay])

    def moved(self, row: int, to: int) -> WholePast:
        """With what a row met as what another one met."""
        own = self.keys >> 32 == row
        events, partners = self.keys[own] & _EVENT, self.partners[own]
        return self.without(row).and_then(WholePast(to << 32 | events, partners))

    def last(self, rows: Ints, until: int) -> Ints:
        """The newest partner of each row from before the event `until`, or NOBODY."""
        start, stop = self._bounds(rows, until)
        return np.where(stop > start, self.partners[np.maximum(stop - 1, 0)], NOBODY) if len(self.keys) else start - 1

    def sample(self, rows: Ints, draws: Draws, moment: int, most: int, until: int) -> Neighbours:
        """Up to `most` partners from before the event `until`, uniformly without replacement."""
        start, stop = self._bounds(rows, until)
        there, places = stop - start, np.full((len(rows), most), NOBODY)
        words = draws.words(rows + ((moment & _EVENT) << 32), most, start=(moment >> 40) * most)
        for at in range(most):  # Floyd: a draw that was taken already stands for the newest place that it could be
            newest = np.maximum(there - most, 0) + at
            drawn = ((words[:, at] >> np.uint64(32)) * (newest + 1).astype(np.uint64) >> np.uint64(32)).astype(np.int64)
            taken = (places[:, :at] == drawn[:, None]).any(axis=1)
            places[:, at] = np.where(taken | (there <= most), newest, drawn)
        counts = np.minimum(there, most)
        held = np.arange(most) < counts[:, None]
        partners = np.full(places.shape, NOBODY)
        partners[held] = self.partners[(start[:, None] + places)[held]]
        return Neighbours(partners, counts)

    def _bounds(self, rows: Ints, until: int) -> tuple[Ints, Ints]:
        return np.searchsorted(self.keys, rows << 32), np.searchsorted(self.keys, rows << 32 | until)


class PartnerRings:
    """The last RING partners of every row, oldest overwritten first; absent rows have none."""

    def __init__(self) -> None:
        # Unused places stay zero, so that equal histories have equal bytes.
        self._columns = GrowingRows(ring=RowPart(np.int32, (RING,)), met=RowPart(np.int64))
        #: All partners, where they are kept.
        self.whole: WholePast | None = None

    @property
    def rows(self) -> int:
        """How many rows there are, some of which may have met nobody."""
        return self._columns.rows

    @property
    def storage(self) -> tuple[SmallInts, Ints]:
        """Rings and how many partners each row has met, for compiled kernels; both may have spare rows at their end."""
        ring, met = self._columns.arrays
        return ring, met

    @property
    def rings(self) -> Rings:
        """The same with the number of rows."""
        return Rings(*self.storage, self.rows)

    def append(self, rows: Ints, partners: Ints) -> None:
        """Record that each row met its partner, in order."""
        self.touch(rows)
        policy.load("stream").remember(*self.storage, np.ascontiguousarray(rows), np.ascontiguousarray(partners))

    def touch(self, rows: Ints) -> None:
        """Have a ring for each of these rows, which are about to meet partners."""
        self._columns.touch(rows)

    def reserve(self, capacity: int) -> None:
        """Make room for this many rows in all."""
        self._columns.reserve(capacity)

    def met(self, rows: Ints) -> Ints:
        """How many partners each row has met in all."""
        stored, (_, met) = rows < self.rows, self.storage
        return np.where(stored, met[np.where(stored, rows, 0)], 0) if self.rows else np.zeros_like(rows)

    def last(self, rows: Ints) -> Ints:
        """The newest partner of each row, or NOBODY."""
        met = self.met(rows)
        if not self.rows:
            return np.full_like(rows, NOBODY)
        safe = np.where(met > 0, rows, 0)
        return np.where(met > 0, self.storage[0][safe, (met - 1) % RING], np.int64(NOBODY))

    def recent(self, rows: Ints, most: int = RING) -> Neighbours:
        """The last `most` partners of each row, at most all remembered ones, newest first; a partner met again stands
        there again.
        """
        met, most = self.met(rows), min(most, RING)
        counts = np.minimum(met, most)
        if not self.rows or not len(rows):
            return Neighbours(np.full((len(rows), most), NOBODY, dtype=np.int64), counts)
        back = np.arange(most)[None, :]
        lines = np.where(met > 0, rows, 0)[:, None]
        partners = self.storage[0][lines, (met[:, None] - 1 - back) % RING].astype(np.int64)
        partners[back >= counts[:, None]] = NOBODY
        return Neighbours(partners, counts)

    def forget(self, row: int) -> None:
        """Let a row have met nobody."""
        if self.whole is not None:
            self.whole = self.whole.without(row)
        if row < self.rows:
            for array in self.storage:
                array[row] = 0

    def retract(self, row: int, partner: int) -> None:
        """Let a row not have met a partner; of what it met, only the partners that are remembered count then."""
        held = self.recent(np.array([row])).partners[0][::-1]
        whole = self.whole
        if partner in held:
            self.forget(row)
            kept = held[(held != NOBODY) & (held != partner)]
            self.append(np.full(len(kept), row), kept)
        self.whole = None if whole is None else whole.without(row, partner)

    def state(self) -> Arrays:
        """Arrays that `from_state` turns back into the same rings."""
        state: Arrays = {**self._columns.state()}
        if self.whole is not None:
            state |= {"keys": self.whole.keys.copy(), "partners": self.whole.partners.copy()}
        return state

    @classmethod
    def from_state(cls, state: SavedArrays, partners: int, most_met: int) -> PartnerRings:
        """The rings that `state` described, of rows whose partners are 0 … partners-1."""
        rings = cls()
        met = saved_array(state, "met", np.int64, (None,), least=0, most=most_met)
        ring = saved_array(state, "ring", np.int32, (len(met), RING), least=0, most=max(partners - 1, 0))
        rings._columns.restore({"ring": ring, "met": met})
        if "keys" in state:
            keys = saved_array(state, "keys", np.int64, (None,), least=0, most=(rings.rows << 32) - 1)
            whole = saved_array(state, "partners", np.int32, keys.shape, least=0, most=max(partners - 1, 0))
            require(bool((np.diff(keys) > 0).all()), "partners of the whole history are not in order")
            rings.whole = WholePast(keys, whole)
        return rings


@dataclass(frozen=True)
class _AsBefore:
    """A batch of the past that is learned once more: its moment, and whether it sees what came later too."""

    moment: int
    static: bool

    @property
    def until(self) -> int:
        """The first event that it does not see."""
        return _EVENT if self.static else self.moment & _EVENT


class History:
    """The past of a stream; a batch is appended only after it has been predicted and learned from."""

    def __init__(self) -> None:
        self.of_users = PartnerRings()
        self.of_items = PartnerRings()
        self.seen = SeenPairs()
        self.events = 0
        #: How many pairs are remembered before the oldest are forgotten; None: all of them, for ever.
        self.max_pairs: int | None = None
        self._past: _AsBefore | None = None

    @property
    def whole(self) -> bool:
        """Whether all partners are kept."""
        return self.of_users.whole is not None

    def keep_everything(self, users: Ints, items: Ints) -> None:
        """Keep all partners from now on; these are the interactions so far, in order."""
        if len(users) != self.events:
            raise CheckpointError(
                f"a strategy that samples from the whole history continues one of {self.events:,} interactions, of "
                "which only the last partners were kept. Load it with the settings it was saved with, or train anew."
            )
        self.of_users.whole, self.of_items.whole = WholePast.of(users, items), WholePast.of(items, users)

    @contextmanager
    def as_before(self, moment: int, *, static: bool) -> Iterator[None]:
        """Read partners as a batch of the past met them, where all are kept; `static`: as the whole log has them.

        `moment` is its first event (`Batch.in_epoch`).
        """
        self._past = _AsBefore(moment, static)
        try:
            yield
        finally:
            self._past = None

    def neighbours(self, role: str, rows: Ints, draws: Draws, most: int) -> Neighbours:
        """Up to `most` of all partners of each user or item, without replacement, drawn anew for each batch."""
        whole = (self.of_users if role == "user" else self.of_items).whole
        assert whole is not None
        past = self._past or _AsBefore(self.events, static=True)
        return whole.sample(rows, draws, past.moment, most, past.until)

    def last(self, role: str, rows: Ints, draws: Draws) -> Ints:
        """The newest partner of each user or item, or NOBODY; any partner for a batch of a `static` past."""
        rings, past = self.of_users if role == "user" else self.of_items, self._past
        if past is None or rings.whole is None:
            return rings.last(rows)
        if past.static:
            return rings.whole.sample(rows, draws, past.moment, 1, past.until).partners[:, 0]
        return rings.whole.last(rows, past.until)

    def expect(self, log: Interactions) -> None:
        """Make room for a whole log, which `append` is about to bring: its pairs are shared with it, and not copied."""
        if not self.events:
            self.seen = SeenPairs(log.taken)
        self.of_users.reserve(log.n_users)
        self.of_items.reserve(log.n_items)

    @property
    def known_items(self) -> int:
        """How many items have been seen: rows are numbered by first appearance."""
        return self.of_items.rows

    def append(self, users: Ints, items: Ints) -> None:
        """Record a batch of interactions."""
        if not len(users):
            return
        self._note(users, items)
        self.of_users.touch(users)
        self.of_items.touch(items)
        rings = *self.of_users.storage, *self.of_items.storage
        users, items, append = np.ascontiguousarray(users), np.ascontiguousarray(items), policy.load("stream").append
        for start in range(0, len(users), AT_ONCE):
            some_users, some_items = users[start : start + AT_ONCE], items[start : start + AT_ONCE]
            slots = self.seen.room_for(len(some_users))
            self.seen.latest.size += append(*rings, slots, some_users, some_items)
        for side, rows, partners in ((self.of_users, users, items), (self.of_items, items, users)):
            if side.whole is not None:
                keep(side, "whole")
                side.whole = side.whole.and_then(WholePast.of(rows, partners, self.events))
        self.events += len(users)
        if self.max_pairs is not None:
            self._forget_oldest()

    def bound(self, max_pairs: int | None) -> None:
        """Remember at most this many pairs from now on; None: all of them."""
        self.max_pairs = max_pairs
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Keep half of `max_pairs` where there are more: each user's newest, equally many for all users.

        Partners that the rings remember decide, so that a history that is saved and loaded forgets the same. The newest
        pair of each user and item always stays. It takes O(pairs), once in at least max_pairs / 2 new ones.
        """
        if self.max_pairs is None or len(self.seen) <= self.max_pairs:
            return
        remembered = np.bincount(np.minimum(self.of_users.met(np.arange(self.of_users.rows)), RING), minlength=RING + 1)
        deeper = np.cumsum(remembered[::-1])[::-1][1:]  # users who remember at least 1, 2, … partners
        depth = max(int(np.searchsorted(np.cumsum(deeper), self.max_pairs // 2, side="right")), 1)
        pairs = SeenPairs()
        for users in np.array_split(np.arange(self.of_users.rows), 1 + self.of_users.rows // _USERS_AT_ONCE):
            newest = self.of_users.recent(users, depth)
            pairs.add(pair_keys(np.repeat(users, newest.counts), newest.partners[newest.partners != NOBODY]))
        items = np.arange(self.of_items.rows)
        users = self.of_items.last(items)
        known = (users != NOBODY) & (self.of_users.met(np.maximum(users, 0)) > 0)
        pairs.add(pair_keys(users[known], items[known]))
        self.seen = pairs

    def _note(self, users: Ints, items: Ints) -> None:
        """Note what `append` changes beside the rings."""
        if recording():
            pairs = pair_keys(users, items)
            note(partial(self.seen.remove, pairs[~self.seen.contains(pairs)]))
            keep(self, "seen", "events")  # another set, where the oldest pairs are forgotten

    def forget(self, user: int) -> None:
        """Take a user's items and pairs out, in O(pairs); items still remember the row, which is nobody's now."""
        self.of_users.forget(user)
        self.seen.forget(user)

    def retract(self, user: int, item: int) -> None:
        """Take one pair out, in O(pairs); the item still remembers the user."""
        self.of_users.retract(user, item)
        self.seen.remove(np.array([user << 32 | item]))

    def move(self, user: int, to: int) -> None:
        """Give a user's items and pairs to another one, as the newest, in O(pairs)."""
        items = self.of_users.recent(np.array([user])).partners[0][::-1]
        items, keys = items[items != NOBODY], self.seen.keys()
        self.of_users.append(np.full(len(items), to), items)
        if self.of_users.whole is not None:
            self.of_users.whole = self.of_users.whole.moved(user, to)
        self.seen.add((keys[keys >> 32 == user] & 0xFFFFFFFF) | to << 32)
        self.forget(user)

    def state(self) -> Arrays:
        """Arrays that `from_state` turns back into the same history."""
        parts = {"users": self.of_users.state(), "items": self.of_items.state()}
        arrays = {f"{side}.{name}": array for side, state in parts.items() for name, array in state.items()}
        counts = np.array([self.events, self.known_items], dtype=np.int64)
        bound = {} if self.max_pairs is None else {"max_pairs": np.array([self.max_pairs], dtype=np.int64)}
        return {**arrays, **bound, "seen": self.seen.keys(), "counts": counts}

    @classmethod
    def from_state(cls, state: SavedArrays) -> History:
        """The history that `state` described; arrays that no history can have are a `CheckpointError`."""
        history = cls()
        events, known_items = saved_array(state, "counts", np.int64, (2,), least=0, most=MOST).tolist()
        users, items = part_of(state, "users"), part_of(state, "items")
        n_users, n_items = (len(saved_array(side, "met", np.int64, (None,))) for side in (users, items))
        history.of_users = PartnerRings.from_state(users, n_items, events)
        history.of_items = PartnerRings.from_state(items, n_users, events)
        met = [int(side.met(np.arange(side.rows)).sum()) for side in (history.of_users, history.of_items)]
        # A user who was forgotten has met nobody, and the items still count the meetings.
        require(met[0] <= met[1] == events, f"rings and {events} interactions")
        require(known_items == n_items, f"{known_items} items were seen, and {n_items} have partners")
        seen = saved_array(state, "seen", np.int64, (None,), least=0)
        require(bool((np.diff(seen) > 0).all()) and len(seen) <= events, "the pairs seen are not distinct")
        require(not len(seen) or int(seen[-1] >> 32) < n_users, "a pair was seen of a user without partners")
        require(int((seen & 0xFFFFFFFF).max(initial=-1)) < n_items, "a pair was seen of an item without partners")
        history.seen = SeenPairs(Taken.of(seen))
        # Not so from the items' side: an item still remembers a user who took it back.
        last = history.of_users.last(np.arange(n_users))
        pairs = pair_keys(np.arange(n_users), last)[last != NOBODY]
        require(bool(history.seen.contains(pairs).all()), "an interaction is remembered whose pair was never seen")
        history.events = events
        if "max_pairs" in state:
            history.max_pairs = int(saved_array(state, "max_pairs", np.int64, (1,), least=2, most=MOST)[0])
        return history
