"""Lists of the blend: the head over all items, or over the candidates of a shortlist."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from melon.kernels import policy
from melon.models.base import Context
from melon.models.blend.features import HALF_LIVES, ITEM_FEATURES
from melon.models.catalogue import CANDIDATES, NO_PAIRS, Best, Catalogue, Within, best
from melon.models.factorisation import FactorCatalogue
from melon.models.streaming.neighbours import scratch
from melon.types import Ints, Singles

if TYPE_CHECKING:
    from melon.models.blend.recommender import Blend

#: Catalogues with fewer items are scored as a whole: that costs less than two stages do.
FROM = 5_000
#: How many candidates of a two-stage list come from two of its sources, beside the best products: what is popular
#: or new, and what the user's last items met.
OFFERED, MET = 60, 150
#: Which decayed counts make an item popular there.
POPULAR: Ints = np.array([HALF_LIVES.index(half_life) for half_life in (100.0, 1_000.0, 20_000.0)])


class BlendCatalogue(Catalogue):
    """Products of rows, then the head over features of items and pairs; with a pre-filter, over a shortlist."""

    def __init__(self, blend: Blend, rows: FactorCatalogue, n_items: int, context: Context) -> None:
        self._blend, self._rows, self._n_items, self._context, self.near = blend, rows, n_items, context, rows.near
        self._stream, self._past = blend.stream, context.history
        self._constant, self._head = blend.head.folded(blend.head_values(context.moment))

    @cached_property
    def _items(self) -> tuple[Singles, Singles]:
        """Biases and features of all items, and their counts, by which co-occurrence is divided."""
        of_items = np.empty((1 + len(ITEM_FEATURES), self._n_items), dtype=np.float32)
        of_items[0] = self._rows.bias
        return of_items, self._stream.of_items(self._n_items, of_items[1:])

    @cached_property
    def _factors(self) -> Singles:
        """Factors of all items; none where the head does not compare pairs in rows of implicit ALS."""
        profiles = self._stream.profiles
        return np.empty((0, 0), np.float32) if profiles is None else profiles.prepare(self._n_items, self._past)

    def scores(self, users: Ints, *, unseen: bool = False) -> Singles:
        users, out = np.ascontiguousarray(users), self._rows.products(users, np.zeros_like(self._rows.bias))
        # Where the oldest pairs are forgotten, an item that the user has had may be listed again.
        seen = not unseen or self._past.max_pairs is not None
        with scratch(self._n_items) as slots:
            items = self._factors, *self._items, slots[: self._n_items]
            state = self._stream.for_lists(self._past)
            policy.load("lists").all_items(users, self._head, self._constant, *state, *items, seen, out)
        return out

    @cached_property
    def _at_large(self) -> Ints:
        """What is popular or new for everybody. Rows are in the order of arrival, so the last ones are the newest."""
        popular = self._stream.counts.most_counted(POPULAR, OFFERED)
        return np.concatenate([popular, np.arange(max(self._n_items - OFFERED, 0), self._n_items)])

    def best(self, users: Ints, k: int, within: Within) -> list[Best]:
        if self.near is None or len(within.boost):
            return super().best(users, k, within)
        near = self.near(users, k + CANDIDATES, within)
        return [self._best_of(user, k, within, some) for user, some in zip(users.tolist(), near, strict=True)]

    def _best_of(self, user: int, k: int, within: Within, near: Ints) -> Best:
        """The best of a shortlist of one user."""
        if within.seen is None:
            near = np.concatenate([near, self._stream.own_items(user, self._past, self._n_items)])
        rows = np.empty(len(near) + len(self._at_large) + 3 * MET, dtype=np.int64)
        state = self._past.of_users.rings, self._stream.counts.storage, self._stream.neighbours.storage
        pairs = NO_PAIRS if within.seen is None else within.seen.storage
        with scratch(self._n_items) as slots:
            count = policy.load("lists").shortlist(
                user, *state, near, self._at_large, MET, within.allowed, pairs, slots[: self._n_items], rows
            )
        rows = np.sort(rows[:count])
        inputs, scores = (
            self._blend.inputs_of(np.array([user]), rows[None, :], self._context),
            np.empty((1, count), np.float32),
        )
        policy.load("blend").head_scores(inputs, self._constant, self._head, scores)
        places, values = best(scores, k)[0]
        return rows[places], values
