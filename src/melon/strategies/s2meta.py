"""S2Meta (docs/methods.md 3.5): a small LSTM gates every parameter, θ' = f·θ − i·ḡ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from melon.settings import Width
from melon.strategies.base import LearningRates, Proposal, Situation
from melon.strategies.learned import LearnedSettings, LearnedStrategy
from melon.strategies.parameters import Parameters, preprocess
from melon.strategies.reductions import GradientReduction, parameter_rates, reduced_gradients, touched_rows
from melon.strategies.unrolled import UnrolledSettings, UnrolledStrategy
from melon.tables import TableSpec

_SMALL = 0.01  # half-width of small draws
_LOG_EPSILON = 1e-20  # of the logarithm in pre(), as published
#: Rates of the meta-trained form reach so many times its plain step.
_REACH = 4.0


class S2MetaSettings(LearnedSettings):
    """θ' = f·θ − most_rate·i·ḡ, where i = σ(rate_bias + …) and f = σ(forget_bias + …)."""

    width: Width = 16  # units of the cell
    reduction: GradientReduction = "sum"  # ḡ of rows of users and items
    shared_reduction: GradientReduction = "row_mean"  # ḡ of weights that every interaction touches
    shared_scale: float = Field(0.1, gt=0)  # rates of shared weights beside those of rows
    most_rate: float = Field(0.6, gt=0)
    rate_bias: float = 0.0
    forgetting: bool = True
    shared_forgetting: bool = False  # a gate a little below one, at every batch, eats weights (research/decisions, 5)
    forget_bias: float = 5.0
    clamp: float | None = Field(None, gt=0)  # the most that an entry of ḡ counts
    gate_init: Literal["small", "even", "xavier"] = "small"  # gates start nearly alike, exactly alike, or as published
    meta_lr: float = Field(3e-3, ge=0)


@dataclass(frozen=True)
class Seen:
    """What a network sees of a block of rows, all of it constant: values and gradients (rows × dim), pre(L̄)."""

    theta: Tensor
    gradient: Tensor
    loss: Tensor


@dataclass(frozen=True)
class Gates:
    """i and f of every entry, between 0 and 1: rows × dim."""

    rate: Tensor
    keep: Tensor


class GateNetwork:
    """A table's LSTM cell over [pre(ḡ), pre(θ), pre(L̄)₁] with LayerNorm, and two gates.

    It runs over every scalar of a block, one step from the same start. The two biases of a usual cell are one here.
    """

    def __init__(self, prefix: str, settings: S2MetaSettings, parameters: Parameters) -> None:
        self._prefix, self._phi = prefix, parameters
        units = settings.width
        parameters.weight(self._name("cell.input"), 4 * units, 5)
        parameters.weight(self._name("cell.hidden"), 4 * units, units)
        # The forget gate's bias starts at 1; the published code meant to, and wrote elsewhere.
        centre = np.repeat([0.0, 1.0, 0.0, 0.0], units)[None]
        parameters.uniform(self._name("cell.bias"), 1, 4 * units, 0.0, centre)
        parameters.normal(self._name("hidden.start"), units, 1.0)
        parameters.normal(self._name("cell.start"), units, 1.0)
        parameters.ones(self._name("norm.weight"), units)
        parameters.zeros_exactly(self._name("norm.bias"), units)
        if settings.gate_init == "xavier":
            parameters.weight(self._name("gate.hidden"), 2, units)
        else:
            parameters.uniform(self._name("gate.hidden"), 2, units, _SMALL if settings.gate_init == "small" else 0.0)
        centre = np.array([[settings.rate_bias], [settings.forget_bias]])
        parameters.uniform(self._name("gate.bias"), 2, 1, 0.0, centre)

    def open(self, seen: Seen) -> Gates:
        """The gates, differentiable in the meta-parameters."""
        weights, bias, head = self._of("cell.input"), self._of("cell.bias").squeeze(0), self._of("gate.hidden")
        # Scalars run along the last axis, so that each small matrix meets long rows.
        features = scale_and_sign(seen.gradient, seen.theta)
        # What all scalars share is in the bias: the loss, and the hidden state before.
        bias = bias + weights[:, len(features) :] @ seen.loss[:1]
        bias = bias + self._of("cell.hidden") @ self._of("hidden.start")
        hidden = lstm_step(features, weights[:, : len(features)], bias, self._of("cell.start"))
        # LayerNorm's own weights go into those of the gates.
        hidden = F.layer_norm(hidden.T, (len(hidden),)).T
        constant = self._of("gate.bias") + (head @ self._of("norm.bias"))[:, None]
        head = head * self._of("norm.weight")
        rate, keep = torch.sigmoid(head @ hidden + constant).view(2, *seen.theta.shape)
        return Gates(rate, keep)

    def _name(self, part: str) -> str:
        return f"{self._prefix}{part}"

    def _of(self, part: str) -> Tensor:
        return self._phi[self._name(part)]


