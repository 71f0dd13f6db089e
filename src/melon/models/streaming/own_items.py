"""What each user had: how often, how lately, and how much users and items tend to repeat.

Each (user, item) has one entry, 20 bytes in blocks of eight, and a user at most `MOST_ITEMS` of them: beyond that a
newcomer takes the place of the entry with the least decayed count. Ages are counted in the user's own events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from melon.journal import GrowingRows, RowPart, rows_needed
from melon.kernels import policy
from melon.kernels.own_items import BESIDE, IN_BLOCK, Chains
from melon.models.streaming.neighbours import scratch
from melon.stream.draws import Draws
from melon.stream.history import PartnerRings
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
        number, counts = RowPart(np.int32), RowPart(np.float32, (len(_RATES),))
        self._users = GrowingRows(heads=RowPart(np.int32, empty=-1), sizes=number, taken=number, repeats=number)
        self._blocks = GrowingRows(after=number)
        self._places = GrowingRows(items=number, last=number, counts=counts)
        self._items = GrowingRows(item_repeats=number)

    @property
    def _parts(self) -> tuple[GrowingRows, ...]:
        return self._users, self._blocks, self._places, self._items

    @property
    def chains(self) -> Chains:
        """Zero-copy view for kernels."""
        return Chains._make((*(array for part in self._parts for array in part.arrays), _RATES))

    def observe(self, users: Ints, items: Ints) -> None:
        """Let users take items, in order."""
        if not len(users):
            return
        self._users.touch(users)
        self._items.touch(items)
        events, size, blocks = (np.ascontiguousarray(users), np.ascontiguousarray(items)), len(users), self._blocks.rows
        self._blocks.make_room(blocks + size)
        self._places.make_room((blocks + size) * IN_BLOCK)
        touched, counts = np.empty(size, np.int64), np.empty((size, len(_RATES)), np.float32)
        rows = np.empty((size, 2), np.int32)
        before = touched, rows, counts
        blocks = policy.load("own_items").take_own(*events, self.chains, blocks, MOST_ITEMS, *before)
        self._blocks.grow(blocks)
        self._places.grow(blocks * IN_BLOCK)
        self._places.overwrites((touched,), (rows[:, 0], rows[:, 1], counts))

    def write(self, users: Ints, lines: Ints, of_items: PartnerRings, first: int, out: Singles) -> None:
        """Write the inputs of lines of items n × c, from input `first` on."""
        with scratch(max(self._items.rows, rows_needed(lines.reshape(-1)))) as columns:
            policy.load("own_items").own_inputs(users, lines, self.chains, of_items.rings, first, columns, out)

    def sizes(self, users: Ints) -> Ints:
        """How many items of each user are remembered."""
        known = self._users.rows
        if not known:
            return np.zeros_like(users)
        return np.where(users < known, self.chains.sizes[np.minimum(users, known - 1)], np.int64(0))

    def drawn(self, users: Ints, draws: Draws, events: Ints, count: int) -> Ints:
        """For each user `count` of its items, uniformly and each by itself; the draw belongs to the event.

        A user without any has -1.
        """
        places = draws.integers(events, count, np.maximum(self.sizes(users), 1), start=1 << 20)
        items = np.empty(places.shape, dtype=np.int64)
        policy.load("own_items").pick_own(np.ascontiguousarray(users), places, self.chains, items)
        return items

    def of_user(self, user: int, of_items: PartnerRings, n_items: int) -> tuple[Ints, Singles]:
        """A user's own items, and the inputs of each."""
        size = int(self.chains.sizes[user]) if user < self._users.rows else 0
        items, inputs = np.empty(size, dtype=np.int64), np.empty((size, len(OWN_INPUTS)), dtype=np.float32)
        found = policy.load("own_items").own_of_user(user, self.chains, of_items.rings, n_items, items, inputs)
        return items[:found], inputs[:found]

    def forget_user(self, user: int) -> None:
        """Know nothing of a user any more; the entries stay empty."""
        if user >= self._users.rows:
            return
        own, block = self.chains, int(self.chains.heads[user])
        items = own.items[self._places_of(user)]
        own.item_repeats[items] = np.maximum(own.item_repeats[items] - 1, 0)
        while block >= 0:
            for each in (own.items, own.last, own.counts):
                each[block * IN_BLOCK : (block + 1) * IN_BLOCK] = 0
            own.after[block], block = -1, int(own.after[block])
        own.heads[user] = -1
        own.sizes[user] = own.taken[user] = own.repeats[user] = 0

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same entries."""
        return {name: array for part in self._parts for name, array in part.state().items()}

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described; arrays that no entries can have are a `CheckpointError`."""
        known, blocks = len(saved_array(state, "item_repeats", np.int32, (None,))), len(state["after"])
        whole = {name: (0, np.iinfo(np.int32).max) for name in Chains._fields}
        whole |= {"heads": (-1, blocks - 1), "after": (-1, blocks - 1), "items": (0, max(known - 1, 0))}
        whole |= {"sizes": (0, MOST_ITEMS), "taken": (0, 1 << 30)}  # room to count on
        users, parts = len(saved_array(state, "heads", np.int32, (None,))), list[Any]()
        for place, name in enumerate(Chains._fields[:7]):
            least, most = whole[name]
            size = users if place < 4 else blocks if name == "after" else blocks * IN_BLOCK
            parts.append(saved_array(state, name, np.int32, (size,), least=least, most=most))
        require(bool((parts[4] < np.arange(blocks)).all()), "a block of a user's items stands before an older one")
        heads, sizes, taken, _, after, _, last = parts
        lengths, block, owned = np.zeros(users, dtype=np.int64), heads, 0
        for _ in range(MOST_ITEMS // IN_BLOCK + 1):  # all users' chains, one block further each time
            held = np.flatnonzero(block >= 0)
            lengths[held] += 1
            owned += len(held)
            late = last.reshape(-1, IN_BLOCK)[block[held]] >= taken[held, None]
            require(not late.any(), "an entry is later than its user's events")
            block = np.where(block >= 0, after[block], -1)
        fitting = bool((lengths == -(-sizes // IN_BLOCK)).all()) and owned <= blocks
        require(fitting, "users' numbers of items and blocks")
        counts = saved_array(state, "counts", np.float32, (blocks * IN_BLOCK, len(_RATES)), least=0, most=float(MOST))
        repeats = saved_array(state, "item_repeats", np.int32, (known,), least=0)
        checked = dict(zip(Chains._fields, (*parts, counts, repeats), strict=False))
        for each in self._parts:
            each.restore(checked)

    def _places_of(self, user: int) -> Ints:
        """The places of a user's entries."""
        own, places = self.chains, list[Ints]()
        block, room = int(own.heads[user]), (int(own.sizes[user]) - 1) % IN_BLOCK + 1
        while block >= 0:
            places.append(np.arange(block * IN_BLOCK, block * IN_BLOCK + room))
            block, room = int(own.after[block]), IN_BLOCK
        return np.concatenate(places) if places else np.empty(0, dtype=np.int64)
