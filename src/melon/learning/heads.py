"""Training of a recommender's head: examples from batches, online steps, and training on the selection window.

A recommender without a head has no training examples. Tables are read here and written by the updater.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from melon.kernels import policy
from melon.models.base import Context, Recommender
from melon.models.blend.head import HeadExamples, HeadStep
from melon.models.blend.recommender import Blend
from melon.stream.batch import Batch
from melon.stream.draws import Draws
from melon.stream.history import History
from melon.stream.pairs import pair_keys
from melon.types import AnyArray, Arrays, Flags, Floats, Ints, Singles

#: The part of meta-training that belongs to the recommender's head.
HEAD = "head/"


class HeadTeacher:
    """Teaches the head of one recommender along one history."""

    def __init__(self, recommender: Recommender, history: History, seed: int) -> None:
        self._headed = recommender if isinstance(recommender, Blend) else None
        #: Whether there is a head, which makes a step of its own with each batch.
        self.steps = self._headed is not None
        self._history, self._draws = history, Draws(seed, "negatives of the head")

    def head_examples(self, batch: Batch, context: Context) -> HeadExamples | None:
        """What a batch would teach the head at a moment; nothing is changed.

        Items that nobody has taken so far are no example: beside negatives that all have a past, one without would
        give itself away, and the head would learn that what is new is right (docs/methods.md 8.5).
        """
        headed = self._headed
        if headed is None or self._history.known_items < 2:
            return None
        users, lines, allowed = self._lines(batch, headed.head.settings.negatives)
        if not len(users):
            return None
        examples = headed.head_examples(users, lines, allowed, context)
        return replace(examples, offsets=self._offsets(users, lines))

    def with_present_rows(self, head_examples: HeadExamples, context: Context) -> HeadExamples:
        """Recorded examples as they are beside the rows of this recommender at the same point of the stream."""
        assert self._headed is not None
        return self._headed.with_present_rows(head_examples, context)

    def _offsets(self, users: Ints, lines: Ints) -> Singles | None:
        """Minus the log of how often each item of a line is drawn, where some are drawn more often than others."""
        assert self._headed is not None
        settings, stream = self._headed.head.settings, self._headed.stream
        own, popular = settings.own_negatives if stream.own is not None else 0, settings.popular_negatives
        if not own and not popular:
            return None
        rate = (settings.negatives - own - popular) / self._history.known_items
        drawn: Floats = np.full(lines.shape, rate)
        if popular and len(stream.counts.latest):
            shares = np.bincount(stream.counts.latest, minlength=self._history.known_items) / len(stream.counts.latest)
            drawn += popular * shares[lines]
        if own and stream.own is not None:
            sizes = np.maximum(stream.own.sizes(users), 1)[:, None]
            had = self._history.seen.contains(pair_keys(np.broadcast_to(users[:, None], lines.shape), lines))
            drawn = np.where(had, own / sizes, drawn)
        offsets: Singles = np.log(rate / drawn).astype(np.float32)
        return offsets

    def _lines(self, batch: Batch, negatives: int) -> tuple[Ints, Ints, Flags]:
        """Users whose item has been taken before, the item and drawn ones beside it, and which of these count."""
        history, pool = self._history, self._history.known_items
        users, items = np.ascontiguousarray(batch.users), np.ascontiguousarray(batch.items)
        where, lines = np.empty_like(users), np.empty((len(users), 1 + negatives), dtype=np.int64)
        allowed, met = np.empty(lines.shape, dtype=bool), history.of_items.storage[1]
        from_past = (history.seen.storage, self._draws.root, pool, met, history.of_items.rows)
        count = policy.load("stream").head_lines(*from_past, users, items, batch.events, where, lines, allowed)
        users, lines, allowed = users[where[:count]], lines[:count], allowed[:count]
        self._replace_some(users, batch.events[where[:count]], lines, allowed)
        return users, lines, allowed

    def _replace_some(self, users: Ints, events: Ints, lines: Ints, allowed: Flags) -> None:
        """Put items that the user had, and items of the latest events, in place of the last uniform draws.

        A list of the whole catalogue is mostly a choice among these, and the head learns to tell them apart.
        """
        assert self._headed is not None
        settings, end = self._headed.head.settings, lines.shape[1]
        own = self._headed.stream.own
        if settings.own_negatives and own is not None and len(users):
            drawn = own.drawn(users, self._draws, events, settings.own_negatives)
            some = slice(end - settings.own_negatives, end)
            lines[:, some] = np.maximum(drawn, 0)
            allowed[:, some] = (drawn >= 0) & (drawn != lines[:, :1])
            end -= settings.own_negatives
        latest = self._headed.stream.counts.latest
        if settings.popular_negatives and len(latest):
            places = self._draws.integers(events, settings.popular_negatives, len(latest), start=1 << 21)
            some = slice(end - settings.popular_negatives, end)
            lines[:, some] = latest[places]
            seen = self._history.seen.contains(pair_keys(np.broadcast_to(users[:, None], places.shape), lines[:, some]))
            allowed[:, some] = ~seen & (lines[:, some] != lines[:, :1])

    def step(self, batch: Batch, context: Context) -> HeadStep | None:
        """The head's own step, from the model as it was when the batch was predicted."""
        head_examples = self.head_examples(batch, context)
        return None if head_examples is None else self.step_from(head_examples)

    def step_from(self, head_examples: HeadExamples) -> HeadStep:
        """The same from a training example that was recorded."""
        assert self._headed is not None
        return self._headed.head.step(self._headed.head_values(None), head_examples)

    def keep(self, step: HeadStep) -> None:
        """Store the optimiser's state of a step that has been written."""
        assert self._headed is not None
        self._headed.head.keep(step.memory)

    def meta_train(self, head_batches: Sequence[HeadExamples], known: Arrays | None = None) -> dict[str, AnyArray]:
        """What the head learns from recorded training examples, as part of meta-training (`BlendHead.meta_train`)."""
        if self._headed is None:
            return {}
        known = known and {name.removeprefix(HEAD): array for name, array in known.items()}
        learned = self._headed.head.meta_train(self._headed.head_values(None), head_batches, known)
        return {f"{HEAD}{name}": array for name, array in learned.items()}

    def take_over(self, meta_training: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Load the head's part of meta-training; returns new values of its tables."""
        learned = {name.removeprefix(HEAD): array for name, array in meta_training.items() if name.startswith(HEAD)}
        if not learned or self._headed is None:
            return {}
        return dict(self._headed.head.take_over(learned))
