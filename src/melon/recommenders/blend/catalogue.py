"""The blend over all items by compiled loops: features of items are computed once for each version, where needed."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from melon.kernels import policy
from melon.kernels.lists import HeadWeights, Remembered
from melon.recommenders.base import Catalogue
from melon.recommenders.blend.features import StreamFeatures
from melon.recommenders.blend.head import BlendHead
from melon.recommenders.blend.inputs import HALF_LIVES, ITEM_FEATURES, activity
from melon.recommenders.evidence import Values
from melon.recommenders.factorisation import FactorCatalogue
from melon.recommenders.streaming.neighbours import scratch
from melon.recommenders.streaming.slots import EMPTY
from melon.stream.history import History
from melon.types import Floats, Ints, Singles

_NO_FOLLOWERS = Remembered(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32), np.empty((0, 0), np.float32), 0.0)


#: How many items each source of a two-stage list offers: what is popular or new, and what the user's last items met.
OFFERED, MET = 100, 150
#: Which decayed counts make an item popular there.
POPULAR: Ints = np.array([HALF_LIVES.index(half_life) for half_life in (100.0, 1_000.0, 20_000.0)])


class BlendCatalogue(Catalogue):
    """Products of rows, then the head over features of items, and of pairs where there are any."""

    def __init__(
        self,
        loops: policy.Loops,
        rows: FactorCatalogue,
        stream: StreamFeatures,
        past: History,
        time: int,
        head: BlendHead,
        values: Values,
    ) -> None:
        self._loops, self._rows, self._stream, self._past, self._time = loops, rows, stream, past, time
        self._n_items = len(rows.bias)
        linear, hidden, shift, output = (part.contiguous() for part in head.folded(values))
        parts = (part.numpy() for part in (linear, hidden, shift, output))
        self._head = HeadWeights(np.float32(head.trust), np.float32(float(linear @ head.centre)), *parts)
        self._profiles = policy.load("profiles")
        self._no_bias = np.zeros_like(rows.bias)

    @cached_property
    def _items(self) -> tuple[Singles, Singles]:
        """Biases and features of all items, and what meetings with them are divided by; two stages need neither."""
        of_items = np.empty((1 + len(ITEM_FEATURES), self._n_items), dtype=np.float32)
        of_items[0] = self._rows.bias
        return of_items, self._stream.of_all(self._loops, self._n_items, of_items[1:])

    @cached_property
    def _factors(self) -> list[Singles]:
        """Factors of all items for each kind of rows in which the head sees how pairs go together."""
        if self._profiles is None:
            return []
        spaces = self._stream.spaces()
        return [takers.prepare(self._profiles, sides, self._n_items, self._past) for takers, sides in spaces]

    def first_stage(self) -> Catalogue:
        """Products of rows."""
        return self._rows

    def worthwhile(self, user: Ints) -> Ints:
        """What is popular or new, and what the user's last items met most."""
        lasts, weights = self._stream.last_items(user, self._past)
        most = lasts.shape[1] * self._stream.neighbours.slots
        slots, rows, sums = scratch(self._n_items)[: self._n_items], np.empty(most, np.int64), np.empty((3, most))
        neighbours = self._stream.neighbours.remembered()
        met = self._loops.meet(neighbours, lasts[0], weights[0], slots, rows, sums, 0, 0)
        rows = rows[:met]
        slots[rows] = EMPTY
        divided = sums[:, :met] / self._stream.of_items(rows)[1].T[[0, 0, 1]]
        nearest = [rows[highest(line, MET)] for line in divided]
        return np.concatenate([*nearest, self._at_large])

    @cached_property
    def _at_large(self) -> Ints:
        """What is popular or new for everybody. Rows are in the order of arrival, so the last ones are the newest."""
        popular = self._stream.counts.most_counted(self._loops, POPULAR, OFFERED)
        return np.concatenate([popular, np.arange(max(self._n_items - OFFERED, 0), self._n_items)])

    def scores(self, users: Tensor) -> Tensor:
        return self._scores(users, seen=True)

    def unseen_scores(self, users: Tensor) -> Tensor:
        # Where the oldest pairs are forgotten, an item that the user has had may be listed again.
        return self._scores(users, seen=self._past.max_pairs is not None)

    def _scores(self, users: Tensor, *, seen: bool) -> Tensor:
        rows = users.numpy()
        out = self._rows.products(rows, self._no_bias)
        lasts, weights = self._stream.last_items(rows, self._past)
        self._score(rows, activity(rows, self._past).astype(np.float32), lasts, weights, out, seen=seen)
        return torch.from_numpy(out)

    def _score(
        self, users: Ints, active: Singles, lasts: Ints, weights: Floats, scores: Singles, *, seen: bool
    ) -> None:
        """Turn dot products into scores, in place."""
        followers = self._stream.followers
        slots, met = scratch(self._n_items)[: self._n_items], self._stream.neighbours.remembered()
        followed = _NO_FOLLOWERS if followers is None else followers.remembered()
        if not self._stream.more:
            self._loops.head(self._head, *self._items, active, lasts, weights, met, followed, slots, scores)
            return
        besides = np.zeros((self._n_items, len(self._stream.of_pairs_besides)), dtype=np.float32)
        for line in range(len(users)):
            user, own = users[line : line + 1], (active[line], lasts[line], weights[line], met, followed)
            if self._profiles is not None:
                self._stream.compare_all(self._profiles, user, self._factors, self._past, besides, seen=seen)
            head = self._stream.folded(self._head, user, self._time)
            self._loops.head_beside(head, *self._items, *own, slots, besides, scores[line])


def highest(values: npt.NDArray[np.floating], many: int) -> Ints:
    """Where the highest values are, in no order."""
    if len(values) <= many:
        return np.arange(len(values))
    places: Ints = np.argpartition(values, -many)[-many:]
    return places
