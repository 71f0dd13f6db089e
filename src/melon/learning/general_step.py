"""The general step, in PyTorch: for recommenders, strategies and losses that no kernel serves.

Rows are gathered into a compact copy, gradients computed on it, and the strategy proposes; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from melon.errors import LearningError
from melon.learning.step import ComputedStep, NewRows, Offered, RowStateTables, Write
from melon.models.base import Recommender, SummedSteps
from melon.models.evidence import Examples, RowGradient
from melon.strategies.base import Proposal, Situation, Strategy, Surroundings
from melon.strategies.learned import LearnedStrategy
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.stream.pairs import distinct
from melon.tables import Table
from melon.types import Ints


@dataclass(frozen=True)
class Compact:
    """Which stored rows a compact copy holds: distinct rows of users and of items."""

    users: Ints
    items: Ints

    def rows(self, table: Table) -> Ints:
        """The stored rows of one table."""
        if table.spec.role == "shared":
            return np.arange(table.rows)
        return self.users if table.spec.role == "user" else self.items


class GeneralStep:
    """Computes the steps of one recommender under one strategy by its gradients; writes no row."""

    def __init__(
        self,
        recommender: Recommender,
        strategy: Strategy,
        history: History,
        row_state: RowStateTables,
        broken: Callable[[str, Batch], LearningError],
    ) -> None:
        self._recommender, self._strategy, self._row_state, self._broken = recommender, strategy, row_state, broken
        self._gatherer = Gatherer(recommender, history, row_state, per_branch=strategy.per_branch)
        self._model = recommender.differentiable()

    def situation(self, offered: Offered) -> Situation:
        """A batch as the strategy meets it, on rows that exist."""
        return self._gatherer.situation(self._compact(offered), offered)

    def propose(self, offered: Offered, last: Offered | None, batch: Batch) -> ComputedStep:
        """The step for interactions whose negatives are given; learned strategies look ahead from `last` first."""
        strategy, compact = self._strategy, self._compact(offered)
        situation = self._gatherer.situation(compact, offered)
        losses = situation.evidence.losses
        if not bool(torch.isfinite(losses).all()):
            raise self._broken("the loss", batch)
        provisional: list[Write] = []
        if last is not None and len(last.users):
            assert isinstance(strategy, LearnedStrategy)
            provisional, situation = self._meta_step(strategy, compact, situation, last, batch)
        proposal = strategy.propose(situation)
        self._require_finite(proposal, batch)
        most_step = strategy.settings.most_step
        if most_step is not None:
            proposal = proposal.within(most_step, situation.values)
        moving = [name for name in proposal.values if self._recommender.tables[name].spec.kind == "embedding"]
        lengths = [(proposal.values[name].double() - situation.values[name].double()).norm(dim=1) for name in moving]
        moved = float(torch.cat(lengths).detach().mean()) if lengths else 0.0
        rows = NewRows([*self._writes(compact, proposal), *provisional], moved)
        return ComputedStep(float(losses.mean()), rows, proposal.memory)

    def _meta_step(
        self, strategy: LearnedStrategy, compact: Compact, situation: Situation, last: Offered, batch: Batch
    ) -> tuple[list[Write], Situation]:
        """Steps 1 and 2: a provisional update from the last interactions, and φ by the loss of the batch after it.

        Returns the provisional rows that stay, which are none unless the strategy keeps them, and the batch as the
        strategy meets it now.
        """
        extended = self._gatherer.extended(compact, last)
        # Rows of the last interactions that the batch does not touch cannot reach its loss: exact, and cheaper.
        looking_back = self._gatherer.situation(extended, last, reach=compact)

        def meta_loss(values: Mapping[str, Tensor]) -> Tensor:
            return self._model.losses_once(values, situation.examples).mean()

        gradients, after = strategy.meta_gradient(looking_back, meta_loss)
        if not all_finite([after, *gradients.values()]):
            raise self._broken("the look-ahead", batch)
        ahead: dict[str, Tensor] = {}
        if strategy.settings.keep_prelim:
            with torch.no_grad():
                ahead = strategy.look_ahead(replace(looking_back, reach=None))
            if not all_finite(list(ahead.values())):
                raise self._broken("the provisional update", batch)
        tables = {name: self._recommender.tables[name] for name in ahead}
        provisional: list[Write] = [
            (table, extended.rows(table)[situation.reached(name) :], ahead[name][situation.reached(name) :].numpy())
            for name, table in tables.items()
        ]
        return provisional, strategy.adapt(gradients, situation)

    def _writes(self, compact: Compact, proposal: Proposal) -> Iterator[Write]:
        for name, values in proposal.values.items():
            table = self._recommender.tables[name]
            yield table, compact.rows(table), values.detach().numpy()
        for name, state in proposal.row_state.items():
            for key, values in state.items():
                state_table = self._row_state[name][key]
                yield state_table, compact.rows(state_table), values.detach().numpy()

    def _compact(self, offered: Offered) -> Compact:
        return self._gatherer.everything() if self._strategy.dense else self._gatherer.touched(offered)

    def _require_finite(self, proposal: Proposal, batch: Batch) -> None:
        state = {f"{key} of {name}": v for name, tables in proposal.row_state.items() for key, v in tables.items()}
        if all_finite([*proposal.values.values(), *state.values()]):
            return
        values = {f"the new value of {name}": v for name, v in proposal.values.items()}
        for what, numbers in {**values, **state}.items():
            if not bool(torch.isfinite(numbers).all()):
                raise self._broken(what, batch)


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every number is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


class Gatherer:
    """Copies the rows of a step and computes the evidence of a batch on them; writes nothing."""

    def __init__(
        self, recommender: Recommender, history: History, row_state: RowStateTables, *, per_branch: bool = False
    ) -> None:
        self._recommender, self._history, self._row_state = recommender, history, row_state
        self._model = recommender.differentiable()
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

    def situation(self, compact: Compact, offered: Offered, reach: Compact | None = None) -> Situation:
        """A batch on a compact copy that holds its rows; `reach` says how far from the front the next loss can see."""
        tables = self._recommender.tables
        examples = Examples(
            torch.from_numpy(self._user_places.of(offered.users, compact.users)),
            torch.from_numpy(self._item_places.of(offered.items, compact.items)),
        )
        values = {name: torch.from_numpy(table.gather(compact.rows(table))) for name, table in tables.items()}
        state = {
            name: {key: torch.from_numpy(table.gather(compact.rows(table))) for key, table in state_tables.items()}
            for name, state_tables in self._row_state.items()
        }
        with torch.no_grad():
            evidence = self._model.evidence(values, examples, **self._options)
        around = Surroundings(
            self._history,
            self._recommender.clock.now,
            compact.users,
            compact.items,
            tables,
            {name: table.idle(compact.rows(table)) for name, table in tables.items() if table.half_life is not None},
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


@torch.no_grad()
def pretrain_by_gradients(recommender: Recommender, users: Ints, items: Ints, steps: SummedSteps) -> float:
    """Pre-training's summed steps on lines of rows, batch after batch; returns the sum of losses."""
    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, len(users), steps.batch_size):
        some = slice(start, start + steps.batch_size)
        total += _summed_step(recommender, users[some], items[some], steps)
    return float(total)


def _summed_step(recommender: Recommender, users: Ints, items: Ints, steps: SummedSteps) -> Tensor:
    tables = recommender.tables
    rows = {"user": users, "item": items.reshape(-1)}
    # Rows may repeat in this copy: it is only read, and the summed steps are added to storage.
    values = {
        name: torch.from_numpy(
            table.everything().copy() if table.spec.role == "shared" else table.gather(rows[table.spec.role])
        )
        for name, table in tables.items()
    }
    places = {role: torch.from_numpy(numbers) for role, numbers in rows.items()}
    positions = torch.arange(items.size).view(items.shape)
    evidence = recommender.differentiable().evidence(values, Examples(torch.arange(len(users)), positions))
    for gradient in evidence.gradients:
        table = tables[gradient.table]
        storage = torch.from_numpy(table.lend())
        if isinstance(gradient, RowGradient):
            where = gradient.positions.reshape(-1)
            step = gradient.gradient.reshape(len(where), -1) + steps.l2 * values[gradient.table][where]
            storage.index_add_(0, places[table.spec.role][where], step.mul_(-steps.lr))
        else:
            mean = gradient.summed(table.rows) / len(users)
            storage[: table.rows] += mean.mul_(-steps.shared_lr)
    return evidence.losses.sum()
