"""The updater: predicts a batch, then learns it. It gathers rows, asks the strategy, and alone writes the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from melon.data.interactions import Ints
from melon.errors import LearningError
from melon.recommenders.base import Context, Recommender
from melon.recommenders.evidence import Examples
from melon.strategies.base import LearningRates, Proposal, Situation, Strategy, Surroundings
from melon.stream.batch import Batch
from melon.stream.draws import Draws
from melon.stream.history import History
from melon.stream.negatives import Negatives
from melon.tables import Table, TableSpec

FadingClock = Literal["interactions", "seconds"]


@dataclass(frozen=True)
class Compact:
    """Which stored rows the compact copy of a step holds, for users and for items."""

    users: Tensor
    items: Tensor

    def rows(self, table: Table) -> Tensor:
        """The stored rows of one table."""
        if table.spec.role == "shared":
            return torch.arange(table.rows, device=table.device)
        return self.users if table.spec.role == "user" else self.items


class Updater:
    """Recommender, strategy and history as one thing that streams: `score` before `learn`, batch by batch."""

    def __init__(
        self,
        recommender: Recommender,
        strategy: Strategy,
        history: History | None = None,
        *,
        seed: int = 0,
        fading_clock: FadingClock = "interactions",
    ) -> None:
        self.recommender, self.strategy = recommender, strategy
        self.history = history or History()
        self.seed, self.fading_clock = seed, fading_clock
        self._specs = {spec.name: spec for spec in recommender.specs}
        strategy.bind(self._specs, recommender.dtype, recommender.device)
        self.row_state: dict[str, dict[str, Table]] = {
            name: self._state_tables(spec) for name, spec in self._specs.items() if recommender.learns(spec)
        }
        self._negative_draws = Draws(seed, "training negatives")
        self._replay_draws = Draws(seed, "replay")

    def score(self, users: Ints, items: Ints, time: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Scores of candidates (n × c) at a moment of the stream; changes nothing but the reading clock."""
        self.tick(time)
        with torch.no_grad():
            scores = self.recommender.score(
                self._tensor(users), self._tensor(items), Context(time=time, history=self.history)
            )
        return scores.cpu().numpy()

    def score_catalogue(
        self, users: Ints, n_items: int, time: int
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Scores of all items 0 … n_items-1 for each user."""
        self.tick(time)
        with torch.no_grad():
            scores = self.recommender.score_catalogue(
                self._tensor(users), n_items, Context(time=time, history=self.history)
            )
        return scores.cpu().numpy()

    def learn(self, batch: Batch) -> float:
        """Learn one batch and append it to the history; returns its mean loss before the step."""
        if not len(batch):
            return 0.0
        self.tick(int(batch.times[0]))
        self._make_rows(batch)
        loss = self._step(batch) if self._pool(batch) > 1 else 0.0
        self.history.append(batch.users, batch.items)
        self.recommender.observe(batch.users, batch.items, batch.times)
        return loss

    def rehearse(self, batch: Batch) -> float:
        """Learn a batch of the past once more: the history, which holds it already, stays as it is."""
        self.tick(int(batch.times[0]))
        self._make_rows(batch)
        return self._step(batch)

    def learning_rates(self, batch: Batch) -> LearningRates:
        """The strategy's learning-rate matrix for a batch, as if it were learned now; changes no row that exists."""
        self.tick(int(batch.times[0]))
        self._make_rows(batch)
        return self.strategy.learning_rates(self._situation(batch)[1])

    def _step(self, batch: Batch) -> float:
        compact, situation = self._situation(batch)
        losses = situation.evidence.losses
        loss = float(losses.mean())
        if not np.isfinite(loss):
            raise self._broken("the loss", batch)
        proposal = self.strategy.propose(situation)
        self._write(compact, proposal, batch)
        return loss

    def _situation(self, batch: Batch) -> tuple[Compact, Situation]:
        users, items, fresh = self._with_replay(batch)
        negatives = self._negatives(batch, users, items)
        offered = np.concatenate([items[:, None], negatives], axis=1)
        if self.strategy.dense:
            user_rows = np.arange(self.recommender.rows_of("user"))
            item_rows = np.arange(self.recommender.rows_of("item"))
            user_at, item_at = users, offered
        else:
            user_rows, user_at = np.unique(users, return_inverse=True)
            item_rows, item_at = np.unique(offered, return_inverse=True)
        compact = Compact(self._tensor(user_rows), self._tensor(item_rows))
        examples = Examples(
            self._tensor(user_at.reshape(users.shape)),
            self._tensor(item_at.reshape(offered.shape)),
            None if fresh is None else torch.from_numpy(fresh).to(self.recommender.device),
        )
        tables = self.recommender.tables
        values = {name: table.gather(compact.rows(table)) for name, table in tables.items()}
        state = {
            name: {key: table.gather(compact.rows(table)) for key, table in kept.items()}
            for name, kept in self.row_state.items()
        }
        with torch.no_grad():
            evidence = self.recommender.evidence(values, examples)
        around = Surroundings(self.history, self.recommender.clock.now, compact.users, compact.items, tables)
        return compact, Situation(self._specs, examples, values, state, evidence, around)

    def _write(self, compact: Compact, proposal: Proposal, batch: Batch) -> None:
        for name, values in proposal.values.items():
            if not torch.isfinite(values.sum()):
                raise self._broken(f"the new value of {name}", batch)
        for name, values in proposal.values.items():
            table = self.recommender.tables[name]
            table.scatter(compact.rows(table), values.detach())
        for name, kept in proposal.row_state.items():
            for key, values in kept.items():
                table = self.row_state[name][key]
                table.scatter(compact.rows(table), values.detach())
        self.strategy.keep(proposal.memory)

    def _with_replay(self, batch: Batch) -> tuple[Ints, Ints, np.ndarray[tuple[int], np.dtype[np.bool_]] | None]:
        if not self.strategy.replay:
            return batch.users, batch.items, None
        users, items = self.history.replay(self.strategy.replay, self._replay_draws, batch.first_event)
        fresh = np.arange(len(batch) + len(users)) < len(batch)
        return np.concatenate([batch.users, users]), np.concatenate([batch.items, items]), fresh

    def _negatives(self, batch: Batch, users: Ints, items: Ints) -> Ints:
        negatives = Negatives(
            self._pool(batch),
            self.history.seen,
            self._negative_draws,
            self.history.of_items if self.strategy.negatives == "popular" else None,
        )
        # Replayed interactions are numbered apart from the stream's own events.
        events = np.concatenate([batch.events, -1 - batch.first_event - np.arange(len(users) - len(batch))])
        return negatives.draw(users, items, events, self.recommender.settings.negatives)

    def _pool(self, batch: Batch) -> int:
        return max(self.history.items_born, int(batch.items.max()) + 1)

    def _make_rows(self, batch: Batch) -> None:
        users, user_keys = _new_rows(batch.users, batch.user_keys, self.recommender.rows_of("user"))
        items, item_keys = _new_rows(batch.items, batch.item_keys, self.recommender.rows_of("item"))
        self.recommender.grow(users, user_keys, items, item_keys)
        for kept in self.row_state.values():
            for table in kept.values():
                if table.spec.role != "shared":
                    size = self.recommender.rows_of(table.spec.role)
                    table.grow(size, np.arange(table.rows, size))

    def _state_tables(self, spec: TableSpec) -> dict[str, Table]:
        return {
            key: Table(
                TableSpec(f"{spec.name}.{key}", spec.role, spec.kind, spec.dim, 0.0, start, spec.rows),
                clock=self.recommender.clock,
                dtype=self.recommender.dtype,
                device=self.recommender.device,
            )
            for key, start in self.strategy.row_state(spec).items()
        }

    def tick(self, time: int) -> None:
        """Let rows be read as they are at this moment of the stream."""
        self.recommender.clock.now = self.history.events if self.fading_clock == "interactions" else time

    def _tensor(self, array: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.recommender.device)

    def _broken(self, what: str, batch: Batch) -> LearningError:
        return LearningError(
            f"{what} is not finite in the batch of events {batch.first_event} to {batch.first_event + len(batch) - 1} "
            f"({self.recommender.name} with {self.strategy.name}); nothing of this batch was written. "
            "Try a smaller learning rate (--set lr=…)."
        )


def _new_rows(rows: Ints, keys: Ints, known: int) -> tuple[int, Ints]:
    """The row count after a batch, and the keys of the rows to make, in row order."""
    new, first = np.unique(rows[rows >= known], return_index=True)
    if not len(new):
        return known, np.empty(0, dtype=np.int64)
    total = int(new[-1]) + 1
    made = np.arange(known, total, dtype=np.int64)
    # Rows are numbered by first appearance, so a gap can only be a row that was skipped on purpose.
    filled = ~made
    filled[new - known] = keys[rows >= known][first]
    return total, filled
