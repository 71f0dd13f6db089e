"""Profiles of items and users in the space of streaming implicit ALS: who takes an item, and what a user took last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from melon.kernels import policy
from melon.kernels import profiles as python_loops
from melon.kernels.profiles import TINY, Pairs
from melon.recommenders.streaming.ials import ImplicitALS, Rows
from melon.stream.history import RING, History
from melon.stream.pairs import distinct
from melon.stream.saved import Saved, part_of, require, saved_array
from melon.types import Arrays, Floats, Ints, SmallInts

#: Interactions after which a taker counts half, and what is left of an item in a user's profile when the next is taken.
_HALF_LIFE, _FADE = 20_000.0, 0.9
#: What `match` gives for each pair.
MATCHES = ("takers", "profile", "profile_takers")


class Profiles:
    """Rows of implicit ALS, and the sum of the directions of each item's takers, a taker's weight halving with time.

    A user's profile is read from the history: the directions of the last items, each weighing .9 of the next one's.
    """

    def __init__(self, *, seed: int = 0, dtype: npt.DTypeLike = np.float32) -> None:
        self.rows = ImplicitALS(seed=seed, dtype=dtype)
        self._count = 0
        self._takers: Rows = np.zeros((0, self.rows.dim), dtype=dtype)
        self._weight: Floats = np.zeros(0)
        self._last: Ints = np.zeros(0, dtype=np.int64)

    def fit(self, users: Ints, items: Ints) -> None:
        """Solve rows for a whole log, which is then observed."""
        self.rows.fit(users, items)

    def observe(self, users: Ints, items: Ints, past: History) -> None:
        """Add a batch to the profiles of its items, by users' rows as they were, and solve the rows that it touches."""
        if not len(users):
            return
        self._grow(int(items.max()) + 1)
        loops = policy.load("profiles", like=torch.from_numpy(self._takers)) or python_loops
        own = self._takers[: self._count], self._weight[: self._count], self._last[: self._count]
        events = np.array(users), np.array(items), past.events  # copies, because those of a log may be read-only
        loops.take(*events, 1 / _HALF_LIFE, self.rows.users.rows, *own)
        self.rows.observe(users, items, past)

    def match(self, users: Ints, items: Ints, past: History, out: Rows | None = None, first: int = 0) -> Rows:
        """How candidates n × c go with their users, three ways (`MATCHES`): into `out`, from input `first` on."""
        lasts, dtype = np.empty((len(users), RING), dtype=np.int32), self._takers.dtype
        directions, profiles = np.zeros((2, len(users), self.rows.dim), dtype=dtype)
        out = np.empty((*items.shape, len(MATCHES)), dtype=dtype) if out is None else out
        sides, (rings, taken) = (self.rows.users.rows, self.rows.items.rows), past.of_items.storage
        loops = policy.load("profiles", like=torch.from_numpy(profiles)) or _numpy_loops
        users = np.ascontiguousarray(users)
        loops.recent(*past.of_users.storage, past.of_users.rows, users, _FADE, *sides, lasts, directions, profiles)
        own = self._takers[: self._count], self._weight[: self._count], self._last[: self._count]
        of_users = users, np.ascontiguousarray(items), directions, profiles, lasts
        pairs = Pairs(*of_users, sides[1], *own, rings[: past.of_items.rows], taken[: past.of_items.rows])
        loops.match(pairs, past.events, 1 / _HALF_LIFE, _FADE, first, out)
        return out

    def prepare(self, loops: policy.Loops, n_items: int, past: History) -> Rows:
        """Factors of the first items for `match_all`, as of now: 3 × items."""
        known = min(n_items, len(self.rows.items.rows), self._count)
        factors = np.empty((len(MATCHES), known), dtype=self._takers.dtype)
        idle = torch.from_numpy((past.events - self._last[:known]).astype(np.float32))
        left = idle.mul_(-1 / _HALF_LIFE).exp2_().numpy()
        loops.prepare(self.rows.items.rows, self._takers[:known], self._weight[:known], left, factors)
        return factors

    def match_all(
        self, loops: policy.Loops, user: Ints, factors: Rows, past: History, out: Rows, *, seen: bool = True
    ) -> None:
        """`match` for one user and all items in order, by what `prepare` gave: 3 × n_items.

        Without `seen`, what is said of items that the user has had is of no use: those who ask leave them out.
        """
        lasts, sides = np.empty((1, RING), dtype=np.int32), (self.rows.users.rows, self.rows.items.rows)
        direction, profile = np.zeros((2, 1, self.rows.dim), dtype=out.dtype)
        user = np.ascontiguousarray(user)
        loops.recent(*past.of_users.storage, past.of_users.rows, user, _FADE, *sides, lasts, direction, profile)
        loops.match_all(direction[0], profile[0], sides[1], self._takers[: self._count], factors, out)
        out[:, factors.shape[1] :] = 0
        if not seen:
            return
        rings, taken = (part[: past.of_items.rows] for part in past.of_items.storage)
        taken_items = np.empty(len(rings), dtype=np.int64)
        count = loops.taken_by(int(user[0]), rings, taken, taken_items)
        own = distinct(np.concatenate([lasts[0][lasts[0] >= 0].astype(np.int64), taken_items[:count]]))
        own = own[own < out.shape[1]]
        if len(own):
            out[:, own] = self.match(user, own[None, :], past)[0].T

    def undo_point(self, users: Ints, items: Ints) -> Callable[[], None]:
        """A function that takes back the next `observe` of these interactions."""
        count, held, undo_rows = self._count, distinct(items[items < self._count]), self.rows.undo_point(users, items)
        before = self._takers[held], self._weight[held], self._last[held]

        def undo() -> None:
            for array, rows in zip((self._takers, self._weight, self._last), before, strict=True):
                array[held], array[count : self._count] = rows, 0
            self._count = count
            undo_rows()

        return undo

    def forget_user(self, user: int) -> None:
        """Take a user's row out; what others' rows and profiles have from it stays."""
        self.rows.forget_user(user)

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same profiles."""
        rows = {f"rows.{name}": array for name, array in self.rows.state().items()}
        own = {"takers": self._takers, "weight": self._weight, "last": self._last}
        return {**rows, **{name: array[: self._count].copy() for name, array in own.items()}}

    def restore(self, state: Saved, events: int) -> None:
        """Become what `state` described, after so many events; else a `CheckpointError`."""
        weight = saved_array(state, "weight", np.float64, (None,), least=0, most=events)
        shape = (len(weight), self.rows.dim)
        takers = saved_array(state, "takers", self._takers.dtype, shape, least=-2.0 * events, most=2.0 * events)
        last = saved_array(state, "last", np.int64, (len(weight),), least=0, most=max(events - 1, 0))
        rows = part_of(state, "rows")
        require(len(rows.get("items", ())) == len(weight), "takers and rows are of different items")
        self.rows.restore(rows)
        self._takers, self._weight, self._last, self._count = takers, weight, last, len(weight)

    def _grow(self, count: int) -> None:
        if count > len(self._weight):
            room = max(count, 2 * len(self._weight), 1024) - len(self._weight)
            more: list[npt.NDArray[Any]] = [np.zeros((room, *part.shape[1:]), part.dtype) for part in self._parts()]
            self._takers, self._weight, self._last = map(np.concatenate, zip(self._parts(), more, strict=True))
        self._count = max(self._count, count)

    def _parts(self) -> tuple[Rows, Floats, Ints]:
        return self._takers, self._weight, self._last


class _numpy_loops:
    """What `melon.kernels.profiles` computes, for other numbers than float32 and where nothing is compiled."""

    @staticmethod
    def recent(
        rings: SmallInts,
        met: Ints,
        known: int,
        users: Ints,
        fade: float,
        user_rows: Rows,
        item_rows: Rows,
        lasts: SmallInts,
        directions: Rows,
        out: Rows,
    ) -> None:
        there = users < len(user_rows)
        directions[there] = user_rows[users[there]]
        directions /= np.sqrt(np.square(directions).sum(-1, keepdims=True) + TINY)
        counts = np.array([min(met[user], RING) if user < known else 0 for user in users.tolist()], dtype=np.int64)
        back = np.arange(RING)
        lasts[:] = -1
        for line, (user, count) in enumerate(zip(users.tolist(), counts.tolist(), strict=True)):
            lasts[line, :count] = rings[user, (met[user] - 1 - back[:count]) % RING] if count else 0
        held = (lasts >= 0) & (lasts < len(item_rows))
        rows = item_rows[np.where(held, lasts, 0)] if len(item_rows) else np.zeros((*lasts.shape, out.shape[1]))
        shares = held * fade ** np.arange(lasts.shape[1]) / np.sqrt(np.square(rows).sum(-1) + TINY)
        out[:] = (shares[..., None] * rows).sum(1)

    @staticmethod
    def match(pairs: Pairs, now: int, rate: float, fade: float, first: int, out: Rows) -> None:
        out[..., first : first + len(MATCHES)] = 0
        known = pairs.items < min(len(pairs.item_rows), len(pairs.takers))
        line, column = np.nonzero(known)
        items, users = pairs.items[known], pairs.users[line]
        row, takers = pairs.item_rows[items], pairs.takers[items]
        direction, profile, lasts = pairs.directions[line], pairs.profiles[line], pairs.lasts[line]
        weight, size = pairs.weight[items], (row * row).sum(-1)
        own, taken = np.zeros(len(items)), np.ones(len(items))
        rung = items < len(pairs.taken)
        taken[rung] = np.maximum(pairs.taken[items[rung]], 1)
        among = pairs.rings[items[rung]] == users[rung, None]
        own[rung] = (among & (np.arange(RING) < taken[rung, None])).sum(1)
        again = ((lasts == items[:, None]) * fade ** np.arange(lasts.shape[1])).sum(1) / np.sqrt(size + TINY)
        part = weight * own / taken
        others, last_items = takers - part[:, None] * direction, profile - again[:, None] * row
        others[own == taken] = 0
        left = 2.0 ** (-rate * (now - pairs.last[items]))
        long = np.sqrt(np.square(last_items).sum(-1) + TINY)
        found = (
            left * (direction * others).sum(-1) / (left * (weight - part) + 1),
            (last_items * row).sum(-1) / (long * np.sqrt(size + TINY)),
            (last_items * others).sum(-1) / (long * np.sqrt(np.square(others).sum(-1) + TINY)),
        )
        for number, each in enumerate(found, start=first):
            out[line, column, number] = each
