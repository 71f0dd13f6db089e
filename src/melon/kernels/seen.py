"""The set of all pairs seen, for kernels: the latest in a hash set, the others as each user's sorted items.

Other kernels stand behind it and use its functions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from melon.types import Ints, SmallInts


class PairsSeen(NamedTuple):
    """Pairs (`SeenPairs`): slots of keys and the bits that number them, then where each user's items start, and these.

    A key is user << 32 | item. Without slots the hash set holds nothing.
    """

    slots: Ints
    bits: int
    starts: Ints
    past: SmallInts


_GOLDEN, _U64 = np.uint64(0x9E3779B97F4A7C15), np.uint64(64)
_EMPTY, _LOW = np.int64(-1), np.int64(0xFFFFFFFF)


def _first_slot(seen: PairsSeen, key: np.int64) -> np.int64:
    """Where the search for a key begins."""
    return np.int64((np.uint64(key) * _GOLDEN) >> (_U64 - np.uint64(seen.bits)))


def _slot(seen: PairsSeen, key: np.int64) -> np.int64:
    """Where a key is, or the free slot where it would be."""
    mask, slot = seen.slots.size - 1, _first_slot(seen, key)
    while seen.slots[slot] != key and seen.slots[slot] != _EMPTY:
        slot = (slot + 1) & mask
    return slot


def _taken(seen: PairsSeen, user: np.int64, item: np.int64 | int) -> bool:
    """Whether an item is among the sorted ones of a user."""
    if user + 1 >= seen.starts.size:
        return False
    low = seen.starts[user]
    size = seen.starts[user + 1] - low
    if size == 0:
        return False
    while size > 1:  # without a branch that depends on what stands there, so that several searches wait together
        half = size >> 1
        low += half if seen.past[low + half - 1] < item else 0
        size -= half
    return bool(seen.past[low] == item)


def _holds(seen: PairsSeen, user: np.int64, item: np.int64 | int) -> bool:
    """Whether a pair has been seen."""
    key = (user << 32) | item
    if seen.slots.size and seen.slots[_slot(seen, key)] == key:
        return True
    return _taken(seen, user, item)
