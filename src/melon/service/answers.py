"""Lists for users, visitors and items: the model's scores under the rules of a request, with reasons."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from melon.data.ids import Id, IdBook
from melon.errors import LearningError, ServiceError
from melon.learning.model import LiveModel, says_nothing
from melon.service.log.base import Position
from melon.service.rules.arrange import POOL_FACTOR, Pool, arrange, with_pins
from melon.service.rules.items import ItemFacts, RowFacts
from melon.service.rules.request import NO_RULES, Mask, Masks, Rules
from melon.service.served import Served
from melon.stream.history import NOBODY, RING
from melon.stream.pairs import pair_keys
from melon.stream.proven import ProvenItems
from melon.types import Floats, Ints

#: Item rows and their scores, best first.
BestRows = tuple[Ints, Floats]
ListSource = Literal["model", "popular", "history", "similar"]
#: Items of a visitor's history that count, at most; by similarity the newest ones, each less the older it is.
_VISITED, _COMPARED, _OLDER = 100, 25, 0.9
_NO_ROWS: Ints = np.empty(0, dtype=np.int64)
#: A list of more items than this, or with more items named in its request, takes long.
_LONG_K, _LONG_NAMED = 100, 1_000


@dataclass(frozen=True)
class Query:
    """One list that is wanted. Ids are of the model's kind; items of `rules` too, as `exclude` and `pins`."""

    source: ListSource = "model"
    user: Id | None = None
    k: int = 10
    filter_seen: bool = True
    rules: Rules = NO_RULES
    exclude: tuple[Id, ...] = ()
    pins: tuple[tuple[int, Id], ...] = ()
    candidates: tuple[Id, ...] | None = None
    items: tuple[Id, ...] = ()  # a visitor's history, newest last; or the item that others shall be similar to

    @property
    def takes_long(self) -> bool:
        """Whether it takes several times as long as a usual list, so that few of its kind are made at once."""
        named = len(self.exclude) + len(self.candidates or ())
        compares = self.source in ("similar", "history")
        rearranges = self.rules.rearranges and self.k > _LONG_K // 4
        return compares or self.k > _LONG_K or named > _LONG_NAMED or rearranges


class ListEntry(NamedTuple):
    """An item of a list, its score (none for one that was pinned), and why it is there."""

    item: Id
    score: float | None
    why: str


@dataclass(frozen=True)
class AnsweredList:
    """A list, what it was made from, which model made it, and how many items may not be in it for which reason."""

    source: ListSource
    items: tuple[ListEntry, ...]
    filtered: Mapping[str, int]
    position: Position
    about: Mapping[str, str | int]


@dataclass
class _QueryState:
    """A query on its way: rows instead of ids, and what the rules come to."""

    query: Query
    source: ListSource
    user_row: int
    mask: Mask
    boost: Floats | None
    exclude: Ints
    shown: set[Id]
    pool: int
    filtered: dict[str, int] = field(default_factory=dict)

    @property
    def group(self) -> tuple[object, ...]:
        """Lists of one group are made by one product; a list that leaves out items of its own is alone."""
        alone = id(self) if len(self.exclude) else 0
        return (self.pool, self.query.filter_seen, id(self.mask.allowed), id(self.boost), alone)


