"""Element-wise ALS (METHODS.md 3.2.2): each new interaction has its two rows solved for, not stepped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from melon.errors import SettingsError
from melon.strategies.als_ledger import Ledger, cache_tensors, floats
from melon.strategies.als_solver import Cells, Neighbourhood, Observed, item_confidences, pretrain_als
from melon.strategies.base import (
    LearningRates,
    Proposal,
    Situation,
    Strategy,
    StrategySettings,
    Surroundings,
    check_only_embeddings,
    row_constant_rates,
)
from melon.stream.history import RING, PartnerRings
from melon.tables import Table, TableSpec
from melon.types import Floats, Ints

if TYPE_CHECKING:
    from melon.data.interactions import Interactions
    from melon.recommenders.base import Recommender

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

    A row's observed cells are the last partners that the history remembers; older ones count as missing. Biases are no
    part of the model: they are left as they are and should be zero, as they are unless something else trained them.
    Negatives play no part. The first step surveys all rows once for the caches; from then on the caches follow by
    rank-1 corrections, and fade as rows fade.
    """

    name = "als"
    settings_type = ALSSettings
    settings: ALSSettings

    _ledger: Ledger | None = None

    def bind(self, specs: Mapping[str, TableSpec], dtype: torch.dtype, device: torch.device) -> None:
        check_only_embeddings(self.name, specs)
        if dtype not in _DTYPES:
            raise SettingsError(f"strategy {self.name!r} solves rows of float32 or float64, not of {dtype}.")

    def pretrain(self, recommender: Recommender, interactions: Interactions) -> bool:
        user_table, item_table = check_only_embeddings(self.name, {spec.name: spec for spec in recommender.specs})
        known_users, known_items = recommender.rows_of("user"), recommender.rows_of("item")
        recommender.grow(
            max(known_users, interactions.n_users),
            interactions.user_keys[known_users:],
            max(known_items, interactions.n_items),
            interactions.item_keys[known_items:],
        )
        users, items = recommender.tables[user_table], recommender.tables[item_table]
        user_rows = torch.arange(interactions.n_users, device=users.device)
        item_rows = torch.arange(interactions.n_items, device=items.device)
        counts = np.bincount(interactions.items, minlength=interactions.n_items)
        found = pretrain_als(
            Observed.from_log(interactions.users, interactions.items),
            floats(users.gather(user_rows)),
            floats(items.gather(item_rows)),
            item_confidences(counts, self.settings.c0, self.settings.alpha),
            reg=self.settings.reg,
            iterations=self.settings.iterations,
        )
        users.scatter(user_rows, torch.from_numpy(found.users).to(users.device, users.dtype))
        items.scatter(item_rows, torch.from_numpy(found.items).to(items.device, items.dtype))
        self._ledger = None
        return True

    def propose(self, situation: Situation) -> Proposal:
        around = _around(situation)
        user_table, item_table = check_only_embeddings(self.name, situation.specs)
        settings = self.settings
        ledger = self._ledger or Ledger.survey(around, user_table, item_table, settings.c0, settings.alpha)
        user_at, item_at = situation.examples.users.cpu().numpy(), situation.examples.items[:, 0].cpu().numpy()
        user_rows, item_rows = around.users.cpu().numpy(), around.items.cpu().numpy()
        users = _Around(around.history.of_users, user_rows, np.unique(user_at), ledger.users)
        items = _Around(around.history.of_items, item_rows, np.unique(item_at), ledger.items)
        users.place(items.partners)
        items.place(users.partners)

        user_lines, item_lines = users.lines(), items.lines()
        user_cache, item_cache = ledger.caches_at(around, user_table, item_table)
        place = Neighbourhood(
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
        newcomer = settings.c0 / around.tables[item_table].rows
        user_places, item_places = users.places(user_rows[user_at]), items.places(item_rows[item_at])
        for user, item in zip(user_places.tolist(), item_places.tolist(), strict=True):
            place.observe(user, item, settings.w_new, newcomer)
            for _ in range(settings.rounds):
                place.solve(user, item, settings.reg)

        user_lines[:, 0] = place.counted
        item_lines[:, 0] = place.confidence
        np.add.at(user_lines[:, 1], user_places, 1)
        np.add.at(item_lines[:, 1], item_places, 1)
        values = {
            user_table: users.back(place.users, situation.values[user_table]),
            item_table: items.back(place.items, situation.values[item_table]),
        }
        return Proposal(
            values,
            memory={
                **({} if self._ledger else ledger.state()),
                **users.touched("user", user_lines),
                **items.touched("item", item_lines),
                **cache_tensors(place.user_cache, place.item_cache, around.now),
            },
        )

    def learning_rates(self, situation: Situation) -> LearningRates:
        """ω_x for every entry: ALS jumps to a minimum, so these weigh squared errors and are no step sizes."""
        rates = torch.full_like(situation.evidence.losses, self.settings.w_new)
        return row_constant_rates(situation.evidence, rates, dict.fromkeys(situation.values, 1.0))

    def keep(self, memory: Mapping[str, Tensor]) -> None:
        if "users" in memory:  # the first step brings the survey
            self._ledger = Ledger.from_state(memory)
        if self._ledger is not None:
            self._ledger.take(memory)

    def memory(self) -> dict[str, Tensor]:
        return {} if self._ledger is None else self._ledger.state()

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        self._ledger = Ledger.from_state(memory) if memory else None


class _Around:
    """Users or items around one batch: those that are solved, their partners on record, and those of the other side."""

    def __init__(self, rings: PartnerRings, compact: Ints, solved: Ints, ledger: Table) -> None:
        self._compact, self._solved, self._ledger = compact, solved, ledger
        self.recent = rings.recent(compact[solved])
        self.partners = np.unique(self.recent.partners[self.recent.partners >= 0])
        self.rows: Ints = compact[solved]

    def place(self, partners_of_the_other_side: Ints) -> None:
        """Line up every row that will be read, in ascending order."""
        self.rows = np.union1d(self._compact[self._solved], partners_of_the_other_side)

    def places(self, rows: Ints) -> Ints:
        """Where stored rows stand in the line."""
        return np.searchsorted(self.rows, rows)

    def lines(self) -> Floats:
        """What is on record of the rows in line."""
        return floats(self._ledger.gather(torch.from_numpy(self.rows)))

    def cells(self, other: _Around, w_new: float) -> dict[int, Cells]:
        """Observed cells of the rows to be solved, oldest first; the newest ones came online and weigh `w_new`."""
        rows = self._compact[self._solved]
        online = self._ledger.gather(torch.from_numpy(rows))[:, 1].long().tolist()
        partners = other.places(self.recent.partners).tolist()
        counts = self.recent.counts.tolist()
        cells: dict[int, Cells] = {}
        for place, line, count, fresh in zip(self.places(rows).tolist(), partners, counts, online, strict=True):
            mine: Cells = {}
            for back in range(count - 1, -1, -1):
                mine.pop(line[back], None)
                mine[line[back]] = w_new if back < fresh else 1.0
            cells[place] = mine
        return cells

    def back(self, solved: Floats, compact: Tensor) -> Tensor:
        """The compact copy with the solved rows put in; the others as they were."""
        rows = torch.from_numpy(solved[self.places(self._compact[self._solved])])
        out = compact.clone()
        out[torch.from_numpy(self._solved).to(out.device)] = rows.to(out.device, out.dtype)
        return out

    def touched(self, role: str, lines: Floats) -> dict[str, Tensor]:
        """What is to be recorded of the solved rows."""
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
