"""What one step learns from: interactions with their negatives, and the compact copies of the rows they touch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from melon.models.base import Recommender
from melon.models.evidence import Examples
from melon.strategies.base import Situation, Strategy, Surroundings
from melon.strategies.learned import LearnedStrategy
from melon.stream.batch import Batch
from melon.stream.draws import Draws
from melon.stream.history import NOBODY, History
from melon.stream.negatives import Negatives
from melon.stream.pairs import distinct
from melon.tables import Table
from melon.types import Ints

RowStateTables = dict[str, dict[str, Table]]


@dataclass(frozen=True)
class Offered:
    """Interactions with their negatives as stored rows: users n, items n × (1 + negatives), the item taken first."""

    users: Ints
    items: Ints
    pool: int = 0  # how many items the negatives are drawn from


@dataclass(frozen=True)
class LastInteractions:
    """The look-ahead batch: for each user its previous item, for each item its previous user.

    See docs/methods.md 3.0.2.
    """

    users: Ints
    items: Ints
    events: Ints  # numbers for random draws, apart from those of the batch itself

    def __len__(self) -> int:
        return len(self.users)


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


class Offers:
    """Draws negatives for the interactions of a batch, along one history; every draw belongs to its event."""

    def __init__(self, recommender: Recommender, strategy: Strategy, history: History, seed: int) -> None:
        self._recommender, self._strategy, self._history = recommender, strategy, history
        self._negatives = Draws(seed, "training negatives")
        self._last_negatives = Draws(seed, "negatives of last interactions")

    def of(self, batch: Batch) -> Offered | None:
        """The batch with its negatives; None while there is but one item.

        Negatives are drawn from all items that there are with this batch.
        """
        pool = max(self._history.of_items.rows, batch.rows[1])
        if pool < 2:
            return None
        negatives = Negatives(pool, self._history.seen, self._negatives)
        lines = negatives.lines(batch.users, batch.items, batch.events, self._recommender.settings.negatives)
        return Offered(batch.users, lines, pool)

    def last(self, batch: Batch) -> Offered | None:
        """The last interactions of the batch's users and items, for a strategy that looks ahead from there."""
        if not isinstance(self._strategy, LearnedStrategy) or not self._strategy.looks_ahead:
            return None
        cold = self._strategy.settings.cold
        last = last_interactions(batch.users, batch.items, batch.events, self._history, cold)
        if not len(last):
            return None
        pool = max(self._history.of_items.rows, batch.rows[1])
        negatives = Negatives(pool, self._history.seen, self._last_negatives)
        count = self._recommender.settings.negatives
        return Offered(last.users, negatives.lines(last.users, last.items, last.events, count))


def last_interactions(users: Ints, items: Ints, events: Ints, history: History, cold: str) -> LastInteractions:
    """The last interactions before a batch. A user or item without one is dropped, or stands for itself (`current`)."""
    last_items, last_users = history.of_users.last(users), history.of_items.last(items)
    if cold == "current":
        last_items = np.where(last_items == NOBODY, items, last_items)
        last_users = np.where(last_users == NOBODY, users, last_users)
    all_users, all_items = np.concatenate([users, last_users]), np.concatenate([last_items, items])
    numbers = np.concatenate([2 * events, 2 * events + 1])
    met = (all_users != NOBODY) & (all_items != NOBODY)
    return LastInteractions(all_users[met], all_items[met], numbers[met])


class Gatherer:
    """Copies the rows of a step and computes the evidence of a batch on them; writes nothing."""

    def __init__(
        self, recommender: Recommender, history: History, row_state: RowStateTables, *, per_branch: bool = False
    ) -> None:
        self._recommender, self._history, self._row_state = recommender, history, row_state
        self._specs = {spec.name: spec for spec in recommender.specs}
        self._options = {"per_branch": True} if per_branch else {}
        self._user_places, self._item_places = _RowPlaces(), _RowPlaces()

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
        examples = Examples(
            torch.from_numpy(self._user_places.of(offered.users, compact.users)).to(device),
            torch.from_numpy(self._item_places.of(offered.items, compact.items)).to(device),
        )
        values = {name: table.gather(compact.rows(table)) for name, table in tables.items()}
        state = {
            name: {key: table.gather(compact.rows(table)) for key, table in state_tables.items()}
            for name, state_tables in self._row_state.items()
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


class _RowPlaces:
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
