"""The exact set of (user, item) pairs seen so far: sorted rows for most of them, a hash set for the latest."""

from __future__ import annotations

from typing import Any

import numpy as np

from melon.data.interactions import Taken
from melon.kernels import policy
from melon.kernels.seen import PairsSeen
from melon.types import Flags, Ints

_EMPTY = np.int64(-1)
_FULLEST = 0.5
#: Keys are added this many at a time: room is made for all of them, and some may be there already.
AT_ONCE = 1 << 12
#: The latest pairs are sorted into the others once there are this many, and a quarter as many as of the others.
SORTED_FROM = 1 << 17


def pair_keys(users: Ints, items: Ints) -> Ints:
    """One 64-bit key for each (user row, item row)."""
    return (users << 32) | items


def distinct(keys: Ints) -> Ints:
    """The keys in ascending order, each once; much faster here than `np.unique`, which hashes first."""
    ordered = np.sort(keys, axis=None)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


class PairSet:
    """Membership of pair keys in O(1) each; grows by doubling, so adding is O(1) amortised."""

    def __init__(self, keys: Ints | None = None) -> None:
        self.size = 0
        self._bits = 10
        self._slots: Ints = np.full(1 << self._bits, _EMPTY)
        if keys is not None:
            self.add(keys)

    def __len__(self) -> int:
        return self.size

    def add(self, keys: Ints, past: Taken | None = None) -> None:
        """Put the keys in; those already there, or in the past, are left alone."""
        keys, past = np.ascontiguousarray(keys).reshape(-1), past or Taken.none()
        for start in range(0, len(keys), AT_ONCE):
            some = keys[start : start + AT_ONCE]
            self.size += policy.load("stream").place(PairsSeen(*self.room_for(len(some)), *past), some)

    def remove(self, keys: Ints) -> None:
        """Take keys out again, in O(size): the set is built anew."""
        left = self.keys()
        left = left[~np.isin(left, keys)]
        self._slots.fill(_EMPTY)
        self.size = 0
        self.add(left)

    def contains(self, keys: Ints) -> Flags:
        """Whether each key is in the set; any shape."""
        return self.find(keys) >= 0

    def find(self, keys: Ints) -> Ints:
        """The slot that holds each key, or -1; slots stay put until something is added."""
        flat = np.ascontiguousarray(keys).reshape(-1)
        slots = np.empty(flat.shape, dtype=np.int64)
        policy.load("stream").find(self.storage, flat, slots)
        return slots.reshape(keys.shape)

    def room_for(self, more: int) -> tuple[Ints, int]:
        """`storage` with free slots for more keys, for a loop that puts them in; `size` has to count them."""
        if self.size + more > _FULLEST * len(self._slots):
            self._reserve(self.size + more)
        return self._slots, self._bits

    @property
    def storage(self) -> PairsSeen:
        """The set for kernels that look pairs up on their way."""
        return PairsSeen(self._slots, self._bits, *Taken.none())

    @property
    def slots(self) -> int:
        """How many slots there are, for arrays that run beside the set."""
        return len(self._slots)

    def keys(self) -> Ints:
        """All keys in ascending order: the same array for the same set, however it was built."""
        held: Ints = np.sort(self._slots[self._slots != _EMPTY])
        return held

    def _reserve(self, size: int) -> None:
        held, bits = self._slots[self._slots != _EMPTY], self._bits
        while size > _FULLEST * (1 << bits):
            bits += 1
        self._bits, self._slots = bits, np.full(1 << bits, _EMPTY)
        policy.load("stream").place(self.storage, held)


class SeenPairs:
    """All pairs so far: most as each user's items in ascending order, 4 bytes a pair, the latest in a hash set.

    The sorted ones are never written, so that copies, training and history share them. Adding is O(1) amortised.
    """

    def __init__(self, past: Taken | None = None) -> None:
        self.past = past or Taken.none()
        self.latest = PairSet()

    def __len__(self) -> int:
        return len(self.past.items) + len(self.latest)

    def __deepcopy__(self, memo: dict[int, Any]) -> SeenPairs:
        twin = SeenPairs(self.past)
        twin.latest.add(self.latest.keys())
        return twin

    def add(self, keys: Ints) -> None:
        """Put the keys in; those already there are left alone."""
        self._sort_in()
        self.latest.add(keys, self.past)

    def remove(self, keys: Ints) -> None:
        """Take keys out again, in O(size)."""
        self.latest.remove(keys)
        if self.contains(keys).any():
            past = self.past.keys()
            self.past = Taken.of(past[~np.isin(past, keys)])

    def forget(self, user: int) -> None:
        """Take all pairs of a user out, in O(size)."""
        slots = self.latest.storage.slots
        self.latest.remove(slots[slots >> 32 == user])
        starts, items = self.past
        if user + 1 < len(starts):
            first, end = starts[user : user + 2]
            fewer = starts.copy()
            fewer[user + 1 :] -= end - first
            self.past = Taken(fewer, np.concatenate([items[:first], items[end:]]))

    def contains(self, keys: Ints) -> Flags:
        """Whether each key is in the set; any shape."""
        flat = np.ascontiguousarray(keys).reshape(-1)
        held = np.empty(flat.shape, dtype=np.bool_)
        policy.load("stream").contains(self.storage, flat, held)
        return held.reshape(keys.shape)

    def room_for(self, more: int) -> PairsSeen:
        """`storage` with free slots for more keys in `latest`, whose `size` has to count them."""
        if self.latest.size > SORTED_FROM:
            self._sort_in()
        return PairsSeen(*self.latest.room_for(more), *self.past)

    @property
    def storage(self) -> PairsSeen:
        """Both parts, for kernels that look pairs up on their way."""
        return PairsSeen(*self.latest.storage[:2], *self.past)

    def keys(self) -> Ints:
        """All keys in ascending order: the same array for the same set, however it was built."""
        if not len(self.latest):
            return self.past.keys()
        keys = np.concatenate([self.past.keys(), self.latest.keys()])
        keys.sort()
        return keys

    def _sort_in(self) -> None:
        if len(self.latest) > max(SORTED_FROM, len(self.past.items) // 4):
            self.past, self.latest = Taken.of(self.keys()), PairSet()


class FirstSeen:
    """When each pair of a recorded log first occurred: a look-up by (pair, event) that cannot see past the event."""

    def __init__(self, users: Ints, items: Ints) -> None:
        keys, first = np.unique(pair_keys(users, items), return_index=True)
        self._pairs = PairSet(keys)
        self._event: Ints = np.zeros(self._pairs.slots, dtype=np.int64)
        self._event[self._pairs.find(keys)] = first

    @property
    def storage(self) -> tuple[PairsSeen, Ints]:
        """The set, and the event at which each slot's pair first occurred."""
        return self._pairs.storage, self._event

    def before(self, keys: Ints, events: Ints) -> Flags:
        """Whether each pair had occurred strictly before its event."""
        slots = self._pairs.find(keys)
        return (slots >= 0) & (self._event[slots] < events)

    def ever(self, keys: Ints) -> Flags:
        """Whether each pair occurs anywhere in the log, the future included."""
        return self._pairs.contains(keys)
