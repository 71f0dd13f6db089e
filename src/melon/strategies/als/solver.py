"""Element-wise alternating least squares on a whole matrix (docs/methods.md 3.2.2): rows, caches and sweeps.

    J = Σ_obs ω (1 − r̂)² + Σ_u Σ_{i∉R_u} c_i r̂² + λ(‖P‖² + ‖Q‖²),   r̂_ui = p_u·q_i
    SQ = Σ_i c_i q_i q_iᵀ,   SP = Σ_u p_u p_uᵀ

The caches stand for the cells without an observation, so no step has to visit them. Everything is in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from melon.strategies.base import ReadableTable, Surroundings
from melon.tables import Role, Table, TableSpec
from melon.types import Floats, Ints


@dataclass
class Ledger:
    """The state of ALS between steps: caches over all rows, and a line for each user and each item.

    `users` holds (is in SP, interactions learned online), `items` (c_i, interactions learned online).

    `moment` is when the caches were true: they fade with the rows they stand for.
    """

    users: Table
    items: Table
    user_cache: Floats
    item_cache: Floats
    moment: int

    @classmethod
    def survey(cls, around: Surroundings, user_table: str, item_table: str, c0: float, alpha: float) -> Ledger:
        """Confidences from the past, caches from all rows that have one: the only look at every row there is."""
        users, items = around.tables[user_table], around.tables[item_table]
        counted = (around.history.of_users.met(np.arange(users.rows)) > 0).astype(np.float64)
        confidence = item_confidences(around.history.of_items.met(np.arange(items.rows)), c0, alpha)
        nothing_yet = [np.zeros_like(counted), np.zeros_like(confidence)]
        return cls(
            _table("user", torch.from_numpy(np.stack([counted, nothing_yet[0]], axis=1))),
            _table("item", torch.from_numpy(np.stack([confidence, nothing_yet[1]], axis=1))),
            _cache(users, counted),
            _cache(items, confidence),
            around.now,
        )

    def caches_at(self, around: Surroundings, user_table: str, item_table: str) -> tuple[Floats, Floats]:
        """SP and SQ now, as copies: idle rows all fade at one rate, and a cache holds their squares."""
        left = []
        for name in (user_table, item_table):
            half_life = around.tables[name].half_life
            left.append(1.0 if half_life is None else 0.25 ** (max(around.now - self.moment, 0) / half_life))
        return self.user_cache * left[0], self.item_cache * left[1]

    def take(self, memory: Mapping[str, Tensor]) -> None:
        """Record a step: the lines of the rows it solved, and the caches after it."""
        for role, table in (("user", self.users), ("item", self.items)):
            rows = memory[f"{role}_rows"]
            _grow(table, int(rows.max()) + 1)
            table.scatter(rows, memory[f"{role}_lines"])
        self._take_caches(memory)

    def state(self) -> dict[str, Tensor]:
        """Tensors that `from_state` turns back into the same ledger."""
        return {
            "users": self.users.everything().clone(),
            "items": self.items.everything().clone(),
            **cache_tensors(self.user_cache, self.item_cache, self.moment),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Ledger:
        """The ledger that `state` described."""
        users, items = _table("user", state["users"].cpu()), _table("item", state["items"].cpu())
        ledger = cls(users, items, np.empty(0), np.empty(0), 0)
        ledger._take_caches(state)
        return ledger

    def _take_caches(self, state: Mapping[str, Tensor]) -> None:
        self.user_cache, self.item_cache = floats(state["user_cache"]).copy(), floats(state["item_cache"]).copy()
        self.moment = int(state["moment"])


def cache_tensors(user_cache: Floats, item_cache: Floats, moment: int) -> dict[str, Tensor]:
    """Both caches and their moment, by their names in `memory`."""
    return {
        "user_cache": torch.from_numpy(user_cache.copy()),
        "item_cache": torch.from_numpy(item_cache.copy()),
        "moment": torch.tensor(moment, device="cpu"),
    }


def floats(values: Tensor) -> Floats:
    """Rows as float64 arrays."""
    return values.detach().to("cpu", torch.float64).numpy()


def _cache(table: ReadableTable, weights: Floats) -> Floats:
    total, start = np.zeros(()), 0
    for block in table.blocks():
        total = total + second_moment(floats(block), weights[start : start + len(block)])
        start += len(block)
    return total


def _table(role: Role, values: Tensor) -> Table:
    table = Table(TableSpec(f"als.{role}", role, "bias", values.shape[1]), dtype=torch.float64)
    _grow(table, len(values))
    table.scatter(torch.arange(len(values), device=table.device), values)
    return table


def _grow(table: Table, rows: int) -> None:
    table.grow(rows, np.arange(table.rows, rows))


Cells = dict[int, float]  # partner → weight ω, longest known first


def item_confidences(counts: Ints, c0: float, alpha: float) -> Floats:
    """c_i = c0 · f_i^α / Σ_k f_k^α; an item that was never taken has none."""
    powered = np.where(counts > 0, np.power(np.maximum(counts, 1.0), alpha), 0.0)
    total = powered.sum()
    return np.asarray(c0 * powered / total if total > 0 else powered)


def second_moment(rows: Floats, weights: Floats | None = None) -> Floats:
    """Σ_r weight_r · row_r row_rᵀ, the definition of both caches."""
    return np.asarray(rows.T @ rows if weights is None else (rows * weights[:, None]).T @ rows)


def solve_row(
    row: Floats, partners: Floats, weights: Floats, missing: Floats | float, cache: Floats, reg: float
) -> Floats:
    """One pass of coordinate updates over a row, from the first coordinate to the last.

    `partners` are the rows of its observed cells, `weights` their ω, `missing` the c that the cache counts them with;
    `cache` is SQ for a user and c_i·SP for an item. With every other coordinate fixed, a coordinate's minimum is the
    Gauss–Seidel step on A·row = b where A = Σ_obs (ω − c) q qᵀ + cache + λ1 and b = Σ_obs ω q. A pass over all of them
    is therefore one solve with A's lower triangle: the same numbers as coordinate by coordinate, several times sooner.
    """
    system = (partners * (weights - missing)[:, None]).T @ partners
    system += cache
    system.flat[:: len(row) + 1] += reg
    left = weights @ partners - system @ row
    step = torch.linalg.solve_triangular(torch.from_numpy(system), torch.from_numpy(left)[:, None], upper=False)
    return np.asarray(row + step.numpy()[:, 0])


@dataclass
class Neighbourhood:
    """A working copy of the rows around some interactions; `observe` and `solve` change it and nothing else.

    Users and items are places in `users` and `items`. Cells are needed for those that are solved; all others are only
    read. `counted` says whose rows are in `user_cache`; an item is in `item_cache` once it has a confidence.
    """

    users: Floats
    items: Floats
    counted: npt.NDArray[np.bool_]
    confidence: Floats
    user_cache: Floats
    item_cache: Floats
    user_cells: dict[int, Cells] = field(default_factory=dict)
    item_cells: dict[int, Cells] = field(default_factory=dict)
    most_cells: int | None = None
    #: Rows are rounded to what the table can hold before the caches take note of them, so that both stay in step.
    dtype: npt.DTypeLike = np.float64

    def observe(self, user: int, item: int, weight: float, newcomer: float) -> None:
        """Mark a cell as observed; a brand-new item gets the confidence `newcomer` and joins the cache."""
        _put(self.user_cells.setdefault(user, {}), item, weight, self.most_cells)
        _put(self.item_cells.setdefault(item, {}), user, weight, self.most_cells)
        if self.confidence[item] == 0:
            self.confidence[item] = newcomer
            self.item_cache += newcomer * np.outer(self.items[item], self.items[item])
        if not self.counted[user]:
            self.counted[user] = True
            self.user_cache += np.outer(self.users[user], self.users[user])

    def solve(self, user: int, item: int, reg: float) -> None:
        """One pass over the user's row, then one over the item's."""
        self.solve_user(user, reg)
        self.solve_item(item, reg)

    def solve_user(self, user: int, reg: float) -> None:
        """Minimise J coordinate by coordinate along a user's row."""
        partners, weights = _arrays(self.user_cells[user])
        old = self.users[user]
        missing = self.confidence[partners]
        new = self._rounded(solve_row(old, self.items[partners], weights, missing, self.item_cache, reg))
        self.user_cache += new[:, None] * new - old[:, None] * old
        self.users[user] = new

    def solve_item(self, item: int, reg: float) -> None:
        """Minimise J coordinate by coordinate along an item's row."""
        partners, weights = _arrays(self.item_cells[item])
        old, confidence = self.items[item], float(self.confidence[item])
        cache = confidence * self.user_cache
        new = self._rounded(solve_row(old, self.users[partners], weights, confidence, cache, reg))
        self.item_cache += confidence * (new[:, None] * new - old[:, None] * old)
        self.items[item] = new

    def _rounded(self, row: Floats) -> Floats:
        return np.asarray(row.astype(self.dtype), dtype=np.float64)


