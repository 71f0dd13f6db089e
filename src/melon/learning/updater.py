"""The updater: predicts a batch, then learns it. It gathers rows, asks the strategy, and alone writes the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from melon.errors import CheckpointError, SettingsError
from melon.journal import keep, undoable
from melon.kernels import policy
from melon.learning.heads import HEAD, HeadTeacher
from melon.learning.step import ComputedStep, NewRows, Offered, RowStateTables, StepMaker
from melon.models.base import Context, Recommender
from melon.models.blend.head import HeadExamples, HeadStep
from melon.models.catalogue import Catalogue
from melon.strategies.base import LearningRates, Memory, Situation, Strategy
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.tables import Moment, Table, TableSpec
from melon.types import AnyArray, Ints, Scores


class Updater:
    """Recommender, strategy and history as one thing that streams: `score` before `learn`, batch by batch.

    Scoring writes nothing. Not safe for threads that learn and score at once: `LiveModel` has a lock.
    """

    def __init__(
        self,
        recommender: Recommender,
        strategy: Strategy,
        history: History | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.recommender, self.strategy = recommender, strategy
        self.history = history or History()
        if strategy.whole_history and not self.history.whole:
            none = np.empty(0, dtype=np.int64)
            self.history.keep_everything(none, none)
        self.seed = seed
        self._specs = {spec.name: spec for spec in recommender.specs}
        if not self._specs and (strategy.looks_ahead or strategy.stream_trained):
            raise SettingsError(
                f"strategy {strategy.name!r} has nothing to update: the recommender {recommender.name!r} learns by "
                "observing alone. Use it with the strategy 'default'."
            )
        strategy.bind(self._specs, recommender.dtype)
        self.row_state: RowStateTables = {
            name: self._state_tables(spec) for name, spec in self._specs.items() if recommender.learns(spec)
        }
        self._steps = StepMaker(recommender, strategy, self.history, self.row_state, seed)
        self._teacher = HeadTeacher(recommender, self.history, seed)
        self._state = [table for tables in self.row_state.values() for table in tables.values()]
        self._last: ComputedStep | None = None
        self._followed: Mapping[str, float] | None = None
        self._kept: tuple[tuple[object, ...], Catalogue] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies: they make their own scorer of all items."""
        return {**self.__dict__, "_kept": None}

    # Reading: nothing is written.

    def moment(self) -> Moment:
        """The moment of reading: the decay clock, which counts interactions, and half-lives as they are by now."""
        half_lives = {name: t.half_life for name, t in self.recommender.tables.items() if t.half_life is not None}
        by_now = self.strategy.half_lives(self._specs) if self._followed is None else self._followed
        return Moment(self.history.events, {**half_lives, **by_now})

    def follow(self, half_lives: Mapping[str, float]) -> None:
        """Read with half-lives that another updater has learned: this one answers from a copy and learns nothing."""
        self._followed = half_lives

    def warm_up(self, *, in_background: bool = False) -> None:
        """Compile the kernels that this model uses before the first interaction: now, or in a background thread."""
        policy.warm_up("stream", *self.recommender.kernels, *self.strategy.kernels, in_background=in_background)

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        """Scores of candidates (n × c) at a time of the stream."""
        return self._tie_absent(self.recommender.score(users, items, self._context(time)), items)

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        """Scores of all items 0 … n_items-1 for each user."""
        scores = self.recommender.score_catalogue(users, n_items, self._context(time))
        return self._tie_absent(scores, np.arange(n_items)[None, :])

    def catalogue(self, n_items: int, time: int) -> Catalogue:
        """The scorer of items 0 … n_items-1 for lists, which is kept while the model stays the same."""
        moment, tables = self.moment(), self.recommender.tables.values()
        version = n_items, moment, self.history.events, sum(table.version for table in tables)
        if self._kept is None or self._kept[0] != version:
            self._kept = version, self.recommender.catalogue(n_items, Context(time, self.history, moment))
        return self._kept[1]

    @property
    def reads_history(self) -> bool:
        """Whether scores depend on what a user took before, beside the user's rows."""
        return type(self.recommender).features is not Recommender.features

    @contextmanager
    def visited(self, items: Ints) -> Iterator[int]:
        """Score as if a newcomer had taken items, the newest last, while it lasts; yields the newcomer's row."""
        row = self.history.of_users.rows
        with undoable(always=True):
            keep(self, "_kept")
            self.history.append(np.full(len(items), row), items)
            yield row

    def similarities(self, items: Ints, time: int) -> Scores:
        """How similar each item of the catalogue is to each of the given ones."""
        return self.recommender.similarities(items, self._context(time))

    def head_examples(self, batch: Batch) -> HeadExamples | None:
        """What a batch would teach the recommender's head now, if it has one."""
        return self._teacher.head_examples(batch, self._context(int(batch.times[0])))

    def with_present_rows(self, head_examples: HeadExamples, time: int) -> HeadExamples:
        """Examples that were recorded beside other rows at this point of the stream, as they are beside these."""
        return self._teacher.with_present_rows(head_examples, self._context(time))

    # Learning: the only code that writes rows.

    def learn(self, batch: Batch, *, teach_head: bool = True) -> float:
        """Learn one batch and append it to the history; returns its mean loss before the step.

        Everything is computed and checked before the first row is written: a step that cannot be made leaves nothing.
        Whatever fails later leaves nothing where the caller has opened a journal (`melon.journal.undoable`).
        `teach_head` says whether the head of a recommender that has one makes its step too.
        """
        users, items, history = batch.users, batch.items, self.history
        if not len(users):
            return 0.0
        with undoable():
            self._tick()
            # The head learns from the model as it was when the batch was predicted, so its step is computed first.
            head = self._head_step(batch) if teach_head and self._teacher.steps else None
            self.make_rows(batch)
            step = self._steps.of(batch)
        if step is not None:
            step.rows.write()
        if head is not None:
            self._head_rows(head.values).write()
        self.recommender.follow(users, items, batch.times, history)
        history.append(users, items)
        # What is kept last cannot fail.
        if step is not None:
            self.strategy.keep(step.memory)
            self._last = step
        if head is not None:
            self._teacher.keep(head)
        return step.loss if step else 0.0

    def rehearse(self, batch: Batch) -> float:
        """Learn a batch of the past once more: the history, which holds it already, stays as it is.

        A history that is kept as a whole is read as it was before the batch, or as a whole by the published code.
        Negatives come from all items of the history, so their rows must exist (`fitting.pretrained.untrained`).
        """
        with undoable():
            self._tick()
            self.make_rows(batch)
            with self.history.as_before(batch.first_event, static=self.strategy.static_history):
                step = self._steps.of(batch)
        return self._write(step)

    def step(self, offered: Offered, last: Offered | None, batch: Batch) -> float:
        """Learn interactions whose negatives are given, on rows that exist; the history stays as it is."""
        with undoable():
            step = self._steps.propose(offered, last, batch)
        return self._write(step)

    def make_rows(self, batch: Batch) -> None:
        """Make the rows of the batch's newcomers; rows that exist are left alone."""
        recommender = self.recommender
        sizes: dict[str, int] = {"user": recommender.rows_of("user"), "item": recommender.rows_of("item")}
        known = batch.rows[0] <= sizes["user"] and batch.rows[1] <= sizes["item"]
        if known and all(table.rows == sizes.get(table.spec.role, table.rows) for table in self._state):
            return
        users, user_keys = _new_rows(batch.users, batch.user_keys, sizes["user"])
        items, item_keys = _new_rows(batch.items, batch.item_keys, sizes["item"])
        recommender.grow(users, user_keys, items, item_keys)
        for table in self._state:
            if table.spec.role != "shared":
                size = recommender.rows_of(table.spec.role)
                table.grow(size, np.arange(table.rows, size))

    def situation(self, batch: Batch) -> Situation:
        """A batch as the strategy would meet it if it were learned now.

        Newcomers get their rows, as `make_rows` gives them; no row that exists is changed.
        """
        self._tick()
        self.make_rows(batch)
        return self._steps.situation(batch)

    def offered(self, batch: Batch) -> Offered:
        """The batch with the negatives that it would be learned with; newcomers get their rows."""
        self._tick()
        self.make_rows(batch)
        return self._steps.offered(batch)

    def learning_rates(self, batch: Batch) -> LearningRates:
        """The strategy's learning-rate matrix for the `situation` of a batch."""
        return self.strategy.learning_rates(self.situation(batch))

    @property
    def moved(self) -> float:
        """How far the last step moved a row that it touched, on average: ‖Δ‖ of users' and items' vectors."""
        return self._last.rows.moved if self._last is not None else 0.0

    # Meta-training: what is trained on the selection window and deployed with other rows.

    def train_head(self, head_batches: Sequence[HeadExamples], known: Memory | None = None) -> Memory:
        """What the recommender's head learns from recorded training examples, as part of meta-training.

        With a head that is `known` from the same events beside other rows, a few passes have to do.
        """
        return self._teacher.meta_train(head_batches, known)

    def teach_head(self, head_examples: HeadExamples) -> None:
        """Let the head make the step that it would have made when the training example was recorded."""
        step = self._teacher.step_from(head_examples)
        self._head_rows(step.values).write()
        self._teacher.keep(step)

    def meta_training(self) -> Memory:
        """The strategy's meta-parameters: its memory, and what it learned row by row."""
        rows = {
            f"rows/{name}/{key}/{part}": array
            for name, key, table in self._learned_rows()
            for part, array in table.state().items()
        }
        return {**self.strategy.memory(), **rows}

    def take_over(self, meta_training: Mapping[str, AnyArray]) -> None:
        """Load meta-parameters and a head that were trained on the selection window of the same stream."""
        self._head_rows(self._teacher.take_over(meta_training)).write()
        meta_training = {name: array for name, array in meta_training.items() if not name.startswith(HEAD)}
        if not meta_training:
            return
        learned = [
            (table, {part: meta_training.get(f"rows/{name}/{key}/{part}") for part in ("values", "touched")})
            for name, key, table in self._learned_rows()
        ]
        for table, state in learned:
            self._require_stream_trained(table, state)
        self.strategy.recall({name: array for name, array in meta_training.items() if not name.startswith("rows/")})
        self.strategy.start_afresh()
        for table, state in learned:
            table.restore({part: array for part, array in state.items() if array is not None})

    # The parts of a step.

    def _tick(self) -> None:
        """Move the clock of learning to now, and half-lives to where the strategy has them by now."""
        clock, tables = self.recommender.clock, self.recommender.tables
        keep(clock, "now")
        clock.now = self.history.events
        for name, half_life in self.strategy.half_lives(self._specs).items():
            tables[name].half_life = half_life

    def _head_step(self, batch: Batch) -> HeadStep | None:
        """The step of the recommender's head, if it makes one of its own; nothing is written yet."""
        step = self._teacher.step(batch, self._context(int(batch.times[0])))
        for name, values in step.values.items() if step is not None else ():
            if not np.isfinite(values).all():
                raise self._steps.broken(f"the new value of {name}", batch)
        return step

    def _head_rows(self, values: Mapping[str, AnyArray]) -> NewRows:
        tables = ((self.recommender.tables[name], new) for name, new in values.items())
        return NewRows([(table, np.arange(table.rows), new) for table, new in tables])

    def _write(self, step: ComputedStep | None) -> float:
        if step is None:
            return 0.0
        step.rows.write()
        self.strategy.keep(step.memory)
        self._last = step
        return step.loss

    def _require_stream_trained(self, table: Table, state: Mapping[str, AnyArray | None]) -> None:
        """Refuse what was meta-trained with another strategy or other settings, before anything is changed."""
        values, touched = state["values"], state["touched"]
        if values is None or touched is None or values.shape[1:] != (table.spec.dim,):
            shape = "nothing" if values is None else f"rows of shape {tuple(values.shape[1:])}"
            raise CheckpointError(
                f"this is not a meta-training of {self.strategy.name!r} with these settings: for {table.spec.name} it "
                f"has {shape} instead of rows of {table.spec.dim}. Meta-train again with these settings."
            )

    def _learned_rows(self) -> Iterator[tuple[str, str, Table]]:
        for name, tables in self.row_state.items():
            declared = self.strategy.row_state(self._specs[name])
            yield from ((name, key, table) for key, table in tables.items() if declared[key].learned)

    def _state_tables(self, spec: TableSpec) -> dict[str, Table]:
        recommender, tables = self.recommender, dict[str, Table]()
        for key, declared in self.strategy.row_state(spec).items():
            state = TableSpec(
                f"{spec.name}.{key}", spec.role, spec.kind, declared.width or spec.dim, 0.0, declared.start, spec.rows
            )
            tables[key] = Table(state, clock=recommender.clock, dtype=recommender.dtype)
        return tables

    def _context(self, time: int) -> Context:
        return Context(time=time, history=self.history, moment=self.moment())

    def _tie_absent(self, scores: Scores, items: Ints) -> Scores:
        """Give all items without a row the same score, so that they tie exactly.

        A matrix product may round equal lines differently by where they stand, and column 0 is the item taken.
        """
        absent = items >= self.recommender.rows_of("item")
        if not absent.any():
            return scores
        first = np.broadcast_to(absent.argmax(1), len(scores))
        return np.where(absent, scores[np.arange(len(scores)), first][:, None], scores)


def _new_rows(rows: Ints, keys: Ints, stored: int) -> tuple[int, Ints]:
    """The row count after a batch, and the keys of the rows to make, in row order."""
    new, first = np.unique(rows[rows >= stored], return_index=True)
    if not len(new):
        return stored, np.empty(0, dtype=np.int64)
    total = int(new[-1]) + 1
    # Rows are numbered by first appearance, so a gap can only be a row that was skipped on purpose.
    filled = ~np.arange(stored, total, dtype=np.int64)
    filled[new - stored] = keys[rows >= stored][first]
    return total, filled
