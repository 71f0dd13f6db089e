"""A model in use: an updater that knows the caller's ids, answers with lists, forgets people, and is saved whole."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt

from melon.data.ids import Id, IdBook
from melon.data.interactions import Interactions
from melon.errors import CheckpointError, DataError, MelonError
from melon.journal import note, undoable
from melon.kernels import policy
from melon.learning import checkpoint
from melon.learning.checkpoint import PathLike, RecommenderFactory, StrategyFactory
from melon.learning.updater import Updater
from melon.models.catalogue import Best, Within, best, limited
from melon.models.streaming.counts import ItemCounts
from melon.progress import uninterrupted
from melon.stream.batch import Batch
from melon.stream.saved import MOST, part_of, require, saved_array
from melon.tables import Table, TableSpec
from melon.types import Flags, Ints, Scores

if TYPE_CHECKING:
    import polars as pl

Source = Literal["model", "popular"]


class Recommendation(NamedTuple):
    """An item and its score; scores of one list compare with each other and with nothing else."""

    item: Id
    score: float


@dataclass(frozen=True)
class Recommended(Sequence[Recommendation]):
    """One user's list, best first. `source` is "model", or "popular" where the model scores a newcomer all alike."""

    user: Id
    source: Source
    items: tuple[Recommendation, ...]

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, place: int) -> Recommendation: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Recommendation, ...]: ...
    def __getitem__(self, place: int | slice) -> Recommendation | tuple[Recommendation, ...]:
        return self.items[place]


def as_table(lists: Sequence[Recommended]) -> pl.DataFrame:
    """One line for each recommendation: user, rank (from 1), item, score and source; UUIDs as texts."""
    import polars as pl

    def plain(ids: Iterable[Id]) -> list[Any]:
        return [str(one) if isinstance(one, uuid.UUID) else one for one in ids]

    lines = [(listed, rank, one) for listed in lists for rank, one in enumerate(listed, start=1)]
    return pl.DataFrame(
        {
            "user": plain(listed.user for listed, _, _ in lines),
            "rank": [rank for _, rank, _ in lines],
            "item": plain(one.item for _, _, one in lines),
            "score": [one.score for _, _, one in lines],
            "source": [listed.source for listed, _, _ in lines],
        }
    )


#: "Recent" for popular items: a count halves in this many interactions.
POPULAR_HALF_LIFE = 5_000
#: Lists are made from at most this many scores at a time: 32 MB, which allocators still hand out again and again.
SCORES_AT_ONCE = 1 << 23
_LATEST = np.iinfo(np.int64).max

IdSequence = npt.NDArray[Any] | Sequence[Id]


