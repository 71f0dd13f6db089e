"""The best items of users, by a scorer of all items that is kept while the model stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from melon.errors import DataError
from melon.learning.lists import Best, best, best_of_all
from melon.learning.updater import Updater
from melon.recommenders.base import Catalogue
from melon.stream.pairs import SeenPairs, distinct, pair_keys
from melon.types import Flags, Ints

#: Lists are made from at most this many scores at a time: 32 MB, which allocators still hand out again and again.
SCORES_AT_ONCE = 1 << 23
#: Two stages: this many best products, beside the list's length, are scored again.
CANDIDATES = 100


@dataclass(frozen=True)
class Limits:
    """What may be listed: nothing that the user has had, only `allowed` rows of items, none of those to `exclude`.

    `boost` is added to scores, item by item. Items beyond the end of `allowed` are not allowed; those beyond the end of
    `boost` have none.
    """

    filter_seen: bool
    allowed: Flags | None = None
    exclude: Ints | None = None
    boost: npt.NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        if self.allowed is not None and (self.allowed.dtype != np.bool_ or self.allowed.ndim != 1):
            raise DataError(
                f"allowed must be one row of truth values, got {self.allowed.dtype} of {self.allowed.shape}."
            )
        if self.boost is not None and (self.boost.ndim != 1 or not bool(np.isfinite(self.boost).all())):
            raise DataError(f"boost must be one row of finite numbers, got shape {self.boost.shape}.")

    def mask(self, n_items: int) -> Flags | None:
        """Which items may be listed; None where that is all."""
        if self.allowed is None and self.exclude is None:
            return None
        mask = np.full(n_items, self.allowed is None)
        if self.allowed is not None:
            mask[: len(self.allowed)] = self.allowed[:n_items]
        if self.exclude is not None:
            mask[self.exclude[(self.exclude >= 0) & (self.exclude < n_items)]] = False
        return mask


class _Kept(NamedTuple):
    """A scorer, and the version of the model that it is of."""

    version: tuple[object, ...]
    catalogue: Catalogue


class Ranker:
    """Makes lists for an updater. It writes nothing that is learned; the caller holds the model's lock."""

    def __init__(self, updater: Updater) -> None:
        self._updater = updater
        self._kept: _Kept | None = None

    def best(self, users: Ints, k: int, n_items: int, time: int, limits: Limits) -> list[Best]:
        """The k best of items 0 … n_items-1 for rows of users; each list depends on its user and the version alone."""
        mask, catalogue, seen = limits.mask(n_items), self._catalogue(n_items, time), self._seen(limits)
        if self._updater.recommender.two_stage and limits.boost is None:
            return self._in_two_stages(catalogue, users, k, n_items, time, seen, mask)
        return best_of_all(catalogue, users, k, n_items, boost=limits.boost, seen=seen, allowed=mask)

    def _in_two_stages(
        self,
        catalogue: Catalogue,
        users: Ints,
        k: int,
        n_items: int,
        time: int,
        seen: SeenPairs | None,
        mask: Flags | None,
    ) -> list[Best]:
        """Candidates by quick scores and from elsewhere, then scored exactly; all users share the pass over items."""
        quick, rows = catalogue.first_stage(), list[Ints]()
        candidates = best_of_all(quick, users, k + CANDIDATES, n_items, boost=None, seen=seen, allowed=mask)
        for user, (near, _) in zip(users[:, None], candidates, strict=True):
            more = catalogue.worthwhile(user)
            more = more[more < n_items]
            if mask is not None:
                more = more[mask[more]]
            if seen is not None:
                more = more[~seen.contains(pair_keys(np.repeat(user, len(more)), more))]
            rows.append(distinct(np.concatenate([near, more])))
        # Shorter lines are filled with the first item, whose scores nobody reads.
        lines = np.zeros((len(users), max(map(len, rows))), dtype=np.int64)
        for line, some in zip(lines, rows, strict=True):
            line[: len(some)] = some
        scores = self._updater.score(users, lines, time)
        lists = [best(line[None, : len(some)], k)[0] for line, some in zip(scores, rows, strict=True)]
        return [(some[places], values) for some, (places, values) in zip(rows, lists, strict=True)]

    def _seen(self, limits: Limits) -> SeenPairs | None:
        return self._updater.history.seen if limits.filter_seen else None

    def _catalogue(self, n_items: int, time: int) -> Catalogue:
        """The scorer of this version of the model."""
        version = (n_items, *self._updater.version(time))
        if self._kept is None or self._kept.version != version:
            self._kept = _Kept(version, self._updater.catalogue(n_items, time))
        return self._kept.catalogue


def in_pieces(rows: Ints, n_items: int) -> Iterator[Ints]:
    """Rows of users or items, as many at a time as may be scored at once."""
    at_once = max(SCORES_AT_ONCE // max(n_items, 1), 1)
    return (rows[start : start + at_once] for start in range(0, len(rows), at_once))
