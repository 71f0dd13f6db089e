"""Streaming implicit ALS: short rows of users and items that follow the stream by being solved for, in O(batch).

Every pair that was taken should score 1, and every other one 0 at a small weight (Hu, Koren and Volinsky, 2008). With
the rows of one side held, a row of the other is a small linear system: its partners' rows, and one matrix for all pairs
that were not taken, the Gram matrix of all rows. Fitted by whole sweeps over a log; then each batch has the rows that
it touches solved anew from their last partners, and the Gram matrices follow by rank-one corrections.
"""

from __future__ import annotations

import numpy as np

from melon.journal import GrowingRows, RowPart, keep
from melon.kernels import policy
from melon.models.streaming.neighbours import scratch
from melon.stream.draws import Draws
from melon.stream.history import RING, History, PartnerRings
from melon.stream.pairs import distinct, pair_keys
from melon.stream.saved import SavedArrays, require, saved_array, saved_number
from melon.types import Arrays, Floats, Ints, Singles

#: Deviation of an item's first row. It only matters while none of its takers has a row, as in a cold start.
_FIRST = 0.0125
#: No entry of a row is larger: a score of 1 is the aim.
_LARGEST = 1e6
#: So many pairs are counted at a time.
_AT_ONCE = 1 << 22

#: Rows, where the partners of each start, and the partners, one row behind the other.
Grouped = tuple[Ints, Ints, Ints]


class _FactorSide:
    """The rows of users or of items, with room to grow, and the sum over all of them of x xᵀ."""

    def __init__(self, dim: int, draws: Draws | None = None) -> None:
        self._dim, self._draws = dim, draws
        self._columns = GrowingRows(rows=RowPart(np.float32, (dim,)))
        self.gram: Floats = np.zeros((dim, dim))

    @property
    def rows(self) -> Singles:
        """All rows so far; a view."""
        rows: Singles = self._columns.held[0]
        return rows

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._columns.rows

    def read(self, numbers: Ints) -> Singles:
        """Copies of rows by number; zeros for those that do not exist."""
        known = numbers < self.count
        if known.all():
            return np.take(self.rows, numbers, axis=0)
        rows = np.zeros((*numbers.shape, self._dim), dtype=np.float32)
        rows[known] = self.rows[numbers[known]]
        return rows

    def grow(self, count: int) -> None:
        """Make rows up to a count: zeros, or what is drawn for each."""
        first = self.count
        if count <= first:
            return
        self._columns.grow(count)
        if self._draws is not None:
            self.rows[first:] = _FIRST * self._draws.normals(np.arange(first, count), self._dim)
            new = self.rows[first:].astype(np.float64)
            self.gram += new.T @ new

    def touch(self, numbers: Ints) -> None:
        """Make rows that are not there; all of them are about to be solved."""
        keep(self, "gram")
        self._columns.before(numbers)
        self.grow(int(numbers.max()) + 1)

    def solve(self, grouped: Grouped, other: _FactorSide, missing: float, reg: float, *, exactly: bool) -> None:
        """Solve rows from their partners, partners[starts[n]] … partners[starts[n + 1] - 1] for row touched[n].

        Exactly, or by a few conjugate gradients from where they stand.
        """
        kernels = policy.load("ials")
        solve = kernels.solve if exactly else kernels.follow
        solve(*grouped, other.rows, other.gram, missing, reg, self.rows, self.gram)

    def clear(self, number: int) -> None:
        """Make a row one of zeros."""
        row = self.rows[number].astype(np.float64)
        self.gram -= np.outer(row, row)
        self.rows[number] = 0

    def saved(self, state: SavedArrays, name: str) -> tuple[Singles, Floats]:
        """Rows and Gram matrix of a saved state, checked."""
        rows = saved_array(state, name, np.float32, (None, self._dim), least=-_LARGEST, most=_LARGEST)
        gram = saved_array(state, f"{name}_gram", np.float64, (self._dim, self._dim))
        exact = rows.astype(np.float64).T @ rows.astype(np.float64)
        near = np.allclose(gram, exact, rtol=1e-3, atol=1e-3 * (1 + np.abs(exact).max(initial=0)))
        require(near, f"the Gram matrix of {name} is not that of their rows")
        return rows, gram

    def restore(self, rows: Singles, gram: Floats) -> None:
        """Become what `saved` gave."""
        self._columns.restore({"rows": rows})
        self.gram = gram


