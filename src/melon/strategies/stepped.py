"""Learned strategies around a plain optimiser step: its moments row by row, and how many steps were made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from melon.errors import CheckpointError
from melon.strategies.base import Kept
from melon.strategies.learned import LearnedStrategy
from melon.strategies.optimizers import OptimizerSettings, Stepper
from melon.tables import TableSpec


class SteppedStrategy(LearnedStrategy):
    """A meta-model beside a `Stepper`. What the stepper counts is remembered with φ, but starts afresh on a stream."""

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._stepper = Stepper(self.plain_step())
        self.dense = self._stepper.dense

    def plain_step(self) -> OptimizerSettings:
        """What the step is told; the strategy's own settings, where these are those of an optimiser too."""
        assert isinstance(self.settings, OptimizerSettings)
        return self.settings

    def row_state(self, spec: TableSpec) -> dict[str, Kept]:
        return self._stepper.row_state()

    def keep(self, memory: Mapping[str, Tensor]) -> None:
        self._stepper.steps = int(memory["steps"])

    def memory(self) -> dict[str, Tensor]:
        return {**super().memory(), "steps": torch.tensor(self._stepper.steps, device="cpu")}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        if "steps" not in memory:
            raise CheckpointError(
                f"this is not the meta-model of strategy {self.name!r}: it does not say how many steps were made. "
                "It was saved with another strategy; load it with the one it was saved with."
            )
        super().recall(memory)
        self.keep(memory)

    def start_afresh(self) -> None:
        self._stepper.steps = 0