class ListMaker:
    """Makes lists from one model at one version; called by the scoring thread alone."""

    def __init__(
        self,
        facts: ItemFacts,
        served: Served,
        hidden: Callable[[Id], Iterable[Id]],
        owner: Callable[[Id], str] = str,
        item_users: int = 0,
        challenger: str | None = None,
    ) -> None:
        self._facts, self._served, self._hidden, self._owner = facts, served, hidden, owner
        self._proven, self._challenger = ProvenItems(item_users), challenger
        self._masks = Masks(facts)
        self._rows: RowFacts | None = None

    def make(self, model: LiveModel, position: Position, queries: Sequence[Query], now: float) -> list[AnsweredList]:
        """A list for each query, each as if it had been asked for alone."""
        with self._facts.lock:
            return self._make(model, position, queries, now)

    def _make(self, model: LiveModel, position: Position, queries: Sequence[Query], now: float) -> list[AnsweredList]:
        if self._rows is None or self._rows.book is not model.items:
            self._rows = RowFacts(self._facts, model.items)
        n_items = model.rows_of("item")
        self._rows.slots(n_items)
        works = [self._planned(model, query, n_items, now) for query in queries]
        pools, about = self._pools(model, works, n_items), about_model(model, position)
        if self._challenger is not None:
            about["challenger"] = self._challenger
        answers = [self._finished(model, work, pool, n_items) for work, pool in zip(works, pools, strict=True)]
        return [AnsweredList(source, items, filtered, position, about) for source, items, filtered in answers]

    # From a query to rows, masks and exclusions.

    def _planned(self, model: LiveModel, query: Query, n_items: int, now: float) -> _QueryState:
        rows, rules = self._rows, query.rules
        assert rows is not None
        user_row = -1 if query.user is None else int(model.users.rows([query.user])[0])
        known = 0 <= user_row < model.rows_of("user")
        source = query.source
        if source == "history" and not any(row >= 0 for row in _item_rows(model, query.items, n_items)):
            source = "popular"
        taken = None if query.candidates is not None else self._proven.flags(model.updater.history, n_items)
        version: Hashable = self._proven.version
        if taken is not None and known and not query.filter_seen:
            own = self._proven.own(model.updater.history, user_row)
            if len(own):  # a user's own items need no other user
                taken, version = taken.copy(), (version, user_row)
                taken[own[own < n_items]] = True
        mask = self._masks.mask(rules.filter, rows, n_items, now, (version, taken))
        exclude = {"excluded": _item_rows(model, query.exclude, n_items)}
        if query.user is not None:
            exclude["hidden"] = _item_rows(model, tuple(self._hidden(query.user)), n_items)
            if rules.exclude_own:
                exclude["own"] = rows.rows(self._facts.owned_by(self._owner(query.user)))
        if source in ("history", "similar") or query.items:
            exclude["history"] = _item_rows(model, query.items, n_items)
        shown = set[Id]()
        if rules.rotate_s and query.user is not None:
            shown = self._served.shown(query.user, now - rules.rotate_s)
        boost = self._masks.boost(rules.boost, rows, n_items, now)
        most = query.k * POOL_FACTOR if rules.rearranges else query.k
        work = _QueryState(query, source, user_row if known else -1, mask, boost, _NO_ROWS, shown, most)
        work.filtered.update(mask.filtered)
        exclude["pinned"] = _item_rows(model, [item for _, item in query.pins], n_items)
        chosen = query.candidates
        _exclude(work, exclude, None if chosen is None else set(_item_rows(model, chosen, n_items).tolist()))
        return work

    # Scores.

    def _pools(self, model: LiveModel, works: Sequence[_QueryState], n_items: int) -> list[BestRows]:
        pools: list[BestRows | None] = [None] * len(works)
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, work in enumerate(works):
            if work.source == "model" and work.query.candidates is None:
                groups.setdefault(work.group, []).append(place)
            elif work.source == "history" and work.query.candidates is None and model.updater.reads_history:
                items = _item_rows(model, work.query.items, n_items)
                limits: dict[str, Any] = {"allowed": work.mask.allowed, "exclude": work.exclude, "boost": work.boost}
                rows, scores = model.best_after(items[items >= 0][-_VISITED:], work.pool, **limits)
                pools[place] = rows, scores.astype(np.float64)
            else:
                pools[place] = _top(self._scores(model, work, n_items), work, model)
        for places in groups.values():
            some = [works[place] for place in places]
            for place, pool in zip(places, _best_for(model, some), strict=True):
                pools[place], work = pool, works[place]
                if work.user_row < 0 and says_nothing(pool[1]):
                    work.source = "popular"
                    pools[place] = _top(self._scores(model, work, n_items), work, model)
        return pools  # type: ignore[return-value]

    def _scores(self, model: LiveModel, work: _QueryState, n_items: int) -> tuple[Ints, Floats]:
        """Rows that compete, and their scores, where they are not the model's for the whole catalogue."""
        query, everything = work.query, np.arange(n_items)
        if query.candidates is not None:
            rows = np.unique(_item_rows(model, query.candidates, n_items))
            # What is left out is counted among the candidates.
            work.filtered = {why: count for why, count in work.filtered.items() if why not in work.mask.filtered}
            if len(rows) and rows[0] < 0:
                work.filtered["unknown"] = len(set(query.candidates)) - len(rows) + 1
                rows = rows[1:]
            if work.mask.allowed is not None and not work.mask.allowed[rows].all():
                work.filtered["rules"] = int((~work.mask.allowed[rows]).sum())
            if work.source == "model":
                users = np.full(len(rows), _scored_row(model, work))
                scores = model.updater.score(users, rows[:, None], model.last_time)[:, 0] if len(rows) else np.empty(0)
                return rows, scores.astype(np.float64)
        else:
            rows = everything
        if work.source == "popular":
            return rows, model.popular.read(rows)[:, 0].astype(np.float64)
        items = _item_rows(model, query.items, n_items)
        items = items[items >= 0][-_COMPARED:]
        if work.source == "similar" and not len(items):
            raise ServiceError(
                404, "not_found", f"item {str(query.items[0])[:60]!r} has not been seen, so nothing is similar to it."
            )
        alike = model.updater.similarities(items, model.last_time)
        weights = (_OLDER ** np.arange(len(items))[::-1]).astype(alike.dtype)
        return rows, (weights @ alike)[:n_items][rows].astype(np.float64)

    # From a pool to a list.

    def _finished(
        self, model: LiveModel, work: _QueryState, pool: BestRows, n_items: int
    ) -> tuple[ListSource, tuple[ListEntry, ...], dict[str, int]]:
        query, rows, scores = work.query, *pool
        arranged = self._arranged(model, work, rows, scores)
        while len(arranged) < query.k and len(rows) == work.pool and query.rules.rearranges:
            work.pool *= 2
            rows, scores = self._pools(model, [work], n_items)[0]
            arranged = self._arranged(model, work, rows, scores)
        rows, values = rows[arranged], scores[arranged].tolist()
        ids, whys = model.items.ids(rows).tolist(), [str(work.source)] * len(rows)
        if work.shown or work.boost is not None:
            whys = [_why(work, item, row) for item, row in zip(ids, rows.tolist(), strict=True)]
        entries = list(map(ListEntry, ids, values, whys))
        pins = [
            (at, ListEntry(item, None, "pinned")) for at, item in query.pins if self._may_be_pinned(model, work, item)
        ]
        if query.filter_seen and work.user_row >= 0:
            seen = _seen(model, work, n_items)
            if seen:
                work.filtered["seen"] = seen
        return work.source, tuple(with_pins(entries, pins, query.k)), work.filtered

    def _arranged(self, model: LiveModel, work: _QueryState, rows: Ints, scores: Floats) -> list[int]:
        rules, k = work.query.rules, work.query.k
        if not rules.rearranges:
            return list(range(min(k, len(rows))))
        assert self._rows is not None
        slots = self._rows.slots(model.rows_of("item"))[rows].tolist() if rules.at_most else ()
        facts = [self._facts.facts_at(slot) for slot in slots]
        shown = None
        if work.shown:
            shown = np.fromiter((one in work.shown for one in model.items.ids(rows).tolist()), np.bool_, len(rows))
        vectors = _vectors(model, rows) if rules.diversity else None
        pool = Pool(rows, scores, facts, vectors, shown)
        return arrange(pool, k, at_most=rules.at_most, diversity=rules.diversity)

    def _may_be_pinned(self, model: LiveModel, work: _QueryState, item: Id) -> bool:
        """A pin passes by every rule, but not an item that cannot be had."""
        facts = self._facts.get(item)
        return facts is None or facts.available