class ImplicitALS:
    """Rows of users and items whose product is near 1 for what a user takes and near 0 for the rest.

    `missing` is the weight of a pair that was not taken, beside 1 for one that was; λ = reg · (partners + missing ·
    rows of the other side). An item whose takers have no rows yet keeps the short random row that it was given.
    """

    def __init__(self, dim: int = 32, *, missing: float = 0.01, reg: float = 0.01, seed: int = 0) -> None:
        self.dim, self.missing, self.reg = dim, missing, reg
        self.users = _FactorSide(dim)
        self.items = _FactorSide(dim, Draws(seed, "first rows of implicit ALS"))
        #: Interactions that were fitted as a whole: observing them changes no row.
        self.fitted = 0

    def fit(self, users: Ints, items: Ints, sweeps: int = 10) -> None:
        """Rows for a whole log: each sweep solves all users, then all items, from all that they took, once each."""
        pairs = distinct(pair_keys(users, items))
        self.users.grow(int(users.max(initial=-1)) + 1)
        self.items.grow(int(items.max(initial=-1)) + 1)
        turned = (pairs << 32) | (pairs >> 32)
        turned.sort()
        of_users, of_items = _grouped(pairs), _grouped(turned)
        for number in range(sweeps + 1):
            self._solve(self.users, of_users, self.items, exactly=True)
            if number < sweeps:
                self._solve(self.items, of_items, self.users, exactly=True)
        for side in (self.users, self.items):  # without what rounding adds up to over many corrections
            exact = side.rows.astype(np.float64)
            side.gram = exact.T @ exact
        self.fitted = len(users)

    def observe(self, users: Ints, items: Ints, past: History) -> None:
        """Bring the items of a batch to their last takers, then its users; `past` is what came before it."""
        if not len(users) or past.events < self.fitted:
            return
        self.users.touch(users)
        self.items.touch(items)
        self._solve(self.items, partners_after(items, users, past.of_items), self.users, exactly=False)
        self._solve(self.users, partners_after(users, items, past.of_users), self.items, exactly=False)

    def forget_user(self, user: int) -> None:
        """Make a user's row one of zeros; what items have learned from it stays."""
        if user < self.users.count:
            self.users.clear(user)

    def scores(self, users: Ints, items: Ints) -> Singles:
        """x_u · y_i for candidates n × c; 0 where either has no row."""
        scores: Singles = (self.items.read(items) * self.users.read(users)[:, None]).sum(-1)
        return scores

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same rows."""
        return {
            "users": self.users.rows.copy(),
            "items": self.items.rows.copy(),
            "users_gram": self.users.gram.copy(),
            "items_gram": self.items.gram.copy(),
            "fitted": np.array([self.fitted]),
        }

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described; arrays that no such rows can have are a `CheckpointError`."""
        fitted, users, items = (
            saved_number(state, "fitted"),
            self.users.saved(state, "users"),
            self.items.saved(state, "items"),
        )
        self.users.restore(*users)
        self.items.restore(*items)
        self.fitted = fitted

    def _solve(self, side: _FactorSide, grouped: Grouped, other: _FactorSide, *, exactly: bool) -> None:
        side.solve(grouped, other, self.missing, self.reg, exactly=exactly)


def partners_after(rows: Ints, partners: Ints, rings: PartnerRings) -> Grouped:
    """The last partners of each distinct row after a batch that the rings do not know yet, newest first.

    Returns the rows, where each one's partners start, and the partners, one row behind the other.
    """
    touched, starts = distinct(rows), np.zeros(len(rows) + 1, dtype=np.int64)
    everything = np.empty(len(touched) * RING, dtype=np.int64)
    events = np.array(rows), np.array(partners)
    with scratch(int(touched[-1]) + 1) as places:
        policy.load("ials").last_partners(*rings.storage, rings.rows, touched, *events, places, starts, everything)
    return touched, starts[: len(touched) + 1], everything[: starts[len(touched)]]


def _grouped(pairs: Ints) -> Grouped:
    """Distinct rows, where each one's partners start, and the partners, one row behind the other.

    Pairs are row << 32 | partner in ascending order; they become the partners, since a log may have very many.
    """
    counts = np.zeros(int(pairs[-1] >> 32) + 1 if len(pairs) else 0, dtype=np.int64)
    for some in np.array_split(pairs, 1 + len(pairs) // _AT_ONCE):
        if len(some):
            first = int(some[0] >> 32)
            here = np.bincount((some >> 32) - first)
            counts[first : first + len(here)] += here
    pairs &= 0xFFFFFFFF
    touched = np.flatnonzero(counts)
    return touched, np.r_[0, np.cumsum(counts[touched])], pairs
