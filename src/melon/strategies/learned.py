"""Learned strategies: a meta-model, its look-ahead, and its optimiser (docs/methods.md 3.0.3, 3.0.4)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from melon.errors import CheckpointError
from melon.models.autograd import tensor_of, torch_type
from melon.strategies.adam import MetaAdam
from melon.strategies.base import Memory, RowStateSpec, Situation, Strategy, StrategySettings
from melon.strategies.optimizers import OptimizerSettings, RowOptimizer
from melon.strategies.parameters import Parameters
from melon.tables import TableSpec
from melon.types import AnyArray

MetaLoss = Callable[[Mapping[str, Tensor]], Tensor]


class LearnedSettings(StrategySettings):
    """How a meta-model is trained: Adam on the look-ahead loss of each batch."""

    meta_lr: float = Field(2e-3, ge=0)
    meta_weight_decay: float = Field(0.0, ge=0)
    meta_clip: float | None = Field(None, gt=0)  # the largest norm of the meta-gradient
    meta_clip_entries: bool = False  # or the largest that each of its entries may be
    passes: int = Field(10, ge=0)
    cold: Literal["drop", "current"] = "drop"
    keep_prelim: bool = False


class LearnedStrategy(Strategy):
    """A strategy with meta-parameters φ. What is learned is `parameters()` and nothing else.

    The updater shows it the last interactions of the batch's users and items (`look_ahead`), the loss of the batch
    after that provisional step teaches φ, and `propose` makes the real step with the new φ.
    """

    settings: LearnedSettings
    looks_ahead: ClassVar[bool] = True

    #: How the weights of the meta-model are drawn: with Xavier's spread, or from Normal(0, 0.01²).
    init: Literal["normal", "xavier"] = "xavier"

    def bind(self, specs: Mapping[str, TableSpec], dtype: np.dtype[np.floating]) -> None:
        """Draw the meta-parameters for these tables.

        A strategy that has a meta-model keeps it: trained on one recommender, it is deployed on another of its kind.
        """
        self.require_tables(specs)
        if hasattr(self, "_phi"):
            return
        phi = Parameters(self.seed, torch_type(dtype), self.init)
        self.build(specs, phi)
        self._phi = phi
        settings = self.settings
        self._meta_optimizer = MetaAdam(
            settings.meta_lr, settings.meta_weight_decay, settings.meta_clip, entries=settings.meta_clip_entries
        )

    @abstractmethod
    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        """Register the meta-parameters, and keep the parts of the meta-model that read them."""

    def parameters(self) -> dict[str, Tensor]:
        """Meta-parameters by name; leaves that require a gradient."""
        return self._phi.tensors

    @abstractmethod
    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        """Provisional values of the compact rows, differentiable in φ; gradients, losses and rows are constants."""

    def meta_gradient(self, situation: Situation, meta_loss: MetaLoss) -> tuple[dict[str, Tensor], Tensor]:
        """∇_φ of the loss after the look-ahead, and that loss; exact with one step (docs/methods.md 3.0.4)."""
        parameters = self.parameters()
        with torch.enable_grad():
            loss = meta_loss(self.look_ahead(situation))
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return {
            name: torch.zeros_like(value) if gradient is None else gradient
            for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
        }, loss.detach()

    def adapt(self, gradients: Mapping[str, Tensor], situation: Situation) -> Situation:
        """One Adam step on φ. Returns the situation with the row state that was learned in it, if any."""
        self._meta_optimizer.step(self.parameters(), gradients)
        return situation

    def memory(self) -> Memory:
        phi = {f"phi/{name}": value.detach().numpy().copy() for name, value in self.parameters().items()}
        return {**phi, **self._meta_optimizer.memory()}

    def recall(self, memory: Mapping[str, AnyArray]) -> None:
        self._require_own(memory)
        with torch.no_grad():
            for name, value in self.parameters().items():
                value.copy_(tensor_of(memory[f"phi/{name}"]))
        self._meta_optimizer.recall(memory)

    def _require_own(self, memory: Mapping[str, AnyArray]) -> None:
        """Refuse the memory of another strategy, preset or recommender before anything is changed."""
        own = {name: tuple(value.shape) for name, value in self.parameters().items()}
        saved = {name.removeprefix("phi/"): tuple(t.shape) for name, t in memory.items() if name.startswith("phi/")}
        problems = [f"has no {name}" for name in own if name not in saved]
        problems += [f"has {name}, which is unknown here" for name in saved if name not in own]
        problems += [f"has {n} as {saved[n]} instead of {own[n]}" for n in own if n in saved and saved[n] != own[n]]
        problems += self._meta_optimizer.problems_of(memory, own)
        if problems:
            more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise CheckpointError(
                f"this is not the meta-model of strategy {self.name!r} with these settings: it "
                f"{'; '.join(problems[:3])}{more}. It was saved with another strategy, preset or recommender; load it "
                "with the settings it was saved with."
            )


class LearnedOptimizerStrategy(LearnedStrategy):
    """A meta-model beside a plain optimiser of rows, whose step count is saved with φ and starts afresh on a stream."""

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._row_optimizer = RowOptimizer(self.row_optimizer_settings())
        self.dense = self._row_optimizer.dense

    def row_optimizer_settings(self) -> OptimizerSettings:
        """The optimiser's settings: the strategy's own, where these include them."""
        assert isinstance(self.settings, OptimizerSettings)
        return self.settings

    def row_state(self, spec: TableSpec) -> dict[str, RowStateSpec]:
        return self._row_optimizer.row_state()

    def keep(self, memory: Mapping[str, AnyArray]) -> None:
        self._row_optimizer.steps = int(memory["steps"])

    def memory(self) -> Memory:
        return {**super().memory(), "steps": np.array(self._row_optimizer.steps)}

    def recall(self, memory: Mapping[str, AnyArray]) -> None:
        if "steps" not in memory:
            raise CheckpointError(
                f"this is not the meta-model of strategy {self.name!r}: it does not say how many steps were made. "
                "It was saved with another strategy; load it with the one it was saved with."
            )
        super().recall(memory)
        self.keep(memory)

    def start_afresh(self) -> None:
        self._row_optimizer.steps = 0


def gammas_at(provisional: Mapping[str, Tensor], meta_loss: MetaLoss) -> tuple[dict[str, Tensor], Tensor]:
    """γ = ∂loss/∂Θ̃ at provisional values, and that loss, for closed-form meta-gradients (docs/methods.md 3.0.4)."""
    with torch.enable_grad():
        free = {name: value.detach().requires_grad_() for name, value in provisional.items()}
        loss = meta_loss(free)
        slopes = torch.autograd.grad(loss, list(free.values()), allow_unused=True)
    gammas = {
        name: torch.zeros_like(value) if gamma is None else gamma
        for (name, value), gamma in zip(provisional.items(), slopes, strict=True)
    }
    return gammas, loss.detach()
