"""Plain gradient steps of a factorised score in compiled kernels: computed beside the tables, then exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from melon.kernels import policy
from melon.kernels.factor import StoredRows, TouchedRows
from melon.kernels.melon.online import LineStatistics
from melon.kernels.melon.rates import FACTS, Line, RateModel
from melon.tables import Table
from melon.types import Floats, Ints, Scores, Singles, SmallInts

#: The tables of a factorised score that a pairwise loss teaches.
TAUGHT = ("user_factors", "item_factors", "item_bias")


class FactorStep(NamedTuple):
    """A plain step that kernels have computed and not yet written: rows of tables and their new values.

    `broken` names what is not finite in it, if anything; `moved` is how far a touched vector moves on average.
    """

    loss: float
    moved: float
    broken: str | None
    writes: list[tuple[Table, Ints, Scores]]


class PlainSteps:
    """Plain steps of one factorised model under BPR's loss; its rows are float32."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = [tables[name] for name in TAUGHT]
        self._line: Line | None = None
        self._places: list[SmallInts] = [np.zeros(0, dtype=np.int32) for _ in ("users", "items")]

    def line_facts(
        self, users: Ints, items: Ints, met: tuple[Ints, Ints], now: int, counts: Singles, half_lives: Floats,
        events: int,
    ) -> Singles:  # fmt: skip
        """Facts of lines, n × slots × facts, from what is known of their rows (`melon.kernels.melon.online`)."""
        touched = self._tables[0].arrays()[1], self._tables[1].arrays()[1]
        out = np.empty((len(users), 1 + items.shape[1], FACTS), dtype=np.float32)
        known = LineStatistics(*met, *touched, now, counts, half_lives, events)
        policy.load("rates").line_facts(users, items, known, out)
        return out

    def of(self, users: Ints, items: Ints, rate: float, decay: Mapping[str, float], now: int) -> FactorStep:
        """The step for lines of items n × (1 + negatives), the item taken first, on rows that exist.

        A touched row loses the share `decay` of itself, by table.
        """
        return self._step(policy.load("factor").plain_step, (users, items, rate), decay, now)

    def rated(
        self, users: Ints, items: Ints, facts: Singles, model: RateModel, decay: Mapping[str, float], now: int
    ) -> FactorStep:
        """The same with a rate of the model for each gradient, from facts of each touch (n × slots × facts)."""
        if self._line is None or len(self._line.theta) != facts.shape[1]:
            self._line = Line.room(facts.shape[1], self._tables[0].arrays()[0])
        return self._step(policy.load("rates").rated_step, (users, items, facts, model, self._line), decay, now)

    def _step(
        self, kernel: Callable[..., Any], lines: tuple[Any, ...], decay: Mapping[str, float], now: int
    ) -> FactorStep:
        """What a kernel makes of lines, beside the tables."""
        users, items = lines[:2]
        stored = [StoredRows(*table.arrays()) for table in self._tables]
        for n, rows_of in enumerate(stored[:2]):  # a number for each stored user and item
            if len(self._places[n]) < len(rows_of.touched):
                self._places[n] = np.zeros(len(rows_of.touched), dtype=np.int32)
        user_rows, item_rows = np.empty(len(users), dtype=np.int64), np.empty(items.size, dtype=np.int64)
        named = (TouchedRows(*each) for each in zip(self._places, (user_rows, item_rows), strict=True))
        blocks = [
            np.empty((len(rows), table.spec.dim), dtype=np.float32)
            for table, rows in zip(self._tables, (user_rows, item_rows, item_rows), strict=True)
        ]
        shares = np.array([decay.get(name, 0.0) for name in TAUGHT], dtype=np.float32)
        n_users, n_items, loss, *moved = kernel(*lines, shares, now, *stored, *named, *blocks)
        broken = None if math.isfinite(loss) else "the loss"
        if broken is None and not math.isfinite(sum(moved)):
            broken = next(f"the new value of {name}" for name, far in zip(TAUGHT, moved, strict=True) if far - far != 0)
        touched = user_rows[:n_users], item_rows[:n_items], item_rows[:n_items]
        writes = [
            (table, rows, block[: len(rows)]) for table, rows, block in zip(self._tables, touched, blocks, strict=True)
        ]
        return FactorStep(loss, (moved[0] + moved[1]) / (n_users + n_items), broken, writes)
