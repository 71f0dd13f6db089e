"""The blend over all items by compiled loops: features of items are computed once for each version of the model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from melon.kernels import policy
from melon.kernels.lists import Remembered, Weights
from melon.recommenders.base import Catalogue
from melon.recommenders.blend.features import ITEM_FEATURES, StreamFeatures, activity
from melon.recommenders.blend.head import BlendHead
from melon.recommenders.evidence import Values
from melon.recommenders.factorisation import FactorCatalogue
from melon.recommenders.streaming.neighbours import scratch
from melon.recommenders.streaming.slots import EMPTY
from melon.stream.history import History
from melon.types import Floats, Ints, Singles

_NO_FOLLOWERS = Remembered(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32), np.empty((0, 0), np.float32), 0.0)


#: How many items each source of a two-stage list offers.
OFFERED = 100
#: Two stages take half a millisecond and a scan; the head over all items takes longer from so many on, and with further
#: inputs from so many.
_LONG, _LONG_WITH_MORE = 60_000, 15_000


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
        of_items = np.empty((1 + len(ITEM_FEATURES), self._n_items), dtype=np.float32)
        of_items[0] = rows.bias
        self._items = of_items, stream.of_all(loops, self._n_items, of_items[1:])
        linear, hidden, shift, output = (part.contiguous() for part in head.folded(values))
        parts = (part.numpy() for part in (linear, hidden, shift, output))
        self._head = Weights(np.float32(head.trust), np.float32(float(linear @ head.centre)), *parts)
        self._profiles = policy.load("profiles")
        self._factors: Singles | None = None
        if stream.profiles is not None and self._profiles is not None:
            self._factors = stream.profiles.prepare(self._profiles, self._n_items, past)
        self.two_stage_from = _LONG_WITH_MORE if stream.more else _LONG
        self._liked: Ints | None = None
        self._no_bias = np.zeros_like(rows.bias)

    def first_stage(self) -> Catalogue:
        """Products of rows."""
        return self._rows

    def worthwhile(self, user: Ints) -> Ints:
        """What is popular or new, and what the user's last items met most."""
        if self._liked is None:
            self._liked = self._without_users()
        lasts, weights = self._stream.last_items(user, self._past)
        most = lasts.shape[1] * self._stream.neighbours.slots
        slots, rows, sums = scratch(self._n_items)[: self._n_items], np.empty(most, np.int64), np.empty((3, most))
        kept = self._stream.neighbours.remembered()
        met = self._loops.meet(kept, lasts[0], weights[0], slots, rows, sums, 0, 0)
        rows = rows[:met]
        sums = sums[:, :met] / self._items[1][:, rows][[0, 0, 1]]
        slots[rows] = EMPTY
        nearest = [rows[highest(line)] for line in sums]
        return np.concatenate([*nearest, self._liked])

    def _without_users(self) -> Ints:
        """The items with the highest scores for somebody of whom rows and neighbours say nothing, new or active."""
        active = np.array([-1.0, 0.0], dtype=np.float32)
        scores, nobody = np.zeros((2, self._n_items), dtype=np.float32), np.full((2, 1), EMPTY, dtype=np.int64)
        self._score(np.full(2, self._past.of_users.rows), active, nobody, np.zeros((2, 1)), scores, seen=False)
        return np.concatenate([highest(line) for line in scores])

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
        profiles, besides = self._stream.profiles, np.zeros((0, self._n_items), dtype=np.float32)
        for line in range(len(users)):
            user, own = users[line : line + 1], (active[line], lasts[line], weights[line], met, followed)
            if profiles is not None and self._profiles is not None and self._factors is not None:
                besides = np.empty((len(self._factors), self._n_items), dtype=np.float32)
                profiles.match_all(self._profiles, user, self._factors, self._past, besides, seen=seen)
            head = self._stream.folded(self._head, user, self._time)
            self._loops.head_beside(head, *self._items, *own, slots, besides, scores[line])


def highest(values: npt.NDArray[np.floating]) -> Ints:
    """Where the OFFERED highest values are, in no order."""
    if len(values) <= OFFERED:
        return np.arange(len(values))
    places: Ints = np.argpartition(values, -OFFERED)[-OFFERED:]
    return places
