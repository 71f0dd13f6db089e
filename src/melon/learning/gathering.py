"""Gathering: the compact copies of rows on which one step works, and the situations a strategy is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from melon.data.interactions import Flags, Ints
from melon.recommenders.base import Recommender
from melon.recommenders.evidence import Examples
from melon.strategies.base import Situation, Surroundings
from melon.stream.history import History
from melon.tables import Table


@dataclass(frozen=True)
class Offered:
    """Interactions with their negatives as stored rows: users n, items n × (1 + negatives)."""

    users: Ints
    items: Ints
    fresh: Flags | None = None


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

    def everything(self) -> Compact:
        """All rows there are."""
        return Compact(np.arange(self._recommender.rows_of("user")), np.arange(self._recommender.rows_of("item")))

    def touched(self, offered: Offered) -> Compact:
        """The rows that a batch touches."""
        return Compact(np.unique(offered.users), np.unique(offered.items))

    def extended(self, first: Compact, offered: Offered) -> Compact:
        """Those rows first, and then what another batch touches beside them."""
        return Compact(_with_rest(first.users, offered.users), _with_rest(first.items, offered.items))

    def situation(self, compact: Compact, offered: Offered, reach: Compact | None = None) -> Situation:
        """A batch on a compact copy that holds its rows; `reach` says how far from the front the next loss can see."""
        device, tables = self._recommender.device, self._recommender.tables
        examples = Examples(
            torch.from_numpy(_places(compact.users, offered.users)).to(device),
            torch.from_numpy(_places(compact.items, offered.items)).to(device),
            None if offered.fresh is None else torch.from_numpy(offered.fresh).to(device),
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
        )
        reached = None if reach is None else {"user": len(reach.users), "item": len(reach.items)}
        return Situation(self._specs, examples, values, state, evidence, around, reached)


def _with_rest(first: Ints, more: Ints) -> Ints:
    return np.concatenate([first, np.setdiff1d(more, first)])


def _places(held: Ints, wanted: Ints) -> Ints:
    """Where each wanted row stands among the held ones, which are distinct and include it."""
    order = np.argsort(held, kind="stable")
    return order[np.searchsorted(held, wanted, sorter=order)]