def scale_and_sign(*values: Tensor) -> Tensor:
    """pre() of some tensors, two lines of features for each: inputs × scalars."""
    return torch.cat([part.reshape(1, -1) for value in values for part in preprocess(value, _LOG_EPSILON)])


def lstm_step(features: Tensor, weights: Tensor, bias: Tensor, start: Tensor) -> Tensor:
    """The hidden state (units × scalars) after one step from the cell state `start`.

    features: inputs × scalars. weights: 4 units × inputs, in the order input, forget and output gate, candidate.
    """
    entry, forget, leave, candidate = (weights @ features + bias[:, None]).chunk(4)
    cell = entry.sigmoid() * candidate.tanh() + forget.sigmoid() * start[:, None]
    return leave.sigmoid() * cell.tanh()


@dataclass(frozen=True)
class _GatedRows:
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

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        self._networks = {name: GateNetwork(f"{name}.", self.settings, parameters) for name in specs}

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        values = situation.reachable()
        for block in self._blocks(situation):
            gates, old = self._networks[block.table].open(block.seen), values[block.table]
            before, shared = old[block.rows], situation.specs[block.table].role == "shared"
            if self.settings.forgetting and (self.settings.shared_forgetting or not shared):
                before = gates.keep * before
            values[block.table] = old.index_copy(0, block.rows, before - block.most * gates.rate * block.step)
        return values

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        moved, values = {gradient.table for gradient in situation.evidence.gradients}, self.look_ahead(situation)
        return Proposal({table: values[table] for table in moved})

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        """The rates of a matrix are those of the summed gradient, so what the clamp takes off is taken off them."""
        rates: dict[str, Tensor] = {}
        for block in self._blocks(situation):
            rate = block.most * self._networks[block.table].open(block.seen).rate
            cut = (block.step / block.seen.gradient).nan_to_num(nan=1.0)
            rates[block.table] = torch.zeros_like(situation.values[block.table]).index_copy(0, block.rows, rate * cut)
        return parameter_rates(situation, rates, self.settings.reduction, self.settings.shared_reduction)

    def _blocks(self, situation: Situation) -> Iterator[_GatedRows]:
        """The rows of each table that the batch touches and the next loss can see."""
        settings, touched = self.settings, touched_rows(situation)
        loss = scale_and_sign(situation.evidence.losses.mean()).squeeze(1)
        for table, total in reduced_gradients(situation, settings.reduction, settings.shared_reduction).items():
            rows, shared = touched[table], situation.specs[table].role == "shared"
            gradient = total[rows]
            step = gradient if settings.clamp is None else gradient.clamp(-settings.clamp, settings.clamp)
            seen = Seen(situation.values[table][rows].detach(), gradient.detach(), loss)
            yield _GatedRows(table, rows, seen, step, settings.most_rate * (settings.shared_scale if shared else 1.0))


class StreamTrainedS2MetaSettings(S2MetaSettings, UnrolledSettings):
    """Gates that start at the plain step `lr` and keep nearly all; `most_rate` and `rate_bias` follow from it."""

    form: Literal["stream"] = "stream"
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


class StreamTrainedS2Meta(UnrolledStrategy, S2Meta):
    """The same gates, meta-trained through a whole stream and then frozen."""

    settings_type = StreamTrainedS2MetaSettings
    settings: StreamTrainedS2MetaSettings