class LiveModel:
    """Everything that changes while learning. A batch is learned into it whole or not at all.

    Threads may share one: a lock is held for each batch and for each block of lists, so that a reader sees the model
    between two batches and never changes what is learned.

    Time does not run backwards: an event older than `last_time` is late. It is learned as if it happened at
    `last_time`, and `late` counts it.
    """

    def __init__(
        self,
        updater: Updater,
        *,
        users: IdBook | None = None,
        items: IdBook | None = None,
        popular: ItemCounts | None = None,
        last_time: int = 0,
        late: int = 0,
    ) -> None:
        self.updater, self.popular = updater, popular or ItemCounts([POPULAR_HALF_LIFE])
        self.users = IdBook("user") if users is None else users
        self.items = IdBook("item") if items is None else items
        self.last_time, self.late = last_time, late
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def rows_of(self, role: Literal["user", "item"]) -> int:
        """How many users or items have been learned from."""
        history = self.updater.history
        return (history.of_users if role == "user" else history.of_items).rows

    def warm_up(self) -> None:
        """Load the compiled kernels of learning and of lists before the first call needs them."""
        policy.warm_up("lists", "neighbours")  # `neighbours` counts what is popular
        self.updater.warm_up()

    # Learning.

    def adopt(self, log: Interactions) -> None:
        """Know the ids, the popular items and the last time of the log that the updater already has behind it."""
        with self._lock:
            self.users.rows(log.user_ids, add=True)
            self.items.rows(log.item_ids, add=True)
            self.popular.observe(log.items)
            self.last_time = int(log.times[-1])

    def learn(self, log: Interactions, batch_size: int) -> Iterator[float]:
        """Learn new interactions batch by batch, a short last one too; yields each one's mean loss before its step."""
        return self._learn(log.user_ids[log.users], log.item_ids[log.items], log.times, batch_size)

    def learn_events(
        self,
        user_ids: IdSequence,
        item_ids: IdSequence,
        times: Ints | Sequence[int] | None = None,
        *,
        batch_size: int | None = None,
    ) -> list[float]:
        """Learn new events in order of time, as one batch or cut into several; the mean loss of each before its step.

        Users and items may be new. Events of equal time keep the order in which they are given; events without times
        happen at `last_time`. A batch that fails leaves nothing of itself; those before it stay learned.
        """
        if times is None:
            with self._lock:  # nobody else may move `last_time` meanwhile
                times = np.full(len(user_ids), self.last_time)
                return self.learn_events(user_ids, item_ids, times, batch_size=batch_size)
        moments = np.asarray(times)
        if moments.ndim != 1 or (len(moments) and moments.dtype.kind not in "iu"):
            raise DataError(f"times must be one row of whole numbers, got {moments.dtype} of shape {moments.shape}.")
        if moments.min(initial=0) < 0 or moments.max(initial=0) > _LATEST:
            wrong = int(np.argmax((moments < 0) | (moments > _LATEST)))
            raise DataError(f"the time of event {wrong} is {moments[wrong]}; times are from 0 to 2⁶³ − 1.")
        moments = moments.astype(np.int64)
        if not len(user_ids) == len(item_ids) == len(moments):
            raise DataError(
                f"users, items and times must be equally long, got {len(user_ids)}, {len(item_ids)} and {len(moments)}."
            )
        if len(moments) > 1 and bool((moments[1:] < moments[:-1]).any()):
            order = np.argsort(moments, kind="stable")
            user_ids, item_ids, moments = _ordered(user_ids, order), _ordered(item_ids, order), moments[order]
        return list(self._learn(user_ids, item_ids, moments, batch_size or max(len(moments), 1)))

    def _learn(self, user_ids: IdSequence, item_ids: IdSequence, times: Ints, batch_size: int) -> Iterator[float]:
        if len(times) > batch_size:  # ids that cannot be learned are refused before the first batch is
            self.users.rows(user_ids)
            self.items.rows(item_ids)
        for start in range(0, len(times), batch_size):
            some = slice(start, start + batch_size)
            with self._lock, uninterrupted(), undoable():
                updater, last_time, moments = self.updater, self.last_time, times[some]
                late = bool(moments[0] < last_time)  # times are in order
                for book in (self.users, self.items):
                    note(partial(book.truncate, len(book)))
                users, items = self.users.rows(user_ids[some], add=True), self.items.rows(item_ids[some], add=True)
                batch = Batch(
                    updater.history.events,
                    users,
                    items,
                    np.maximum(moments, last_time) if late else moments,
                    _keys_of_new(self.users, users, updater.recommender.rows_of("user")),
                    _keys_of_new(self.items, items, updater.recommender.rows_of("item")),
                )
                self.popular.observe(items)
                loss = updater.learn(batch)
                self.late += int(np.count_nonzero(moments < last_time)) if late else 0
                self.last_time = int(batch.times[-1])
            yield loss

    def look_ahead(self, log: Interactions, start: int, stop: int) -> Batch:
        """Events of a log as the next batch would be; no id is added, newcomers get the rows behind the others."""
        users, items = log.users[start:stop], log.items[start:stop]
        return Batch(
            self.updater.history.events,
            _looked_ahead(self.users, log.user_ids, users),
            _looked_ahead(self.items, log.item_ids, items),
            log.times[start:stop],
            log.user_keys[users],
            log.item_keys[items],
        )

    # Answering: nothing is written.

    def recommend(self, user_ids: Sequence[Id], k: int, *, filter_seen: bool = True) -> list[Recommended]:
        """The k best items for each user, by the model's scores: those of `score` and of an evaluation.

        A user without a row is scored as one of whom nothing is known; where the model then scores all items alike,
        popular ones are listed.
        """
        with self._lock:
            rows, known = self.rows_or_next(self.users, user_ids), self.rows_of("user")
        answers = list[Recommended]()
        lists = self.best(rows, k, filter_seen=filter_seen)
        for user, row, listed in zip(user_ids, rows.tolist(), lists, strict=True):
            source: Source = "popular" if row == known and says_nothing(listed[1]) else "model"
            items, scores = listed if source == "model" else self.most_popular(k)
            named = tuple(map(Recommendation, self.items.named(items.tolist()), scores.tolist()))
            answers.append(Recommended(user, source, named))
        return answers

    def rows_or_next(self, book: IdBook, ids: Sequence[Id]) -> Ints:
        """The rows of ids; those that nothing was learned from have the row that the next newcomer gets."""
        rows, count = book.rows(ids), self.rows_of("user" if book is self.users else "item")
        return np.where((rows < 0) | (rows >= count), count, rows)

    def best_after(
        self,
        items: Ints,
        k: int,
        *,
        allowed: Flags | None = None,
        exclude: Ints | None = None,
        boost: npt.NDArray[np.floating] | None = None,
    ) -> Best:
        """The k best items for a visitor who took rows of items, the newest last; nothing of it is learned or kept."""
        with self._lock:
            limits: dict[str, Any] = {"allowed": allowed, "exclude": exclude, "boost": boost}
            with self.updater.visited(items) as visitor:
                (listed,) = self.best(np.array([visitor]), k, filter_seen=False, **limits)
        return listed

    def similar_items(self, item_ids: Sequence[Id], k: int) -> list[list[Recommendation]]:
        """The k items most similar to each of the given ones, itself left out."""
        with self._lock:
            rows = self.items.rows(item_ids)
            absent = np.flatnonzero((rows < 0) | (rows >= self.rows_of("item")))
        if len(absent):
            raise DataError(f"item {item_ids[int(absent[0])]!r} has not been seen, so no item is known to be similar.")
        return [
            list(map(Recommendation, self.items.named(alike.tolist()), scores.tolist()))
            for alike, scores in self.similar(rows, k)
        ]

    def score(self, user_ids: Sequence[Id], item_ids: Sequence[Id]) -> Scores:
        """The score of each (user, item), one id of either kind beside many of the other; unknown ids are zeros."""
        with self._lock:
            user_rows, item_rows = self.rows_or_next(self.users, user_ids), self.rows_or_next(self.items, item_ids)
            user_rows, item_rows = np.broadcast_arrays(user_rows, item_rows)
            return self.updater.score(user_rows, item_rows[:, None], self.last_time)[:, 0]

    def best(
        self,
        users: Ints,
        k: int,
        *,
        filter_seen: bool,
        allowed: Flags | None = None,
        exclude: Ints | None = None,
        boost: npt.NDArray[np.floating] | None = None,
    ) -> Iterator[Best]:
        """The k best items for rows of users, within limits (`limited`); a list does not depend on the other users."""
        history, start = self.updater.history, 0
        is_limited = not (allowed is None and exclude is None and boost is None)
        while start < len(users):
            with self._lock:
                n_items, seen = history.of_items.rows, history.seen if filter_seen else None
                some = users[start : start + max(SCORES_AT_ONCE // max(n_items, 1), 1)]
                within = limited(n_items, seen, allowed, exclude, boost) if is_limited else Within(seen)
                lists = self.updater.catalogue(n_items, self.last_time).best(some, k, within)
            yield from lists
            start += len(some)

    def most_popular(self, k: int, *, allowed: Flags | None = None, exclude: Ints | None = None) -> Best:
        """The k items with the highest decayed count."""
        with self._lock:
            counts = self.popular.read(np.arange(self.rows_of("item")))[None, :, 0]
        return best(counts, k, limited(counts.shape[1], None, allowed, exclude))[0]

    def similar(self, items: Ints, k: int) -> Iterator[Best]:
        """The k items most similar to rows of items, itself left out."""
        at_once = max(SCORES_AT_ONCE // max(self.rows_of("item"), 1), 1)
        for start in range(0, len(items), at_once):
            some = items[start : start + at_once]
            with self._lock:
                lists = best(self.updater.similarities(some, self.last_time), k + 1)
            for itself, (rows, scores) in zip(some, lists, strict=True):
                others = np.flatnonzero(rows != itself)[:k]
                yield rows[others], scores[others]

    # Saving.

    def save(self, folder: PathLike, extra: Mapping[str, Any]) -> None:
        """Write everything as one checkpoint."""
        with self._lock:
            parts = {"users": self.users.state(), "items": self.items.state(), "popular": self.popular.state()}
            arrays = {f"{part}.{name}": array for part, state in parts.items() for name, array in state.items()}
            about = {**extra, "model": {"last_time": self.last_time, "late": self.late}}
            checkpoint.save(folder, self.updater, extra=about, arrays=arrays)

    @classmethod
    def load(
        cls,
        folder: PathLike,
        *,
        recommender: RecommenderFactory | None = None,
        strategy: StrategyFactory | None = None,
    ) -> tuple[Self, dict[str, Any]]:
        """The model that `save` wrote, and the extra that came with it."""
        saved = checkpoint.load(folder, recommender=recommender, strategy=strategy)
        about = saved.extra.get("model")
        if about is None:
            raise CheckpointError(
                f"{os.fspath(folder)} holds the state of an evaluation, not a model: it has no ids. "
                "Point to a folder that Melon.save or melon pretrain made."
            )
        history = saved.updater.history
        try:
            books = [
                _saved_book(part_of(saved.arrays, f"{role}s"), role, seen)
                for role, seen in (("user", history.of_users.rows), ("item", history.known_items))
            ]
            popular = ItemCounts.from_state(part_of(saved.arrays, "popular"))
            require(popular.rates.shape == (1,) and popular.events == history.events, "popular items and the history")
            last_time, late = (_saved_count(about, name) for name in ("last_time", "late"))
        except (MelonError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"the checkpoint {os.fspath(folder)} is damaged: {error}") from error
        model = cls(saved.updater, users=books[0], items=books[1], popular=popular, last_time=last_time, late=late)
        return model, saved.extra


def says_nothing(scores: Scores) -> bool:
    """Whether a list has several items with one and the same score."""
    return len(scores) > 1 and bool(scores[0] == scores[-1])


def _saved_count(about: Any, name: str) -> int:
    value: Any = about.get(name, 0 if name == "late" else None) if isinstance(about, dict) else None
    require(type(value) is int and 0 <= value <= MOST, f"{name} = {value!r}")
    return int(value)


def _saved_book(state: Mapping[str, npt.NDArray[Any]], role: str, seen: int) -> IdBook:
    """A book of ids, if it can be one and has an id for every user or item that the history has seen."""
    if "int" in state:
        size = len(saved_array(state, "int", np.int64, (None,)))
    elif "uuid" in state:
        size = len(saved_array(state, "uuid", np.uint8, (None, 16)))
    elif "str" in state:
        ends = saved_array(state, "str_offsets", np.int64, (None,), least=0)
        texts = saved_array(state, "str", np.uint8, (None,))
        whole = len(ends) > 0 and ends[0] == 0 and ends[-1] == len(texts) and bool((np.diff(ends) >= 0).all())
        require(whole, f"the ids of {role}s and where each of them ends")
        size = len(ends) - 1
    else:
        size = 0
    book = IdBook.from_state(state, role)
    require(len(book) == size, f"{size} ids of {role}s, {len(book)} of them distinct")
    require(seen <= size, f"{size} ids of {role}s, and {seen} {role}s were seen")
    return book


def _ordered(ids: IdSequence, order: Ints) -> IdSequence:
    return ids[order] if isinstance(ids, np.ndarray) else [ids[place] for place in order.tolist()]


def _keys_of_new(book: IdBook, rows: Ints, stored: int) -> Ints:
    """The keys of rows that have yet to be made; other rows need none, and have 0."""
    keys = np.zeros(len(rows), dtype=np.int64)
    if len(book) > stored:
        keys[rows >= stored] = book.keys(rows[rows >= stored])
    return keys


def _looked_ahead(book: IdBook, ids: npt.NDArray[Any], batch: Ints) -> Ints:
    """The rows that the ids of a batch have, or would get if they were added in order of arrival."""
    distinct, inverse = np.unique(batch, return_inverse=True)
    rows = book.rows(ids[distinct])
    rows[rows < 0] = len(book) + np.arange(int((rows < 0).sum()))
    return rows[inverse.reshape(-1)]


def observe_only(model: LiveModel, user_ids: IdSequence, item_ids: IdSequence, times: Ints) -> None:
    """Take note of events in the order given without learning from them: the past knows them, no row is taught.

    Newcomers get their first rows. Times before `last_time` count as `last_time`.
    """
    updater = model.updater
    users, items = model.users.rows(user_ids, add=True), model.items.rows(item_ids, add=True)
    late, moments = times < model.last_time, np.maximum(times, model.last_time)
    keys = model.users.keys(users), model.items.keys(items)
    updater.make_rows(Batch(updater.history.events, users, items, moments, *keys))
    updater.recommender.observe(users, items, moments, updater.history)
    updater.history.append(users, items)
    model.popular.observe(items)
    model.late += int(late.sum())
    model.last_time = int(moments[-1])


def forget(model: LiveModel, user: Id, pseudonym: Id) -> int | None:
    """Forget a person: the row is the first row of the pseudonym, which has no past; None where nobody is known.

    The row number is not given to anybody else. What others learned from the person's interactions stays.
    """
    row = int(model.users.rows([user])[0])
    if row < 0:
        return None
    # The decay clock may stand where the last batch began: a model that was saved and loaded would write other bytes.
    model.updater.recommender.clock.now = model.updater.moment().now
    forget_past(model, row, pseudonym)
    key, place = model.users.keys([row]), np.array([row])
    updater, recommender = model.updater, model.updater.recommender
    for name, table in recommender.tables.items():
        if table.spec.role == "user" and row < table.rows:
            table.scatter(place, first_rows(table.spec, key, like=table, seed=recommender.seed))
            for state in updater.row_state.get(name, {}).values():
                if row < state.rows:
                    state.scatter(place, first_rows(state.spec, key, like=table, seed=0))
    return row


def forget_past(model: LiveModel, row: int, pseudonym: Id) -> None:
    """Take a user's interactions out of the past, and the id out of the book."""
    model.updater.history.forget(row)
    model.updater.recommender.forget_user(row)
    model.users.rename(row, pseudonym)


#: A change of the past that no event makes: ("retract", user row, item row), ("move", user row, to another's), or
#: ("rename", user row, id as JSON has it).
Edit = tuple[str, int, int | str]


def edit_past(model: LiveModel, edit: Edit) -> None:
    """Change the past alone: no row of a table is written."""
    kind, row, other = edit
    history = model.updater.history
    if kind == "rename":
        model.users.rename(row, uuid.UUID(str(other)) if model.users.kind == "uuid" else other)
        return
    partner = int(other)
    if kind == "retract":
        history.retract(row, partner)
    else:
        history.move(row, partner)
        model.updater.recommender.forget_user(row)


def first_rows(spec: TableSpec, keys: Ints, *, like: Table, seed: int) -> Scores:
    """What rows of a table are when they are made."""
    fresh = Table(spec, seed=seed, dtype=like.dtype)
    fresh.grow(len(keys), keys)
    return fresh.everything()
