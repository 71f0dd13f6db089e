"""Plain optimisers on compact rows (docs/methods.md 3.1): SGD, and Adam on touched rows or on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from melon.strategies.base import (
    LearningRates,
    Memory,
    PlainRates,
    Proposal,
    Reduction,
    RowState,
    RowStateSpec,
    Situation,
    Strategy,
    StrategySettings,
)
from melon.tables import TableSpec
from melon.types import AnyArray

if TYPE_CHECKING:
    from torch import Tensor

Optimizer = Literal["sgd", "adam_lazy", "adam_dense"]


class OptimizerSettings(StrategySettings):
    """One gradient step per batch. `sum` takes a whole step per interaction, `mean` one step per batch.

    A weight that every interaction touches would take n steps at once under `sum`; it takes the mean unless
    `shared_reduction` says otherwise.
    """

    optimizer: Optimizer = "sgd"
    reduction: Literal["sum", "mean"] = "sum"
    shared_reduction: Literal["sum", "mean"] = "mean"
    lr: float = Field(0.3, gt=0, le=1e6)
    weight_decay: float = Field(0.0, ge=0)
    beta_1: float = Field(0.9, ge=0, lt=1)
    beta_2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)


class WeightedLossStrategy(Strategy):
    """A strategy that is one optimiser step on a (weighted) loss; the weight is all that differs."""

    settings: OptimizerSettings

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._optimizer = RowOptimizer(self.settings)
        self.dense = self._optimizer.dense

    @property
    def weight(self) -> float:
        """What every interaction counts."""
        return 1.0

    def weights(self, situation: Situation) -> Tensor | None:
        """The same for each interaction's loss; none where it is 1."""
        losses, weight = situation.evidence.losses, self.weight
        return None if weight == 1.0 else losses.new_full(losses.shape, weight)

    def row_state(self, spec: TableSpec) -> dict[str, RowStateSpec]:
        return self._optimizer.row_state()

    def propose(self, situation: Situation) -> Proposal:
        return self._optimizer.propose(situation, self.weights(situation))

    def plain_rates(self, interactions: int) -> PlainRates | None:
        settings, steps = self.settings, self._optimizer.steps + 1
        if settings.optimizer != "sgd" or settings.most_step is not None:
            return None
        rate = settings.lr * self.weight / (interactions if settings.reduction == "mean" else 1)
        return PlainRates(rate, settings.lr * settings.weight_decay, {"steps": np.array(steps)})

    def learning_rates(self, situation: Situation) -> LearningRates:
        return self._optimizer.learning_rates(situation, self.weights(situation))

    def keep(self, memory: Mapping[str, AnyArray]) -> None:
        self._optimizer.steps = int(memory["steps"])

    def memory(self) -> Memory:
        return {"steps": np.array(self._optimizer.steps)}

    def recall(self, memory: Mapping[str, AnyArray]) -> None:
        self.keep(memory)


class RowOptimizer:
    """Turns weighted evidence into new rows; the step count is its only memory.

    Weight decay is coupled L2. It reaches the rows of the compact copy, which for the lazy optimisers are those that
    the batch touches; biases are exempt, as in the published code.
    """

    def __init__(self, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.steps = 0

    @property
    def dense(self) -> bool:
        """Whether untouched rows move too."""
        return self.settings.optimizer == "adam_dense"

    def row_state(self) -> dict[str, RowStateSpec]:
        """Adam's two moments."""
        return {} if self.settings.optimizer == "sgd" else {"moment_1": RowStateSpec(), "moment_2": RowStateSpec()}

    def propose(self, situation: Situation, weights: Tensor | None = None) -> Proposal:
        """One step on the (weighted) loss of the batch."""
        return self.step(situation, self._gradients(situation, weights, len(situation.examples)))

    def step(self, situation: Situation, gradients: Mapping[str, Tensor]) -> Proposal:
        """One step along given gradients; those of a table may be of its leading compact rows only."""
        from melon.strategies.adam import Adam, Moments

        settings, steps = self.settings, self.steps + 1
        adam = Adam(settings.beta_1, settings.beta_2, settings.eps)
        values: dict[str, Tensor] = {}
        state: RowState = {}
        for table, gradient in gradients.items():
            old = situation.values[table][: len(gradient)]
            if settings.weight_decay and situation.specs[table].kind != "bias":
                gradient = gradient + settings.weight_decay * old  # noqa: PLW2901
            if settings.optimizer == "sgd":
                values[table] = old - settings.lr * gradient
                continue
            first, second = (situation.row_state[table][key][: len(gradient)] for key in ("moment_1", "moment_2"))
            moments = adam.moments(Moments(first, second), gradient)
            values[table] = adam.step(old, moments, steps, settings.lr)
            state[table] = {"moment_1": moments.first, "moment_2": moments.second}
        return Proposal(values, state, {"steps": np.array(steps)})

    def learning_rates(self, situation: Situation, weights: Tensor | None = None) -> LearningRates:
        """η·ω_x or η·ω_x/n; under Adam these are loss weights rather than realised steps (docs/methods.md 1.3)."""
        from melon.strategies.reductions import row_constant_rates

        losses = situation.evidence.losses
        base = losses.new_ones(losses.shape) if weights is None else weights
        n, rate = len(situation.examples), self.settings.lr
        scale = {table: 1 / n if self._reduction(situation, table) == "mean" else 1.0 for table in situation.values}
        return row_constant_rates(situation.evidence, base * rate, scale)

    def _reduction(self, situation: Situation, table: str) -> Reduction:
        shared = situation.specs[table].role == "shared"
        return self.settings.shared_reduction if shared else self.settings.reduction

    def _gradients(self, situation: Situation, weights: Tensor | None, n: int) -> dict[str, Tensor]:
        totals: dict[str, Tensor] = {}
        for gradient in situation.evidence.gradients:
            total = gradient.summed(len(situation.values[gradient.table]), weights)
            if self._reduction(situation, gradient.table) == "mean":
                total = total / n
            totals[gradient.table] = totals[gradient.table] + total if gradient.table in totals else total
        return totals
