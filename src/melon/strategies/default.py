"""Default (METHODS.md 3.1): fine-tuning, one gradient step on each incoming batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from melon.strategies.base import LearningRates, Proposal, Situation, Strategy
from melon.strategies.optimizers import OptimizerSettings, Stepper
from melon.tables import TableSpec


class Default(Strategy):
    """W_{x,m} = η (sum) or η/n (mean), the same for every interaction and parameter."""

    name = "default"
    settings_type = OptimizerSettings
    settings: OptimizerSettings

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._stepper = Stepper(self.settings)
        self.dense = self._stepper.dense

    def row_state(self, spec: TableSpec) -> dict[str, float]:
        return self._stepper.row_state()

    def propose(self, situation: Situation) -> Proposal:
        return self._stepper.propose(situation)

    def learning_rates(self, situation: Situation) -> LearningRates:
        return self._stepper.learning_rates(situation)

    def keep(self, memory: Mapping[str, Tensor]) -> None:
        self._stepper.steps = int(memory["steps"])

    def memory(self) -> dict[str, Tensor]:
        return {"steps": torch.tensor(self._stepper.steps)}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        self.keep(memory)
