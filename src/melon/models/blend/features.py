"""The inputs of a blend's head by name, and the streaming state that they come from (docs/methods.md 8.5).

Streaming state knows how popular an item is now, and how similar it is to the user's last items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from melon.kernels import policy
from melon.kernels.blend_head import ALWAYS, RECENT, SHRINK, Rows, Slots
from melon.kernels.own_items import Chains
from melon.kernels.profiles import ProfileRows, Tastes
from melon.models.streaming.counts import ItemCounts
from melon.models.streaming.neighbours import ItemNeighbours, scratch
from melon.models.streaming.own_items import OWN_INPUTS, OwnItems
from melon.models.streaming.profiles import MATCHES, OF_ITEMS, Preferences, Profiles
from melon.stream.history import History
from melon.stream.saved import SavedArrays, part_of, require
from melon.types import Arrays, Floats, Ints, Singles, SmallInts

#: Decayed counts that the head sees, in interactions; the last two serve the neighbours.
HALF_LIVES = (100.0, 300.0, 1_000.0, 5_000.0, 20_000.0, 100_000.0)
ITEM_FEATURES = ("count_100", "count_300", "count_1k", "count_5k", "count_20k", "count_100k", "idle", "age")
PAIR_FEATURES = ("neighbours", "neighbours_by_lag", "neighbours_recent")
#: What the head always sees, in the order of `melon.kernels.blend_head`. Some features are worth more, or less, for a
#: user of whom much is known.
INPUTS = (
    *("dot", "bias", *ITEM_FEATURES, *PAIR_FEATURES),
    *("active_dot", "active_count_300", "active_count_5k", "active_neighbours"),
)
#: Where they are asked for: how often the item came right after the user's last one.
TRANSITIONS = ("transitions", "transitions_recent")
#: Groups of inputs that can be asked for, after transitions and in this order: how a pair goes together in the rows of
#: implicit ALS; what the user prefers, by itself and times the candidate's own; and what the user had of the item.
MORE = {
    "profiles": MATCHES,
    "preferences": (*(f"prefers_{name}" for name in OF_ITEMS), *(f"suits_{name}" for name in OF_ITEMS)),
    "own": OWN_INPUTS,
}
#: How many followers each item remembers.
_FOLLOWERS = 64
#: The features of items that preferences are about: among these, and among all inputs.
_PREFERRED: Ints = np.array([ITEM_FEATURES.index(name) for name in OF_ITEMS])
_PREFERRED_INPUTS: Ints = INPUTS.index(ITEM_FEATURES[0]) + _PREFERRED
_NO_SLOTS = Slots(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32), np.empty((0, 0), np.float32), 0.0)
_NO_ITEMS: Ints = np.empty(0, np.int64)
_NO_ROWS: Singles = np.empty((0, 0), np.float32)
_NO_TASTES = Tastes(_NO_ROWS, _NO_ITEMS, np.empty(0))
_NO_OWN = Chains._make((*[np.empty(0, np.int32)] * 7, _NO_ROWS, np.empty(0, np.int32), np.empty(0)))
_NO_PROFILES = ProfileRows._make((*[_NO_ROWS] * 3, np.empty(0), _NO_ITEMS, 0, 0.0, 0.0))


class StreamFeatures:
    """Counts, neighbours and what else is asked for: they observe one stream and are read as inputs of pairs."""

    def __init__(self, slots: int, *, transitions: bool = False, more: Sequence[str] = (), seed: int = 0) -> None:
        self._seed = seed
        self.counts = ItemCounts([*HALF_LIVES, math.inf])
        self.neighbours = ItemNeighbours(slots=slots)
        self.followers = ItemNeighbours(slots=_FOLLOWERS, reach=1, both_ways=False) if transitions else None
        self.profiles = Profiles(seed=seed) if "profiles" in more else None
        self.preferences = Preferences() if "preferences" in more else None
        self.usual = (*INPUTS, *TRANSITIONS) if transitions else INPUTS
        self.own = OwnItems() if "own" in more else None
        parts = {"profiles": self.profiles, "preferences": self.preferences, "own": self.own}
        groups = [group for group, part in parts.items() if part]
        #: All inputs by name, those of rows, items and co-occurrence first.
        self.names = (*self.usual, *(name for group in groups for name in MORE[group]))
        self._item_at: SmallInts = np.zeros(0, dtype=np.int32)  # a number for each item, for the kernel

    def fit(self, users: Ints, items: Ints) -> None:
        """Make room for a whole log before it is observed, and solve rows for it where rows are asked for."""
        for part in (self.neighbours, self.followers):
            if part is not None:
                part.reserve(int(items.max(initial=-1)) + 1)
        if self.profiles is not None:
            self.profiles.fit(users, items)

    def observe(self, users: Ints, items: Ints, past: History) -> None:
        """Count a batch; `past` is what came before it."""
        if self.preferences is not None:
            self.preferences.observe(users, items, self.counts)
        if self.profiles is not None:
            self.profiles.observe(users, items, past)
        if self.own is not None:
            self.own.observe(users, items)
        self.neighbours.observe(users, items, past.of_users)
        if self.followers is not None:
            self.followers.observe(users, items, past.of_users)
        self.counts.observe(items)

    def inputs(self, rows: Sequence[Rows], users: Ints, lines: Ints, past: History) -> Singles:
        """All inputs of lines of items n × c, in the order of `names`.

        Rows are those of users, of items and of items' biases.
        """
        size = max(int(lines.max(initial=-1)) + 1, self.neighbours.rows)
        if len(self._item_at) < size:
            self._item_at = np.zeros(2 * size, dtype=np.int32)
        out: Singles = np.empty((*lines.shape, len(self.names)), dtype=np.float32)
        state = past.of_users.rings, self.counts.storage, *self.slots
        with scratch(size) as columns:
            policy.load("blend").inputs(
                users, lines, *state, *rows, self._item_at, columns, len(self.usual) - len(INPUTS), out
            )
        if self.profiles is not None:
            self.profiles.match(users, lines, past, out, len(self.usual))
        if self.preferences is not None:
            self.preferences.write(users, _PREFERRED_INPUTS, self.names.index(MORE["preferences"][0]), out)
        if self.own is not None:
            self.own.write(users, lines, past.of_items, len(self.names) - len(OWN_INPUTS), out)
        return out

    def rows_again(self, rows: Sequence[Rows], users: Ints, lines: Ints, past: History, out: Singles) -> None:
        """Write anew those of the `inputs` that rows give."""
        policy.load("blend").row_inputs(users, lines, past.of_users.rings, *rows, out)

    @property
    def slots(self) -> tuple[Slots, Slots]:
        """Neighbours and followers of items, for kernels; do not keep them when more is observed."""
        return self.neighbours.storage, _NO_SLOTS if self.followers is None else self.followers.storage

    def of_items(self, n_items: int, columns: Singles) -> Singles:
        """Write the features of items 0 … n_items-1, features × items; returns all and recent counts, 2 × items."""
        by_kind = self.counts.by_kind(n_items, columns[ALWAYS:])[:, :n_items]
        decays = (-self.counts.rates[:ALWAYS, None]).astype(np.float32)
        np.exp2(np.multiply(columns[ALWAYS], decays, out=columns[:ALWAYS]), out=columns[:ALWAYS])
        columns[:ALWAYS] *= by_kind[:ALWAYS]
        both = np.stack([by_kind[ALWAYS], columns[RECENT]])
        np.log1p(columns, out=columns)
        return both

    def for_lists(self, past: History) -> tuple[object, ...]:
        """What lists of all items need, for their kernel; empty where it was not asked for."""
        tastes = _NO_TASTES if self.preferences is None else self.preferences.storage
        own = _NO_OWN if self.own is None else self.own.chains
        profiles = _NO_PROFILES if self.profiles is None else self.profiles.storage(past)
        rings = past.of_users.rings, past.of_items.rings
        return _PREFERRED_INPUTS, *rings, self.counts.storage, *self.slots, tastes, own, profiles

    def own_items(self, user: int, past: History, n_items: int) -> Ints:
        """A user's own items; none where the head does not look at them."""
        return _NO_ITEMS if self.own is None else self.own.of_user(user, past.of_items, n_items)[0]

    def forget_user(self, user: int) -> None:
        """Take out what is known of a user."""
        for part in (self.profiles, self.preferences, self.own):
            if part is not None:
                part.forget_user(user)

    def similarities(self, items: Ints) -> Floats:
        """How similar each other item is to each of the given ones, by shared users; items × all that were counted."""
        ids, counts, _ = self.neighbours.of(items)
        everything = np.arange(self.neighbours.rows)
        totals = np.sqrt(self.counts.totals(everything) + SHRINK)
        table = np.zeros((len(items), len(everything) + 1))
        np.put_along_axis(table, np.where(ids < 0, len(everything), ids), counts, axis=1)
        alike: Floats = table[:, :-1] / totals / totals[np.minimum(items, len(everything) - 1)][:, None]
        return alike

    def state(self) -> Arrays:
        """Everything that was counted."""
        parts = {"counts": self.counts.state(), "neighbours": self.neighbours.state()}
        groups = {"profiles": self.profiles, "preferences": self.preferences, "own": self.own}
        optional = {"followers": self.followers, **groups}
        parts |= {name: part.state() for name, part in optional.items() if part is not None}
        return {f"{part}.{name}": array for part, state in parts.items() for name, array in state.items()}

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described."""
        counts = ItemCounts.from_state(part_of(state, "counts"))
        neighbours = ItemNeighbours.from_state(part_of(state, "neighbours"))
        followers = None if self.followers is None else ItemNeighbours.from_state(part_of(state, "followers"))
        require(np.array_equal(counts.rates, self.counts.rates), "counts have other half-lives than this blend's")
        for saved, present in ((neighbours, self.neighbours), (followers, self.followers)):
            if saved is not None and present is not None:
                require(saved.form == present.form, "neighbours were counted with other settings than this blend's")
                require(saved.events == counts.events, "neighbours and counts are of different moments")
        profiles = None if self.profiles is None else Profiles(seed=self._seed)
        preferences = None if self.preferences is None else Preferences()
        if profiles is not None:
            profiles.restore(part_of(state, "profiles"), counts.events)
        if preferences is not None:
            preferences.restore(part_of(state, "preferences"))
        if self.own is not None:
            self.own.restore(part_of(state, "own"))
        self.counts, self.neighbours, self.followers = counts, neighbours, followers
        self.profiles, self.preferences = profiles, preferences
