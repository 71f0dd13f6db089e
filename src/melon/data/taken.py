"""Which items each user took: sorted rows, 4 bytes a pair."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from melon.types import Ints, SmallInts

#: Pairs that are counted at a time.
_COUNTED_AT_ONCE = 1 << 22


class Taken(NamedTuple):
    """Which items each user took: `items[starts[user] : starts[user + 1]]`, in ascending order, each once."""

    starts: Ints
    items: SmallInts

    @classmethod
    def none(cls) -> Taken:
        """Of nobody."""
        return cls(np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int32))

    @classmethod
    def of(cls, keys: Ints) -> Taken:
        """Of pairs, each a number user << 32 | item, in ascending order and distinct."""
        if not len(keys):
            return cls.none()
        starts = np.zeros(int(keys[-1] >> 32) + 2, dtype=np.int64)
        for start in range(0, len(keys), _COUNTED_AT_ONCE):
            users = keys[start : start + _COUNTED_AT_ONCE] >> 32
            first = int(users[0])
            counts = np.bincount(users - first)
            starts[first + 1 : first + 1 + len(counts)] += counts
        np.cumsum(starts, out=starts)
        return cls(starts, keys.astype(np.int32))  # the lower half of each key

    def keys(self) -> Ints:
        """The pairs as numbers again."""
        keys = np.repeat(np.arange(len(self.starts) - 1) << 32, np.diff(self.starts))
        keys |= self.items
        return keys
