"""What each user had: how often, how lately, and how much users and items tend to repeat.

Each (user, item) has one entry, 24 bytes, and a user at most `MOST_ITEMS` of them: beyond that a newcomer takes
the place of the entry with the least decayed count. Ages are counted in the user's own events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from melon.journal import GrowingRows, RowPart, recording, rows_needed
from melon.kernels import policy
from melon.kernels.own_items import BESIDE, Chains
from melon.models.streaming.neighbours import scratch
from melon.stream.draws import Draws
from melon.stream.history import PartnerRings
from melon.stream.pairs import distinct
from melon.stream.saved import MOST, SavedArrays, require, saved_array
from melon.types import Arrays, Floats, Ints, Singles

#: Half-lives of a user's own counts, in events of that user.
OWN_HALF_LIVES = (float("inf"), 50.0, 10.0)
#: The head's inputs: 0 for an item that the user never had.
OWN_INPUTS = ("own_had", "own_count", "own_count_50", "own_count_10", "own_since", "own_repeats", "own_rhythm")
#: So many items of one user are remembered.
MOST_ITEMS = 512
_RATES: Floats = 1 / np.array(OWN_HALF_LIVES)
assert len(OWN_INPUTS) == BESIDE + len(OWN_HALF_LIVES)


class OwnItems:
    """Follows a stream and gives, for pairs, what the user's own past says of the item."""

    def __init__(self) -> None:
        number = RowPart(np.int32)
        self._users = GrowingRows(heads=RowPart(np.int32, empty=-1), sizes=number, taken=number, repeats=number)
        counts = RowPart(np.float32, (len(_RATES),))
        self._entries = GrowingRows(after=number, items=number, last=number, counts=counts)
        self._items = GrowingRows(item_repeats=number)

    @property
    def _chains(self) -> Chains:
        return Chains._make((*self._users.arrays, *self._entries.arrays, *self._items.arrays, _RATES))

    def observe(self, users: Ints, items: Ints) -> None:
        """Let users take items, in order."""
        if len(users):
            self._users.touch(users)
            self._items.touch(items)
            if recording():
                self._entries.before(self._entries_of(distinct(users)))
            first = self._entries.rows
            self._entries.make_room(first + len(users))
            events = np.ascontiguousarray(users), np.ascontiguousarray(items)
            self._entries.grow(policy.load("own_items").take_own(*events, self._chains, first, MOST_ITEMS))

    def write(self, users: Ints, lines: Ints, of_items: PartnerRings, first: int, out: Singles) -> None:
        """Write the inputs of lines of items n × c, from input `first` on."""
        with scratch(max(self._items.rows, rows_needed(lines.reshape(-1)))) as columns:
            policy.load("own_items").own_inputs(users, lines, self._chains, *_met(of_items), first, columns, out)

    def sizes(self, users: Ints) -> Ints:
        """How many items of each user are remembered."""
        known = self._users.rows
        if not known:
            return np.zeros_like(users)
        return np.where(users < known, self._chains.sizes[np.minimum(users, known - 1)], np.int64(0))

    def drawn(self, users: Ints, draws: Draws, events: Ints, count: int) -> Ints:
        """For each user `count` of its items, uniformly and each by itself; the draw belongs to the event.

        A user without any has -1.
        """
        places = draws.integers(events, count, np.maximum(self.sizes(users), 1), start=1 << 20)
        items = np.empty(places.shape, dtype=np.int64)
        policy.load("own_items").pick_own(np.ascontiguousarray(users), places, self._chains, items)
        return items

    def of_user(self, user: int, of_items: PartnerRings, n_items: int) -> tuple[Ints, Singles]:
        """A user's own items, and the inputs of each."""
        size = int(self._chains.sizes[user]) if user < self._users.rows else 0
        items, inputs = np.empty(size, dtype=np.int64), np.empty((size, len(OWN_INPUTS)), dtype=np.float32)
        found = policy.load("own_items").own_of_user(user, self._chains, *_met(of_items), n_items, items, inputs)
        return items[:found], inputs[:found]

    def forget_user(self, user: int) -> None:
        """Know nothing of a user any more; the entries stay empty."""
        if user < self._users.rows:
            entries, own = self._entries_of(np.array([user])), self._chains
            own.item_repeats[own.items[entries]] = np.maximum(own.item_repeats[own.items[entries]] - 1, 0)
            for each in (own.items, own.last, own.counts):
                each[entries] = 0
            own.after[entries], own.heads[user] = -1, -1
            own.sizes[user] = own.taken[user] = own.repeats[user] = 0

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same entries."""
        return {**self._users.state(), **self._entries.state(), **self._items.state()}

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described; arrays that no entries can have are a `CheckpointError`."""
        known, entries = len(saved_array(state, "item_repeats", np.int32, (None,))), len(state["items"])
        whole = {name: (0, np.iinfo(np.int32).max) for name in Chains._fields}
        whole |= {"heads": (-1, entries - 1), "after": (-1, entries - 1), "items": (0, max(known - 1, 0))}
        whole |= {"sizes": (0, MOST_ITEMS), "taken": (0, 1 << 30)}  # room to count on
        users, parts = len(saved_array(state, "heads", np.int32, (None,))), list[Any]()
        for place, name in enumerate(Chains._fields[:7]):
            least, most = whole[name]
            size = users if place < 4 else entries
            parts.append(saved_array(state, name, np.int32, (size,), least=least, most=most))
        require(bool((parts[4] < np.arange(entries)).all()), "an entry of a user's items stands before an older one")
        heads, sizes, taken, _, after, _, last = parts
        lengths, entry, owned = np.zeros(users, dtype=np.int64), heads, 0
        for _ in range(MOST_ITEMS + 1):  # all users' chains, one entry further each time
            held = np.flatnonzero(entry >= 0)
            lengths[held] += 1
            owned += len(held)
            require(bool((last[entry[held]] < taken[held]).all()), "an entry is later than its user's events")
            entry = np.where(entry >= 0, after[entry], -1)
        require(bool((lengths == sizes).all()) and owned <= entries, "users' numbers of items and their entries")
        counts = saved_array(state, "counts", np.float32, (entries, len(_RATES)), least=0, most=float(MOST))
        repeats = saved_array(state, "item_repeats", np.int32, (known,), least=0)
        checked = dict(zip(Chains._fields, (*parts, counts, repeats), strict=False))
        for columns in (self._users, self._entries, self._items):
            columns.restore(checked)

    def _entries_of(self, users: Ints) -> Ints:
        entries = np.empty(int(self._chains.sizes[users].sum()), dtype=np.int64)
        return entries[: policy.load("own_items").own_entries(users, self._chains, entries)]


def _met(of_items: PartnerRings) -> tuple[Ints, Ints]:
    """How often each item was taken, and of how many items that is known."""
    return of_items.storage[1], np.array([of_items.rows])