def _why(work: _QueryState, item: Id, row: int) -> str:
    if item in work.shown:
        return "shown before"
    return "boosted" if work.boost is not None and work.boost[row] > 0 else work.source


def about_model(model: LiveModel, position: Position) -> dict[str, str | int]:
    """Which model answers."""
    return {
        "version": position.version,
        "recommender": model.updater.recommender.name,
        "strategy": model.updater.strategy.name,
        "batch": position.batch,
        "offset": position.offset,
    }


def _exclude(work: _QueryState, reasons: Mapping[str, Ints], candidates: set[int] | None) -> None:
    """Collect rows that this list may not have; each counts for the first reason that holds."""
    gone = set[int]()
    for why, rows in reasons.items():
        if not len(rows):
            continue
        new = {row for row in rows.tolist() if row >= 0} - gone
        gone |= new
        if candidates is not None:
            new &= candidates
        if work.mask.allowed is not None:
            new = {row for row in new if work.mask.allowed[row]}
        if new and why not in ("pinned", "history"):
            work.filtered[why] = len(new)
    if gone:
        work.exclude = np.array(sorted(gone), dtype=np.int64)


def _item_rows(model: LiveModel, items: Sequence[Id], n_items: int) -> Ints:
    if not items:
        return _NO_ROWS
    rows = _rows_of(model, items) if len(items) > _LONG_NAMED else model.items.rows(items)
    return np.where(rows < n_items, rows, -1)


