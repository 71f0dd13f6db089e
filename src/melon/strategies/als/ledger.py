"""The state of element-wise ALS between steps: caches over all rows, and a line for each user and each item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from melon.strategies.als.solver import item_confidences, second_moment
from melon.strategies.base import Readable, Surroundings
from melon.tables import Role, Table, TableSpec
from melon.types import Floats


@dataclass
class Ledger:
    """`users` holds (is in SP, interactions learned online), `items` (c_i, interactions learned online).

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


def _cache(table: Readable, weights: Floats) -> Floats:
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
