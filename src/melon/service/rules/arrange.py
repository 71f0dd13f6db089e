"""The order of a list after scoring: caps, diversity, rotation and pins, on a pool of the best items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from melon.service.rules.items import Facts
from melon.types import Flags, Floats, Ints

T = TypeVar("T")

#: How many items are arranged to choose k of them.
POOL_FACTOR = 5
#: What a cap may count by.
CAPPED = ("category", "owner")


@dataclass(frozen=True)
class Pool:
    """The best items of one user, best first, with what the rules of this request need to know of them."""

    rows: Ints
    scores: Floats
    facts: Sequence[Facts] = ()
    vectors: Floats | None = None
    shown: Flags | None = None


def arrange(pool: Pool, k: int, *, at_most: Mapping[str, int], diversity: float) -> list[int]:
    """Places of the pool in the order in which they are listed, at most k.

    Items that were shown lately come after all others. Among the rest, each next item maximises
    (1 - diversity) · relevance - diversity · (largest cosine with an item listed before): maximal marginal relevance,
    with relevance from 0 to 1 over the pool. An item that would exceed a cap is passed by.
    """
    tiers = [np.arange(len(pool.rows))]
    if pool.shown is not None and pool.shown.any():
        tiers = [np.flatnonzero(~pool.shown), np.flatnonzero(pool.shown)]
    if not at_most and (not diversity or pool.vectors is None):
        return list(map(int, np.concatenate(tiers)[:k]))
    choose = _Chooser(pool, at_most, diversity)
    chosen: list[int] = []
    for tier in tiers:
        for place in choose.in_order(tier):
            if len(chosen) == k:
                break
            if choose.take(place):
                chosen.append(place)
    return chosen


class _Chooser:
    def __init__(self, pool: Pool, at_most: Mapping[str, int], diversity: float) -> None:
        self._pool, self._at_most = pool, at_most
        self._counts = {field: Counter[str]() for field in at_most}
        self._nearest: Floats | None = None
        if diversity and pool.vectors is not None and len(pool.rows):
            lengths = np.linalg.norm(pool.vectors, axis=1, keepdims=True)
            self._units = np.divide(pool.vectors, lengths, out=np.zeros_like(pool.vectors), where=lengths > 0)
            spread = float(pool.scores.max() - pool.scores.min())
            relevance = (pool.scores - pool.scores.min()) / spread if spread > 0 else np.ones(len(pool.rows))
            self._diversity, self._relevance = diversity, relevance
            self._nearest = np.zeros(len(pool.rows))
            self._first = True

    def in_order(self, tier: Ints) -> Iterator[int]:
        """The places of a tier in the order to try; of equal ones, first the one that the model ranks higher."""
        if self._nearest is None:
            yield from tier.tolist()
            return
        relevance, gone = (1 - self._diversity) * self._relevance[tier], np.zeros(len(tier))
        for _ in range(len(tier)):
            at = int((relevance - self._diversity * self._nearest[tier] - gone).argmax())
            gone[at] = np.inf
            yield int(tier[at])

    def take(self, place: int) -> bool:
        """Count an item, unless a cap is reached."""
        groups = [(field, name) for field in self._at_most for name in _groups(self._pool.facts[place], field)]
        if any(self._counts[field][name] >= self._at_most[field] for field, name in groups):
            return False
        for field, name in groups:
            self._counts[field][name] += 1
        if self._nearest is not None:
            cosines = self._units @ self._units[place]
            self._nearest = cosines if self._first else np.maximum(self._nearest, cosines)
            self._first = False
        return True


def _groups(facts: Facts, field: str) -> Sequence[str]:
    if field == "category":
        return facts.categories
    return () if facts.owner is None else (facts.owner,)


def with_pins(listed: Sequence[T], pins: Sequence[tuple[int, T]], k: int) -> list[T]:
    """A list with other entries at given positions (from 1); a position behind the end is the end."""
    result = list(listed)
    for position, entry in sorted(pins, key=lambda pin: pin[0]):
        result.insert(min(position - 1, len(result)), entry)
    return result[:k]