#: Lists of one request name the same items: their rows are found once (the items, the model's book, its size, rows).
_FOUND: deque[tuple[Sequence[Id], IdBook, int, Ints]] = deque(maxlen=2)


def _rows_of(model: LiveModel, items: Sequence[Id]) -> Ints:
    for known, book, size, rows in tuple(_FOUND):
        if known is items and book is model.items and size == len(book):
            return rows
    rows = model.items.rows(items)
    _FOUND.append((items, model.items, len(model.items), rows))
    return rows


def _top(competing: tuple[Ints, Floats], work: _QueryState, model: LiveModel) -> BestRows:
    """The best of some rows under the rules, for lists that are not the model's own."""
    rows, scores = competing
    keep = np.ones(len(rows), dtype=np.bool_)
    if work.mask.allowed is not None:
        keep &= work.mask.allowed[rows]
    keep &= ~np.isin(rows, work.exclude)
    if work.query.filter_seen and work.user_row >= 0 and len(rows):
        keep &= ~model.updater.history.seen.contains(pair_keys(np.full(len(rows), work.user_row), rows))
    rows, scores = rows[keep], scores[keep]
    if work.boost is not None:
        scores = scores + work.boost[rows]
    places = _highest(scores, work.pool)
    return rows[places], scores[places]


def _highest(scores: Floats, k: int) -> Ints:
    """The places of the k highest scores, best first; of equal scores the lower place is first."""
    if not np.isfinite(scores).all():
        raise LearningError("a score is not finite, so there is no best item; learn again with a smaller step (lr).")
    places = np.arange(len(scores))
    if k < len(scores):
        places = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    return places[np.argsort(-scores[places], kind="stable")][:k]


def _best_for(model: LiveModel, works: Sequence[_QueryState]) -> list[BestRows]:
    """The model's best items for users whose lists may have the same items."""
    first = works[0]
    lists = model.best(
        np.array([_scored_row(model, work) for work in works]),
        first.pool,
        filter_seen=first.query.filter_seen,
        allowed=first.mask.allowed,
        exclude=first.exclude if len(first.exclude) else None,
        boost=first.boost,
    )
    return [(rows, scores.astype(np.float64)) for rows, scores in lists]


def _scored_row(model: LiveModel, work: _QueryState) -> int:
    """The row of the user; a newcomer's has nothing in it yet."""
    return work.user_row if work.user_row >= 0 else model.rows_of("user")


def _seen(model: LiveModel, work: _QueryState, n_items: int) -> int:
    """How many items are left out because the user has had them, beside those that other rules leave out."""
    history, user = model.updater.history, np.array([work.user_row])
    met = int(history.of_users.met(user)[0])
    if met <= RING:
        partners = set(history.of_users.recent(user).partners[0, :met].tolist())
        rows = np.array([row for row in partners if row != NOBODY and row < n_items], dtype=np.int64)
    else:
        rows = np.arange(n_items)
        rows = rows[history.seen.contains(pair_keys(np.full(n_items, work.user_row), rows))]
    if work.query.candidates is not None:
        rows = np.intersect1d(rows, _item_rows(model, work.query.candidates, n_items))
    if len(work.exclude):
        rows = rows[~np.isin(rows, work.exclude)]
    return int(work.mask.allowed[rows].sum()) if work.mask.allowed is not None else len(rows)


def _vectors(model: LiveModel, rows: Ints) -> Floats | None:
    recommender = model.updater.recommender
    names = [spec.name for spec in recommender.specs if spec.role == "item" and spec.kind == "embedding"]
    if not names or not len(rows):
        return None
    return np.concatenate([recommender.tables[name].gather(rows) for name in names], axis=1).astype(np.float64)
