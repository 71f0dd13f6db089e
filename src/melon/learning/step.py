"""One step, computed and not yet written: gather rows, look ahead where the strategy learns to, and propose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from melon.errors import LearningError, StreamError
from melon.learning.examples import Compact, Gatherer, Offered, Offers, RowStateTables
from melon.models.base import Recommender
from melon.models.plain import PlainSteps
from melon.strategies.base import Proposal, Situation, Strategy
from melon.strategies.learned import LearnedStrategy
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.tables import Table

Write = tuple[Table, Tensor, Tensor]  # a table, distinct rows of it, and their new values


class NewRows(Protocol):
    """New rows that have been computed and not yet written."""

    @property
    def moved(self) -> float:
        """How far a touched row moves, on average: ‖Δ‖ of users' and items' vectors."""

    def write(self, undo: ExitStack | None = None) -> None:
        """Put them into the tables; closing `undo` puts back what was there before."""


@dataclass(frozen=True)
class ComputedStep:
    """A step that has been computed and not yet written."""

    loss: float
    rows: NewRows
    memory: Mapping[str, Tensor]


@dataclass(frozen=True)
class ProposedRows:
    """Rows that a strategy proposes."""

    writes: list[Write]
    moves: list[tuple[Tensor, Tensor]]  # embeddings before and after

    @property
    def moved(self) -> float:
        """How far a touched row moves, on average: ‖Δ‖ of users' and items' vectors."""
        lengths = [(new.double() - old.double()).norm(dim=1) for old, new in self.moves]
        return float(torch.cat(lengths).mean()) if lengths else 0.0

    def write(self, undo: ExitStack | None = None) -> None:
        """Put them into the tables; closing `undo` puts back what was there before."""
        for table, rows, values in self.writes:
            if undo is not None:
                undo.callback(table.undo_point(rows))
            table.scatter(rows, values)


@dataclass(frozen=True)
class RowsAndState:
    """Rows that compiled kernels give, and state of the strategy beside them."""

    rows: NewRows
    state: ProposedRows

    @property
    def moved(self) -> float:
        """How far a touched row moves, on average."""
        return self.rows.moved

    def write(self, undo: ExitStack | None = None) -> None:
        """Put them into the tables; closing `undo` puts back what was there before."""
        self.rows.write(undo)
        self.state.write(undo)


class StepMaker:
    """Computes the steps of one recommender under one strategy; writes no row."""

    def __init__(
        self, recommender: Recommender, strategy: Strategy, history: History, row_state: RowStateTables, seed: int
    ) -> None:
        self._recommender, self._strategy, self._row_state = recommender, strategy, row_state
        self._history = history
        per_branch = isinstance(strategy, LearnedStrategy) and strategy.per_branch
        self._gatherer = Gatherer(recommender, history, row_state, per_branch=per_branch)
        self._offers = Offers(recommender, strategy, history, seed)
        self._decaying = [spec.name for spec in recommender.specs if spec.kind != "bias"]

    def of(self, batch: Batch, undo: ExitStack) -> ComputedStep | None:
        """The step for a batch: its negatives are drawn, and the strategy proposes; no row is written.

        `undo` is given a function that takes back what a learned strategy learned on the way. None while there is
        but one item, with nothing to compare it to, and where the recommender has nothing that a strategy updates.
        """
        if not self._recommender.specs:
            return None
        offered = self._offers.of(batch)
        if offered is None:
            return None
        plain = self._plain(offered, batch) if offered.pool <= self._recommender.rows_of("item") else None
        if plain is not None:
            return plain
        with self._strategy.at_work():
            return self.propose(offered, self._offers.last(batch), batch, undo)

    def _plain(self, offered: Offered, batch: Batch) -> ComputedStep | None:
        """The step by compiled kernels, where the recommender has them and the strategy makes plain steps."""
        kernels, rates = self._recommender.plain_steps, self._strategy.plain_rates(len(batch.users))
        if kernels is None:
            return None
        if rates is None:
            return self._rated(kernels, offered, batch)
        decay = dict.fromkeys(self._decaying, rates.decay)
        rows = kernels.of(offered.users, offered.items, rates.rate, decay, self._recommender.clock.now)
        if rows is None:
            return None
        if rows.broken is not None:
            raise self.broken(rows.broken, batch)
        return ComputedStep(rows.loss, rows, rates.memory)

    def _rated(self, kernels: PlainSteps, offered: Offered, batch: Batch) -> ComputedStep | None:
        """The same with a rate for each gradient."""
        now, state = self._recommender.clock.now, self._row_state
        rates = self._strategy.line_rates(kernels, offered.users, offered.items, self._history, now, state)
        if rates is None:
            return None
        rows = kernels.rated(offered.users, offered.items, rates.facts, rates.model, rates.decay, now)
        if rows is None:
            return None
        if rows.broken is not None:
            raise self.broken(rows.broken, batch)
        beside = [(state[name][key], *new) for name, arrays in rates.row_state.items() for key, new in arrays.items()]
        return ComputedStep(rows.loss, RowsAndState(rows, ProposedRows(beside, [])), {})

    def propose(self, offered: Offered, last: Offered | None, batch: Batch, undo: ExitStack) -> ComputedStep:
        """The step for interactions whose negatives are given; learned strategies look ahead from `last` first."""
        strategy, compact = self._strategy, self._compact(offered)
        situation = self._gatherer.situation(compact, offered)
        losses = situation.evidence.losses
        if not torch.isfinite(losses.sum()):
            raise self.broken("the loss", batch)
        provisional: list[Write] = []
        if isinstance(strategy, LearnedStrategy) and last is not None and len(last.users):
            provisional, situation = self._meta_step(strategy, compact, situation, last, batch, undo)
        proposal = strategy.propose(situation)
        self._require_finite(proposal, batch)
        most_step = strategy.settings.most_step
        if most_step is not None:
            proposal = proposal.within(most_step, situation.values)
        moving = [name for name in proposal.values if self._recommender.tables[name].spec.kind == "embedding"]
        moves = [(situation.values[name], proposal.values[name].detach()) for name in moving]
        rows = ProposedRows([*self._writes(compact, proposal), *provisional], moves)
        return ComputedStep(float(losses.mean()), rows, proposal.memory)

    def _meta_step(
        self,
        strategy: LearnedStrategy,
        compact: Compact,
        situation: Situation,
        last: Offered,
        batch: Batch,
        undo: ExitStack,
    ) -> tuple[list[Write], Situation]:
        """Steps 1 and 2: a provisional update from the last interactions, and φ by the loss of the batch after it.

        Returns the provisional rows that stay, which are none unless the strategy keeps them, and the batch as the
        strategy meets it now.
        """
        extended = self._gatherer.extended(compact, last)
        # Rows of the last interactions that the batch does not touch cannot reach its loss: exact, and cheaper.
        looking_back = self._gatherer.situation(extended, last, reach=compact, beside=situation)

        def meta_loss(values: Mapping[str, Tensor]) -> Tensor:
            return self._recommender.losses_once(values, situation.examples).mean()

        gradients, after = strategy.meta_gradient(looking_back, meta_loss)
        if not all_finite([after, *gradients.values()]):
            raise self.broken("the look-ahead", batch)
        ahead: dict[str, Tensor] = {}
        if strategy.settings.keep_prelim:
            with torch.no_grad():
                ahead = strategy.look_ahead(replace(looking_back, reach=None))
            if not all_finite(list(ahead.values())):
                raise self.broken("the provisional update", batch)
        tables = {name: self._recommender.tables[name] for name in ahead}
        provisional: list[Write] = [
            (table, extended.rows(table)[situation.reached(name) :], ahead[name][situation.reached(name) :])
            for name, table in tables.items()
        ]
        adapted = strategy.adapt(gradients, situation)
        undo.callback(strategy.undo)
        return provisional, adapted

    def _writes(self, compact: Compact, proposal: Proposal) -> Iterator[Write]:
        for name, values in proposal.values.items():
            table = self._recommender.tables[name]
            yield table, compact.rows(table), values.detach()
        for name, state in proposal.row_state.items():
            for key, values in state.items():
                state_table = self._row_state[name][key]
                yield state_table, compact.rows(state_table), values.detach()

    def situation(self, batch: Batch) -> Situation:
        """A batch as the strategy meets it, on rows that exist."""
        offered = self._offers.of(batch)
        if offered is None:
            raise StreamError("there is but one item, so there is no negative; a stream teaches once it has two.")
        return self._gatherer.situation(self._compact(offered), offered)

    def broken(self, what: str, batch: Batch) -> LearningError:
        """The error for numbers that are not finite."""
        return LearningError(
            f"{what} is not finite in the batch of events {batch.first_event} to {batch.first_event + len(batch) - 1} "
            f"({self._recommender.name} with {self._strategy.name}); nothing of this batch was written. "
            "Try a smaller learning rate (--set lr=…)."
        )

    def _compact(self, offered: Offered) -> Compact:
        return self._gatherer.everything() if self._strategy.dense else self._gatherer.touched(offered)

    def _require_finite(self, proposal: Proposal, batch: Batch) -> None:
        state = {f"{key} of {name}": v for name, tables in proposal.row_state.items() for key, v in tables.items()}
        if all_finite([*proposal.values.values(), *state.values()]):
            return
        values = {f"the new value of {name}": v for name, v in proposal.values.items()}
        for what, numbers in {**values, **state}.items():
            if not torch.isfinite(numbers.sum()):
                raise self.broken(what, batch)


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every number is finite; one that is not shows in the sum of their sizes."""
    return bool(torch.isfinite(torch.stack(torch._foreach_norm(tensors, 1)).sum()))
