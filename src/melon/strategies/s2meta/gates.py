"""The gate networks of S2Meta (docs/methods.md 3.5): how far each scalar moves and how much of it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from melon.kernels.s2meta.functions import CompiledCell
from melon.settings import Width
from melon.strategies.base import RowStateSpec
from melon.strategies.learned import LearnedSettings
from melon.strategies.parameters import Parameters
from melon.strategies.reductions import GradientReduction
from melon.strategies.s2meta.cell import Carried, TorchCell, cell_kernel

_SMALL = 0.01  # half-width of small draws, as in MetaLSTM


class S2MetaSettings(LearnedSettings):
    """θ' = f·θ − most_rate·i·ḡ, where i = σ(rate_bias + …) and f = σ(forget_bias + …)."""

    variant: Literal["A", "B"] = "A"  # ScenarioMeta, a network for each table; or MetaLSTM, one for all
    state: Literal["reset", "persist"] = "reset"  # each batch from the learned start, or from the row's last touch
    width: Width = 16  # units of the cell
    reduction: GradientReduction = "sum"  # ḡ of rows of users and items
    shared_reduction: GradientReduction = "row_mean"  # ḡ of weights that every interaction touches
    shared_scale: float = Field(0.1, gt=0)  # rates of shared weights beside those of rows
    most_rate: float = Field(0.6, gt=0)
    rate_bias: float = 0.0
    forgetting: bool = True
    shared_forgetting: bool = False  # a gate a little below one, at every batch, eats weights (docs/adr/0005)
    forget_bias: float = 5.0
    clamp: float | None = Field(None, gt=0)  # the most that an entry of ḡ counts
    gate_init: Literal["small", "even", "xavier"] = "small"  # gates start nearly alike, exactly alike, or as published
    meta_lr: float = Field(3e-3, ge=0)


@dataclass(frozen=True)
class Seen:
    """What a network sees of a block of rows, all of it constant: values and gradients (rows × dim), pre(L̄).

    `kept` is what the rows bring along from their last touch, where the state persists.
    """

    theta: Tensor
    gradient: Tensor
    loss: Tensor
    kept: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Gates:
    """i and f of every entry, between 0 and 1: rows × dim."""

    rate: Tensor
    keep: Tensor


@dataclass(frozen=True)
class _Inputs:
    """One step of the cell, as `cell_logits` wants it."""

    features: Tensor
    weights: Tensor
    bias: Tensor
    start: Tensor
    carried: Carried | None


