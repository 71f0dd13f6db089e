"""Gathering: the compact copies of rows on which one step works, and the situations a strategy is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from melon.learning.examples import Offered
from melon.recommenders.base import Context, Recommender
from melon.recommenders.evidence import Examples
from melon.strategies.base import Situation, Surroundings
from melon.stream.history import History
from melon.stream.pairs import distinct
from melon.tables import Table
from melon.types import Ints


@dataclass(frozen=True)
class Compact:
    """Which stored rows a compact copy holds: distinct rows of users and of items."""

    users: Ints
    items: Ints

    def rows(self, table: Table) -> Tensor:
        """The stored rows of one table."""
        if table.spec.role == "shared":
            return torch.arange(table.rows, device=table.device)
        return torch.from_numpy(self.users if table.spec.role == "user" else self.items).to(table.device)


class Gatherer:
    """Makes compact copies and looks up what a batch teaches on them; writes nothing."""

    def __init__(
        self,
        recommender: Recommender,
        history: History,
        row_state: Mapping[str, Mapping[str, Table]],
        *,
        per_branch: bool = False,
    ) -> None:
        self._recommender, self._history, self._row_state = recommender, history, row_state
        self._specs = {spec.name: spec for spec in recommender.specs}
        self._options = {"per_branch": True} if per_branch else {}
        self._user_places, self._item_places = _Places(), _Places()

    def everything(self) -> Compact:
        """All rows there are."""
        return Compact(np.arange(self._recommender.rows_of("user")), np.arange(self._recommender.rows_of("item")))

    def touched(self, offered: Offered) -> Compact:
        """The rows that a batch touches."""
        return Compact(distinct(offered.users), distinct(offered.items))

    def extended(self, first: Compact, offered: Offered) -> Compact:
        """Those rows first, and then what another batch touches beside them."""
        return Compact(_with_rest(first.users, offered.users), _with_rest(first.items, offered.items))

    def situation(
        self, compact: Compact, offered: Offered, reach: Compact | None = None, beside: Situation | None = None
    ) -> Situation:
        """A batch on a compact copy that holds its rows; `reach` says how far from the front the next loss can see.

        `beside` is a situation of the same step whose compact rows are the first ones here: what is looked up around
        one of them serves the other.
        """
        device, tables = self._recommender.device, self._recommender.tables
        features = self._recommender.taught_features(
            torch.from_numpy(offered.users).to(device),
            torch.from_numpy(offered.items).to(device),
            Context(time=self._recommender.clock.now, history=self._history),
        )
        examples = Examples(
            torch.from_numpy(self._user_places.of(offered.users, compact.users)).to(device),
            torch.from_numpy(self._item_places.of(offered.items, compact.items)).to(device),
            None if offered.fresh is None else torch.from_numpy(offered.fresh).to(device),
            features,
        )
        values = {name: table.gather(compact.rows(table)) for name, table in tables.items()}
        state = {
            name: {key: table.gather(compact.rows(table)) for key, table in kept.items()}
            for name, kept in self._row_state.items()
        }
        with torch.no_grad():
            evidence = self._recommender.evidence(values, examples, **self._options)
        around = Surroundings(
            self._history,
            self._recommender.clock.now,
            torch.from_numpy(compact.users).to(device),
            torch.from_numpy(compact.items).to(device),
            tables,
            {name: table.idle(compact.rows(table)) for name, table in tables.items() if table.half_life is not None},
            {} if beside is None or beside.around is None else beside.around.notes,
        )
        reached = None if reach is None else {"user": len(reach.users), "item": len(reach.items)}
        return Situation(self._specs, examples, values, state, evidence, around, reached)


def _with_rest(first: Ints, more: Ints) -> Ints:
    """The rows of a compact copy, which ascend, and then those of `more` that are not among them."""
    wanted = distinct(more)
    at = np.minimum(np.searchsorted(first, wanted), len(first) - 1)
    return np.concatenate([first, wanted[first[at] != wanted]])


class _Places:
    """Where stored rows stand in a compact copy: one number for each row there is, written before it is read."""

    def __init__(self) -> None:
        self._at: Ints = np.empty(0, dtype=np.int64)

    def of(self, wanted: Ints, held: Ints) -> Ints:
        """The place of each wanted row among the held ones, which are distinct and include it."""
        most = int(held.max(initial=-1)) + 1
        if most > len(self._at):
            self._at = np.zeros(max(most, 2 * len(self._at)), dtype=np.int64)
        self._at[held] = np.arange(len(held))
        return self._at[wanted]
