"""Element-wise ALS (docs/methods.md 3.2.2): each new interaction has its two rows solved for, not stepped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from melon.errors import SettingsError
from melon.strategies.als.solver import (
    Cells,
    Ledger,
    Neighbourhood,
    ObservedCells,
    cache_tensors,
    floats,
    item_confidences,
    pretrain_als,
)
from melon.strategies.base import (
    Proposal,
    ReadableTable,
    Situation,
    Strategy,
    StrategySettings,
    Surroundings,
)
from melon.stream.history import RING, PartnerRings
from melon.tables import Table, TableSpec
from melon.types import Floats, Ints

if TYPE_CHECKING:
    from melon.data.interactions import Interactions

_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


class ALSSettings(StrategySettings):
    """As in the published online driver. `c0` is the weight of all missing cells of a user together, spread over the
    items by popularity^`alpha`; `reg` is λ; a cell of the stream weighs `w_new`, one of pre-training 1.
    """

    w_new: float = Field(1.0, gt=0)
    reg: float = Field(0.01, gt=0)
    c0: float = Field(512.0, ge=0)
    alpha: float = Field(0.4, ge=0)
    rounds: int = Field(1, ge=1)
    iterations: int = Field(50, ge=0)


class ALS(Strategy):
    """For each interaction in turn: mark the cell, solve the user's row, solve the item's row; nothing else moves.

    A row's observed cells are the last partners in the history; older ones count as missing. Biases are left as they
    are; the model assumes that they are zero. Negatives play no part. The first step reads all rows once for the
    caches; from then on the caches follow by rank-1 corrections, and fade as rows fade.

    There is no learning-rate matrix: rows jump to a minimum.
    """

    name = "als"
    settings_type = ALSSettings
    settings: ALSSettings

    _ledger: Ledger | None = None

    def bind(self, specs: Mapping[str, TableSpec], dtype: torch.dtype, device: torch.device) -> None:
        _two_tables(self.name, specs)
        if dtype not in _DTYPES:
            raise SettingsError(f"strategy {self.name!r} solves rows of float32 or float64, not of {dtype}.")

    def pretrained_rows(
        self, specs: Mapping[str, TableSpec], tables: Mapping[str, ReadableTable], log: Interactions
    ) -> dict[str, Tensor]:
        """Whole sweeps over the log from the rows as they are drawn."""
        user_table, item_table = _two_tables(self.name, specs)
        users, items = (
            tables[name].gather(torch.arange(rows, device=tables[name].device))
            for name, rows in ((user_table, log.n_users), (item_table, log.n_items))
        )
        counts = np.bincount(log.items, minlength=log.n_items)
        factors = pretrain_als(
            ObservedCells.from_log(log.users, log.items),
            floats(users),
            floats(items),
            item_confidences(counts, self.settings.c0, self.settings.alpha),
            reg=self.settings.reg,
            iterations=self.settings.iterations,
        )
        self._ledger = None  # of other rows
        return {
            user_table: torch.from_numpy(factors.users).to(users),
            item_table: torch.from_numpy(factors.items).to(items),
        }

    def propose(self, situation: Situation) -> Proposal:
        around = _around(situation)
        user_table, item_table = _two_tables(self.name, situation.specs)
        settings = self.settings
        ledger = self._ledger or Ledger.survey(around, user_table, item_table, settings.c0, settings.alpha)
        user_at, item_at = situation.examples.users.cpu().numpy(), situation.examples.items[:, 0].cpu().numpy()
        user_rows, item_rows = around.users.cpu().numpy(), around.items.cpu().numpy()
        users = _BatchSide(around.history.of_users, user_rows, np.unique(user_at), ledger.users)
        items = _BatchSide(around.history.of_items, item_rows, np.unique(item_at), ledger.items)
        users.include(items.partners)
        items.include(users.partners)

        user_lines, item_lines = users.ledger_lines(), items.ledger_lines()
        user_cache, item_cache = ledger.caches_at(around, user_table, item_table)
        neighbourhood = Neighbourhood(
            users=floats(around.tables[user_table].gather(_rows(users.rows, around.users))),
            items=floats(around.tables[item_table].gather(_rows(items.rows, around.items))),
            counted=user_lines[:, 0] > 0,
            confidence=item_lines[:, 0].copy(),
            user_cache=user_cache,
            item_cache=item_cache,
            user_cells=users.cells(items, settings.w_new),
            item_cells=items.cells(users, settings.w_new),
            most_cells=RING,
            dtype=_DTYPES[situation.values[user_table].dtype],
        )
        new_item_confidence = settings.c0 / around.tables[item_table].rows
        user_places, item_places = users.places(user_rows[user_at]), items.places(item_rows[item_at])
        for user, item in zip(user_places.tolist(), item_places.tolist(), strict=True):
            neighbourhood.observe(user, item, settings.w_new, new_item_confidence)
            for _ in range(settings.rounds):
                neighbourhood.solve(user, item, settings.reg)

        user_lines[:, 0] = neighbourhood.counted
        item_lines[:, 0] = neighbourhood.confidence
        np.add.at(user_lines[:, 1], user_places, 1)
        np.add.at(item_lines[:, 1], item_places, 1)
        values = {
            user_table: users.with_solved(neighbourhood.users, situation.values[user_table]),
            item_table: items.with_solved(neighbourhood.items, situation.values[item_table]),
        }
        return Proposal(
            values,
            memory={
                **({} if self._ledger else ledger.state()),
                **users.new_lines("user", user_lines),
                **items.new_lines("item", item_lines),
                **cache_tensors(neighbourhood.user_cache, neighbourhood.item_cache, around.now),
            },
        )

    def keep(self, memory: Mapping[str, Tensor]) -> None:
        if "users" in memory:  # the first step brings the survey
            self._ledger = Ledger.from_state(memory)
        if self._ledger is not None:
            self._ledger.take(memory)

    def memory(self) -> dict[str, Tensor]:
        return {} if self._ledger is None else self._ledger.state()

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        self._ledger = Ledger.from_state(memory) if memory else None


class _BatchSide:
    """Users or items that a batch reads: those that are solved, and the partners of those solved on the other side."""

    def __init__(self, rings: PartnerRings, compact: Ints, solved: Ints, ledger: Table) -> None:
        self._compact, self._solved, self._ledger = compact, solved, ledger
        self.recent = rings.recent(compact[solved])
        self.partners = np.unique(self.recent.partners[self.recent.partners >= 0])
        self.rows: Ints = compact[solved]

    def include(self, partners_of_the_other_side: Ints) -> None:
        """Set `rows`: the stored rows that will be read, in ascending order."""
        self.rows = np.union1d(self._compact[self._solved], partners_of_the_other_side)

    def places(self, rows: Ints) -> Ints:
        """The positions of stored rows in `rows`."""
        return np.searchsorted(self.rows, rows)

    def ledger_lines(self) -> Floats:
        """The lines of `rows` in the ledger."""
        return floats(self._ledger.gather(torch.from_numpy(self.rows)))

    def cells(self, other: _BatchSide, w_new: float) -> dict[int, Cells]:
        """Observed cells of the rows to be solved, oldest first; the newest ones came online and weigh `w_new`."""
        rows = self._compact[self._solved]
        online = self._ledger.gather(torch.from_numpy(rows))[:, 1].long().tolist()
        partners = other.places(self.recent.partners).tolist()
        counts = self.recent.counts.tolist()
        cells: dict[int, Cells] = {}
        for place, line, count, fresh in zip(self.places(rows).tolist(), partners, counts, online, strict=True):
            own: Cells = {}
            for back in range(count - 1, -1, -1):
                own.pop(line[back], None)
                own[line[back]] = w_new if back < fresh else 1.0
            cells[place] = own
        return cells

    def with_solved(self, solved: Floats, compact: Tensor) -> Tensor:
        """The compact copy with the solved rows put in; the others as they were."""
        rows = torch.from_numpy(solved[self.places(self._compact[self._solved])])
        out = compact.clone()
        out[torch.from_numpy(self._solved).to(out.device)] = rows.to(out.device, out.dtype)
        return out

    def new_lines(self, role: str, lines: Floats) -> dict[str, Tensor]:
        """The ledger's new lines of the solved rows."""
        rows = self._compact[self._solved]
        return {
            f"{role}_rows": torch.from_numpy(rows),
            f"{role}_lines": torch.from_numpy(lines[self.places(rows)]),
        }


def _around(situation: Situation) -> Surroundings:
    if situation.around is None:
        raise SettingsError("strategy 'als' reads the history and the rows of partners; give the situation `around`.")
    return situation.around


def _rows(rows: Ints, like: Tensor) -> Tensor:
    return torch.from_numpy(rows).to(like.device)


def _two_tables(name: str, specs: Mapping[str, TableSpec]) -> tuple[str, str]:
    """The names of the one user table and the one item table of a plain matrix factorisation; else an error."""
    embeddings = {
        role: [s for s in specs.values() if s.role == role and s.kind == "embedding"] for role in ("user", "item")
    }
    shared = [spec.name for spec in specs.values() if spec.role == "shared"]
    if shared or any(len(tables) != 1 for tables in embeddings.values()):
        raise SettingsError(
            f"strategy {name!r} solves for one user table and one item table; this recommender has "
            f"{', '.join(specs)}. Use it with a plain matrix factorisation such as bpr."
        )
    return embeddings["user"][0].name, embeddings["item"][0].name
