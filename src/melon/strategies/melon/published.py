"""MeLON and its ablations as published: a learned rate for every pair, added up into new rows (docs/methods.md 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from melon.errors import SettingsError
from melon.models.evidence import DenseGradient, FactorGradient, Gradient, RowGradient
from melon.strategies.base import LearningRates, Proposal, Situation
from melon.strategies.learned import LearnedStrategy
from melon.strategies.melon.network import InteractionModel, PairModel, PublishedSettings
from melon.strategies.melon.pairs import (
    FORGET,
    KERNELS,
    RATE,
    PairNetwork,
    rates,
    shared_move,
    some_units,
)
from melon.strategies.parameters import Parameters
from melon.tables import TableSpec


@dataclass(frozen=True)
class Lines:
    """Touches of a table's rows: line t is unit[t] on compact row[t].

    `gradient` is what is applied and `feature` what the rates see of it, line by line. A row's steps are multiplied by
    its `scale`, and what it forgets by its `share`.
    """

    row: Tensor
    unit: Tensor
    gradient: Tensor
    feature: Tensor
    scale: Tensor
    share: Tensor


@dataclass(frozen=True)
class SharedLines:
    """A table that every unit touches: a line of all its entries for each unit, expanded some at a time.

    With `aggregated` there is one line, the batch's sum, which the rates see as its mean over `touches`.
    """

    table: str
    units: int
    touches: int
    gradient: Gradient
    aggregated: bool
    rows: int

    def expand(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """What is applied and what the rates see, for units start … stop-1: units × entries."""
        gradient = self.gradient
        if self.aggregated:
            total = gradient.summed(self.rows).flatten()[None]
            return total, total / self.touches
        if isinstance(gradient, FactorGradient):
            gradient = replace(gradient, left=gradient.left[start:stop], right=gradient.right[start:stop])
        elif isinstance(gradient, DenseGradient):
            gradient = replace(gradient, gradient=gradient.gradient[start:stop])
        flat = gradient.expand().flatten(1)
        return flat, flat


class PublishedStrategy(LearnedStrategy):
    """θ'_m = f̄_m θ_m − Σ_x w_{x,m} g_{x,m}; the published code takes the mean over a row's touches instead."""

    settings_type = PublishedSettings
    settings: PublishedSettings
    init = "normal"
    sees_interaction: ClassVar[bool] = True
    sees_parameter: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._code = self.settings.form == "code"
        self.per_branch = self.static_history = self._code
        self.whole_history = self.sees_interaction
        #: Without the interaction's side, per-interaction gradients would still make W two-dimensional (4.8).
        self._aggregated = not self.sees_interaction

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        if self.sees_interaction:
            self._interactions = InteractionModel(specs, self.settings, parameters, self.seed)
        self._pairs = PairModel(
            self.settings, parameters, sees_interaction=self.sees_interaction, sees_parameter=self.sees_parameter
        )

    @property
    def kernels(self) -> tuple[str, ...]:
        return () if self._code or not self.sees_parameter else (KERNELS,)

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        network, values = self._network(situation), situation.reachable()
        for gradient in situation.evidence.row_gradients:
            values[gradient.table] = self._moved(situation, gradient, network)
        for wide in self._shared_lines(situation):
            old, share = situation.values[wide.table], 1 / wide.units if self.settings.forgetting else 0.0
            move = shared_move(old.flatten(), wide.units, wide.expand, network, self._shared_scale(wide), share)
            values[wide.table] = old + move.view_as(old)
        return values

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        return Proposal(self.look_ahead(situation))

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        network, n = self._network(situation), len(situation.examples)
        raw, realised, slots = list[Tensor](), list[Tensor](), list[tuple[str, int]]()
        for gradient in situation.evidence.row_gradients:
            lines, (width, dim) = self._lines(situation, gradient), gradient.gradient.shape[1:]
            old, positions = situation.values[gradient.table], gradient.positions.reshape(-1)
            found = rates(old[lines.row], lines.feature, network.at(lines.unit))[RATE].expand(-1, dim)
            if self._aggregated:  # one rate for each row: every interaction that touches the row shows it
                found = torch.zeros_like(old).index_copy(0, lines.row, found)[positions]
            raw.append(found.reshape(n, -1))
            realised.append((found * lines.scale[positions, None]).reshape(n, -1))
            slots += [(gradient.table, slot) for slot in range(width) for _ in range(dim)]
        shared, raw_shared = {}, {}
        for wide in self._shared_lines(situation):
            theta, shown = situation.values[wide.table].flatten(), list[Tensor]()
            for some in some_units(wide.units, theta.numel()):
                _, feature = wide.expand(some.start, some.stop)
                units = torch.arange(some.start, some.stop)
                shown.append(rates(theta[None], feature, network.at(units))[RATE].expand_as(feature))
            per_unit = torch.cat(shown)
            raw_shared[wide.table] = per_unit.expand(n, -1) if self._aggregated else per_unit.reshape(n, -1)
            shared[wide.table] = raw_shared[wide.table] * self._shared_scale(wide)
        return LearningRates(torch.cat(realised, 1), tuple(slots), shared, torch.cat(raw, 1), raw_shared)

    def _network(self, situation: Situation) -> PairNetwork:
        """For every unit: an interaction, or in the code's form each of its pairs, or the whole batch."""
        examples, losses = situation.examples, situation.evidence.losses
        if self._aggregated:
            return self._pairs.network(losses.mean()[None], None)
        branches = examples.items.shape[1] if self._code else 1
        if self._code:
            losses = losses.mean().expand(len(losses) * branches)
        assert situation.around is not None
        users = examples.users.numpy().repeat(branches)
        items = examples.items[:, :branches].reshape(-1).numpy()
        return self._pairs.network(losses, self._interactions.units(users, items, situation.around))

    def _lines(self, situation: Situation, gradient: RowGradient) -> Lines:
        """The lines that can reach the next loss."""
        rows, reached = len(situation.values[gradient.table]), situation.reached(gradient.table)
        touches = gradient.touches(rows)[:reached]
        even = torch.ones(reached, dtype=gradient.gradient.dtype)
        mean = even / touches.clamp(min=1)
        scale = mean if self._code else even
        if self._aggregated:  # a line for each row: the summed gradient is applied, and its mean is looked at
            row = torch.nonzero(touches).squeeze(1)
            total = gradient.summed(rows)[row]
            return Lines(row, torch.zeros_like(row), total, total * mean[row, None], scale, even)
        row, width = gradient.positions.reshape(-1), gradient.positions.shape[1]
        source = torch.nonzero(row < reached).squeeze(1)
        flat = gradient.gradient.flatten(0, 1).index_select(0, source)
        unit = source if self._code or width == 1 else source // width
        return Lines(row[source], unit, flat, flat, scale, mean)

    def _moved(self, situation: Situation, gradient: RowGradient, network: PairNetwork) -> Tensor:
        """New rows of a table."""
        lines = self._lines(situation, gradient)
        old, row = situation.values[gradient.table][: len(lines.scale)], lines.row
        found = rates(old.index_select(0, row), lines.feature, network.at(lines.unit))
        move = found[RATE] * lines.gradient * lines.scale[row, None]
        if self.settings.forgetting:
            move = move + (1 - found[FORGET]) * old.index_select(0, row) * lines.share[row, None]
        return old.index_add(0, row, -move)

    def _shared_lines(self, situation: Situation) -> Iterator[SharedLines]:
        for gradient in situation.evidence.shared_gradients:
            given, units, rows = gradient, len(situation.examples), len(situation.values[gradient.table])
            if self._code:
                if not isinstance(gradient, FactorGradient):
                    raise SettingsError(
                        f"form = code needs the gradient of {gradient.table!r} as one factor for each pair, which this "
                        "recommender does not give; use form = paper."
                    )
                left, right = gradient.left, gradient.right
                units *= left.shape[1]
                given = replace(gradient, left=left.reshape(units, 1, -1), right=right.reshape(units, 1, -1))
            yield SharedLines(gradient.table, 1 if self._aggregated else units, units, given, self._aggregated, rows)

    def _shared_scale(self, wide: SharedLines) -> float:
        return 1 / wide.touches if self._code else 1.0


class PublishedMeLON(PublishedStrategy):
    """W is two-dimensional: a rate for every (interaction, parameter) pair, from the interaction's neighbourhood and
    the parameter's role in it.
    """

    name = "melon"


class PublishedMeLONI(PublishedStrategy):
    """The ablation that sees the interaction only. W is row-constant: w_x = σ(ωᵀ h_x + b)."""

    name = "melon_i"
    sees_parameter = False


class PublishedMeLONP(PublishedStrategy):
    """The ablation that sees the parameter only: a rate from its role, whatever the interaction's neighbourhood."""

    name = "melon_p"
    sees_interaction = False
