"""Neighbours of items: who is taken by the same users, counted as interactions stream in, in bounded memory.

Each item has a fixed number of slots, one for each neighbour that it remembers: the neighbour, how often they met, and
the same decayed. Where all slots are taken, a newcomer takes the place of the neighbour with the least decayed count
(the eviction rule of space-saving sketches, without handing the count on). So memory is 12 bytes × slots × items
whatever comes, and counts are exact until an item has met more others than it has slots.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from melon.errors import SettingsError
from melon.journal import GrowingRows, RowPart, keep, recording, rows_needed
from melon.kernels import policy
from melon.kernels.blend_head import Slots
from melon.kernels.neighbours import EMPTY
from melon.stream.history import RING, PartnerRings
from melon.stream.saved import SavedArrays, require, saved_array, saved_number
from melon.types import Arrays, Floats, Ints, SmallInts

#: Decayed counts are referred to a moment that moves up when it lies this many half-lives back: counts have 32 bits.
_REFER_ANEW = 1_024.0
#: Where columns are looked up by item; all EMPTY between two uses.
_SCRATCH = threading.local()


class ItemNeighbours:
    """Streaming item-to-item co-occurrence: each interaction lets its item meet the user's previous `reach` items.

    `both_ways` counts a meeting for both items; otherwise only the earlier one remembers the later one, as transitions.
    """

    def __init__(self, *, slots: int = 128, reach: int = 20, half_life: float = 20_000, both_ways: bool = True) -> None:
        if slots < 1 or not 1 <= reach <= RING or not half_life > 0:
            raise SettingsError(
                f"slots = {slots!r}, reach = {reach!r}, half_life = {half_life!r}: give at least one slot, a "
                f"reach from 1 to {RING}, and a positive half-life."
            )
        self.slots, self.reach, self.half_life, self.both_ways = slots, reach, half_life, both_ways
        self.events = 0
        self._reference = 0.0
        number = RowPart(np.float32, (slots,))
        self._items = GrowingRows(ids=RowPart(np.int32, (slots,), EMPTY), counts=number, recent=number)

    @property
    def rows(self) -> int:
        """How many items there are, some of which may have no neighbour."""
        return self._items.rows

    def observe(self, users: Ints, items: Ints, past: PartnerRings) -> None:
        """Count a run of consecutive interactions; `past` holds each user's items before the run.

        The same as counting them one by one: interactions of the run are the past of later ones in it.
        """
        if not len(items):
            return
        keep(self, "events", "_reference")
        self._items.grow(rows_needed(items))
        self._refer(self.events / self.half_life)
        self._meet(np.ascontiguousarray(users), np.ascontiguousarray(items), past)
        self.events += len(items)

    def _meet(self, users: Ints, items: Ints, past: PartnerRings) -> None:
        """Let items meet the earlier ones of their users."""
        kernels, most = policy.load("neighbours"), len(users) * self.reach
        event, earlier = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
        before = np.empty(len(users), dtype=np.int64)
        rings = (*past.storage, past.rows)
        with scratch(rows_needed(users)) as latest:
            count, largest = kernels.meetings(*rings, users, items, self.reach, latest, before, event, earlier)
        self._items.grow(largest + 1)
        event, earlier = event[:count], earlier[:count]
        ways = 2 if self.both_ways else 1
        slots, *before_each = (
            np.empty(ways * count, dtype=kind) for kind in (np.int32, np.int32, np.float32, np.float32)
        )
        moments = self.events, self.half_life, self._reference
        with scratch(self.rows) as latest:
            meetings = event, earlier, items, *moments, self.both_ways, latest
            kernels.meet(*self.storage[:3], *meetings, slots, *before_each)
        if recording():
            met = np.column_stack([earlier, items[event]])[:, :ways].reshape(-1)
            self._items.overwrites((met, slots), before_each)

    @property
    def storage(self) -> Slots:
        """Zero-copy view for kernels: neighbours in slots, their counts, log₂ of the decayed ones, and now."""
        return Slots._make((*self._items.arrays, self._now))

    def of(self, items: Ints) -> tuple[Ints, Floats, Floats]:
        """The neighbours of each item (n × slots, EMPTY where a slot is free), their counts, and those decayed."""
        counted = items < self.rows
        if not self.rows:
            nothing = np.zeros((len(items), self.slots))
            return np.full(nothing.shape, EMPTY, dtype=np.int64), nothing, nothing.copy()
        at = np.where(counted, items, 0)
        kept = self.storage
        ids = np.where(counted[:, None], kept.ids[at], EMPTY).astype(np.int64)
        free = ids == EMPTY
        counts = np.where(free, 0.0, kept.counts[at])
        decayed = np.where(free, 0.0, np.exp2(kept.recent[at].astype(np.float64) - kept.now))
        return ids, counts, decayed

    def state(self) -> Arrays:
        """Arrays that `from_state` turns back into the same neighbours."""
        return {
            **self._items.state(),
            "reference": np.array([self._reference]),
            "events": np.array([self.events]),
            "form": np.array(self.form, dtype=np.float64),
        }

    @classmethod
    def from_state(cls, state: SavedArrays) -> ItemNeighbours:
        """The neighbours that `state` described; arrays that no neighbours can have are a `CheckpointError`."""
        slots, reach, half_life, both_ways = saved_array(state, "form", np.float64, (4,), least=0).tolist()
        neighbours = cls(slots=int(slots), reach=int(reach), half_life=half_life, both_ways=bool(both_ways))
        rows = len(saved_array(state, "ids", np.int32, (None, None)))
        shape = (rows, neighbours.slots)
        ids = saved_array(state, "ids", np.int32, shape, least=EMPTY, most=rows - 1)
        free = ids == EMPTY
        require(not bool((free[:, :-1] & ~free[:, 1:]).any()), "free slots of neighbours stand before taken ones")
        neighbours.events = saved_number(state, "events")
        now = neighbours.events / half_life
        neighbours._reference = float(saved_array(state, "reference", np.float64, (1,), least=0, most=now)[0])
        meetings = 2.0 * neighbours.reach * neighbours.events
        counts = saved_array(state, "counts", np.float32, shape, least=0, most=meetings)
        most_recent = neighbours._now + np.log2(meetings + 1) + 1
        recent = saved_array(state, "recent", np.float32, shape, most=most_recent)
        neighbours._items.restore({"ids": ids, "counts": counts, "recent": recent})
        return neighbours

    @property
    def form(self) -> tuple[float, ...]:
        """Slots, reach, half-life and whether meetings count both ways."""
        return self.slots, self.reach, self.half_life, self.both_ways

    @property
    def _now(self) -> float:
        return self.events / self.half_life - self._reference

    def _refer(self, moment: float) -> None:
        """Refer decayed counts to a later moment now and then, so that they keep their digits."""
        if moment - self._reference > _REFER_ANEW:
            self._items.touch(np.arange(self.rows))
            self._items.held[2][:] -= np.float32(moment - self._reference)
            self._reference = moment

    def reserve(self, rows: int) -> None:
        """Make room for so many items at once: growing step by step holds the old room beside the new one."""
        self._items.reserve(rows)


@contextmanager
def scratch(size: int) -> Iterator[SmallInts]:
    """An EMPTY for each item that there can be, to be left as it was found; each thread has its own.

    What a kernel leaves behind when it is interrupted is thrown away.
    """
    columns: SmallInts | None = getattr(_SCRATCH, "columns", None)
    _SCRATCH.columns = None
    if columns is None or len(columns) < size:
        columns = np.full(2 * size, EMPTY, dtype=np.int32)
    yield columns
    _SCRATCH.columns = columns
