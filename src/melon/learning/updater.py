"""The updater: predicts a batch, then learns it. It gathers rows, asks the strategy, and alone writes the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from melon.errors import CheckpointError, LearningError
from melon.kernels import policy
from melon.learning.examples import Offered, Offers
from melon.learning.gathering import Compact, Gatherer
from melon.learning.heads import HEAD, HeadTeacher
from melon.recommenders.base import Context, Recommender
from melon.recommenders.heads import HeadStep, Lesson
from melon.strategies.base import LearningRates, Proposal, Situation, Strategy
from melon.strategies.learned import LearnedStrategy
from melon.strategies.sequential import propose_in_turn
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.tables import LazyTable, Table, TableSpec
from melon.types import Flags, Ints, Scores

FadingClock = Literal["interactions", "seconds"]
Provisional = list[tuple[Table, Tensor, Tensor]]


class Updater:
    """Recommender, strategy and history as one thing that streams: `score` before `learn`, batch by batch."""

    def __init__(
        self,
        recommender: Recommender,
        strategy: Strategy,
        history: History | None = None,
        *,
        seed: int = 0,
        fading_clock: FadingClock | None = None,
    ) -> None:
        self.recommender, self.strategy = recommender, strategy
        self.history = history or History()
        self.seed = seed
        self.fading_clock: FadingClock = fading_clock or strategy.settings.fading_clock
        self._specs = {spec.name: spec for spec in recommender.specs}
        strategy.bind(self._specs, recommender.dtype, recommender.device)
        self.row_state: dict[str, dict[str, Table]] = {
            name: self._state_tables(spec) for name, spec in self._specs.items() if recommender.learns(spec)
        }
        self._gatherer = Gatherer(
            recommender,
            self.history,
            self.row_state,
            per_branch=isinstance(strategy, LearnedStrategy) and strategy.per_branch,
        )
        self._teacher = HeadTeacher(recommender, self.history, seed)
        self._last_move: list[tuple[Tensor, Tensor]] = []
        self._offers = Offers(recommender, strategy, self.history, seed)

    def warm_up(self, *, in_background: bool = False) -> None:
        """Compile the loops that this model uses before the first interaction: now, or in a background thread."""
        policy.warm_up("stream", *self.recommender.kernels, *self.strategy.kernels, in_background=in_background)

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        """Scores of candidates (n × c) at a moment of the stream; changes nothing but the reading clock."""
        self.tick(time)
        with torch.no_grad():
            scores = self.recommender.score(
                self._tensor(users), self._tensor(items), Context(time=time, history=self.history)
            )
        return self._alike_where_absent(scores.cpu().numpy(), items)

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        """Scores of all items 0 … n_items-1 for each user."""
        self.tick(time)
        with torch.no_grad():
            scores = self.recommender.score_catalogue(
                self._tensor(users), n_items, Context(time=time, history=self.history)
            )
        return self._alike_where_absent(scores.cpu().numpy(), np.arange(n_items)[None, :])

    def learn(self, batch: Batch, *, teach_head: bool = True) -> float:
        """Learn one batch and append it to the history; returns its mean loss before the step.

        `teach_head` is about a recommender that has a head of its own: whether it makes its step too.
        """
        if not len(batch):
            return 0.0
        self.tick(int(batch.times[0]))
        taught = self._head_step(batch) if teach_head else None
        self._make_rows(batch)
        loss = self._step(batch) if self._offers.pool(batch) > 1 else 0.0
        if taught is not None:
            self._write_shared(taught.values)
            self._teacher.keep(taught)
        self.recommender.observe(batch.users, batch.items, batch.times, self.history)
        self.history.append(batch.users, batch.items)
        return loss

    def lesson(self, batch: Batch) -> Lesson | None:
        """What a batch would teach the recommender's head now, if it has one; nothing is changed."""
        self.tick(int(batch.times[0]))
        return self._teacher.lesson(batch)

    def practise_head(self, lessons: Sequence[Lesson]) -> dict[str, Tensor]:
        """What the recommender's head learns from recorded lessons, as part of a practice to be taken over."""
        return self._teacher.practise(lessons)

    def rehearse(self, batch: Batch) -> float:
        """Learn a batch of the past once more: the history, which holds it already, stays as it is."""
        self.tick(int(batch.times[0]))
        self._make_rows(batch)
        return self._step(batch)

    @property
    def moved(self) -> float:
        """How far the last step moved a row that it touched, on average: ‖Δ‖ of users' and items' vectors."""
        lengths = [(new.double() - old.double()).norm(dim=1) for old, new in self._last_move]
        return float(torch.cat(lengths).mean()) if lengths else 0.0

    def practice(self) -> dict[str, Tensor]:
        """What the strategy has learned of learning: its memory, and what it learned row by row."""
        rows = {
            f"rows/{name}/{key}/{part}": tensor
            for name, key, table in self._learned_rows()
            for part, tensor in table.state().items()
        }
        return {**self.strategy.memory(), **rows}

    def take_over(self, practice: Mapping[str, Tensor]) -> None:
        """Go on with what was learned of learning elsewhere, on a recommender of the same kind and stream."""
        practice = {name: tensor.to(self.recommender.device) for name, tensor in practice.items()}
        self._write_shared(self._teacher.take_over(practice))
        practice = {name: tensor for name, tensor in practice.items() if not name.startswith(HEAD)}
        if not practice:
            return
        rows = {
            table: {part: practice.get(f"rows/{name}/{key}/{part}") for part in ("values", "touched")}
            for name, key, table in self._learned_rows()
        }
        for table, state in rows.items():
            self._require_practised(table, state)
        self.strategy.recall({name: tensor for name, tensor in practice.items() if not name.startswith("rows/")})
        self.strategy.start_afresh()
        for table, state in rows.items():
            table.restore({part: tensor for part, tensor in state.items() if tensor is not None})

    def _head_step(self, batch: Batch) -> HeadStep | None:
        """The step of the recommender's head, if it makes one of its own; nothing is written yet."""
        made = self._teacher.step(batch)
        for name, values in made.values.items() if made is not None else ():
            if not torch.isfinite(values.sum()):
                raise self._broken(f"the new value of {name}", batch)
        return made

    def _write_shared(self, values: Mapping[str, Tensor]) -> None:
        for name, new in values.items():
            table = self.recommender.tables[name]
            table.scatter(torch.arange(table.rows, device=table.device), new)

    def _require_practised(self, table: Table, state: Mapping[str, Tensor | None]) -> None:
        """Refuse what was practised with another strategy or other settings, before anything is changed."""
        values, touched = state["values"], state["touched"]
        if values is None or touched is None or values.shape[1:] != (table.spec.dim,):
            found = "nothing" if values is None else f"rows of shape {tuple(values.shape[1:])}"
            raise CheckpointError(
                f"this is no practice of strategy {self.strategy.name!r} with these settings: for {table.spec.name} it "
                f"has {found} instead of rows of {table.spec.dim}. Practise again with the settings that are deployed."
            )

    def _learned_rows(self) -> Iterator[tuple[str, str, Table]]:
        for name, tables in self.row_state.items():
            kept = self.strategy.row_state(self._specs[name])
            yield from ((name, key, table) for key, table in tables.items() if kept[key].learned)

    def situation(self, batch: Batch) -> Situation:
        """A batch as the strategy would meet it now; newcomers get their rows, and no row that exists is changed."""
        self.tick(int(batch.times[0]))
        self._make_rows(batch)
        return self._situation(batch)[1]

    def learning_rates(self, batch: Batch) -> LearningRates:
        """The strategy's learning-rate matrix for a batch, as if it were learned now; changes no row that exists."""
        return self.strategy.learning_rates(self.situation(batch))

    def _alike_where_absent(self, scores: Scores, items: Ints) -> Scores:
        """Items without a row are one and the same to a recommender, and tie exactly.

        A matrix product may round equal lines differently by where they stand, and column 0 is the item taken.
        """
        absent = items >= self.recommender.rows_of("item")
        if not absent.any():
            return scores
        first = np.broadcast_to(absent.argmax(1), len(scores))
        return np.where(absent, scores[np.arange(len(scores)), first][:, None], scores)

    def _step(self, batch: Batch) -> float:
        with self.strategy.at_work():
            return self.step(self._offers.of(batch), self._offers.last(batch), batch)

    def step(self, offered: Offered, last: Offered | None, batch: Batch) -> float:
        """Learn interactions whose negatives are given; learned strategies look ahead from `last` first."""
        compact = self._compact(offered)
        situation = self._gatherer.situation(compact, offered)
        losses = situation.evidence.losses
        if not torch.isfinite(losses.sum()):
            raise self._broken("the loss", batch)
        provisional: Provisional = []
        adapted = None
        if isinstance(self.strategy, LearnedStrategy) and last is not None and len(last.users):
            provisional, situation = self._meta_step(self.strategy, compact, situation, last, batch)
            adapted = self.strategy
        if self.strategy.in_turn:
            proposal = propose_in_turn(self.recommender, self.strategy, situation)
        else:
            proposal = self.strategy.propose(situation)
        try:
            self._require_finite(proposal, batch)
        except LearningError:
            if adapted is not None:
                adapted.undo()
            raise
        most_step = self.strategy.settings.most_step
        if most_step is not None:
            proposal = proposal.within(most_step, situation.values)
        self._write(compact, situation, proposal)
        for table, rows, values in provisional:
            table.scatter(rows, values)
        # What is replayed is learned with the batch, but is no part of its loss.
        return float(losses.mean() if offered.fresh is None else losses[situation.examples.fresh].mean())

    def _meta_step(
        self, strategy: LearnedStrategy, compact: Compact, situation: Situation, last: Offered, batch: Batch
    ) -> tuple[Provisional, Situation]:
        """Steps 1 and 2: a provisional update from the last interactions, and φ by the loss of the batch after it.

        Returns the provisional rows that stay, which are none unless the strategy keeps them, and the batch as the
        strategy meets it now.
        """
        extended = self._gatherer.extended(compact, last)
        # Rows of the last interactions that the batch does not touch cannot reach its loss: exact, and cheaper.
        looking_back = self._gatherer.situation(extended, last, reach=compact, beside=situation)

        def meta_loss(values: Mapping[str, Tensor]) -> Tensor:
            return self.recommender.losses_once(values, situation.examples).mean()

        gradients, after = strategy.meta_gradient(looking_back, meta_loss)
        if not all_finite([after, *gradients.values()]):
            raise self._broken("the look-ahead", batch)
        kept: dict[str, Tensor] = {}
        if strategy.settings.keep_prelim:
            with torch.no_grad():
                kept = strategy.look_ahead(replace(looking_back, reach=None))
            if not all_finite(list(kept.values())):
                raise self._broken("the provisional update", batch)
        tables = {name: self.recommender.tables[name] for name in kept}
        provisional = [
            (table, extended.rows(table)[situation.reached(name) :], kept[name][situation.reached(name) :])
            for name, table in tables.items()
        ]
        return provisional, strategy.adapt(gradients, situation)

    def _situation(self, batch: Batch) -> tuple[Compact, Situation]:
        offered = self._offers.of(batch)
        compact = self._compact(offered)
        return compact, self._gatherer.situation(compact, offered)

    def _compact(self, offered: Offered) -> Compact:
        return self._gatherer.everything() if self.strategy.dense else self._gatherer.touched(offered)

    def _require_finite(self, proposal: Proposal, batch: Batch) -> None:
        if all_finite([*proposal.values.values(), *(v for kept in proposal.row_state.values() for v in kept.values())]):
            return
        for name, values in proposal.values.items():
            if not torch.isfinite(values.sum()):
                raise self._broken(f"the new value of {name}", batch)
        for name, kept in proposal.row_state.items():
            for key, values in kept.items():
                if not torch.isfinite(values.sum()):
                    raise self._broken(f"{key} of {name}", batch)

    def _write(self, compact: Compact, situation: Situation, proposal: Proposal) -> None:
        moving = [name for name in proposal.values if self._specs[name].kind == "embedding"]
        self._last_move = [(situation.values[name], proposal.values[name].detach()) for name in moving]
        for name, values in proposal.values.items():
            table = self.recommender.tables[name]
            table.scatter(compact.rows(table), values.detach())
        for name, kept in proposal.row_state.items():
            for key, values in kept.items():
                table = self.row_state[name][key]
                table.scatter(compact.rows(table), values.detach())
        self.strategy.keep(proposal.memory)

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
        kept, recommender = self.strategy.row_state(spec), self.recommender
        made: dict[str, Table] = {}
        for key, each in kept.items():
            form = LazyTable if each.lazy and spec.role != "shared" else Table
            state = TableSpec(
                f"{spec.name}.{key}", spec.role, spec.kind, each.width or spec.dim, 0.0, each.start, spec.rows
            )
            made[key] = form(state, clock=recommender.clock, dtype=recommender.dtype, device=recommender.device)
        return made

    def tick(self, time: int) -> None:
        """Let rows be read as they are at this moment of the stream, faded as the strategy has it by now."""
        for name, half_life in self.strategy.half_lives(self._specs).items():
            self.recommender.tables[name].half_life = half_life
        self.recommender.clock.now = self.history.events if self.fading_clock == "interactions" else time

    def _tensor(self, array: Ints | Flags) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.recommender.device)

    def _broken(self, what: str, batch: Batch) -> LearningError:
        return LearningError(
            f"{what} is not finite in the batch of events {batch.first_event} to {batch.first_event + len(batch) - 1} "
            f"({self.recommender.name} with {self.strategy.name}); nothing of this batch was written. "
            "Try a smaller learning rate (--set lr=…)."
        )


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every number is finite; one that is not shows in the sum of their sizes."""
    return bool(torch.isfinite(torch.stack(torch._foreach_norm(tensors, 1)).sum()))


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
