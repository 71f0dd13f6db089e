"""Learned strategies meta-trained through a whole stream and then frozen (docs/methods.md 4.12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from melon.strategies.learned import LearnedSettings, LearnedStrategy
from melon.strategies.melon.rates import Phi
from melon.strategies.parameters import Parameters
from melon.tables import TableSpec
from melon.types import Floats

#: The logarithm of τ in the loss of meta-training.
TEMPERATURE = "temperature"


class UnrolledSettings(LearnedSettings):
    """Settings of such meta-training, beside those of the strategy: `lr` is the plain step from which it starts."""

    lr: float = Field(0.3, gt=0, le=20)
    passes: int = Field(60, ge=0)
    meta_training_lr: float = Field(0.03, gt=0)
    half_life_speed: float = Field(3.0, ge=0)
    meta_training_l2: float = Field(1e-3, ge=0)


class UnrolledStrategy(LearnedStrategy):
    """Mixed in before a learned strategy whose `look_ahead` can be differentiated in the rows too.

    What the meta-model sees is constant to the gradient, as it is in a look-ahead over one batch.
    """

    settings: UnrolledSettings
    looks_ahead: ClassVar[bool] = False
    stream_trained: ClassVar[bool] = True

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        super().build(specs, parameters)  # type: ignore[safe-super]  # there is always a strategy behind this one
        parameters.zeros_exactly(TEMPERATURE, 1)
        for table in super().half_lives(specs):
            parameters.zeros_exactly(_half_life(table), 1)

    def half_lives(self, specs: Mapping[str, TableSpec]) -> dict[str, float]:
        """Learned, from the one in the settings on: log₂ of each table's half-life moves by `half_life_speed` · φ."""
        return {name: float(value.detach()) for name, value in self.open_half_lives(specs, self.parameters()).items()}

    @property
    def phi(self) -> Phi:
        """A copy of the meta-parameters."""
        return {name: value.detach().cpu().numpy().astype(np.float64) for name, value in self.parameters().items()}

    @torch.no_grad()
    def take(self, phi: Phi) -> None:
        """Become another φ."""
        for name, value in self.parameters().items():
            value.copy_(torch.from_numpy(phi[name]))

    @property
    def passes(self) -> int:
        """How many passes meta-training makes."""
        return self.settings.passes

    def free(self, name: str) -> Floats:
        """1 for each number of φ that meta-training may move: all of them."""
        return np.ones(tuple(self.parameters()[name].shape))

    def speed(self, name: str) -> float:
        """How fast meta-training moves a part of φ, relative to its rate."""
        return 1.0

    def anchor(self, name: str, start: Floats) -> Floats | None:
        """Where the penalty of meta-training draws a meta-parameter to: where it starts; None without one."""
        return None if name == TEMPERATURE or name.startswith(_half_life("")) else start

    def open_half_lives(self, specs: Mapping[str, TableSpec], phi: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Half-lives of the tables whose idle rows decay, differentiable in φ."""
        speed, start = self.settings.half_life_speed, super().half_lives(specs)
        return {name: value * torch.exp2(speed * phi[_half_life(name)].double()) for name, value in start.items()}


def _half_life(table: str) -> str:
    """The meta-parameter that moves a table's half-life."""
    return f"half_life.{table}"
