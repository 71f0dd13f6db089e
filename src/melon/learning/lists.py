"""Recommended lists: the best items of each line of scores, and the form in which callers get them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import torch

from melon.data.ids import Id
from melon.data.taken import Taken
from melon.errors import LearningError
from melon.kernels import policy
from melon.recommenders.base import Catalogue
from melon.stream.pairs import SeenPairs, Storage, pair_keys
from melon.types import Flags, Ints, Scores, Singles

if TYPE_CHECKING:
    import polars as pl

Source = Literal["model", "popular"]
#: Item rows and their scores, best first.
Best = tuple[Ints, Scores]

#: An empty set of pairs, as compiled loops take it, and the mask that leaves out nothing.
_NO_PAIRS: Storage = (np.empty(0, dtype=np.int64), 0, *Taken.none())
_ALL: Flags = np.empty(0, dtype=np.bool_)
_NO_BOOST: Singles = np.empty(0, dtype=np.float32)


class Recommendation(NamedTuple):
    """An item and its score; scores of one list compare with each other and with nothing else."""

    item: Id
    score: float


@dataclass(frozen=True)
class Recommended(Sequence[Recommendation]):
    """One user's list, best first. `source` is "popular" for a user the model does not know, else "model"."""

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


def best(
    scores: Scores, k: int, *, users: Ints | None = None, seen: SeenPairs | None = None, allowed: Flags | None = None
) -> list[Best]:
    """The columns of the k highest scores of each line, best first, and these scores; fewer where fewer are left.

    Of equal scores the lower column is first. Columns that are not `allowed` are left out, and those that the line's
    user has had, where a set of pairs is given.
    """
    users = np.zeros(len(scores), dtype=np.int64) if users is None else users
    loops = policy.load("lists")
    if loops is None:
        return [_best_of(line, user, k, seen, allowed) for line, user in zip(scores, users.tolist(), strict=True)]
    lines = np.ascontiguousarray(scores)
    return _filled(partial(loops.top, lines), scores.shape[1], scores.dtype, users, k, seen, allowed)


def best_of_all(
    catalogue: Catalogue,
    users: Ints,
    k: int,
    n_items: int,
    *,
    boost: npt.NDArray[np.floating] | None,
    seen: SeenPairs | None,
    allowed: Flags | None,
) -> list[Best]:
    """`best` of all items for each user, in one pass over their rows where the catalogue has one."""
    scan = catalogue.scan(_NO_BOOST if boost is None else np.ascontiguousarray(boost[:n_items], np.float32))
    if scan is not None:
        return _filled(scan, n_items, np.dtype(np.float32), users, k, seen, allowed)
    make = catalogue.scores if seen is None else catalogue.unseen_scores
    scores = make(torch.from_numpy(users)).cpu().numpy()
    if boost is not None:
        scores = scores.copy()
        scores[:, : len(boost)] += boost[:n_items].astype(scores.dtype)
    return best(scores, k, users=users, seen=seen, allowed=allowed)


def _filled(
    fill: Callable[..., int],
    width: int,
    dtype: np.dtype[Any],
    users: Ints,
    k: int,
    seen: SeenPairs | None,
    allowed: Flags | None,
) -> list[Best]:
    """Lists that a compiled loop writes (`melon.kernels.best`)."""
    shape = len(users), min(k, width)
    rows, values, counts = np.empty(shape, np.int64), np.empty(shape, dtype), np.zeros(len(users), np.int64)
    if width:
        flags = _ALL if allowed is None else np.ascontiguousarray(allowed)
        pairs = seen.storage if seen else _NO_PAIRS
        _require_finite(fill(np.ascontiguousarray(users), flags, *pairs, rows, values, counts) < 0)
    return [(rows[n, :count], values[n, :count]) for n, count in enumerate(counts.tolist())]


def _best_of(line: Scores, user: int, k: int, seen: SeenPairs | None, allowed: Flags | None) -> Best:
    """The same for one line, by sorting it."""
    rows = np.arange(len(line)) if allowed is None else np.flatnonzero(allowed)
    _require_finite(bool(np.isfinite(line[rows]).all()))
    if seen is not None:
        rows = rows[~seen.contains(pair_keys(np.full(len(rows), user), rows))]
    rows = rows[np.argsort(-line[rows], kind="stable")[:k]]
    return rows, line[rows]


def _require_finite(finite: bool) -> None:
    if not finite:
        raise LearningError("a score is not finite, so there is no best item; learn again with a smaller step (lr).")
