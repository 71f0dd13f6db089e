"""Pre-training on a recorded log: shuffled batches, summed plain steps with L2 (docs/methods.md 3.0.6, 8.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from pydantic import Field

from melon.data.interactions import Interactions
from melon.errors import LearningError, StreamError, require_torch
from melon.kernels.threads import ahead
from melon.models.base import Recommender, SummedSteps
from melon.registry import Space
from melon.settings import Settings
from melon.stream.candidates import Negatives
from melon.stream.draws import Draws
from melon.stream.history import History
from melon.stream.pairs import SeenPairs
from melon.stream.split import batches
from melon.types import Ints

#: How many interactions a pre-training looks at unless told otherwise; small logs are seen up to MOST_EPOCHS times.
INTERACTIONS_SEEN, FEWEST_EPOCHS, MOST_EPOCHS = 15_000_000, 8, 60

#: How much of a log is observed at a time; the result does not depend on it. Of many items, few are met twice in a
#: short run, and each time an item is met its neighbours come from memory: so a log with many is taken in longer runs.
_OBSERVED_AT_ONCE, _MOST_OBSERVED_AT_ONCE = 1 << 11, 1 << 15
#: How much of a log is drawn and learned at a time; likewise. Ctrl-C works in between.
_LEARNED_AT_ONCE = 1 << 15

PRETRAIN_SPACE = Space({"l2": (0.003, 0.01, 0.03, 0.1, 0.3)}, ({"l2": 0.03},))


class PretrainSettings(Settings):
    """`lr` moves the rows of users and items for each interaction, `shared_lr` shared weights for each batch."""

    epochs: int | None = Field(None, ge=0)
    lr: float = Field(0.1, gt=0, le=1e6)
    l2: float = Field(0.03, ge=0)
    shared_lr: float = Field(0.01, gt=0, le=1e6)
    batch_size: int = Field(256, ge=1)


def most_epochs(interactions: int) -> int:
    """How often a log of this length is worth passing over."""
    return int(np.clip(INTERACTIONS_SEEN // max(interactions, 1), FEWEST_EPOCHS, MOST_EPOCHS))


class Pretraining:
    """Epochs over a log. What is random in epoch e depends on (seed, e) alone, so it can stop and go on anywhere."""

    def __init__(
        self,
        recommender: Recommender,
        log: Interactions,
        settings: PretrainSettings,
        *,
        seed: int,
        helpers: int | None = None,
    ) -> None:
        if not len(log):
            raise StreamError("there is nothing to pre-train on: the training part is empty.")
        if log.n_items < 2:
            raise StreamError("all interactions are with one item; a recommender needs at least two to compare.")
        self.recommender, self.log, self.settings = recommender, log, settings
        self.epochs_done, self._helpers = 0, helpers
        self._order = Draws(seed, "shuffle")
        # Everything in the log has happened by the time its recommender is used: negatives avoid all of it.
        self._negatives = Negatives(log.n_items, SeenPairs(log.taken), Draws(seed, "pre-training negatives"))
        self._make_rows()

    def epoch(self) -> float:
        """One shuffled pass; returns the mean loss."""
        steps = SummedSteps(*(getattr(self.settings, name) for name in SummedSteps._fields))
        total = 0.0
        for users, items in self._lines():
            loss = self.recommender.pretrain(users, items, steps)
            total += self._by_gradients(users, items, steps) if loss is None else loss
        self.epochs_done += 1
        mean = total / len(self.log)
        if not np.isfinite(mean):
            raise LearningError(
                f"pre-training {self.recommender.name} diverged in epoch {self.epochs_done}; "
                f"use a smaller step than lr={self.settings.lr:g}."
            )
        return mean

    def run(self, epochs: int) -> Iterator[float]:
        """Epochs until `epochs` are done in all; yields each one's mean loss."""
        while self.epochs_done < epochs:
            yield self.epoch()

    def _lines(self) -> Iterator[tuple[Ints, Ints]]:
        """The rows of an epoch in its order, n users and n × (1 + negatives) items, some batches at a time."""
        log, size, negatives = self.log, self.settings.batch_size, self.recommender.settings.negatives
        order = self._order.generator(self.epochs_done).permutation(len(log))
        at_once = max(_LEARNED_AT_ONCE // size, 1) * size

        def draw(start: int) -> tuple[Ints, Ints]:
            lines = order[start : start + at_once]
            users, items, events = log.users[lines], log.items[lines], lines + self.epochs_done * (1 << 40)
            others = self._negatives.draw(users, items, events, negatives)
            return users, np.concatenate([items[:, None], others], axis=1)

        return ahead(draw, range(0, len(log), at_once), self._helpers)

    def _make_rows(self) -> None:
        log, recommender = self.log, self.recommender
        recommender.grow(
            log.n_users,
            log.user_keys[recommender.rows_of("user") : log.n_users],
            log.n_items,
            log.item_keys[recommender.rows_of("item") : log.n_items],
        )

    def _by_gradients(self, users: Ints, items: Ints, steps: SummedSteps) -> float:
        """The general path, for any recommender and number type."""
        require_torch(f"pre-training the recommender {self.recommender.name!r} with these settings")
        from melon.learning.general_step import pretrain_by_gradients

        return pretrain_by_gradients(self.recommender, users, items, steps)


def stamp_last_touches(recommender: Recommender, log: Interactions) -> None:
    """Count idle time from each row's last interaction in the log, in events (docs/methods.md 8.3)."""
    for role, rows, count in (("user", log.users, log.n_users), ("item", log.items, log.n_items)):
        last = np.zeros(count, dtype=np.int64)
        for start, stop in batches(0, len(log), _LEARNED_AT_ONCE):  # in order of time, and the last one written stays
            last[rows[start:stop]] = np.arange(start, stop)
        for table in recommender.tables.values():
            if table.spec.role == role:
                stamps = last[: table.rows]
                table.stamp(np.arange(len(stamps)), stamps)


def live_through(
    recommender: Recommender, history: History, log: Interactions, given_up: Callable[[], bool] = lambda: False
) -> None:
    """Observe a recorded log in order of time and append it to the history; no row is learned."""
    recommender.fit_past(log.users, log.items)
    history.expect(log)
    at_once = int(np.clip(log.n_items // 4, _OBSERVED_AT_ONCE, _MOST_OBSERVED_AT_ONCE))
    for start, stop in batches(0, len(log), at_once):
        if given_up():
            return
        users, items = log.users[start:stop], log.items[start:stop]
        recommender.observe(users, items, log.times[start:stop], history)
        history.append(users, items)