@dataclass(frozen=True)
class ObservedCells:
    """The distinct observed cells of a log: a pair that occurs again is the same cell."""

    users: Ints
    items: Ints
    weights: Floats

    @classmethod
    def from_log(cls, users: Ints, items: Ints, weight: float = 1.0) -> ObservedCells:
        """All cells of a log, equally weighted."""
        keys = np.unique((users << 32) | items)
        return cls(keys >> 32, keys & 0xFFFFFFFF, np.full(len(keys), weight))


@dataclass(frozen=True)
class Factorisation:
    """What whole sweeps end with: both factor matrices, the items' confidences and both caches."""

    users: Floats
    items: Floats
    confidence: Floats
    user_cache: Floats
    item_cache: Floats


def pretrain_als(
    observed: ObservedCells,
    users: Floats,
    items: Floats,
    confidence: Floats,
    *,
    reg: float = 0.01,
    iterations: int = 50,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Factorisation:
    """Whole sweeps from the given factors: in each iteration all users once, then all items once.

    A user's row depends on items alone and the other way round, so a coordinate is updated for all rows of a side at
    once. `progress` may wrap the iterations, to show or to time them.
    """
    takers = _SweepSide(np.ascontiguousarray(users.T), observed.users, np.ones(len(users)))
    taken = _SweepSide(np.ascontiguousarray(items.T), observed.items, confidence)
    missing = confidence[observed.items]
    predicted = np.zeros(len(missing))
    for user_line, item_line in zip(takers.lines, taken.lines, strict=True):
        predicted += user_line[takers.of_cell] * item_line[taken.of_cell]
    for _ in progress(range(iterations)):
        _sweep(takers, taken, observed.weights, missing, predicted, reg)
        _sweep(taken, takers, observed.weights, missing, predicted, reg)
    users, items = np.ascontiguousarray(takers.lines.T), np.ascontiguousarray(taken.lines.T)
    return Factorisation(users, items, confidence, second_moment(users), second_moment(items, confidence))


@dataclass(frozen=True)
class _SweepSide:
    """Users or items during sweeps: one contiguous line per coordinate, the row of each cell, and each row's c."""

    lines: Floats
    of_cell: Ints
    confidence: Floats


def _sweep(
    side: _SweepSide, other: _SweepSide, weights: Floats, missing: Floats, predicted: Floats, reg: float
) -> None:
    """Update every coordinate of every row of one side, in place, and keep r̂ of the observed cells up to date."""
    # A cell's c is the item's: it is inside the cache for users (whose own is 1), and outside it for items.
    cache = (other.lines * other.confidence) @ other.lines.T
    row_of, share, rows = side.of_cell, side.confidence, side.lines.shape[1]
    excess = weights - missing
    for k, (line, other_line) in enumerate(zip(side.lines, other.lines, strict=True)):
        partner = other_line[other.of_cell]
        predicted -= line[row_of] * partner  # r̂ without coordinate k
        pull = np.bincount(row_of, (weights - excess * predicted) * partner, minlength=rows)
        curvature = np.bincount(row_of, excess * partner * partner, minlength=rows)
        others = cache[k] @ side.lines - cache[k, k] * line
        line[:] = (pull - share * others) / (curvature + share * cache[k, k] + reg)
        predicted += line[row_of] * partner


def _put(cells: Cells, partner: int, weight: float, most: int | None) -> None:
    cells.pop(partner, None)
    cells[partner] = weight
    if most is not None and len(cells) > most:
        del cells[next(iter(cells))]


def _arrays(cells: Cells) -> tuple[Ints, Floats]:
    count = len(cells)
    return np.fromiter(cells, dtype=np.int64, count=count), np.fromiter(cells.values(), dtype=np.float64, count=count)
