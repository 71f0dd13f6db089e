"""Profiles in a space of rows, such as those of implicit ALS: who takes an item, and what a user took last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from melon.kernels import policy
from melon.kernels import profiles as python_loops
from melon.kernels.profiles import TINY, Pairs
from melon.recommenders.streaming.ials import ImplicitALS, RowArray
from melon.stream.history import RING, History
from melon.stream.pairs import distinct
from melon.stream.saved import SavedArrays, part_of, require, saved_array
from melon.types import Arrays, Floats, Ints, SmallInts

#: Interactions after which a taker counts half, and what is left of an item in a user's profile when the next is taken.
_HALF_LIFE, _FADE = 20_000.0, 0.9
#: What `match` gives for each pair.
MATCHES = ("takers", "profile", "profile_takers")
#: The rows of users and of items.
ProfileSides = tuple[RowArray, RowArray]


class Takers:
    """The sum of the directions of each item's takers, a taker's weight halving with time, by rows that others keep.

    `Sides` are the rows of users and of items. A user's profile is read from the history: the directions of the last
    items, each weighing .9 of the next one's.
    """

    def __init__(self, dim: int, dtype: npt.DTypeLike = np.float32) -> None:
        self.dim, self._count = dim, 0
        self._sums: RowArray = np.zeros((0, dim), dtype=dtype)
        self._weight: Floats = np.zeros(0)
        self._last: Ints = np.zeros(0, dtype=np.int64)
        self._start_factors()

    def _start_factors(self) -> None:
        """Have `prepare` compute all factors: of each item, and the event that it was last taken at then."""
        self._factors: RowArray = np.empty((0, len(MATCHES)), dtype=self._sums.dtype)
        self._factored_at: Ints = np.empty(0, dtype=np.int64)

    def observe(self, users: Ints, items: Ints, past: History, user_rows: RowArray) -> None:
        """Add a batch to the profiles of its items, by users' rows as they are."""
        if not len(users):
            return
        self._grow(int(items.max()) + 1)
        loops = policy.load("profiles", like=torch.from_numpy(self._sums)) or python_loops
        events = np.array(users), np.array(items), past.events  # copies, because those of a log may be read-only
        loops.take(*events, 1 / _HALF_LIFE, user_rows, *self._held(self._count))

    def match(
        self,
        sides: ProfileSides,
        users: Ints,
        items: Ints,
        past: History,
        out: RowArray,
        first: int = 0,
        *,
        seen: bool = True,
    ) -> None:
        """How candidates n × c go with their users, three ways (`MATCHES`): into `out`, from input `first` on.

        The user's own part in what is said of an item is left out. Without `seen` no user has had a candidate, so there
        is no such part to look for.
        """
        lasts, dtype = np.empty((len(users), RING), dtype=np.int32), self._sums.dtype
        directions, profiles = np.zeros((2, len(users), self.dim), dtype=dtype)
        (rings, taken), known = past.of_items.storage, past.of_items.rows if seen else 0
        loops = policy.load("profiles", like=torch.from_numpy(profiles)) or _numpy_loops
        users = np.ascontiguousarray(users)
        loops.recent(*past.of_users.storage, past.of_users.rows, users, _FADE, *sides, lasts, directions, profiles)
        of_users = users, np.ascontiguousarray(items), directions, profiles, lasts if seen else lasts[:, :0]
        pairs = Pairs(*of_users, sides[1], *self._held(self._count), rings[:known], taken[:known])
        loops.match(pairs, past.events, 1 / _HALF_LIFE, _FADE, first, out)

    def prepare(
        self, loops: policy.Loops, sides: ProfileSides, n_items: int, past: History, *, only_taken: bool
    ) -> RowArray:
        """Factors of the first items for `match_all`, as of now; they are right until this is asked again.

        With `only_taken`, the rows of items change only where items are taken, so the others keep what they have.
        """
        known = min(n_items, len(sides[1]), self._count)
        if not only_taken or known > len(self._factored_at):
            self._factors = np.empty((len(self._last), len(MATCHES)), dtype=self._sums.dtype)
            self._factored_at = np.full(len(self._last), -1)
        idle = torch.from_numpy((past.events - self._last[:known]).astype(np.float32))
        left = idle.mul_(-1 / _HALF_LIFE).exp2_().numpy()  # PyTorch's exponential is vectorised
        changed = np.flatnonzero(self._last[:known] != self._factored_at[:known])
        loops.prepare(sides[1], self._sums[:known], self._weight[:known], left, changed, self._factors)
        self._factored_at[changed] = self._last[changed]
        return self._factors[:known]

    def match_all(
        self,
        loops: policy.Loops,
        sides: ProfileSides,
        user: Ints,
        factors: RowArray,
        past: History,
        out: RowArray,
        *,
        seen: bool = True,
    ) -> None:
        """`match` for one user and all items in order, by what `prepare` gave: into `out`, n_items × 3.

        The user's own part in what is said of an item is left out, as in `match`; without `seen` it stays in, for lists
        that have no item that the user has had.
        """
        lasts = np.empty((1, RING), dtype=np.int32)
        direction, profile = np.zeros((2, 1, self.dim), dtype=out.dtype)
        user = np.ascontiguousarray(user)
        loops.recent(*past.of_users.storage, past.of_users.rows, user, _FADE, *sides, lasts, direction, profile)
        loops.match_all(direction[0], profile[0], sides[1], self._sums[: self._count], factors, out)
        out[len(factors) :] = 0
        if not seen:
            return
        rings, taken = (part[: past.of_items.rows] for part in past.of_items.storage)
        taken_items = np.empty(len(rings), dtype=np.int64)
        count = loops.taken_by(int(user[0]), rings, taken, taken_items)
        own = distinct(np.concatenate([lasts[0][lasts[0] >= 0].astype(np.int64), taken_items[:count]]))
        own = own[own < len(out)]
        if len(own):
            again = np.empty((1, len(own), len(MATCHES)), dtype=out.dtype)
            self.match(sides, user, own[None, :], past, again)
            out[own] = again[0]

    def undo_point(self, items: Ints) -> Callable[[], None]:
        """A function that takes back the next `observe` of these items."""
        count, held = self._count, distinct(items[items < self._count])
        before = self._sums[held], self._weight[held], self._last[held]

        def undo() -> None:
            for array, rows in zip(self._parts(), before, strict=True):
                array[held], array[count : self._count] = rows, 0
            self._count = count
            self._start_factors()

        return undo

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same sums."""
        names = "takers", "weight", "last"
        return {name: array.copy() for name, array in zip(names, self._held(self._count), strict=True)}

    def restore(self, state: SavedArrays, events: int) -> None:
        """Become what `state` described, after `events` events; else a `CheckpointError`."""
        weight = saved_array(state, "weight", np.float64, (None,), least=0, most=events)
        shape = (len(weight), self.dim)
        sums = saved_array(state, "takers", self._sums.dtype, shape, least=-2.0 * events, most=2.0 * events)
        last = saved_array(state, "last", np.int64, (len(weight),), least=0, most=max(events - 1, 0))
        self._sums, self._weight, self._last, self._count = sums, weight, last, len(weight)
        self._start_factors()

    def __len__(self) -> int:
        return self._count

    def _grow(self, count: int) -> None:
        if count > len(self._weight):
            room = max(count, 2 * len(self._weight), 1024) - len(self._weight)
            more: list[npt.NDArray[Any]] = [np.zeros((room, *part.shape[1:]), part.dtype) for part in self._parts()]
            self._sums, self._weight, self._last = map(np.concatenate, zip(self._parts(), more, strict=True))
        self._count = max(self._count, count)

    def _parts(self) -> tuple[RowArray, Floats, Ints]:
        return self._sums, self._weight, self._last

    def _held(self, count: int) -> tuple[RowArray, Floats, Ints]:
        return self._sums[:count], self._weight[:count], self._last[:count]


class Profiles:
    """RowArray of implicit ALS, and the takers of items in their space."""

    def __init__(self, *, seed: int = 0, dtype: npt.DTypeLike = np.float32) -> None:
        self.rows = ImplicitALS(seed=seed, dtype=dtype)
        self.takers = Takers(self.rows.dim, dtype)

    @property
    def sides(self) -> ProfileSides:
        """The rows of users and of items."""
        return self.rows.users.rows, self.rows.items.rows

    def fit(self, users: Ints, items: Ints) -> None:
        """Solve rows for a whole log, which is then observed."""
        self.rows.fit(users, items)
        self.takers._start_factors()

    def observe(self, users: Ints, items: Ints, past: History) -> None:
        """Add a batch to the profiles of its items, by users' rows as they were, and solve the rows that it touches."""
        self.takers.observe(users, items, past, self.rows.users.rows)
        self.rows.observe(users, items, past)

    def undo_point(self, users: Ints, items: Ints) -> Callable[[], None]:
        """A function that takes back the next `observe` of these interactions."""
        parts = self.takers.undo_point(items), self.rows.undo_point(users, items)

        def undo() -> None:
            for undo_part in parts:
                undo_part()

        return undo

    def forget_user(self, user: int) -> None:
        """Take a user's row out; what others' rows and profiles have from it stays."""
        self.rows.forget_user(user)

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same profiles."""
        return {**{f"rows.{name}": array for name, array in self.rows.state().items()}, **self.takers.state()}

    def restore(self, state: SavedArrays, events: int) -> None:
        """Become what `state` described, after `events` events; else a `CheckpointError`."""
        takers, rows = Takers(self.rows.dim, self.takers.state()["takers"].dtype), part_of(state, "rows")
        takers.restore(state, events)
        require(len(rows.get("items", ())) == len(takers), "takers and rows are of different items")
        self.rows.restore(rows)
        self.takers = takers


class _numpy_loops:
    """What `melon.kernels.profiles` computes, for other numbers than float32 and where nothing is compiled."""

    @staticmethod
    def recent(
        rings: SmallInts,
        met: Ints,
        known: int,
        users: Ints,
        fade: float,
        user_rows: RowArray,
        item_rows: RowArray,
        lasts: SmallInts,
        directions: RowArray,
        out: RowArray,
    ) -> None:
        known_users = users < len(user_rows)
        directions[known_users] = user_rows[users[known_users]]
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
    def match(pairs: Pairs, now: int, rate: float, fade: float, first: int, out: RowArray) -> None:
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
        inputs = (
            left * (direction * others).sum(-1) / (left * (weight - part) + 1),
            (last_items * row).sum(-1) / (long * np.sqrt(size + TINY)),
            (last_items * others).sum(-1) / (long * np.sqrt(np.square(others).sum(-1) + TINY)),
        )
        for number, each in enumerate(inputs, start=first):
            out[line, column, number] = each
