"""The rate model in PyTorch, for steps and meta-training that are differentiated by autograd (docs/methods.md 4.12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from melon.kernels.melon.rates import LEAST_LOSS, MOST_LOG_RATE
from melon.models.evidence import Evidence, FactorGradient, Gradient, RowGradient
from melon.strategies.melon.rates import KNOTS, RateParameters
from melon.tables import TableSpec
from melon.types import Scores

OpenPhi = Mapping[str, Tensor]
_TINY, _SMALL, _LIFT = 1e-8, 0.05, 0.6


@dataclass(frozen=True)
class TableRates:
    """Rates of a table's touches: n × slots × entries (or × 1).

    For a shared weight they are a product: `touches` n × 1 × 1, and what its rows (n × 1 × rows), its columns
    (n × 1 × columns) and its entries (rows × columns) add to that. So the step needs no interactions × weights.
    """

    touches: Tensor
    rows: Tensor | None = None
    columns: Tensor | None = None
    entries: Tensor | None = None

    def expanded(self) -> Tensor:
        """One rate for every interaction and entry of a shared weight: n × rows × columns, or n × 1 × 1."""
        if self.rows is None or self.columns is None or self.entries is None:
            return self.touches
        return self.touches * self.rows.transpose(1, 2) * self.columns * self.entries

    def moved(self, gradient: Gradient, old: Tensor, kept: float | Tensor) -> Tensor:
        """New rows after a step with these rates; shared weights take the mean over interactions."""
        touches = self.touches.to(old)
        if isinstance(gradient, RowGradient):
            weighted = RowGradient(gradient.table, gradient.positions, gradient.gradient * touches)
            return old * kept - weighted.summed(len(old))
        if isinstance(gradient, FactorGradient) and self.rows is not None:
            assert self.columns is not None
            assert self.entries is not None
            left, right = gradient.left * self.rows, gradient.right * self.columns
            step = FactorGradient(gradient.table, left, right).summed(len(old), touches[:, 0, 0])
            return old - self.entries * step / len(touches)
        return old - gradient.summed(len(old), touches[:, 0, 0]) / len(touches)


class TouchRates:
    """The rate model on one batch: its losses, and what is known of each touch by table (n × slots × facts)."""

    def __init__(self, model: RateParameters, phi: OpenPhi, losses: Tensor, columns: Mapping[str, Scores]) -> None:
        self._model, self._phi, self._losses, self._columns = model, phi, losses.double(), columns

    def of(
        self, evidence: Evidence, values: Mapping[str, Tensor], specs: Mapping[str, TableSpec]
    ) -> dict[str, TableRates]:
        """Rates for the gradients of a batch on compact rows; differentiable in all of it."""
        rates, own = dict[str, TableRates](), dict[str, Tensor]()
        for gradient in evidence.gradients:
            name, spec = gradient.table, specs[gradient.table]
            roles = self._model.roles.of(name, self._columns[name].shape[1])
            base = touch_logs(self._columns[name], self._losses, roles, self._phi)
            if not self._model.has_role:
                rates[name] = TableRates(_capped(base[..., None]))
            elif isinstance(gradient, FactorGradient):
                rates[name] = self._factored(base, roles[0], gradient, values[name])
            elif isinstance(gradient, RowGradient) and spec.kind == "bias":
                rates[name] = self._biases(base, roles, gradient, values[name], own)
            elif isinstance(gradient, RowGradient):
                rates[name], norm = self._vectors(base, roles, gradient, values[name])
                own.setdefault(spec.role, norm)
            else:
                rates[name] = TableRates(_capped(base[..., None]))
        return rates

    def plain(self, table: str) -> Tensor:
        """Rates of a table's touches without the role of the parameter: n × slots."""
        columns = self._columns[table]
        return _capped(touch_logs(columns, self._losses, self._model.roles.of(table, columns.shape[1]), self._phi))

    def _vectors(
        self, base: Tensor, roles: list[int], gradient: RowGradient, values: Tensor
    ) -> tuple[TableRates, Tensor]:
        """Of rows, entry by entry; and nθ of each touch."""
        theta, slopes, scale = values[gradient.positions], gradient.gradient, self._scale(gradient.table)
        size, steep = _rms(theta), _rms(slopes)
        unit, direction = theta / size, slopes / steep
        n_theta, n_slope = torch.log(size / scale), torch.log(steep / scale + 0.01) + 1.2
        along = 3 * (unit * direction).mean(-1, keepdim=True)
        entries = torch.stack([torch.tanh(unit * direction), _log(direction), _log(unit)], dim=-1)
        norms = torch.cat([n_theta, n_slope, along], dim=-1)
        return TableRates(self._with_role(gradient.table, base, roles, entries, norms)), n_theta

    def _biases(
        self, base: Tensor, roles: list[int], gradient: RowGradient, values: Tensor, own: Mapping[str, Tensor]
    ) -> TableRates:
        """Of biases, which see how large the item's own vector and the user's are."""
        theta, scale = values[gradient.positions], self._scale(gradient.table)
        sign = torch.sign(gradient.gradient.detach())
        seen = torch.stack([torch.tanh(theta * sign / scale), torch.log(theta.abs() / scale + 0.1) + 0.3], dim=-1)
        norms = torch.cat([own["item"], own["user"].expand_as(own["item"])], dim=-1)
        return TableRates(self._with_role(gradient.table, base, roles, seen, norms))

    def _with_role(self, table: str, base: Tensor, roles: list[int], entries: Tensor, norms: Tensor) -> Tensor:
        """Rates from the logs of touches, what is seen of entries (… × entries × inputs) and of their row."""
        phi = {name: self._phi[name][roles].to(entries) for name in ("alpha", "beta", "hidden", "hidden_bias", "out")}
        own, of_row = entries.shape[-1], norms.shape[-1]
        logs = base.to(entries)[..., None] + (entries @ phi["alpha"][:, :own, None])[..., 0]
        logs = logs + (norms * phi["beta"][:, :of_row]).sum(-1, keepdim=True)
        if phi["out"].shape[1]:
            hidden, loss = phi["hidden"], ((torch.log(self._losses + LEAST_LOSS).clamp(-5, 2) + 0.7) / 1.5).to(entries)
            facts = torch.from_numpy(self._columns[table]).to(entries)
            row = torch.cat([norms, loss[:, None, None].expand(*norms.shape[:2], 1), facts], dim=-1)
            last = own + row.shape[-1]
            units = torch.einsum("nsi,shi->nsh", row, hidden[..., own:last]) + phi["hidden_bias"]
            inner = torch.tanh(torch.einsum("nsmi,shi->nsmh", entries, hidden[..., :own]) + units[:, :, None])
            logs = logs + torch.einsum("nsmh,sh->nsm", inner, phi["out"])
        return _capped(logs)

    def _factored(self, base: Tensor, role: int, gradient: FactorGradient, theta: Tensor) -> TableRates:
        """Of a shared weight: log|g| of an outer product is a sum, of a row's part and a column's."""
        phi, scale = self._phi, self._scale(gradient.table)
        left, right = (torch.sqrt((part**2).mean(1, keepdim=True) + _TINY) for part in (gradient.left, gradient.right))
        steep = _rms(left) * _rms(right)
        _, by_slope, by_theta = phi["alpha"][role].to(theta)
        base = base.to(theta)[..., None] + phi["beta"][role, 1].to(theta) * (torch.log(steep / scale + 0.01) + 1.2)
        return TableRates(
            _capped(base),
            torch.exp(by_slope * _log(left / _rms(left))),
            torch.exp(by_slope * _log(right / _rms(right))),
            torch.exp(by_theta * _log(theta / _rms(theta.flatten()))),
        )

    def _scale(self, table: str) -> float:
        return float(self._model.phi["scales"][self._model.scaled.index(table)])


def touch_logs(columns: Scores, losses: Tensor, roles: list[int], phi: OpenPhi) -> Tensor:
    """Start, facts and spline of touches (n × slots × facts): n × slots, differentiable in losses and φ."""
    weights, losses = phi["facts"][roles], losses.double()
    logs = (torch.from_numpy(columns) * weights[:, 1:]).sum(-1) + weights[:, 0]
    at = torch.log(losses + LEAST_LOSS).clamp(KNOTS[0], KNOTS[-1])
    right = torch.from_numpy(np.searchsorted(KNOTS, at.detach().numpy()).clip(1, len(KNOTS) - 1))
    knots, splines = torch.from_numpy(KNOTS), phi["splines"][roles]
    part = (at - knots[right - 1]) / (knots[right] - knots[right - 1])
    return logs + (splines[:, right - 1] * (1 - part) + splines[:, right] * part).T


def _capped(logs: Tensor) -> Tensor:
    return torch.exp(logs.clamp(max=MOST_LOG_RATE))


def _rms(values: Tensor) -> Tensor:
    return torch.sqrt((values**2).mean(-1, keepdim=True) + _TINY)


def _log(values: Tensor) -> Tensor:
    return torch.log(values.abs() + _SMALL) + _LIFT
