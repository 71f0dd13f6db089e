"""A model in use: an updater that knows the caller's ids, answers with the best items, and is saved as one state."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from melon.data.ids import IdBook
from melon.data.interactions import Interactions
from melon.errors import CheckpointError, SettingsError
from melon.learning import checkpoint
from melon.learning.checkpoint import PathLike, RecommenderFactory, StrategyFactory
from melon.learning.topk import best, best_unseen
from melon.learning.updater import Updater
from melon.recommenders.popularity import DecayedCounts
from melon.stream.batch import Batch
from melon.stream.split import batches
from melon.types import Ints

#: "Recent" for popular items: a count halves in this many interactions.
POPULAR_HALF_LIFE = 5_000
#: Lists are made from at most this many scores at a time: 32 MB, which allocators still hand out again and again.
SCORES_AT_ONCE = 1 << 23

Best = tuple[Ints, Tensor]  # item rows and their scores, best first


class LiveModel:
    """All that changes while learning. A batch is learned into it whole or not at all."""

    def __init__(
        self,
        updater: Updater,
        *,
        users: IdBook | None = None,
        items: IdBook | None = None,
        popular: DecayedCounts | None = None,
        last_time: int = 0,
    ) -> None:
        self.updater = updater
        self.users = IdBook("user") if users is None else users
        self.items = IdBook("item") if items is None else items
        self.popular = popular or DecayedCounts(POPULAR_HALF_LIFE)
        self.last_time = last_time

    def rows_of(self, role: Literal["user", "item"]) -> int:
        """How many users or items the recommender can speak of; one without tables goes by the history."""
        history = self.updater.history
        known = history.of_users.rows if role == "user" else history.items_born
        return self.updater.recommender.rows_of(role) or known

    def adopt(self, log: Interactions) -> None:
        """Know the ids, the popular items and the last time of the log that the updater already has behind it."""
        self.users.rows(log.user_ids, add=True)
        self.items.rows(log.item_ids, add=True)
        self.popular.observe(log.items)
        self.last_time = int(log.times[-1])

    def learn(self, log: Interactions, batch_size: int) -> Iterator[float]:
        """Learn new interactions batch by batch, a short last one too; yields each one's mean loss before its step."""
        user_rows, item_rows = self.users.rows(log.user_ids), self.items.rows(log.item_ids)
        for start, stop in batches(0, len(log), batch_size):
            with whole():
                loss = self._learn(log, slice(start, stop), user_rows, item_rows)
            yield loss

    def foresee(self, log: Interactions, start: int, stop: int) -> Batch:
        """Events of a log as the next batch would be; nothing is taken note of, newcomers stand behind the known."""
        users, items = log.users[start:stop], log.items[start:stop]
        return Batch(
            self.updater.history.events,
            _foreseen(self.users, log.user_ids, users),
            _foreseen(self.items, log.item_ids, items),
            log.times[start:stop],
            log.user_keys[users],
            log.item_keys[items],
        )

    def best(self, users: Ints, k: int, *, filter_seen: bool) -> Iterator[Best]:
        """The k best items for each of the known users; without those that the user has had, if asked."""
        n_items = self.rows_of("item")
        at_once = max(SCORES_AT_ONCE // max(n_items, 1), 1)
        for start in range(0, len(users), at_once):
            some = users[start : start + at_once]
            scores = torch.from_numpy(self.updater.score_catalogue(some, n_items, self.last_time))
            if filter_seen:
                yield from best_unseen(scores, some, k, self.updater.history)
            else:
                values, rows = best(scores, k)
                yield from zip(rows.numpy(), values, strict=True)

    def most_popular(self, k: int) -> Best:
        """The k items with the highest count of late."""
        counts = torch.from_numpy(self.popular.read(np.arange(self.rows_of("item"))))
        values, rows = best(counts[None, :], k)
        return rows[0].numpy(), values[0]

    def similar(self, items: Ints, k: int) -> Iterator[Best]:
        """The k items most like each of the known items, itself left out."""
        recommender = self.updater.recommender
        if not any(spec.role == "item" and spec.kind == "embedding" for spec in recommender.specs):
            raise SettingsError(f"the recommender {recommender.name!r} has no vectors of items to compare.")
        self.updater.tick(self.last_time)
        at_once = max(SCORES_AT_ONCE // max(self.rows_of("item"), 1), 1)
        for start in range(0, len(items), at_once):
            some = items[start : start + at_once]
            with torch.no_grad():
                alike = recommender.similarities(torch.from_numpy(some).to(recommender.device)).cpu()
            values, rows = best(alike, k + 1)
            for itself, line, scores in zip(some, rows.numpy(), values, strict=True):
                others = np.flatnonzero(line != itself)[:k]
                yield line[others], scores[torch.from_numpy(others)]

    def save(self, folder: PathLike, extra: Mapping[str, Any]) -> None:
        """Write everything as one checkpoint."""
        parts = {"users": self.users.state(), "items": self.items.state(), "popular": self.popular.state()}
        arrays = {f"{part}.{name}": array for part, state in parts.items() for name, array in state.items()}
        # Whether anyone has asked since the last batch is no part of the state.
        self.updater.tick(self.last_time)
        about = {**extra, "model": {"last_time": self.last_time}}
        checkpoint.save(folder, self.updater, extra=about, arrays=arrays)

    @classmethod
    def load(
        cls,
        folder: PathLike,
        *,
        recommender: RecommenderFactory | None = None,
        strategy: StrategyFactory | None = None,
        device: str = "cpu",
    ) -> tuple[Self, dict[str, Any]]:
        """The model that `save` wrote, and the extra that came with it."""
        saved = checkpoint.load(folder, recommender=recommender, strategy=strategy, device=device)
        if "model" not in saved.extra:
            raise CheckpointError(
                f"{os.fspath(folder)} holds the state of an evaluation rather than a model to use: it knows no ids. "
                "Point to a folder that Melon.save or melon pretrain made."
            )

        def part(name: str) -> dict[str, npt.NDArray[Any]]:
            there = f"{name}."
            return {key.removeprefix(there): array for key, array in saved.arrays.items() if key.startswith(there)}

        model = cls(
            saved.updater,
            users=IdBook.from_state(part("users"), "user"),
            items=IdBook.from_state(part("items"), "item"),
            popular=DecayedCounts.from_state(part("popular")),
            last_time=saved.extra["model"]["last_time"],
        )
        return model, saved.extra

    def _learn(self, log: Interactions, events: slice, user_rows: Ints, item_rows: Ints) -> float:
        users, items, times = log.users[events], log.items[events], log.times[events]
        # Ids enter the books with their batch, so that a stream that stops knows nobody whose row was never made.
        _add(self.users, log.user_ids, user_rows, users)
        _add(self.items, log.item_ids, item_rows, items)
        batch = Batch(
            self.updater.history.events,
            user_rows[users],
            item_rows[items],
            times,
            log.user_keys[users],
            log.item_keys[items],
        )
        loss = self.updater.learn(batch)
        self.popular.observe(batch.items)
        self.last_time = int(times[-1])
        return loss


def _add(book: IdBook, ids: npt.NDArray[Any], row_of: Ints, batch: Ints) -> None:
    """Give rows to the ids of a batch that have none (-1) so far; the log numbers its ids in order of arrival."""
    distinct = np.unique(batch)
    fresh = distinct[row_of[distinct] < 0]
    row_of[fresh] = book.rows(ids[fresh], add=True)


def _foreseen(book: IdBook, ids: npt.NDArray[Any], batch: Ints) -> Ints:
    """The rows that the ids of a batch have, or would get if they were added in order of arrival."""
    distinct, inverse = np.unique(batch, return_inverse=True)
    rows = book.rows(ids[distinct])
    rows[rows < 0] = len(book) + np.arange(int((rows < 0).sum()))
    return rows[inverse.reshape(-1)]


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done, so that a batch is learned whole or not at all."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    for number, frame in waiting[:1]:
        before(number, frame)
