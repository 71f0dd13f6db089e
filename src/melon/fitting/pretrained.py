"""Pre-trained recommenders: how one is made, kept as a state that gives fresh copies, and deployed behind a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from melon.data.interactions import Interactions
from melon.learning.pretrain import (
    Pretraining,
    PretrainSettings,
    live_through,
    most_epochs,
    pretrain_by_strategy,
    stamp_last_touches,
)
from melon.learning.updater import Updater
from melon.recommenders.base import Recommender
from melon.recommenders.heads import HeadedRecommender
from melon.recommenders.registry import RECOMMENDERS
from melon.strategies.base import Strategy
from melon.stream.history import History
from melon.types import Plain

Report = Callable[[str], None]
#: What a strategy has learned of learning (`Updater.practice`).
Practice = dict[str, Tensor]
#: Streaming state of a recommender after a log, by recommender and length.
Observed = dict[str, dict[str, np.ndarray[Any, Any]]]


def silent(_: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class RecommenderPlan:
    """Which recommender is pre-trained, and how, as far as that is settled."""

    name: str = "bpr"
    settings: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] = field(default_factory=dict)
    epochs_cap: int | None = None
    device: str = "cpu"

    def build(self, seed: int) -> Recommender:
        """A recommender with no rows yet."""
        made: Recommender = RECOMMENDERS[self.name].load()(self.settings, seed=seed, device=self.device)
        return made


class PretrainedState:
    """A trained recommender that can be had again and again, each time as a fresh copy."""

    def __init__(
        self,
        plan: RecommenderPlan,
        seed: int,
        tables: Mapping[str, dict[str, Tensor]],
        observed: Observed | None = None,
    ) -> None:
        self._plan, self._seed, self.tables = plan, seed, tables
        self._observed: Observed = {} if observed is None else observed

    @classmethod
    def of(
        cls, plan: RecommenderPlan, seed: int, recommender: Recommender, observed: Observed | None = None
    ) -> PretrainedState:
        """What a recommender has learned by now. States of one stream may share what is `observed` on it."""
        return cls(plan, seed, {name: table.state() for name, table in recommender.tables.items()}, observed)

    @property
    def headed(self) -> bool:
        """Whether the recommender has a head, which practises on the window."""
        return isinstance(self.fresh(), HeadedRecommender)

    def fresh(self) -> Recommender:
        """The same recommender before it learned anything."""
        return self._plan.build(self._seed)

    def copy(self) -> Recommender:
        """A recommender with the trained rows."""
        recommender = self.fresh()
        for name, state in self.tables.items():
            recommender.tables[name].restore(state)
        return recommender

    def after(self, log: Interactions) -> tuple[Recommender, History]:
        """A recommender with the trained rows that has observed a log, and the history of it.

        Streaming state is gathered once: all copies are about one stream, and a log is known by its length.
        """
        recommender, history = self.copy(), History()
        key = f"{self._plan.name} {sorted(self._plan.settings.items())} {len(log)}"
        if key not in self._observed:
            live_through(recommender, history, log)
            self._observed.clear()  # one is enough, and may be large
            self._observed[key] = recommender.streaming_state()
        else:
            history.append(log.users, log.items)
            recommender.restore_streaming_state(self._observed[key])
        return recommender, history


def deploy(
    strategy: Strategy, start: PretrainedState, log: Interactions, seed: int, practice: Practice | None = None
) -> Updater:
    """An updater that has the log behind it: on the pre-trained recommender, or on one the strategy trains itself."""
    recommender, history = start.after(log)
    updater = Updater(start.fresh(), strategy, history, seed=seed)
    if not pretrain_by_strategy(strategy, updater.recommender, log):
        updater = Updater(recommender, strategy, history, seed=seed)
    updater.take_over(practice or {})
    stamp_last_touches(updater.recommender, log, updater.fading_clock)
    return updater


def refit(
    plan: RecommenderPlan, log: Interactions, settings: Plain, seed: int, report: Report = silent
) -> PretrainedState:
    """The chosen pre-training on the whole training part."""
    recommender = plan.build(seed)
    chosen = PretrainSettings.parse(settings, "pre-training")
    training = Pretraining(recommender, log, chosen, seed=seed)
    epochs = chosen.epochs if chosen.epochs is not None else most_epochs(len(log))
    for loss in training.run(epochs):
        report(f"epoch {training.epochs_done} of {epochs}, loss {loss:.4f}")
    return PretrainedState.of(plan, seed, recommender)
