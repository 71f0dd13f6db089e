"""Counts of each item: decayed at several half-lives, when it was last seen, and since when it has been there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from melon.errors import SettingsError
from melon.journal import GrowingRows, RowPart, keep, note
from melon.kernels import policy
from melon.kernels.blend_head import Counts
from melon.stream.pairs import distinct
from melon.stream.saved import SavedArrays, require, saved_array, saved_number
from melon.types import Arrays, Flags, Floats, Ints, Singles

_NEVER = -1
#: The items of this many events are kept at hand.
_LATELY = 1_024


class ItemCounts:
    """Exponentially decayed counts of each item's interactions; half-lives and ages are counted in interactions.

    An interaction that is k interactions old counts 2^(-k / half-life). A count is stored as of its item's last
    interaction and decayed when it is read, so an idle item costs nothing.
    """

    def __init__(self, half_lives: Sequence[float]) -> None:
        for half_life in half_lives:
            if not half_life > 0:
                raise SettingsError(f"half_life = {half_life!r} must be a positive number of interactions.")
        self._rates: Floats = 1 / np.array(half_lives, dtype=np.float64)
        self.events = 0
        self._items = GrowingRows(
            count=RowPart(np.float64, (len(self._rates),)),
            first=RowPart(np.int64, empty=_NEVER),
            last=RowPart(np.int64),
        )
        self._lately: Ints = np.zeros(_LATELY, dtype=np.int64)
        self._by_kind: tuple[int, Singles] | None = None  # what `by_kind` gave, and when
        self._most: tuple[tuple[int, ...], int, Ints] | None = None  # what `most_counted` gave, for what, and when

    def read(self, items: Ints) -> Floats:
        """The counts as of now, one for each half-life: shape of `items` × half-lives; items never seen have none."""
        if not self._items.rows:
            return np.zeros((*items.shape, len(self._rates)))
        at, counted = self._places(items)
        counts: Floats = np.take(self.storage.counts, at, axis=0)
        counts *= self._left((self.events - np.take(self.storage.last, at))[..., None])
        if counted is not None:
            counts[~counted] = 0.0
        return counts

    @property
    def storage(self) -> Counts:
        """For kernels: counts as of each item's last interaction, its first and last, decay rates, now."""
        return Counts._make((*self._items.arrays, self._rates, self.events))

    def totals(self, items: Ints) -> Floats:
        """How often each item was taken in all; one of the half-lives has to be infinite."""
        (which,) = np.flatnonzero(self._rates == 0)[:1]
        if not self._items.rows:
            return np.zeros(items.shape)
        at, counted = self._places(items)
        counts: Floats = self.storage.counts[at, which]
        if counted is not None:
            counts[~counted] = 0.0
        return counts

    @property
    def latest(self) -> Ints:
        """The items of the latest events that are kept at hand, in no order."""
        return self._lately[: min(self.events, _LATELY)]

    def before(self, items: Ints, rates: Floats) -> tuple[Floats, Ints, Ints]:
        """Copies for distinct items: the counts at these rates, when each was last and when first seen (−1: never)."""
        columns = [int(np.abs(self._rates - rate).argmin()) for rate in rates]
        at, counted = self._places(items)
        if not self._items.rows:
            return np.zeros((len(items), len(columns))), np.zeros_like(items), np.full_like(items, _NEVER)
        counts, first, last = (array[at] for array in self._items.arrays)
        counts = counts[:, columns]
        if counted is not None:
            counts[~counted], last[~counted], first[~counted] = 0, 0, _NEVER
        return np.ascontiguousarray(counts), last, first

    def most_counted(self, kinds: Ints, many: int) -> Ints:
        """The items with the highest counts at each of some half-lives, in no order; one may be there several times."""
        asked = (many, *kinds.tolist())
        most: Ints | None = None
        kernels = policy.load("lists")
        rows, values = np.empty((len(kinds), many), dtype=np.int64), np.empty((len(kinds), many))
        if self._most is not None and self._most[0] == asked and self._most[1] >= self.events - _LATELY:
            # Counts decay alike and only those of items taken since have grown: no other item has come among the first.
            since = self._lately[np.arange(self._most[1], self.events) % _LATELY]
            held = kernels.most_counted(
                *self.storage, kinds, distinct(np.concatenate([self._most[2], since])), rows, values
            )
            if held == many and values.min() > 0:  # zeros tie with those of other items
                most = rows.reshape(-1)
        if most is None:
            held = kernels.most_counted(*self.storage, kinds, np.arange(self._items.rows), rows, values)
            most = rows[:, :held].reshape(-1)
        self._most = asked, self.events, most
        return most

    def by_kind(self, n_items: int, since: Singles) -> Singles:
        """Counts as of each item's last interaction, kind × items, for at least so many items; do not keep them.

        `since` gets how long ago each of the first `n_items` was last and first seen. Only counts of items that were
        taken since the last call are copied.
        """
        held, width = self._by_kind, max(n_items, len(self.storage.first))
        if held is not None and held[1].shape[1] >= width and held[0] >= self.events - _LATELY:
            table, changed = held[1], self._lately[np.arange(held[0], self.events) % _LATELY]
        else:
            table, changed = np.zeros((len(self._rates), width), dtype=np.float32), np.arange(self._items.rows)
        policy.load("lists").counted(*self._items.arrays, self.events, changed, table, since)
        self._by_kind = self.events, table
        return table

    def observe(self, items: Ints) -> None:
        """Count a run of consecutive interactions; the same as counting them one by one."""
        if not len(items):
            return
        keep(self, "events", "_lately")
        note(partial(self.__dict__.update, _most=None, _by_kind=None))
        self._items.touch(items)
        late = items[-_LATELY:]
        self._lately[np.arange(self.events + len(items) - len(late), self.events + len(items)) % _LATELY] = late
        policy.load("neighbours").count_items(*self.storage[:4], np.ascontiguousarray(items), self.events)
        self.events += len(items)

    def state(self) -> Arrays:
        """Arrays that `from_state` turns back into the same counts."""
        others = {"rates": self._rates.copy(), "latest": self._lately.copy(), "events": np.array([self.events])}
        return {**self._items.state(), **others}

    @classmethod
    def from_state(cls, state: SavedArrays) -> ItemCounts:
        """The counts that `state` described; arrays that no counts can have are a `CheckpointError`."""
        rates = saved_array(state, "rates", np.float64, (None,), least=0, most=1e6)
        counts = cls([1.0] * len(rates))
        counts._rates, counts.events = rates, saved_number(state, "events")
        newest = counts.events - 1
        first = saved_array(state, "first", np.int64, (None,), least=_NEVER, most=newest)
        size = len(first)
        last = saved_array(state, "last", np.int64, (size,), least=0, most=max(newest, 0))
        count = saved_array(state, "count", np.float64, (size, len(rates)), least=0, most=counts.events)
        counts._items.restore({"count": count, "first": first, "last": last})
        counts._lately = saved_array(state, "latest", np.int64, (_LATELY,), least=0, most=max(size - 1, 0))
        require(bool((first <= last).all()), "an item was first seen after it was last seen")
        return counts

    @property
    def rates(self) -> Floats:
        """One over each half-life."""
        return self._rates

    def _left(self, idle: Ints) -> Floats:
        left: Floats = np.exp2(-np.asarray(idle, dtype=np.float64) * self._rates)
        return left

    def _places(self, items: Ints) -> tuple[Ints, Flags | None]:
        """Where to read items, and which of them there are; None where that is all."""
        if items.max(initial=-1) < self._items.rows:
            return items, None
        counted: Flags = items < self._items.rows
        return np.where(counted, items, 0), counted
