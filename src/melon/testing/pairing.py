"""A recommender under a strategy on the toy stream: made, copied, and compared by its whole state."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from melon.learning.updater import Updater
from melon.strategies.base import Strategy
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.tables import Table
from melon.testing.recommenders import MakeRecommender
from melon.testing.toys import StateArrays, array_of, expect, toy_batches
from melon.types import Ints

#: The forms of a learning-rate matrix (docs/methods.md 1.3): one rate, one per interaction, one per parameter, any.
Family = Literal["uniform", "interaction", "parameter", "any"]


class MakeStrategy(Protocol):
    """Makes a new strategy; `partial(MyStrategy, {"lr": 0.1})` does."""

    def __call__(self, *, seed: int) -> Strategy: ...


@dataclass(frozen=True)
class Pairing:
    """A recommender under a strategy, made anew as often as a check needs it.

    The toy stream is learned once for each number type. A check that starts somewhere on it gets a deep copy of the
    updater at that batch, so that checks cannot disturb each other.
    """

    make_recommender: MakeRecommender
    make_strategy: MakeStrategy
    family: Family | None = None
    _moments: dict[npt.DTypeLike, list[Updater]] = field(default_factory=dict, repr=False, compare=False)

    def updater(
        self, batches: Iterable[Batch] = (), history: History | None = None, *, dtype: npt.DTypeLike = np.float32
    ) -> Updater:
        """A new updater that has learned the given batches."""
        new = Updater(self.make_recommender(seed=3, dtype=dtype), self.make_strategy(seed=5), history, seed=7)
        for batch in batches:
            new.learn(batch)
        return new

    def after(self, batches: int, *, dtype: npt.DTypeLike = np.float32) -> Updater:
        """An updater that has learned the first batches of the toy stream; a copy of its own for each caller."""
        moments = self._moments.setdefault(dtype, [self.updater(dtype=dtype)])
        for batch in toy_batches()[len(moments) - 1 : batches]:
            following = deepcopy(moments[-1])
            following.learn(batch)
            moments.append(following)
        return deepcopy(moments[batches])


@dataclass(frozen=True)
class Reordered(Batch):
    """A batch whose interactions stand in another order but keep their own event numbers."""

    numbers: Ints

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "events", self.numbers)


def state_of(updater: Updater) -> StateArrays:
    """Everything that a checkpoint would have to hold, by name; copies."""
    state = {f"{name} {part}": array_of(t) for name, table in tables_of(updater) for part, t in table.state().items()}
    state |= {f"memory {name}": array_of(tensor) for name, tensor in updater.strategy.memory().items()}
    state |= {f"history {name}": np.array(array) for name, array in updater.history.state().items()}
    streaming = updater.recommender.streaming_state()
    return state | {f"streaming {name}": np.array(array) for name, array in streaming.items()}


def tables_of(updater: Updater) -> list[tuple[str, Table]]:
    rows = [(f"table {name}", table) for name, table in updater.recommender.tables.items()]
    states = updater.row_state.items()
    return rows + [(f"row state {name}.{key}", table) for name, state in states for key, table in state.items()]


def hand_over(original: Updater, copy: Updater) -> None:
    for (_, source), (_, target) in zip(tables_of(original), tables_of(copy), strict=True):
        target.restore(source.state())
    copy.strategy.recall(original.strategy.memory())
    copy.recommender.restore_streaming_state(original.recommender.streaming_state())
    copy.recommender.clock.now = original.recommender.clock.now


def scores_of(updater: Updater) -> StateArrays:
    users, n_items = np.arange(8), 20
    lines = np.broadcast_to(np.arange(n_items), (len(users), n_items))
    return {"score": updater.score(users, lines, 10**6), "catalogue": updater.score_catalogue(users, n_items, 10**6)}


def require_finite(updater: Updater) -> None:
    for name, array in state_of(updater).items():
        expect(bool(np.isfinite(array).all()), f"{name} is not finite")
