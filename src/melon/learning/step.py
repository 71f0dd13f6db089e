"""One step: interactions with their negatives, and what they teach, computed and not yet written.

Kernels compute it where they serve, else PyTorch does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from melon.errors import LearningError, StreamError, require_torch
from melon.models.base import Recommender
from melon.models.plain import PlainSteps
from melon.strategies.base import Situation, Strategy
from melon.stream.batch import Batch
from melon.stream.candidates import Negatives
from melon.stream.draws import Draws
from melon.stream.history import NOBODY, History
from melon.tables import Table
from melon.types import AnyArray, Ints, Scores

if TYPE_CHECKING:
    from melon.learning.general_step import GeneralStep

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


class Offers:
    """Draws negatives for the interactions of a batch, along one history; every draw belongs to its event."""

    def __init__(self, recommender: Recommender, strategy: Strategy, history: History, seed: int) -> None:
        self._recommender, self._strategy, self._history = recommender, strategy, history
        self._negatives = Draws(seed, "training negatives")
        self._last_negatives = Draws(seed, "negatives of last interactions")
        self._partners = Draws(seed, "last interactions")

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
        if not self._strategy.looks_ahead:
            return None
        cold = getattr(self._strategy.settings, "cold", "drop")
        last = last_interactions(batch.users, batch.items, batch.events, self._history, cold, self._partners)
        if not len(last):
            return None
        pool = max(self._history.of_items.rows, batch.rows[1])
        negatives = Negatives(pool, self._history.seen, self._last_negatives)
        count = self._recommender.settings.negatives
        return Offered(last.users, negatives.lines(last.users, last.items, last.events, count))


def last_interactions(
    users: Ints, items: Ints, events: Ints, history: History, cold: str, draws: Draws
) -> LastInteractions:
    """The last interactions before a batch. A user or item without one is dropped, or stands for itself (`current`)."""
    last_items, last_users = history.last("user", users, draws), history.last("item", items, draws)
    if cold == "current":
        last_items = np.where(last_items == NOBODY, items, last_items)
        last_users = np.where(last_users == NOBODY, users, last_users)
    all_users, all_items = np.concatenate([users, last_users]), np.concatenate([last_items, items])
    numbers = np.concatenate([2 * events, 2 * events + 1])
    met = (all_users != NOBODY) & (all_items != NOBODY)
    return LastInteractions(all_users[met], all_items[met], numbers[met])


#: A table, distinct rows of it, and their new values.
Write = tuple[Table, Ints, Scores]


@dataclass(frozen=True)
class NewRows:
    """New values of rows, and how far a touched row moves on average: ‖Δ‖ of users' and items' vectors."""

    writes: list[Write]
    moved: float = 0.0

    def write(self) -> None:
        """Put them into the tables."""
        for table, rows, values in self.writes:
            table.scatter(rows, values)


@dataclass(frozen=True)
class ComputedStep:
    """A step that has been computed and not yet written."""

    loss: float
    rows: NewRows
    memory: Mapping[str, AnyArray]


class StepMaker:
    """Computes the steps of one recommender under one strategy; writes no row."""

    def __init__(
        self, recommender: Recommender, strategy: Strategy, history: History, row_state: RowStateTables, seed: int
    ) -> None:
        self._recommender, self._strategy, self._row_state = recommender, strategy, row_state
        self._history = history
        self._offers = Offers(recommender, strategy, history, seed)
        self._decaying = [spec.name for spec in recommender.specs if spec.kind != "bias"]
        rated = strategy.plain_rates(1) is not None or type(strategy).line_rates is not Strategy.line_rates
        if recommender.specs and not (rated and recommender.plain_steps is not None):
            self._require_torch()  # said before anything is spent

    @cached_property
    def _general(self) -> GeneralStep:
        self._require_torch()
        from melon.learning.general_step import GeneralStep

        return GeneralStep(self._recommender, self._strategy, self._history, self._row_state, self.broken)

    def of(self, batch: Batch) -> ComputedStep | None:
        """The step for a batch: its negatives are drawn, and the strategy proposes; no row is written.

        None while there is but one item, with nothing to compare it to, and where the recommender has nothing that a
        strategy updates.
        """
        if not self._recommender.specs:
            return None
        offered = self._offers.of(batch)
        if offered is None:
            return None
        plain = self._plain(offered, batch) if offered.pool <= self._recommender.rows_of("item") else None
        if plain is not None:
            return plain
        return self.propose(offered, self._offers.last(batch), batch)

    def propose(self, offered: Offered, last: Offered | None, batch: Batch) -> ComputedStep:
        """The step for interactions whose negatives are given; learned strategies look ahead from `last` first."""
        return self._general.propose(offered, last, batch)

    def _plain(self, offered: Offered, batch: Batch) -> ComputedStep | None:
        """The step by kernels, where the recommender has them and the strategy has a rate for each gradient."""
        kernels, rates = self._recommender.plain_steps, self._strategy.plain_rates(len(batch.users))
        if kernels is None:
            return None
        if rates is None:
            return self._rated(kernels, offered, batch)
        decay = dict.fromkeys(self._decaying, rates.decay)
        step = kernels.of(offered.users, offered.items, rates.rate, decay, self._recommender.clock.now)
        if step.broken is not None:
            raise self.broken(step.broken, batch)
        return ComputedStep(step.loss, NewRows(step.writes, step.moved), rates.memory)

    def _rated(self, kernels: PlainSteps, offered: Offered, batch: Batch) -> ComputedStep | None:
        """The same with a rate for each gradient."""
        now, state = self._recommender.clock.now, self._row_state
        rates = self._strategy.line_rates(kernels, offered.users, offered.items, self._history, now, state)
        if rates is None:
            return None
        step = kernels.rated(offered.users, offered.items, rates.facts, rates.model, rates.decay, now)
        if step.broken is not None:
            raise self.broken(step.broken, batch)
        beside = [(state[name][key], *new) for name, arrays in rates.row_state.items() for key, new in arrays.items()]
        return ComputedStep(step.loss, NewRows([*step.writes, *beside], step.moved), {})

    def offered(self, batch: Batch) -> Offered:
        """A batch with its negatives."""
        offered = self._offers.of(batch)
        if offered is None:
            raise StreamError("there is only one item, so there is no negative; a stream needs two items.")
        return offered

    def situation(self, batch: Batch) -> Situation:
        """A batch as the strategy meets it, on rows that exist."""
        return self._general.situation(self.offered(batch))

    def _require_torch(self) -> None:
        require_torch(
            f"the strategy {self._strategy.name!r} with these settings on the recommender {self._recommender.name!r}"
        )

    def broken(self, what: str, batch: Batch) -> LearningError:
        """The error for numbers that are not finite."""
        return LearningError(
            f"{what} is not finite in the batch of events {batch.first_event} to {batch.first_event + len(batch) - 1} "
            f"({self._recommender.name} with {self._strategy.name}); nothing of this batch was written. "
            "Try a smaller learning rate (--set lr=…)."
        )
