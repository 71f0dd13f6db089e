"""Optional inputs of the rates: what a line is about, beside its loss, its gradient and the parameter's value.

Each is one number or a few of order one, the same for all entries of a line. The first layer sees them through weights
of their own, which start at 0: a fresh meta-model with inputs equals one without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from melon.errors import SettingsError
from melon.kernels.melon.forms import UnitTerms
from melon.strategies.base import RowStateSpec, Situation
from melon.strategies.melon.lines import SharedLines, TableLines
from melon.strategies.melon.settings import NetworkInput
from melon.strategies.parameters import Parameters
from melon.tables import TableSpec
from melon.types import Floats, Ints

#: In interactions: a few batches, and some dozens of them.
HALF_LIVES = (300.0, 3_000.0)
#: Numbers kept for an item: its counts, and their moment in two parts, for float32 holds no number of events exactly.
RECENT_WIDTH = len(HALF_LIVES) + 2
_PART = 1 << 20
#: All inputs in the order of their columns, and how many columns each has.
COLUMNS: dict[NetworkInput, int] = {"touches": 1, "idle": 1, "item_rate": len(HALF_LIVES), "role": 3}
#: Logarithms are divided by these: usual counts reach e³, idle times e¹⁰.
_COUNTS, _IDLE = 3.0, 10.0
_WEIGHTS, _RECENT = "role.inputs", "recent"


class _Touches(Protocol):
    """Facts about some touches, one number for each."""

    @property
    def touches(self) -> Ints:
        """How often the batch touches what this one touches."""

    @property
    def idle(self) -> Ints:
        """For how long nobody had touched it."""

    @property
    def item(self) -> Ints:
        """The compact row of the item that it is about."""

    @property
    def role(self) -> Ints:
        """0 for shared weights, 1 for a user, 2 for a taken item, 3 for a negative."""


class _TableTouches:
    """Touches of a table's rows by source. A user's row is about the item of its interaction, or of its pair."""

    def __init__(self, situation: Situation, table: TableLines) -> None:
        self._situation, self._table = situation, table.table
        self._user = situation.specs[table.table].role == "user"
        positions = table.positions.cpu().numpy()
        self._row, self._slot = positions.reshape(-1), np.tile(np.arange(positions.shape[1]), len(positions))

    @property
    def touches(self) -> Ints:
        counts: Ints = np.bincount(self._row)[self._row]
        return counts

    @property
    def idle(self) -> Ints:
        around = self._situation.around
        assert around is not None
        since = around.tables[self._table].idle(around.users if self._user else around.items)
        idle: Ints = since[self._row]
        return idle

    @property
    def item(self) -> Ints:
        if not self._user:
            return self._row
        items: Ints = self._situation.examples.items.cpu().numpy()
        slots = len(self._row) // len(items)
        return items[:, :slots].reshape(-1)

    @property
    def role(self) -> Ints:
        return np.ones_like(self._slot) if self._user else 2 + np.minimum(self._slot, 1)


class _SharedTouches:
    """Touches of shared weights, unit by unit; they are never idle."""

    def __init__(self, situation: Situation, wide: SharedLines) -> None:
        items: Ints = situation.examples.items.cpu().numpy()
        self.item: Ints = items[:, : wide.touches // len(items)].reshape(-1)
        self.touches = np.full_like(self.item, wide.touches)
        self.idle = self.role = np.zeros_like(self.item)


class LineInputs:
    """The inputs in the settings, for lines on rows and on shared weights."""

    def __init__(
        self, inputs: Sequence[NetworkInput], specs: Mapping[str, TableSpec], parameters: Parameters, width: int
    ) -> None:
        self._names = [name for name in COLUMNS if name in inputs]
        self._phi = parameters
        self._counted = _first_item_table(specs) if "item_rate" in inputs else None
        if self._names:
            parameters.zeros_exactly(_WEIGHTS, width, sum(COLUMNS[name] for name in self._names))

    def __bool__(self) -> bool:
        return bool(self._names)

    def row_state(self, spec: TableSpec) -> dict[str, RowStateSpec]:
        """Recent counts live with the rows of one table of items."""
        return {_RECENT: RowStateSpec(width=RECENT_WIDTH)} if spec.name == self._counted else {}

    def counted(self, situation: Situation) -> dict[str, dict[str, Tensor]]:
        """The counts after the batch."""
        if self._counted is None:
            return {}
        recent = self._recent(situation)
        return {self._counted: {_RECENT: recent.after(situation.examples.items[:, 0])}}

    def with_rows(self, terms: UnitTerms, situation: Situation, table: TableLines) -> UnitTerms:
        """The terms of a table's lines, each now one of its own."""
        lines = table.lines
        columns = self._columns(_TableTouches(situation, table), situation)
        if table.aggregated:  # a line stands for all touches of its row
            total = np.zeros((len(situation.values[table.table]), columns.shape[1]))
            np.add.at(total, table.positions.reshape(-1).cpu().numpy(), columns)
            columns = total[lines.row] / lines.touches[lines.row, None]
        else:
            columns = columns[lines.source]
        return self._added(terms.at(torch.from_numpy(lines.unit).to(terms.logits.device)), columns)

    def with_shared(self, terms: UnitTerms, situation: Situation, wide: SharedLines) -> UnitTerms:
        """The terms of units on shared weights."""
        columns = self._columns(_SharedTouches(situation, wide), situation)
        return self._added(terms, columns.mean(0, keepdims=True) if wide.aggregated else columns)

    def _columns(self, touches: _Touches, situation: Situation) -> Floats:
        makers: dict[NetworkInput, Callable[[], Floats]] = {
            "touches": lambda: np.log(touches.touches)[:, None] / _COUNTS,
            "idle": lambda: np.log1p(touches.idle)[:, None] / _IDLE,
            "item_rate": lambda: np.log1p(self._recent(situation).now())[touches.item] / _COUNTS,
            "role": lambda: np.eye(4, 3, k=-1)[touches.role],
        }
        return np.concatenate([makers[name]() for name in self._names], axis=1)

    def _added(self, terms: UnitTerms, columns: Floats) -> UnitTerms:
        assert terms.hidden is not None
        inputs = torch.from_numpy(columns).to(terms.hidden)
        return UnitTerms(torch.addmm(terms.hidden, inputs, self._phi[_WEIGHTS].T), terms.logits)

    def _recent(self, situation: Situation) -> RecentCounts:
        assert situation.around is not None
        assert self._counted is not None
        return RecentCounts(situation.row_state[self._counted][_RECENT], situation.around.history.events)