class GateNetwork:
    """An LSTM cell over [pre(ḡ), pre(θ), pre(L̄)₁] with LayerNorm (A), or over [pre(ḡ), pre(L̄)] (B), and two gates.

    The two biases of a usual cell are one here. What a cell never uses is no meta-parameter: with `state = reset`, B
    has neither hidden weights nor gates that are fed back, because both would meet zeros.
    """

    def __init__(self, prefix: str, settings: S2MetaSettings, parameters: Parameters) -> None:
        self._prefix, self._settings, self._phi = prefix, settings, parameters
        self._scenario = settings.variant == "A"
        self._persists = settings.state == "persist"
        units, inputs = settings.width, 5 if self._scenario else 4
        if self._scenario:
            parameters.weight(self._name("cell.input"), 4 * units, inputs)
            parameters.weight(self._name("cell.hidden"), 4 * units, units)
            # The forget gate's bias starts at 1; the published code meant to, and wrote elsewhere.
            centre = np.repeat([0.0, 1.0, 0.0, 0.0], units)[None]
            parameters.uniform(self._name("cell.bias"), 1, 4 * units, 0.0, centre)
            parameters.normal(self._name("hidden.start"), units, 1.0)
            parameters.normal(self._name("cell.start"), units, 1.0)
            parameters.ones(self._name("norm.weight"), units)
            parameters.zeros_exactly(self._name("norm.bias"), units)
        else:
            parameters.uniform(self._name("cell.input"), 4 * units, inputs, _SMALL)
            parameters.uniform(self._name("cell.bias"), 1, 4 * units, _SMALL)
            parameters.uniform(self._name("gate.theta"), 2, 1, _SMALL)
            if self._persists:
                parameters.uniform(self._name("cell.hidden"), 4 * units, units, _SMALL)
                parameters.uniform(self._name("gate.before"), 2, 1, _SMALL)
        if settings.gate_init == "xavier":
            parameters.weight(self._name("gate.hidden"), 2, units)
        else:
            parameters.uniform(self._name("gate.hidden"), 2, units, _SMALL if settings.gate_init == "small" else 0.0)
        centre = np.array([[settings.rate_bias], [settings.forget_bias]])
        parameters.uniform(self._name("gate.bias"), 2, 1, 0.0, centre)

    def row_state(self, dim: int) -> dict[str, RowStateSpec]:
        """What each row of a table keeps where the state persists.

        It follows one pass over a stream and starts afresh with the next one: practice ends where the stream of the
        next pass has yet to come.
        """
        if not self._persists:
            return {}
        wide = RowStateSpec(width=self._settings.width * dim, lazy=True)
        # Rows without a past start from what is learned (A), or from zeros (B), whose gates are fed back too.
        if self._scenario:
            return {"hidden": wide, "cell": wide, "begun": RowStateSpec(width=1, lazy=True)}
        return {"hidden": wide, "cell": wide, "gates": RowStateSpec(width=2 * dim, lazy=True)}

    def open(self, seen: Seen) -> Gates:
        """The gates, differentiable in the meta-parameters."""
        kernel = cell_kernel(seen.theta)
        step = self._inputs(seen, kernel)
        head = self._of("gate.hidden")
        if self._scenario:  # LayerNorm's own weights go into those of the gates
            head = head * self._of("norm.weight")
        logits = kernel.cell_logits(
            step.features, step.weights, step.bias, step.start, head, step.carried, normalise=self._scenario
        )
        return self._gates(logits, seen)

    @torch.no_grad()
    def advance(self, seen: Seen) -> tuple[Gates, dict[str, Tensor]]:
        """The gates, and what the rows keep of this touch."""
        kernel, theta = cell_kernel(seen.theta), seen.theta
        step = self._inputs(seen, kernel)
        hidden, cell = kernel.cell_state(
            step.features, step.weights, step.bias, step.start, step.carried, normalise=self._scenario
        )
        head = self._of("gate.hidden")
        if not self._scenario:
            logits = self._logits(head @ hidden, seen)
            state = {"hidden": hidden, "cell": cell, "gates": logits}
            return _opened(logits, seen), {name: _by_row(part, theta) for name, part in state.items()}
        weight = self._of("norm.weight")
        gates = self._gates((head * weight) @ hidden, seen)
        hidden = torch.addcmul(self._of("norm.bias")[:, None], weight[:, None], hidden)
        begun = torch.ones_like(theta[:, :1])
        return gates, {"hidden": _by_row(hidden, theta), "cell": _by_row(cell, theta), "begun": begun}

    def _inputs(self, seen: Seen, kernel: TorchCell | CompiledCell) -> _Inputs:
        """The cell's features and weights; what all scalars share is in the bias."""
        weights, bias = self._of("cell.input"), self._of("cell.bias").squeeze(0)
        features = kernel.scale_and_sign(seen.gradient, *([seen.theta] if self._scenario else []))
        bias = bias + weights[:, len(features) :] @ seen.loss[: 1 if self._scenario else 2]
        weights = weights[:, : len(features)]
        start, carried = self._starts(seen)
        if carried is None:
            if self._scenario:
                bias = bias + self._of("cell.hidden") @ self._of("hidden.start")
            return _Inputs(features, weights, bias, start, None)
        assert seen.kept is not None
        onward = self._of("cell.hidden")
        lines, weights = [features, _by_unit(seen.kept["hidden"], seen.theta)], torch.cat([weights, onward], 1)
        if self._scenario:  # rows without a past have kept zeros, and the learned start takes their place
            first = onward @ self._of("hidden.start")
            lines, weights = [*lines, carried.fresh[None]], torch.cat([weights, first[:, None]], 1)
        return _Inputs(torch.cat(lines), weights, bias, start, carried)

    def _starts(self, seen: Seen) -> tuple[Tensor, Carried | None]:
        """The cell state of scalars without a past, and that of the others."""
        start = seen.theta.new_zeros(self._settings.width)
        if self._scenario:
            start = self._of("cell.start")
        if seen.kept is None:
            return start, None
        fresh = torch.zeros_like(seen.theta)
        if self._scenario:
            fresh = (1 - seen.kept["begun"]).expand_as(seen.theta)
        return start, Carried(_by_unit(seen.kept["cell"], seen.theta), fresh.reshape(-1))

    def _gates(self, heads: Tensor, seen: Seen) -> Gates:
        return _opened(self._logits(heads, seen), seen)

    def _logits(self, heads: Tensor, seen: Seen) -> Tensor:
        """Both gates before the sigmoid, 2 × scalars, from what the heads say of the hidden state."""
        constant = self._of("gate.bias")
        if self._scenario:
            constant = constant + (self._of("gate.hidden") @ self._of("norm.bias"))[:, None]
            return heads + constant
        logits = heads + constant + self._of("gate.theta") * seen.theta.reshape(1, -1)
        if seen.kept is not None:
            logits = logits + self._of("gate.before") * _by_unit(seen.kept["gates"], seen.theta)
        return logits

    def _name(self, part: str) -> str:
        return f"{self._prefix}{part}"

    def _of(self, part: str) -> Tensor:
        return self._phi[self._name(part)]


def _opened(logits: Tensor, seen: Seen) -> Gates:
    rate, keep = torch.sigmoid(logits).view(2, *seen.theta.shape)
    return Gates(rate, keep)


def _by_unit(state: Tensor, theta: Tensor) -> Tensor:
    """Row state (rows × units · dim) with the scalars along the last axis: units × scalars."""
    rows, dim = theta.shape
    units = state.shape[1] // dim
    return state.view(rows, units, dim).transpose(0, 1).reshape(units, rows * dim)


def _by_row(state: Tensor, theta: Tensor) -> Tensor:
    """The way back."""
    rows, dim = theta.shape
    return state.view(len(state), rows, dim).transpose(0, 1).reshape(rows, len(state) * dim)
