"""What people would otherwise run: popularity beside one simple source of personal scores, or beside all of them.

A source streams along and says something about some items of a user: the user's own items (decayed counts), what
followed the last item (Markov), what followed the last items (sequential rules), what users with the same last items
took (session kNN), and items like the last ones (item-kNN). A baseline scores log(1 + decayed count) plus weights times
such columns. Kinds, half-life and weights are chosen on the selection window (`melon.fitting.baselines`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from melon.data.interactions import Interactions
from melon.journal import rows_needed
from melon.kernels import policy
from melon.kernels.neighbours import EMPTY
from melon.models.catalogue import Catalogue
from melon.models.streaming.counts import ItemCounts
from melon.models.streaming.neighbours import ItemNeighbours, scratch
from melon.stream.batch import Batch
from melon.stream.history import RING, PartnerRings
from melon.stream.split import batches
from melon.types import Floats, Ints, Plain, Scores, Singles, SmallInts

#: Half-lives of popularity, in interactions, and weights of a column beside it.
HALF_LIVES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
#: Each baseline by the kinds of column it can be made of, the one to be preferred first.
SOURCES: Mapping[str, tuple[str, ...]] = {
    "own_history": ("own", "own_recent"),
    "markov": ("transitions", "transitions_recent"),
    "sequential_rules": ("rules",),
    "session_knn": ("sessions", "sessions_rare"),
    "item_knn": ("neighbours", "neighbours_recent"),
}
#: All of them, and the mix of them all.
BASELINES = (*SOURCES, "mix")
#: Where nothing can be chosen.
UNCHOSEN: Plain = {"half_life": 3_000, "weight": 1.0}
#: Own items count half after so many further events of the user.
_OWN_HALF_LIFE = 50.0
#: How many of the user's last items a source goes by, and how many users are near.
_LOOKS_BACK, _NEAREST = {"transitions": 1, "rules": 10, "sessions": 10, "neighbours": 20}, 100
_TABLES: Mapping[str, Plain] = {
    "transitions": {"slots": 128, "reach": 1, "half_life": 50_000, "both_ways": False},
    "rules": {"slots": 128, "reach": 10, "half_life": 50_000, "both_ways": False},
    "neighbours": {"slots": 256},
}
#: Shrinkage of similarities, gain before the logarithm, and how the last items are weighed: alike (0) or by place (1).
_READS = {"transitions": (0.0, 10.0, 0), "rules": (0.0, 10.0, 1), "neighbours": (5.0, 20.0, 1)}
_AT_ONCE = 4_096


class SparseColumn(NamedTuple):
    """What a source says: line n has items[starts[n]] … items[starts[n + 1] - 1], each with a value."""

    starts: Ints
    items: SmallInts
    values: Singles


class Sources:
    """Columns of some kinds and counts of items, gathered along one stream; a batch is read before it is observed."""

    def __init__(self, past: Interactions, kinds: Sequence[str]) -> None:
        self.kinds, self._events = tuple(kinds), 0
        self._counts = ItemCounts([*HALF_LIVES, float("inf")])
        self._of_users, self._of_items = PartnerRings(), PartnerRings()
        #: Each user's last event, the item of each event, and the event before it of the same user.
        self._heads: Ints = np.empty(0, dtype=np.int64)
        self._items: SmallInts = np.empty(0, dtype=np.int32)
        self._before: Ints = np.empty(0, dtype=np.int64)
        self._tables = {
            name: ItemNeighbours(**form)
            for name, form in _TABLES.items()
            if any(kind.startswith(name) for kind in self.kinds)
        }
        for start, stop in batches(0, len(past), _AT_ONCE):
            self.observe(past.users[start:stop], past.items[start:stop])

    @property
    def known(self) -> int:
        """How many items have been observed."""
        return self._of_items.rows

    def observe(self, users: Ints, items: Ints) -> None:
        """Let interactions pass by."""
        for table in self._tables.values():
            table.observe(users, items, self._of_users)
        self._of_users.append(users, items)
        self._of_items.append(items, users)
        self._counts.observe(items)
        if (needed := rows_needed(users)) > len(self._heads):
            self._heads = np.concatenate([self._heads, np.full(needed, -1, dtype=np.int64)])
        if (needed := self._events + len(items)) > len(self._items):
            self._items, self._before = np.resize(self._items, 2 * needed), np.resize(self._before, 2 * needed)
        policy.load("baselines").chain(np.ascontiguousarray(users), self._heads, self._before, self._events)
        self._items[self._events : needed] = items
        self._events = needed

    def popular(self, items: Ints) -> Floats:
        """log(1 + decayed count) at each half-life: shape of `items` × half-lives."""
        popular: Floats = np.log1p(self._counts.read(items)[..., : len(HALF_LIVES)])
        return popular

    def column(self, kind: str, users: Ints) -> SparseColumn:
        """What one kind says of each user."""
        kernels, users, (name, _, way) = policy.load("baselines"), np.ascontiguousarray(users), kind.partition("_")
        lasts = np.ascontiguousarray(self._of_users.recent(users, _LOOKS_BACK.get(name, 1)).partners)
        totals, most = self._counts.totals(np.arange(self.known)), self.known
        starts = np.zeros(len(users) + 1, dtype=np.int64)
        fill: Callable[..., None]
        if name == "own":
            chain = self._heads, self._items, self._before
            fill = partial(kernels.own_column, users, *chain, _OWN_HALF_LIFE if way else np.inf)
        elif name == "sessions":
            rings = *self._of_users.storage, self._of_users.rows, *self._of_items.storage, self._of_items.rows
            people = np.full(self._of_users.rows, EMPTY, dtype=np.int32)
            fill = partial(kernels.session_column, *rings, users, lasts, totals, _NEAREST, int(bool(way)), people)
            most = min(most, lasts.shape[1] * RING * RING)
        else:
            table, (shrink, gain, usual) = self._tables[name], _READS[name]
            fill = partial(kernels.met_column, *table.storage, lasts, totals, shrink, gain, 2 if way else usual)
            most = min(most, lasts.shape[1] * table.slots)
        items, values = np.empty(len(users) * most, dtype=np.int32), np.empty(len(users) * most, dtype=np.float32)
        with scratch(self.known) as slots:
            fill(slots, starts, items, values)
        return SparseColumn(starts, items[: starts[-1]].copy(), values[: starts[-1]].copy())


class Baseline:
    """log popularity at one half-life, plus weights times columns; no weight, and it is recent popularity."""

    moved = 0.0

    def __init__(self, sources: Sources, half_life: int, weights: Mapping[str, float]) -> None:
        self._sources, self._half_life, self._weights = sources, HALF_LIVES.index(half_life), dict(weights)

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        scores = np.ascontiguousarray(self._sources.popular(items)[..., self._half_life])
        for kind, weight in self._weights.items():
            with scratch(self._sources.known) as slots:
                column = self._sources.column(kind, users)
                lines = np.ascontiguousarray(items)
                policy.load("baselines").pick_column(*column, lines, weight, slots[: self._sources.known], scores)
        return scores

    def catalogue(self, n_items: int, time: int) -> Catalogue:
        popular = self._sources.popular(np.arange(n_items))[:, self._half_life]
        return SparseCatalogue(popular, self._sources.column, **self._weights)

    def learn(self, batch: Batch) -> None:
        self._sources.observe(batch.users, batch.items)


class SparseCatalogue(Catalogue):
    """One score of each item for everybody, and what sources add for a user."""

    def __init__(
        self, everybody: Floats, column: Callable[[str, Ints], SparseColumn] | None = None, **weights: float
    ) -> None:
        self._everybody, self._column, self._weights = everybody, column, weights

    def scores(self, users: Ints, *, unseen: bool = False) -> Scores:
        scores = np.tile(self._everybody, (len(users), 1))
        if self._column is not None:
            for kind, weight in self._weights.items():
                policy.load("baselines").add_column(*self._column(kind, users), weight, scores)
        return scores


def make_baseline(name: str, settings: Mapping[str, Any], past: Interactions) -> Baseline:
    """A baseline with the settings that were chosen for it, behind a log."""
    if name == "mix":
        weights = settings.get("weights") or {kinds[0]: 1.0 for kinds in SOURCES.values()}
    else:
        weights = {settings.get("kind", SOURCES[name][0]): settings.get("weight", UNCHOSEN["weight"])}
    weights = {kind: weight for kind, weight in weights.items() if weight}
    return Baseline(Sources(past, tuple(weights)), settings.get("half_life", UNCHOSEN["half_life"]), weights)