class RecentCounts:
    """The counts of compact rows. An interaction that is k interactions old counts 2^(-k / half-life).

    A row's counts are stored as of the last batch in which it was taken and decayed when they are read, so a row that
    nobody touches costs nothing. The interactions of a batch count as of its start, whatever their order.
    """

    def __init__(self, stored: Tensor, now: int) -> None:
        self._stored, self._now = stored, now

    def now(self) -> Floats:
        """Rows × half-lives, as of now."""
        stored = self._stored.detach().cpu().numpy().astype(np.float64)
        counts, high, low = stored[:, : len(HALF_LIVES)], stored[:, -2], stored[:, -1]
        age = self._now - (high * _PART + low)
        left: Floats = np.exp2(-age[:, None] / np.array(HALF_LIVES))
        return counts * left

    def after(self, taken: Tensor) -> Tensor:
        """The row state after a batch that takes these rows, some several times; other rows stay as they are."""
        times = torch.bincount(taken, minlength=len(self._stored)).cpu().numpy()
        moment = np.array([self._now // _PART, self._now % _PART], dtype=np.float64)
        fresh = np.concatenate([self.now() + times[:, None], np.broadcast_to(moment, (len(times), 2))], axis=1)
        met = torch.from_numpy(times > 0).to(self._stored.device)[:, None]
        return torch.where(met, torch.from_numpy(fresh).to(self._stored), self._stored)


def _first_item_table(specs: Mapping[str, TableSpec]) -> str:
    table = next((spec.name for spec in specs.values() if spec.role == "item"), None)
    if table is None:
        raise SettingsError("the input 'item_rate' needs rows of items, and this recommender has none.")
    return table
