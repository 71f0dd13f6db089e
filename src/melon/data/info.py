"""What is in a stream: its size, its span, and how quickly its items and users come and go."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from melon.data.ids import first_positions
from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.types import Ints

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
TAIL = 0.05

Quantiles = dict[str, float]


@dataclass(frozen=True)
class StreamInfo:
    """A stream in numbers. Shares are between 0 and 1; the tail is the last 5 % of the interactions."""

    users: int
    items: int
    interactions: int
    first_time: int
    last_time: int
    item_life_seconds: Quantiles  # from an item's first interaction to its last
    item_life_interactions: Quantiles  # the same, counted in interactions of the whole stream
    events_per_user: Quantiles
    events_per_item: Quantiles
    tail_interactions: int
    tail_new_items: float  # interactions of the tail on items first seen in it
    tail_cold_users: float  # users of the tail who were first seen in it
    tail_cold_interactions: float  # interactions of the tail by such users
    repeats: float  # interactions with an item that the user had already taken
    tail_repeats: float
    equal_times: float  # interactions at the very time of the one before

    @property
    def span_seconds(self) -> int:
        """From the first interaction to the last."""
        return self.last_time - self.first_time

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values."""
        return asdict(self) | {"span_seconds": self.span_seconds}


def describe(log: Interactions) -> StreamInfo:
    """Count and measure a stream."""
    if not len(log):
        raise DataError("the stream has no interaction to describe.")
    events = len(log)
    start = min(int(events * (1 - TAIL)), events - 1)
    known_items, seen_users = int(log.known_items[start]), int(log.users[:start].max()) + 1 if start else 0
    first, last = first_positions(log.items, log.n_items), _last_positions(log.items, log.n_items)
    tail_users, tail_items = log.users[start:], log.items[start:]
    tail_people = np.unique(tail_users)
    return StreamInfo(
        users=log.n_users,
        items=log.n_items,
        interactions=events,
        first_time=int(log.times[0]),
        last_time=int(log.times[-1]),
        item_life_seconds=_quantiles(log.times[last] - log.times[first]),
        item_life_interactions=_quantiles(last - first),
        events_per_user=_quantiles(np.bincount(log.users)),
        events_per_item=_quantiles(np.bincount(log.items)),
        tail_interactions=events - start,
        tail_new_items=float((tail_items >= known_items).mean()),
        tail_cold_users=float((tail_people >= seen_users).mean()),
        tail_cold_interactions=float((tail_users >= seen_users).mean()),
        repeats=float(log.repeats.mean()),
        tail_repeats=float(log.repeats[start:].mean()),
        equal_times=float((np.diff(log.times) == 0).mean()) if events > 1 else 0.0,
    )


def _last_positions(rows: Ints, size: int) -> Ints:
    last = np.zeros(size, dtype=np.int64)
    last[rows] = np.arange(len(rows))
    return last


def _quantiles(values: npt.NDArray[np.integer]) -> Quantiles:
    points = np.quantile(values, QUANTILES)
    return {f"{100 * share:g}%": float(value) for share, value in zip(QUANTILES, points, strict=True)}
