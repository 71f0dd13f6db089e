"""MetaSGD (docs/methods.md 3.4): one learned rate for each parameter, kept by row and moved where rows are met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import expm1, log
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from melon.strategies.adam import Adam, Moments, clip_scale
from melon.strategies.base import LearningRates, Proposal, RowState, RowStateSpec, Situation
from melon.strategies.learned import LearnedSettings, LearnedStrategy, MetaLoss, gammas_at
from melon.strategies.parameters import Parameters
from melon.strategies.reductions import GradientReduction, parameter_rates, reduced_gradients
from melon.tables import TableSpec

#: Row state where rates belong to rows: α as it is stored, Adam's moments of it, its step count.
_ALPHA, _FIRST, _SECOND, _STEPS = "alpha", "alpha_moment_1", "alpha_moment_2", "alpha_steps"
_ADAM = Adam()


class MetaSGDSettings(LearnedSettings):
    """`share` is what has one rate: an entry, or a column of a table.

    `alpha_param="softplus"` keeps rates above zero and moves small ones by small amounts; `raw` lets them turn
    negative.
    """

    meta_lr: float = Field(0.01, ge=0)
    share: Literal["scalar", "dim"] = "scalar"
    alpha_init: float = Field(0.3, ge=0)
    alpha_param: Literal["raw", "softplus"] = Field("softplus", validate_default=True)
    reduction: GradientReduction = "sum"
    shared_reduction: GradientReduction = "row_mean"

    @field_validator("alpha_param")
    @classmethod
    def _reachable(cls, value: str, info: ValidationInfo) -> str:
        if value == "softplus" and info.data.get("alpha_init") == 0:
            raise ValueError("with it a rate is above zero, and alpha_init is 0; use alpha_param=raw")
        return value


class MetaSGD(LearnedStrategy):
    """θ'_m = θ_m − α_m ḡ_m and W_{x,m} = α_m, scaled as the reduction says: column-constant."""

    name = "metasgd"
    settings_type = MetaSGDSettings
    settings: MetaSGDSettings

    @property
    def by_row(self) -> bool:
        """Whether rates belong to rows; then they live in the updater's tables, and grow and rest with the rows."""
        return self.settings.share == "scalar"

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        for name, spec in specs.items() if not self.by_row else ():
            parameters.uniform(alpha_name(name), 1, spec.dim, 0.0, self._start)

    def row_state(self, spec: TableSpec) -> dict[str, RowStateSpec]:
        if not self.by_row:
            return {}
        return {
            _ALPHA: RowStateSpec(self._start, learned=True),
            _FIRST: RowStateSpec(learned=True),
            _SECOND: RowStateSpec(learned=True),
            _STEPS: RowStateSpec(0.0, 1, learned=True),
        }

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        return self._stepped(situation, self._gradients(situation))

    def meta_gradient(self, situation: Situation, meta_loss: MetaLoss) -> tuple[dict[str, Tensor], Tensor]:
        """∂loss/∂α_m = −γ_m ḡ_m, added up over whatever shares a rate; exact and entry by entry."""
        with torch.no_grad():
            gradients = self._gradients(situation)
            gammas, loss = gammas_at(self._stepped(situation, gradients), meta_loss)
            meta_gradients = {name: torch.zeros_like(value) for name, value in self.parameters().items()}
            for table, gradient in gradients.items():
                stored = self._stored(situation, table)
                slope = -(gammas[table] * gradient).sum_to_size(stored.shape)
                meta_gradients[alpha_name(table)] = slope * self._slope_of_rate(stored)
        return meta_gradients, loss

    @torch.no_grad()
    def adapt(self, gradients: Mapping[str, Tensor], situation: Situation) -> Situation:
        """One Adam step on the rates. Those of rows are lazy: a row without a signal keeps its rate and its moments."""
        super().adapt(gradients, situation)
        if not self.by_row:
            return situation
        scale, state = clip_scale(gradients, self.settings.meta_clip), dict(situation.row_state)
        for table, rates in situation.row_state.items():
            gradient = gradients.get(alpha_name(table))
            if gradient is not None:
                state[table] = self._moved(rates, gradient, scale)
        return replace(situation, row_state=state)

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        gradients = self._gradients(situation)
        values = self._stepped(situation, gradients)
        state: RowState = {table: dict(situation.row_state[table]) for table in gradients} if self.by_row else {}
        return Proposal({table: values[table] for table in gradients}, state)

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        tables = [gradient.table for gradient in situation.evidence.gradients]
        rates = {t: self._rates(self._stored(situation, t)).expand_as(situation.values[t]) for t in tables}
        return parameter_rates(situation, rates, self.settings.reduction, self.settings.shared_reduction)

    def _gradients(self, situation: Situation) -> dict[str, Tensor]:
        return reduced_gradients(situation, self.settings.reduction, self.settings.shared_reduction)

    def _stepped(self, situation: Situation, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = situation.reachable()
        steps = {table: self._rates(self._stored(situation, table)) * g for table, g in gradients.items()}
        return values | {table: values[table] - step for table, step in steps.items()}

    # Rates, and what they are stored as.

    @property
    def _start(self) -> float:
        start = self.settings.alpha_init
        return start if self.settings.alpha_param == "raw" else log(expm1(start)) if start < 30 else start

    def _stored(self, situation: Situation, table: str) -> Tensor:
        """α of the reached rows before the softplus, in a shape that goes with rows × dim."""
        if self.by_row:
            return situation.row_state[table][_ALPHA][: situation.reached(table)]
        return self._phi[alpha_name(table)]

    def _rates(self, stored: Tensor) -> Tensor:
        return stored if self.settings.alpha_param == "raw" else F.softplus(stored)

    def _slope_of_rate(self, stored: Tensor) -> Tensor:
        return torch.ones_like(stored) if self.settings.alpha_param == "raw" else torch.sigmoid(stored)

    def _moved(self, state: Mapping[str, Tensor], gradient: Tensor, scale: Tensor | None) -> dict[str, Tensor]:
        """Adam on the rows that have a signal, each with a step count of its own; the others to the bit as they were.

        A row has one where it lies in both batches: its gradient from the last interactions, and γ from these.
        """
        alpha, decay = state[_ALPHA], self.settings.meta_weight_decay
        met = (gradient != 0).any(1, keepdim=True)
        slope = gradient if scale is None else gradient * scale
        slope = slope + decay * alpha if decay else slope
        steps = state[_STEPS] + met
        moments = _ADAM.moments(Moments(state[_FIRST], state[_SECOND]), slope)
        moved = _ADAM.step(alpha, moments, steps.clamp(min=1), self.settings.meta_lr)
        return {
            _ALPHA: torch.where(met, moved, alpha),
            _FIRST: torch.where(met, moments.first, state[_FIRST]),
            _SECOND: torch.where(met, moments.second, state[_SECOND]),
            _STEPS: steps,
        }


def alpha_name(table: str) -> str:
    """The name of the meta-gradient, and where rates are shared of the meta-parameter, of a table's rates."""
    return f"{table}.alpha"
