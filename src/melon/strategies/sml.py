"""SML (docs/methods.md 3.6): rows are fine-tuned, and a transfer network merges each row before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from melon.settings import Width
from melon.strategies.base import LearningRates, Proposal, Situation
from melon.strategies.learned import LearnedOptimizerStrategy, LearnedSettings
from melon.strategies.optimizers import OptimizerSettings
from melon.strategies.parameters import Parameters
from melon.strategies.reductions import GradientReduction, parameter_rates, reduced_gradients, touched_rows
from melon.strategies.unrolled import UnrolledSettings, UnrolledStrategy
from melon.tables import TableSpec

#: Filters of the two convolutions, as published.
_FILTERS = (10, 5)
#: act(z) = z · σ(1.702 z). Carried along as a factor, it is the common silu: silu(1.702 z) = 1.702 act(z).
_STEEPNESS = 1.702
_GUARD = 1e-12


class SMLSettings(LearnedSettings):
    """How rows are fine-tuned (`lr` to `shared_reduction`), and what merges them."""

    optimizer: Literal["sgd", "adam_lazy"] = "sgd"
    lr: float = Field(0.3, gt=0, le=1e6)
    weight_decay: float = Field(0.0, ge=0)
    reduction: GradientReduction = "sum"  # of rows of users and items
    shared_reduction: GradientReduction = "row_mean"  # of weights that every interaction touches
    residual: bool = True  # the merged row is the fine-tuned one plus tanh T times its own step; else it is T alone
    width: Width = 512
    meta_lr: float = Field(1e-3, ge=0)


class SML(LearnedOptimizerStrategy):
    """θ' = T(θ, ŵ) for the embeddings that the batch touches, ŵ being θ after a plain step; all else is that step.

    With the residual it is ŵ + (ŵ − θ) ⊙ tanh T(θ, ŵ), and starts as ŵ. Every
    table of embeddings has a network of its own: one for users and one for items in a matrix factorisation, four in
    NCF, which is our extension (the paper has none there).
    """

    name = "sml"
    settings_type = SMLSettings
    settings: SMLSettings

    def row_optimizer_settings(self) -> OptimizerSettings:
        own = self.settings
        return OptimizerSettings(optimizer=own.optimizer, lr=own.lr, weight_decay=own.weight_decay)

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        self._transfers = {
            name: Transfer(name, spec.dim, self.settings, parameters)
            for name, spec in specs.items()
            if spec.kind == "embedding"
        }

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        with torch.no_grad():
            tuned = self._tuned(situation)
        return self._merged(situation, tuned)

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        tuned = self._tuned(situation)
        merged = self._merged(situation, tuned)
        return Proposal({table: merged[table] for table in tuned.values}, tuned.row_state, tuned.memory)

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        """The effective rates −Δ_m / Σ_x g_{x,m}; 0 where the gradients add up to 0, however far T moves the entry."""
        new, totals = self.propose(situation).values, reduced_gradients(situation, "sum")
        rates = {
            table: ((situation.values[table] - new[table]) / total).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            for table, total in totals.items()
        }
        return parameter_rates(situation, rates, "sum")

    def _tuned(self, situation: Situation) -> Proposal:
        """ŵ: the plain step, a constant to the meta-gradient."""
        gradients = reduced_gradients(situation, self.settings.reduction, self.settings.shared_reduction)
        return self._row_optimizer.step(situation, gradients)

    def _merged(self, situation: Situation, tuned: Proposal) -> dict[str, Tensor]:
        """All values that the next loss can see, touched rows merged."""
        touched = touched_rows(situation)
        values = situation.reachable()
        for table, tuned_values in tuned.values.items():
            old, rows = values[table], touched[table]
            before, after = old[rows], tuned_values[rows]
            if table in self._transfers:
                # T's inputs are constants, as all features are.
                transferred = self._transfers[table](before.detach(), after.detach())
                own_step = torch.tanh(transferred) * (after - before)
                after = after + own_step if self.settings.residual else transferred
            values[table] = old.index_copy(0, rows, after)
        return values


class StreamTrainedSMLSettings(SMLSettings, UnrolledSettings):
    """Where T is a factor on a plain step: the form in which it stands alone has no plain step to start from."""

    form: Literal["stream"] = "stream"
    optimizer: Literal["sgd"] = "sgd"
    weight_decay: float = Field(0.0, ge=0, le=0)
    residual: Literal[True] = True
    passes: int = Field(60, ge=0)
    meta_training_lr: float = Field(0.01, gt=0)


class StreamTrainedSML(UnrolledStrategy, SML):
    """The same transfer, meta-trained through a whole stream and then frozen."""

    settings_type = StreamTrainedSMLSettings
    settings: StreamTrainedSMLSettings

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        """As `SML`, but the plain step is open to differentiation too."""
        return self._merged(situation, self._tuned(situation))


class Transfer:
    """T of one table: two convolutions over [before; after; their product] at each entry, then two layers across them.

    The filters mix the three at one entry and are the same for all entries. Rows go through it one by one.
    """

    def __init__(self, table: str, dim: int, settings: SMLSettings, parameters: Parameters) -> None:
        self._phi, self._table = parameters, table
        first, second = _FILTERS
        sizes = ((first, 3), (second, first), (settings.width, second * dim), (dim, settings.width))
        for number, (outputs, inputs) in enumerate(sizes, start=1):
            # As frameworks draw a layer. With the residual, T starts at 0 and its biases too: drawn ones, larger than
            # any entry of a row, would have it say the same of every row.
            spread = inputs**-0.5
            last = settings.residual and number == len(sizes)
            parameters.uniform(f"{table}.{number}.weight", outputs, inputs, 0.0 if last else spread)
            parameters.uniform(f"{table}.{number}.bias", 1, outputs, 0.0 if settings.residual else spread)

    def __call__(self, before: Tensor, after: Tensor) -> Tensor:
        """The merged rows, or what is added to them (rows × dim), from constant rows."""
        rows, dim = before.shape
        common = before * after / (before.norm(dim=1, keepdim=True) + _GUARD)
        image = torch.stack([before, after, common]).view(3, rows * dim)
        active = F.silu(torch.addmm(self._bias(1).T, _STEEPNESS * self._weight(1), image))
        active = F.silu(torch.addmm(self._bias(2).T, self._weight(2), active))
        flat = active.view(len(active), rows, dim).transpose(0, 1).reshape(rows, len(active) * dim)
        active = F.silu(torch.addmm(self._bias(3), flat, self._weight(3).T))
        return torch.addmm(self._phi[f"{self._table}.4.bias"], active, self._weight(4).T / _STEEPNESS)

    def _weight(self, number: int) -> Tensor:
        return self._phi[f"{self._table}.{number}.weight"]

    def _bias(self, number: int) -> Tensor:
        """Of a layer that is followed by act, on the scale that is carried along."""
        return _STEEPNESS * self._phi[f"{self._table}.{number}.bias"]
