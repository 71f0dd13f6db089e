"""The plan of a model: recommender, strategy, what is decided about them, and how the rest is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from melon.fitting.config import BUDGET, HalfLifeChoice
from melon.learning.checkpoint import RecommenderFactory, StrategyFactory
from melon.learning.pretrain import PretrainSettings
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.registry import RECOMMENDERS
from melon.registry import Space
from melon.strategies.base import Strategy
from melon.strategies.registry import STRATEGIES, space_of
from melon.stream.candidates import NEGATIVES
from melon.stream.split import BATCH_SIZE
from melon.types import Plain

DTYPES = ("float32", "float64")

RecommenderChoice = str | RecommenderFactory
StrategyChoice = str | StrategyFactory


@dataclass(frozen=True)
class EvaluationProtocol:
    """How a stream is replayed: the same for everything that is compared."""

    seed: int = 0
    batch_size: int = BATCH_SIZE
    candidates: str = "catalogue"
    negatives: int = NEGATIVES
    #: Whether settings are compared by lists of the whole catalogue instead of among sampled candidates.
    by_lists: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that decides which model a log gives.

    `settings` (the strategy's), `recommender_settings` and `pretrain_settings` are decided; what they leave open is
    chosen on the selection window with `budget` trials for each choice, for at most `minutes`. Pre-training makes at
    most `epochs` passes.
    """

    recommender: RecommenderChoice = "bpr"
    strategy: StrategyChoice = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    recommender_settings: Mapping[str, Any] = field(default_factory=dict)
    pretrain_settings: Mapping[str, Any] = field(default_factory=dict)
    half_life: HalfLifeChoice = "off"
    budget: int = BUDGET
    epochs: int | None = None
    minutes: float | None = None
    protocol: EvaluationProtocol = field(default_factory=EvaluationProtocol)
    dtype: str = "float32"
    threads: int = 1

    @property
    def seed(self) -> int:
        """The root of everything random."""
        return self.protocol.seed

    @property
    def recommender_name(self) -> str:
        """The name of the recommender, also where it is given as a class."""
        return name_of(self.recommender)

    @property
    def strategy_name(self) -> str:
        """The name of the strategy, also where it is given as a class."""
        return name_of(self.strategy)

    def check(self) -> None:
        """Raise `SettingsError` for unknown names, wrong values, or a pairing that does not exist."""
        PretrainSettings.parse(self.pretrain_settings, "pre-training")
        Updater(self.build(), self.make_strategy(self.fixed()))

    def build(self) -> Recommender:
        """A recommender with no rows yet."""
        make = RECOMMENDERS[self.recommender].load() if isinstance(self.recommender, str) else self.recommender
        recommender: Recommender = make(self.recommender_settings, seed=self.seed, dtype=np.dtype(self.dtype))
        return recommender

    def make_strategy(self, settings: Mapping[str, Any], strategy: StrategyChoice | None = None) -> Strategy:
        """The plan's strategy, or another one, with these settings."""
        made: Strategy = _strategy_factory(strategy or self.strategy)(settings, seed=self.seed)
        return made

    def fixed(self) -> Plain:
        """Settings of the plan's strategy that are decided, time decay included."""
        return {**self.fixed_half_life(self.strategy), **self.settings}

    def fixed_half_life(self, strategy: StrategyChoice) -> Plain:
        """What is decided about the time decay of a strategy: nothing where it is searched, or where it has none."""
        made = STRATEGIES[strategy].load(self.settings.get("form")) if isinstance(strategy, str) else strategy
        settings_type = getattr(made, "settings_type", None)
        if self.half_life == "auto" or "half_life" not in getattr(settings_type, "model_fields", {}):
            return {}
        return {"half_life": None if self.half_life == "off" else self.half_life}


def name_of(choice: RecommenderChoice | StrategyChoice) -> str:
    """The name of a recommender or strategy that is given by name or as a class."""
    return choice if isinstance(choice, str) else str(getattr(choice, "name", getattr(choice, "__name__", "unnamed")))


def search_space(strategy: StrategyChoice, fixed: Mapping[str, Any]) -> Space:
    """The search space of a strategy with some settings fixed; one that is neither a name nor a class has none."""
    return space_of(strategy, fixed) if isinstance(strategy, str | type) else Space()


def _strategy_factory(strategy: StrategyChoice) -> StrategyFactory:
    return STRATEGIES[strategy].make if isinstance(strategy, str) else strategy
