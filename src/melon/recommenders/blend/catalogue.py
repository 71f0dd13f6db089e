"""The blend over all items by compiled loops: exactly, or in two stages with a head for candidates alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from melon.kernels import policy
from melon.kernels.lists import HeadWeights
from melon.kernels.shortlist import Counted, FadedRows
from melon.recommenders.blend.features import LOOKED_AT, StreamFeatures
from melon.recommenders.blend.head import BlendHead
from melon.recommenders.blend.inputs import HALF_LIVES, ITEM_FEATURES, activity
from melon.recommenders.catalogue import NO_PAIRS, Best, Catalogue, Within, not_finite
from melon.recommenders.evidence import Values
from melon.recommenders.factorisation import FactorCatalogue
from melon.recommenders.plain import TAUGHT
from melon.recommenders.rough import RoughRows
from melon.recommenders.streaming.neighbours import scratch
from melon.stream.history import History
from melon.tables import Moment, Table
from melon.types import Floats, Ints, Singles

#: Catalogues with fewer items are scored as a whole: that costs less than two stages do.
FROM = 5_000
#: How many candidates of a two-stage list come from each source: the best products beyond the list's length, what is
#: popular or new, and what the user's last items met.
NEAR, OFFERED, MET = 60, 60, 150
#: Which decayed counts make an item popular there.
POPULAR: Ints = np.array([HALF_LIVES.index(half_life) for half_life in (100.0, 1_000.0, 20_000.0)])
_NO_ABOUT: Floats = np.empty(0)


class BlendParts(NamedTuple):
    """The parts of a blend beside its rows, at a moment: streaming state, the past, the time, and the head's values."""

    stream: StreamFeatures
    past: History
    time: int
    head: BlendHead
    values: Values


class BlendCatalogue(Catalogue):
    """Products of rows, then the head over features of items, and of pairs where there are any."""

    def __init__(
        self,
        loops: policy.Loops,
        tables: Mapping[str, Table],
        n_items: int,
        at: Moment | None,
        now: int,
        parts: BlendParts,
    ) -> None:
        self._loops, self._tables, self._n_items, self._at, self._now = loops, tables, n_items, at, now
        self._stream, self._past, self._time, head, values = parts
        linear, hidden, shift, output = (part.contiguous() for part in head.folded(values))
        weights = (part.numpy() for part in (linear, hidden, shift, output))
        self._head = HeadWeights(np.float32(head.trust), np.float32(float(linear @ head.centre)), *weights)
        self._profiles = policy.load("profiles")

    @cached_property
    def _rows(self) -> FactorCatalogue:
        return FactorCatalogue(self._loops, self._tables, self._n_items, self._at, self._now)

    @cached_property
    def _items(self) -> tuple[Singles, Singles]:
        """Biases and features of all items, and their counts, by which meetings with them are divided."""
        of_items = np.empty((1 + len(ITEM_FEATURES), self._n_items), dtype=np.float32)
        of_items[0] = self._rows.bias
        return of_items, self._stream.of_all(self._loops, self._n_items, of_items[1:])

    @cached_property
    def _factors(self) -> list[Singles]:
        """Factors of all items for each kind of rows in which the head sees how pairs go together."""
        if self._profiles is None:
            return []
        return self._stream.prepare(self._profiles, self._n_items, self._past)

    def scores(self, users: Tensor, *, unseen: bool = False) -> Tensor:
        rows = users.numpy()
        out = self._rows.products(rows, np.zeros_like(self._rows.bias))
        lasts, weights = self._stream.last_items(rows, self._past)
        active = activity(rows, self._past).astype(np.float32)
        slots, met = scratch(self._n_items)[: self._n_items], self._stream.remembered()
        if not self._stream.more:
            self._loops.head(self._head, *self._items, active, lasts, weights, *met, slots, out)
            return torch.from_numpy(out)
        besides = np.zeros((self._n_items, len(self._stream.of_pairs_besides)), dtype=np.float32)
        # Where the oldest pairs are forgotten, an item that the user has had may be listed again.
        seen = not unseen or self._past.max_pairs is not None
        for line in range(len(rows)):
            user = rows[line : line + 1]
            if self._profiles is not None:
                self._stream.compare_all(self._profiles, user, self._factors, self._past, besides, seen=seen)
            leaning = self._leaning(user)
            own = lasts[line], weights[line], *met, slots
            self._loops.head_beside(self._head, active[line], *leaning, *self._items, *own, besides, out[line])
        return torch.from_numpy(out)

    def _leaning(self, user: Ints) -> tuple[Floats, Floats, Ints]:
        """A user's leanings, what is usual, and which inputs they belong to."""
        about, tastes = self._stream.leanings(user, self._time), self._stream.tastes
        if about is None or tastes is None:
            return _NO_ABOUT, _NO_ABOUT, LOOKED_AT
        return about[0], tastes.usual, LOOKED_AT


class TwoStageCatalogue(BlendCatalogue):
    """Candidates from several sources, which the head then scores exactly; all users share the pass over items."""

    def __init__(
        self,
        rough: RoughRows,
        loops: policy.Loops,
        tables: Mapping[str, Table],
        n_items: int,
        at: Moment | None,
        now: int,
        parts: BlendParts,
    ) -> None:
        super().__init__(loops, tables, n_items, at, now, parts)
        self._near = rough.follow(loops, tables, n_items, at, now)
        taught = (tables[name] for name in TAUGHT)
        self._stored = [FadedRows(*table.arrays(at), table.rows, now) for table in taught]
        self._counted = Counted(*self._stream.counts.storage)

    @cached_property
    def _at_large(self) -> Ints:
        """What is popular or new for everybody. Rows are in the order of arrival, so the last ones are the newest."""
        popular = self._stream.counts.most_counted(self._loops, POPULAR, OFFERED)
        return np.concatenate([popular, np.arange(max(self._n_items - OFFERED, 0), self._n_items)])

    def best(self, users: Ints, k: int, within: Within) -> list[Best]:
        if len(within.boost):
            return super().best(users, k, within)
        near = self._near(users, k + NEAR, within)
        return [self._best_of(user, k, within, some) for user, some in zip(users.tolist(), near, strict=True)]

    def _best_of(self, user: int, k: int, within: Within, near: Ints) -> Best:
        """The list of one user."""
        stream, past = self._stream, self._past
        neighbours, followers = stream.remembered()
        room = len(near) + len(self._at_large) + 3 * MET
        rows, columns = np.empty(room, dtype=np.int64), np.empty((stream.width, room), dtype=np.float32)
        known, times = past.of_users.rows, past.of_users.storage[1]
        pairs = NO_PAIRS if within.seen is None else within.seen.storage
        state = *past.of_users.storage, known, self._counted, neighbours, followers, *self._stored
        sources = near, self._at_large, MET, within.allowed, *pairs
        slots = scratch(self._n_items)[: self._n_items]
        count = self._loops.shortlist(user, *state, *sources, slots, rows, columns)
        rows, one = rows[:count], np.array([user])
        besides = np.empty((1, count, len(stream.of_pairs_besides)), dtype=np.float32)
        stream.compare(one, rows[None, :], past, 0, besides, seen=within.seen is None or past.max_pairs is not None)
        active = np.float32(math.log1p(int(times[user]) if user < known else 0) / 4 - 1)
        listed, values = np.empty(min(k, count), dtype=np.int64), np.empty(min(k, count), dtype=np.float32)
        if self._loops.weigh(self._head, active, *self._leaning(one), columns, besides[0], rows, listed, values) < 0:
            raise not_finite()
        return listed, values
