"""S2Meta (docs/methods.md 3.5): every parameter is stepped and forgotten through gates of its own, θ' = f·θ − i·ḡ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import log
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from melon.kernels import policy
from melon.strategies.base import LearningRates, Proposal, RowState, RowStateSpec, Situation
from melon.strategies.learned import LearnedStrategy
from melon.strategies.parameters import Parameters
from melon.strategies.reductions import parameter_rates, reduced_gradients, touched_rows
from melon.strategies.s2meta.cell import TorchCell, at_work
from melon.strategies.s2meta.gates import GateNetwork, Gates, S2MetaSettings, Seen
from melon.strategies.unrolled import UnrolledSettings, UnrolledStrategy
from melon.tables import TableSpec

#: Rates of the practised form reach so many times its plain step.
_REACH = 4.0


@dataclass(frozen=True)
class _TouchedRows:
    """The touched rows of one table: which, what their gates see, their step before the gate, and its factor."""

    table: str
    rows: Tensor
    seen: Seen
    step: Tensor
    most: float


class S2Meta(LearnedStrategy):
    """W_{x,m} = most_rate · i_m (over n or c_m, as the reduction says), the same for every interaction."""

    name = "s2meta"
    settings_type = S2MetaSettings
    settings: S2MetaSettings

    def __new__(cls, settings: Mapping[str, Any] | None = None, **_: Any) -> Self:
        practised = (settings or {}).get("form") == "practised"
        return super().__new__(PractisedS2Meta if practised else cls)  # type: ignore[return-value]

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        if self.settings.variant == "A":
            self._networks = {name: GateNetwork(f"{name}.", self.settings, parameters) for name in specs}
        else:
            self._networks = dict.fromkeys(specs, GateNetwork("", self.settings, parameters))

    def row_state(self, spec: TableSpec) -> dict[str, RowStateSpec]:
        return self._networks[spec.name].row_state(spec.dim)

    @property
    def kernels(self) -> tuple[policy.SuiteName, ...]:
        return ("s2meta",)

    def at_work(self) -> AbstractContextManager[None]:
        return at_work(next(iter(self.parameters().values())))

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        values = self._aged_values(situation)
        for block in self._blocks(situation):
            gates = self._networks[block.table].open(block.seen)
            values[block.table] = self._updated(situation, values[block.table], block, gates)
        return values

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        values, state = self._aged_values(situation), RowState()
        for block in self._blocks(situation):
            if self.settings.state == "persist":
                gates, new_state = self._networks[block.table].advance(block.seen)
                before = situation.row_state[block.table]
                state[block.table] = {key: before[key].index_copy(0, block.rows, new) for key, new in new_state.items()}
            else:
                gates = self._networks[block.table].open(block.seen)
            values[block.table] = self._updated(situation, values[block.table], block, gates)
        return Proposal({table: values[table] for table in self._moving(situation)}, state)

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        """The rates of a matrix are those of the summed gradient, so what the clamp takes off is taken off them."""
        rates: dict[str, Tensor] = {}
        for block in self._blocks(situation):
            rate = block.most * self._networks[block.table].open(block.seen).rate
            cut = (block.step / block.seen.gradient).nan_to_num(nan=1.0)
            rates[block.table] = torch.zeros_like(situation.values[block.table]).index_copy(0, block.rows, rate * cut)
        return parameter_rates(situation, rates, self.settings.reduction, self.settings.shared_reduction)

    def _blocks(self, situation: Situation) -> Iterator[_TouchedRows]:
        """The rows of each table that the batch touches and the next loss can see."""
        settings, touched = self.settings, touched_rows(situation)
        loss = TorchCell.scale_and_sign(situation.evidence.losses.mean()).squeeze(1)
        for table, total in reduced_gradients(situation, settings.reduction, settings.shared_reduction).items():
            rows, shared = touched[table], situation.specs[table].role == "shared"
            gradient = total[rows]
            step = gradient if settings.clamp is None else gradient.clamp(-settings.clamp, settings.clamp)
            state = {key: tensor[rows] for key, tensor in situation.row_state.get(table, {}).items()}
            seen = Seen(situation.values[table][rows].detach(), gradient.detach(), loss, state or None)
            yield _TouchedRows(table, rows, seen, step, settings.most_rate * (settings.shared_scale if shared else 1.0))

    def _updated(self, situation: Situation, old: Tensor, block: _TouchedRows, gates: Gates) -> Tensor:
        settings, before = self.settings, old[block.rows]
        shared = situation.specs[block.table].role == "shared"
        if settings.forgetting and (settings.shared_forgetting or not shared):
            before = gates.keep * before
        return old.index_copy(0, block.rows, before - block.most * gates.rate * block.step)

    def _aged_values(self, situation: Situation) -> dict[str, Tensor]:
        return {
            table: self.aged(situation, table, old[: situation.reached(table)])
            for table, old in situation.values.items()
        }

    @staticmethod
    def _moving(situation: Situation) -> set[str]:
        return {gradient.table for gradient in situation.evidence.gradients}


class PractisedS2MetaSettings(S2MetaSettings, UnrolledSettings):
    """Gates that start at the plain step `lr` and keep nearly all; `most_rate` and `rate_bias` follow from it."""

    form: Literal["practised"] = "practised"
    state: Literal["reset"] = "reset"  # what rows bring along would have to be unrolled too
    forget_bias: float = 6.0
    gate_init: Literal["small", "even", "xavier"] = "even"
    shared_scale: float = Field(1.0, gt=0)
    passes: int = Field(60, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _from_the_step(cls, values: Any) -> Any:
        lr = values.get("lr", 0.3)
        usual = {"most_rate": _REACH * lr, "rate_bias": -log(_REACH - 1)} if isinstance(lr, int | float) else {}
        return {**usual, **values}


class PractisedS2Meta(UnrolledStrategy, S2Meta):
    """The same gates, practised through a whole stream and then frozen."""

    settings_type = PractisedS2MetaSettings
    settings: PractisedS2MetaSettings
