"""A time-ordered log of interactions, with dense rows inside and any ids outside."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from melon.data.ids import Ids, id_bytes, id_keys, rows_by_first_appearance
from melon.errors import DataError
from melon.types import Flags, Ints, SmallInts

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


@dataclass(frozen=True)
class Interactions:
    """Who took what, when; rows are numbered by first appearance, so a prefix knows nothing of what follows it.

    `users` and `items` hold row numbers; `user_ids[row]` and `item_ids[row]` are the ids the caller uses.
    """

    users: Ints
    items: Ints
    times: Ints
    user_ids: Ids
    item_ids: Ids

    @classmethod
    def from_ids(
        cls,
        users: Ids,
        items: Ids,
        times: Ints,
    ) -> Interactions:
        """Number the ids by first appearance; events must come in time order."""
        if not len(users) == len(items) == len(times):
            raise DataError(
                f"users, items and times must be equally long, got {len(users)}, {len(items)} and {len(times)}."
            )
        late = np.flatnonzero(np.diff(times) < 0)
        if len(late):
            raise DataError(
                f"interactions must be in time order, but event {int(late[0]) + 1} is earlier than the one before it; "
                "sort them by time first (melon data prepare does)."
            )
        user_rows, user_ids = rows_by_first_appearance(users)
        item_rows, item_ids = rows_by_first_appearance(items)
        return cls(user_rows, item_rows, np.asarray(times, dtype=np.int64), user_ids, item_ids)

    def __len__(self) -> int:
        return len(self.users)

    @cached_property
    def n_users(self) -> int:
        """Distinct users."""
        return int(self.users.max()) + 1 if len(self) else 0

    @cached_property
    def n_items(self) -> int:
        """Distinct items."""
        return int(self.items.max()) + 1 if len(self) else 0

    @cached_property
    def known_items(self) -> Ints:
        """How many items had appeared strictly before each event, and one entry more for the end of the log."""
        seen = np.maximum.accumulate(self.items) + 1 if len(self) else self.items
        return np.concatenate([np.zeros(1, dtype=np.int64), seen])

    @cached_property
    def repeats(self) -> Flags:
        """Whether the user had already taken this very item earlier in the log."""
        keys = (self.users << 32) | self.items
        first = np.zeros(len(keys), dtype=bool)
        first[np.unique(keys, return_index=True)[1]] = True
        return ~first

    @cached_property
    def taken(self) -> Taken:
        """Which items each user took."""
        keys = self.users << 32
        keys |= self.items
        keys.sort()
        if len(keys):
            distinct = np.concatenate([[True], keys[1:] != keys[:-1]])
            keys = keys if distinct.all() else keys[distinct]
        return Taken.of(keys)

    @cached_property
    def user_keys(self) -> Ints:
        """A 64-bit key for each user row that depends on the id alone."""
        return id_keys(self.user_ids)

    @cached_property
    def item_keys(self) -> Ints:
        """A 64-bit key for each item row that depends on the id alone."""
        return id_keys(self.item_ids)

    @cached_property
    def sha256(self) -> str:
        """Fingerprint of the events as row numbers and times, whatever file they came in; ids are no part of it."""
        digest = hashlib.sha256()
        for column in (self.users, self.items, self.times):
            digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return digest.hexdigest()

    @cached_property
    def identity(self) -> str:
        """Fingerprint of the events and of the ids behind the rows, on which the initial values of rows depend.

        Saved work and the side-cars of a stream are recognised by it.
        """
        digest = hashlib.sha256(self.sha256.encode())
        for ids in (self.user_ids, self.item_ids):
            digest.update(hashlib.sha256(id_bytes(ids)).digest())
        return digest.hexdigest()

    def head(self, stop: int) -> Interactions:
        """The first `stop` events, as if nothing had followed them: later ids are not even known."""
        users, items = self.users[:stop], self.items[:stop]
        n_users = int(users.max()) + 1 if len(users) else 0
        n_items = int(items.max()) + 1 if len(items) else 0
        return Interactions(users, items, self.times[:stop], self.user_ids[:n_users], self.item_ids[:n_items])
