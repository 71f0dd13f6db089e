"""The update that MeLON and its ablations share: rates for every line, added up into new rows (METHODS.md 3.0.5, 4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from melon.recommenders.evidence import RowGradient
from melon.settings import Settings
from melon.strategies.base import LearningRates, Proposal, Situation
from melon.strategies.learned import LearnedStrategy
from melon.strategies.rates.interactions import InteractionModel
from melon.strategies.rates.kernels import LineTerms, PairKernel, RowTouches, pair_kernel
from melon.strategies.rates.kernels.reference import Rates, moves_at, shared_rates
from melon.strategies.rates.pairs import PairModel
from melon.strategies.rates.parameters import Parameters
from melon.strategies.rates.settings import Aggregation, RateSettings
from melon.strategies.rates.touches import Lines, SharedLines, row_lines, shared_lines
from melon.tables import TableSpec


class RateStrategy(LearnedStrategy):
    """θ'_m = f̄_m θ_m − Σ_x w_{x,m} g_{x,m}, the sum scaled as the aggregation says."""

    settings_type: ClassVar[type[Settings]] = RateSettings
    settings: RateSettings
    sees_interaction: ClassVar[bool]
    sees_parameter: ClassVar[bool]

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self.per_branch = self.settings.pairwise

    def bind(self, specs: Mapping[str, TableSpec], dtype: torch.dtype, device: torch.device) -> None:
        if hasattr(self, "_phi"):
            return  # a meta-model that was trained on one recommender is deployed on another of the same kind
        self._phi = Parameters(self.seed, dtype, device, self.settings.init)
        if self.sees_interaction:
            self._interactions = InteractionModel(specs, self.settings, self._phi, self.seed)
        self._pairs = PairModel(
            self.settings, self._phi, sees_interaction=self.sees_interaction, sees_parameter=self.sees_parameter
        )
        for name in self.fading_names(specs):
            self._phi.zeros_exactly(name, 1)
        self.prepare_optimizer()

    def parameters(self) -> dict[str, Tensor]:
        return self._phi.held

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        return self._updated(situation, self._unit_terms(situation))

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        return Proposal(self._updated(situation, self._unit_terms(situation), control=self.settings.flat_rates))

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        terms, n = self._unit_terms(situation), len(situation.examples)
        raw, realised, slots = [], [], []
        for gradient in situation.evidence.row_gradients:
            lines = self._lines(situation, gradient)
            rates = self._row_rates(situation, lines, terms)
            if self.settings.flat_rates:
                rates = _flattened(rates, lines)
            scale = self._scale(self.settings.aggregation, lines.touches.clamp(min=1), n, rates)[:, None]
            per_row = torch.zeros_like(situation.values[lines.table])
            if self._aggregated:  # one rate for each row: every interaction that touches the row shows it
                rates = per_row.index_copy(0, lines.row, rates)[gradient.positions.reshape(-1)]
            raw.append(rates.reshape(n, -1))
            realised.append((rates * scale[gradient.positions.reshape(-1)]).reshape(n, -1))
            width, dim = gradient.gradient.shape[1:]
            slots += [(lines.table, slot) for slot in range(width) for _ in range(dim)]
        shared, raw_shared = {}, {}
        for wide in self._shared_lines(situation):
            found = self._shared_rates(situation, wide, terms)
            per_unit = torch.cat([each.learning.expand_as(gradient) for gradient, each in found])
            if self.settings.flat_rates:
                per_unit = torch.full_like(per_unit, float(self._mean_shared_rate(situation, wide, terms)))
            per_unit = per_unit.expand(n, -1) if self._aggregated else per_unit.reshape(n, -1)
            raw_shared[wide.table] = per_unit
            shared[wide.table] = per_unit * self._shared_scale(wide)
        return LearningRates(torch.cat(realised, 1), tuple(slots), shared, torch.cat(raw, 1), raw_shared)

    # The pieces of an update.

    @property
    def _aggregated(self) -> bool:
        """Without the interaction's side, per-interaction gradients would still make W two-dimensional (4.8)."""
        return not self.sees_interaction

    def _lines(self, situation: Situation, gradient: RowGradient) -> Lines:
        return row_lines(situation, gradient, pairwise=self.settings.pairwise, aggregated=self._aggregated)

    def _shared_lines(self, situation: Situation) -> Iterator[SharedLines]:
        for gradient in situation.evidence.shared_gradients:
            yield shared_lines(situation, gradient, pairwise=self.settings.pairwise, aggregated=self._aggregated)

    def _unit_terms(self, situation: Situation) -> LineTerms:
        """Terms of every unit: one for each interaction, or for each of its pairs, or one for the whole batch."""
        examples, losses = situation.examples, situation.evidence.losses
        if self._aggregated:
            return self._pairs.line_terms(losses.mean()[None], None)
        branches = examples.items.shape[1] if self.settings.pairwise else 1
        if self.settings.loss_feature == "batch":
            losses = losses.mean().expand_as(losses)
        assert situation.around is not None
        # Distinct targets once each; the compact copy may hold more rows than this batch needs.
        used_users, user_at = torch.unique(examples.users.repeat_interleave(branches), return_inverse=True)
        used_items, item_at = torch.unique(examples.items[:, :branches].reshape(-1), return_inverse=True)
        users = self._interactions.side("user", situation.around.users[used_users], situation.around)
        items = self._interactions.side("item", situation.around.items[used_items], situation.around)
        interaction = self._interactions.represent(users, items, user_at, item_at)
        return self._pairs.line_terms(losses.repeat_interleave(branches), interaction)

    def _updated(self, situation: Situation, terms: LineTerms, *, control: bool = False) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        kernel = None if control else pair_kernel(self._pairs.network, terms.logits)
        for gradient in situation.evidence.row_gradients:
            lines = self._lines(situation, gradient)
            old = self.aged(situation, lines.table, situation.values[lines.table][: len(lines.touches)])
            values[lines.table] = old.index_add(0, lines.row, self._row_moves(situation, lines, old, terms, kernel))
        for wide in self._shared_lines(situation):
            values[wide.table] = self._updated_shared(situation, wide, terms, kernel)
        for table, old in situation.values.items():
            if table not in values:
                values[table] = self.aged(situation, table, old[: situation.reached(table)])
        return values

    def _row_moves(
        self, situation: Situation, lines: Lines, old: Tensor, terms: LineTerms, kernel: PairKernel | None
    ) -> Tensor:
        """What each line adds to its row; without a kernel, at flat rates."""
        touches, n = lines.touches[lines.row], len(situation.examples)
        theta = situation.values[lines.table].index_select(0, lines.row)
        touched = RowTouches(
            theta=theta,
            old=theta if old is situation.values[lines.table] else old.index_select(0, lines.row),
            gradient=lines.gradient,
            feature=lines.feature,
            scale=self._scale(self.settings.aggregation, touches, n, old),
            share=lines.share[:, 0] if self.settings.forgetting else None,
        )
        here = self._with_touches(terms.at(lines.unit), touches)
        if kernel is not None:
            return kernel.row_moves(touched, here, self._pairs.network)
        found = self._pairs.rates(theta, lines.feature, here)
        return moves_at(Rates(_flattened(found.learning, lines), found.forgetting), touched)

    def _updated_shared(
        self, situation: Situation, wide: SharedLines, terms: LineTerms, kernel: PairKernel | None
    ) -> Tensor:
        old = situation.values[wide.table]
        scale, share = self._shared_scale(wide), 0.0
        if self.settings.forgetting and self.settings.shared_forgetting:
            share = 1 / wide.units
        if kernel is None:
            return self._flat_shared(situation, wide, terms, scale, share)
        here = self._shared_terms(wide, terms)
        return old + kernel.shared_move(old.flatten(), wide, here, self._pairs.network, scale, share).view_as(old)

    def _flat_shared(
        self, situation: Situation, wide: SharedLines, terms: LineTerms, scale: float, share: float
    ) -> Tensor:
        theta, mean = situation.values[wide.table].flatten(), self._mean_shared_rate(situation, wide, terms)
        new = theta
        for gradient, found in self._shared_rates(situation, wide, terms):
            new = new - gradient.sum(0) * mean * scale
            new = new - ((1 - found.forgetting).expand_as(gradient) * theta).sum(0) * share
        return new.view_as(situation.values[wide.table])

    def _shared_rates(
        self, situation: Situation, wide: SharedLines, terms: LineTerms
    ) -> Iterator[tuple[Tensor, Rates]]:
        theta = situation.values[wide.table].flatten()
        return shared_rates(theta, wide, self._shared_terms(wide, terms), self._pairs.network)

    def _mean_shared_rate(self, situation: Situation, wide: SharedLines, terms: LineTerms) -> Tensor:
        found = [each.learning for _, each in self._shared_rates(situation, wide, terms)]
        return torch.cat(found).mean()

    def _shared_terms(self, wide: SharedLines, terms: LineTerms) -> LineTerms:
        return self._with_touches(terms, torch.full((wide.units,), wide.touches, device=terms.logits.device))

    def _row_rates(self, situation: Situation, lines: Lines, terms: LineTerms) -> Tensor:
        here = self._with_touches(terms.at(lines.unit), lines.touches[lines.row])
        found = self._pairs.rates(situation.values[lines.table][lines.row], lines.feature, here)
        return found.learning.expand_as(lines.gradient)

    def _with_touches(self, terms: LineTerms, touches: Tensor) -> LineTerms:
        """The optional feature of METHODS.md 8.2: log of how often the batch touches what a line is about."""
        if not self.settings.touch_feature or terms.hidden is None:
            return terms
        touched = touches.to(terms.hidden.dtype).log()[:, None]
        return LineTerms(terms.hidden + touched * self._phi["role.1"][:, -1], terms.logits)

    def _shared_scale(self, wide: SharedLines) -> float:
        scales = {
            "sum": 1.0,
            "row_mean": 1 / wide.touches,
            "sqrt": 1 / math.sqrt(wide.touches),
            "batch": 1 / wide.touches,
        }
        return scales[self.settings.shared_aggregation] * self.settings.shared_scale

    @staticmethod
    def _scale(aggregation: Aggregation, touches: Tensor, n: int, like: Tensor) -> Tensor:
        """By what a row's summed step is multiplied."""
        touched = touches.to(like.dtype)
        scales = {
            "sum": torch.ones_like(touched),
            "row_mean": 1 / touched,
            "sqrt": touched.rsqrt(),
            "batch": torch.full_like(touched, 1 / n),
        }
        return scales[aggregation]


def _flattened(rates: Tensor, lines: Lines) -> Tensor:
    """Every rate replaced by its mean over the batch for the same slot (user, positive, negative)."""
    flat = torch.empty_like(rates)
    for slot in torch.unique(lines.slot):
        here = lines.slot == slot
        flat[here] = rates[here].mean()
    return flat
