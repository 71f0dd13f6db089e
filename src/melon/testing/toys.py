"""Small streams to check with, and comparisons that say what differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from melon.data.interactions import Interactions
from melon.errors import ConformanceError
from melon.stream.batch import Batch, batch_of
from melon.types import Ints

StateArrays = dict[str, npt.NDArray[Any]]
BATCH = 16


def toy_log(events: int = 20 * BATCH, *, other_future_from: int | None = None) -> Interactions:
    """A small stream: users and items keep arriving, two groups of users swap their tastes half-way.

    With `other_future_from`, everything from that event on is different, in other users and items too.
    """
    rng, when = np.random.default_rng(11), np.arange(events)
    users = rng.integers(0, 6 + 30 * when // max(events, 1))
    items = 2 * rng.integers(0, 6 + 20 * when // max(events, 1)) + (users + (when >= events // 2)) % 2
    if other_future_from is not None:
        later = when >= other_future_from
        users[later], items[later] = rng.integers(20, 60, later.sum()), rng.integers(30, 70, later.sum())
    return Interactions.from_ids(users + 100, items + 5000, 10 * when)


def toy_batches(log: Interactions | None = None, size: int = BATCH) -> list[Batch]:
    """The toy stream, or another log, as batches."""
    log = toy_log() if log is None else log
    return [batch_of(log, start, min(start + size, len(log))) for start in range(0, len(log), size)]


def toy_batch(first_event: int, users: Ints, items: Ints) -> Batch:
    times = 10 * np.arange(first_event, first_event + len(users))
    return Batch(first_event, users, items, times, users + 100, items + 5000)


def array_of(numbers: Any) -> npt.NDArray[Any]:
    """A copy of an array, or of a tensor of PyTorch."""
    return np.array(numbers.detach().numpy() if hasattr(numbers, "detach") else numbers)


def expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise ConformanceError(otherwise)


def same(one: StateArrays, other: StateArrays, otherwise: str) -> None:
    expect(one.keys() == other.keys(), f"{otherwise}: {sorted(one.keys() ^ other.keys())} only in one of them")
    for name, array in one.items():
        second = other[name]
        expect(array.shape == second.shape, f"{otherwise}: {name} has shapes {array.shape} and {second.shape}")
        expect(array.tobytes() == second.tobytes(), f"{otherwise}: {name}, {_apart(array, second)}")


def close(given: Any, wanted: Any, what: str, tolerance: float) -> None:
    one, other = array_of(given), array_of(wanted)
    expect(one.shape == other.shape, f"{what}: shape {one.shape}, expected {other.shape}")
    near = np.allclose(one, other, rtol=tolerance, atol=tolerance)
    expect(near, f"{what}: {_apart(one, other)}")


def _apart(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> str:
    if not one.size:
        return "empty"
    at = np.unravel_index(int(np.argmax(np.abs(one.astype(float) - other.astype(float)))), one.shape)
    return f"{one[at]!r} against {other[at]!r} at {tuple(int(place) for place in at)}"
