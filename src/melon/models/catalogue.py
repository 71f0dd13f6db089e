"""Lists of the best items: what may be listed, the best of scores, the scorer of all items at one version.

And the pre-filter of two-stage lists: 8-bit quantised rows of items that follow the rows as these change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from melon.data.interactions import Taken
from melon.errors import DataError, LearningError
from melon.kernels import policy
from melon.kernels.quantised import BLOCK, TOGETHER
from melon.kernels.seen import PairsSeen
from melon.stream.pairs import SeenPairs
from melon.tables import Changes, Moment, Table, reference
from melon.types import Flags, Ints, Scores, Singles, TinyInts

#: Item rows and their scores, best first.
Best = tuple[Ints, Scores]

#: An empty set of pairs, as compiled kernels take it, and what leaves out and adds nothing.
NO_PAIRS = PairsSeen(np.empty(0, dtype=np.int64), 0, *Taken.none())
ALL: Flags = np.empty(0, dtype=np.bool_)
_NO_BOOST: Singles = np.empty(0, dtype=np.float32)


class Within(NamedTuple):
    """What may be listed: nothing of pairs that were `seen`, only `allowed` items (none: all); and what is added to
    their scores, item by item, where there is a `boost`.
    """

    seen: SeenPairs | None = None
    allowed: Flags = ALL
    boost: Singles = _NO_BOOST


def limited(
    n_items: int,
    seen: SeenPairs | None,
    allowed: Flags | None = None,
    exclude: Ints | None = None,
    boost: npt.NDArray[np.floating] | None = None,
) -> Within:
    """Limits of lists from items 0 … n_items-1: only `allowed` rows of items, none of those to `exclude`.

    Items beyond the end of `allowed` are not allowed; those beyond the end of `boost` have none.
    """
    mask, added = ALL, _NO_BOOST
    if allowed is not None and (allowed.dtype != np.bool_ or allowed.ndim != 1):
        raise DataError(f"allowed must be one row of truth values, got {allowed.dtype} of {allowed.shape}.")
    if allowed is not None or exclude is not None:
        mask = np.full(n_items, allowed is None)
    if allowed is not None:
        mask[: len(allowed)] = allowed[:n_items]
    if exclude is not None:
        mask[exclude[(exclude >= 0) & (exclude < n_items)]] = False
    if boost is not None:
        if boost.ndim != 1 or not bool(np.isfinite(boost).all()):
            raise DataError(f"boost must be one row of finite numbers, got shape {boost.shape}.")
        added = np.ascontiguousarray(boost[:n_items], np.float32)
    return Within(seen, mask, added)


#: The pre-filter of two-stage lists: for each user so many items within limits, in no order.
Near = Callable[[Ints, int, Within], list[Ints]]
#: A two-stage list scores so many of its candidates beyond the list's length.
CANDIDATES = 60


class Catalogue(ABC):
    """All items at one version of the model, for lists; it is built once and used until the model learns again.

    A user's list depends on that user and the version alone, bit for bit, and not on other users of the same call or on
    lists that were made before.
    """

    #: The pre-filter of two-stage lists; None where a list comes from the scores of all items.
    near: Near | None = None

    @property
    def two_stage(self) -> bool:
        """Whether an item outside the shortlist cannot be listed, whatever its score."""
        return self.near is not None

    @abstractmethod
    def scores(self, users: Ints, *, unseen: bool = False) -> Scores:
        """Scores of all items for each user; with `unseen`, what the user has had may have any score."""

    def best(self, users: Ints, k: int, within: Within) -> list[Best]:
        """The k best items of each user."""
        scores = self.scores(users, unseen=within.seen is not None)
        if len(within.boost):
            scores = scores.copy()
            scores[:, : len(within.boost)] += within.boost.astype(scores.dtype)
        return best(scores, k, within, users)


def best(scores: Scores, k: int, within: Within = Within(), users: Ints | None = None) -> list[Best]:  # noqa: B008
    """The columns of the k highest scores of each line, best first, and these scores; fewer where fewer are left.

    Of equal scores the lower column is first. Columns that are not allowed are left out, and those that the line's user
    has had.
    """
    users = np.zeros(len(scores), dtype=np.int64) if users is None else users
    return filled(
        partial(policy.load("lists").top, np.ascontiguousarray(scores)), scores.shape[1], scores.dtype, users, k, within
    )


def filled(
    fill: Callable[..., int], width: int, dtype: npt.DTypeLike, users: Ints, k: int, within: Within
) -> list[Best]:
    """Lists that a compiled kernel writes (`melon.kernels.best`)."""
    shape = len(users), min(k, width)
    rows, values, counts = np.empty(shape, np.int64), np.empty(shape, dtype), np.zeros(len(users), np.int64)
    pairs = NO_PAIRS if within.seen is None else within.seen.storage
    if width and fill(np.ascontiguousarray(users), within.allowed, pairs, rows, values, counts) >= 0:
        raise not_finite()
    return [(rows[n, :count], values[n, :count]) for n, count in enumerate(counts.tolist())]


def not_finite() -> LearningError:
    """The error for scores among which there is no best one."""
    return LearningError("a score is not finite, so there is no best item; learn again with a smaller step (lr).")


class QuantisedRows:
    """The vectors and biases of items, vectors in 8 bits, at a reference moment of the decay clock; a copy begins anew.

    What is stored of a row depends on that row alone, and not on when it was stored.
    """

    def __init__(self) -> None:
        self._watched: list[tuple[Table, Changes]] = []
        self._rule: tuple[object, ...] = ()
        self._codes: TinyInts = np.empty((0, 0, BLOCK), dtype=np.int8)
        self._scales: Singles = np.empty(0, dtype=np.float32)
        self._bias: Singles = np.empty(0, dtype=np.float32)

    def __deepcopy__(self, _: dict[int, Any]) -> QuantisedRows:
        return QuantisedRows()

    def follow(
        self, kernels: policy.Kernels, tables: Mapping[str, Table], n_items: int, at: Moment | None, now: int
    ) -> Near:
        """Bring the rows up to date, and return what finds about the best of items 0 … n_items-1, in no order.

        It is right until the rows are written again.
        """
        sides = [tables["item_factors"], tables["item_bias"]]
        arrays, count = [table.arrays(at) for table in sides], min(table.rows for table in sides)
        moments = [reference(now, half_life) for *_, half_life in arrays]
        rule = *((moment, half_life) for (moment, _), (*_, half_life) in zip(moments, arrays, strict=True)), *sides
        if rule != self._rule or count > len(self._scales):
            self._rule, self._watched = rule, [(table, table.watch()) for table in sides]
            blocks, dim = -(-2 * count // BLOCK), sides[0].spec.dim
            self._codes = np.zeros((blocks, -(-dim // TOGETHER) * TOGETHER, BLOCK), dtype=np.int8)
            self._scales, self._bias = np.zeros((2, blocks * BLOCK), dtype=np.float32)
            changed = np.arange(count)
        else:
            changed = np.concatenate([changes.take() for _, changes in self._watched])
            changed = changed[changed < count]
        stored = (part for each, (moment, _) in zip(arrays, moments, strict=True) for part in (*each, moment))
        kernels.quantise(changed, *stored, self._codes, self._scales, self._bias)
        size = min(count, n_items)
        of_items = self._codes, self._scales[:size], self._bias[:size], *(factor for _, factor in moments)
        users = tables["user_factors"]
        scan = partial(kernels.quantised_scan, *users.arrays(at), users.rows, now, *of_items)

        def near(users: Ints, many: int, within: Within) -> list[Ints]:
            return [rows for rows, _ in filled(scan, size, np.float32, users, many, within)]

        return near
