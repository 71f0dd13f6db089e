"""What each user had: how often, how lately, and how much users and items tend to repeat.

Each (user, item) has one entry, 20 bytes in blocks of eight, and a user at most `MOST_ITEMS` of them: beyond that a
newcomer takes the place of the entry with the least decayed count. Ages are counted in the user's own events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from melon.kernels import policy
from melon.kernels.own_items import BESIDE, BLOCK, Chains
from melon.models.streaming.neighbours import scratch
from melon.stream.draws import Draws
from melon.stream.history import PartnerRings
from melon.stream.pairs import distinct, rows_needed
from melon.stream.saved import MOST, SavedArrays, require, saved_array
from melon.types import AnyArray, Arrays, Floats, Ints, Singles, SmallInts

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
        self._users = self._blocks = self._known = 0
        self._chains = _chains(*(_filled(0) for _ in range(7)), np.zeros((0, len(_RATES)), np.float32), _filled(0))
        #: Gets what the next batch overwrites, where it may be taken back.
        self._overwritten: list[AnyArray] | None = None

    def observe(self, users: Ints, items: Ints) -> None:
        """Let users take items, in order."""
        if not len(users):
            return
        self._grow(rows_needed(users), self._blocks + len(users), rows_needed(items))
        events, size = (np.ascontiguousarray(users), np.ascontiguousarray(items)), len(users)
        before = np.empty(size, np.int64), np.empty((size, 2), np.int32), np.empty((size, len(_RATES)), np.float32)
        kernels = policy.load("own_items")
        self._blocks = kernels.take_own(*events, self._chains, self._blocks, MOST_ITEMS, *before)
        if self._overwritten is not None:
            self._overwritten.extend(before)
            self._overwritten = None

    def write(self, users: Ints, lines: Ints, of_items: PartnerRings, first: int, out: Singles) -> None:
        """Write the inputs of lines of items n × c, from input `first` on."""
        with scratch(max(self._known, rows_needed(lines.reshape(-1)))) as columns:
            policy.load("own_items").own_inputs(users, lines, self._chains, *_met(of_items), first, columns, out)

    def sizes(self, users: Ints) -> Ints:
        """How many items of each user are remembered."""
        if not self._users:
            return np.zeros_like(users)
        return np.where(users < self._users, self._chains.sizes[np.minimum(users, self._users - 1)], np.int64(0))

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
        size = int(self._chains.sizes[user]) if user < self._users else 0
        items, inputs = np.empty(size, dtype=np.int64), np.empty((size, len(OWN_INPUTS)), dtype=np.float32)
        found = policy.load("own_items").own_of_user(user, self._chains, *_met(of_items), n_items, items, inputs)
        return items[:found], inputs[:found]

    def forget_user(self, user: int) -> None:
        """Know nothing of a user any more; the entries stay empty."""
        if user >= self._users:
            return
        own, block = self._chains, int(self._chains.heads[user])
        items = own.items[self._places(user)]
        own.item_repeats[items] = np.maximum(own.item_repeats[items] - 1, 0)
        while block >= 0:
            for each in (own.items, own.last, own.counts):
                each[block * BLOCK : (block + 1) * BLOCK] = 0
            own.after[block], block = -1, int(own.after[block])
        own.heads[user] = -1
        own.sizes[user] = own.taken[user] = own.repeats[user] = 0

    def undo_point(self, users: Ints, items: Ints) -> Callable[[], None]:
        """A function that takes back the next `observe` of these interactions."""
        users, blocks, known = distinct(users[users < self._users]), self._blocks, self._known
        many, own = self._users, self._chains
        items = distinct(items[items < known])
        by_user, repeats = [each[users] for each in own[:4]], own.item_repeats[items]
        overwritten: list[Any] = []
        self._overwritten = overwritten

        def undo() -> None:
            chains = self._chains
            if overwritten:
                touched, rows, counts = (each[::-1] for each in overwritten)  # of several writes the first was over
                chains.items[touched], chains.last[touched], chains.counts[touched] = rows[:, 0], rows[:, 1], counts
            chains.after[blocks : self._blocks] = 0
            for each, values in zip(chains[:4], by_user, strict=True):
                each[many : self._users] = 0
                each[users] = values
            chains.heads[many : self._users] = -1
            chains.item_repeats[known : self._known] = 0
            chains.item_repeats[items] = repeats
            self._users, self._blocks, self._known = many, blocks, known

        return undo

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same entries."""
        sizes = [self._users] * 4 + [self._blocks] + [self._blocks * BLOCK] * 3 + [self._known]
        names = Chains._fields[: len(sizes)]
        chains: tuple[AnyArray, ...] = self._chains[: len(sizes)]
        return {name: each[:size].copy() for name, each, size in zip(names, chains, sizes, strict=True)}

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described; arrays that no entries can have are a `CheckpointError`."""
        known, blocks = len(saved_array(state, "item_repeats", np.int32, (None,))), len(state["after"])
        whole = {name: (0, np.iinfo(np.int32).max) for name in Chains._fields}
        whole |= {"heads": (-1, blocks - 1), "after": (-1, blocks - 1), "items": (0, max(known - 1, 0))}
        whole |= {"sizes": (0, MOST_ITEMS), "taken": (0, 1 << 30)}  # room to count on
        users, parts = len(saved_array(state, "heads", np.int32, (None,))), list[Any]()
        for place, name in enumerate(Chains._fields[:7]):
            least, most = whole[name]
            size = users if place < 4 else blocks if name == "after" else blocks * BLOCK
            parts.append(saved_array(state, name, np.int32, (size,), least=least, most=most))
        require(bool((parts[4] < np.arange(blocks)).all()), "a block of a user's items stands before an older one")
        heads, sizes, taken, _, after, _, last = parts
        lengths, block, owned = np.zeros(users, dtype=np.int64), heads, 0
        for _ in range(MOST_ITEMS // BLOCK + 1):  # all users' chains, one block further each time
            held = np.flatnonzero(block >= 0)
            lengths[held] += 1
            owned += len(held)
            late = last.reshape(-1, BLOCK)[block[held]] >= taken[held, None]
            require(not late.any(), "an entry is later than its user's events")
            block = np.where(block >= 0, after[block], -1)
        require(bool((lengths == -(-sizes // BLOCK)).all()) and owned <= blocks, "users' numbers of items and blocks")
        counts = saved_array(state, "counts", np.float32, (blocks * BLOCK, len(_RATES)), least=0, most=float(MOST))
        repeats = saved_array(state, "item_repeats", np.int32, (known,), least=0)
        self._chains = _chains(*parts, counts, repeats)
        self._users, self._blocks, self._known = users, blocks, known

    def _places(self, user: int) -> Ints:
        """The places of a user's entries."""
        own, places = self._chains, list[Ints]()
        block, room = int(own.heads[user]), (int(own.sizes[user]) - 1) % BLOCK + 1
        while block >= 0:
            places.append(np.arange(block * BLOCK, block * BLOCK + room))
            block, room = int(own.after[block]), BLOCK
        return np.concatenate(places) if places else np.empty(0, dtype=np.int64)

    def _grow(self, users: int, blocks: int, items: int) -> None:
        own, places = self._chains, blocks * BLOCK
        by_user = [_longer(each, users, -1 if at == 0 else 0) for at, each in enumerate(own[:4])]
        by_place = [_longer(each, places) for each in own[5:8]]
        after, repeats = _longer(own.after, blocks), _longer(own.item_repeats, items)
        self._chains = _chains(*by_user, after, *by_place, repeats)
        self._users, self._known = max(self._users, users), max(self._known, items)


def _chains(*arrays: Any) -> Chains:
    return Chains(*(*arrays, _RATES))


def _met(of_items: PartnerRings) -> tuple[Ints, Ints]:
    """How often each item was taken, and of how many items that is known."""
    return of_items.storage[1], np.array([of_items.rows])


def _filled(size: int) -> SmallInts:
    return np.zeros(size, dtype=np.int32)


def _longer(array: AnyArray, size: int, value: int = 0) -> AnyArray:
    """Room for at least so many; more than that, so that growing is O(1) on average."""
    if size <= len(array):
        return array
    more = np.full((max(size, 2 * len(array), 1024) - len(array), *array.shape[1:]), value, dtype=array.dtype)
    return np.concatenate([array, more])
