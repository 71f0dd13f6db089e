"""The update that MeLON and its ablations share: rates for every line, added up into new rows (METHODS.md 3.0.5, 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from melon.recommenders.evidence import Evidence, RowGradient
from melon.settings import Settings
from melon.strategies.base import LearningRates, Proposal, Situation
from melon.strategies.learned import LearnedStrategy, MetaLoss, fading_name
from melon.strategies.rates.interactions import InteractionModel
from melon.strategies.rates.pairs import LineTerms, PairModel
from melon.strategies.rates.parameters import Parameters
from melon.strategies.rates.settings import Aggregation, RateSettings
from melon.strategies.rates.touches import Lines, SharedLines, row_lines, shared_lines
from melon.tables import TableSpec

#: Pairs of (unit, entry) that are worked on at a time: what a hidden layer of 20 floats each may hold in memory.
CHUNK = 1 << 18
#: Up to this many pairs the meta-gradient is taken in one go; above it, chunk by chunk with γ known.
AT_ONCE = 1 << 21


class RateStrategy(LearnedStrategy):
    """θ'_m = f̄_m θ_m − Σ_x w_{x,m} g_{x,m}, the sum scaled as the aggregation says."""

    settings_type: ClassVar[type[Settings]] = RateSettings
    settings: RateSettings
    sees_interaction: ClassVar[bool]
    sees_parameter: ClassVar[bool]
    chunk: int = CHUNK
    at_once: int = AT_ONCE

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
        if self.settings.fading is not None:
            for name, spec in specs.items():
                if spec.role == "item":
                    self._phi.zeros_exactly(fading_name(name), 1)
        self.prepare_optimizer()

    def parameters(self) -> dict[str, Tensor]:
        return self._phi.held

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        return self._updated(situation, self._unit_terms(situation))

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        return Proposal(self._updated(situation, self._unit_terms(situation), control=self.settings.flat_rates))

    def meta_gradient(self, situation: Situation, meta_loss: MetaLoss) -> tuple[dict[str, Tensor], Tensor]:
        if self._pair_count(situation) <= self.at_once:
            return super().meta_gradient(situation, meta_loss)
        return self._meta_gradient_in_chunks(situation, meta_loss)

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        terms, n = self._unit_terms(situation), len(situation.examples)
        raw, realised, slots = [], [], []
        for gradient in situation.evidence.row_gradients:
            lines = self._lines(situation, gradient)
            rates = self._rates(situation, lines, terms)[0].expand_as(lines.gradient)
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
            per_unit = torch.cat([w.expand_as(g) for g, w, _ in self._shared_chunks(situation, wide, terms)])
            if self.settings.flat_rates:
                per_unit = torch.full_like(per_unit, float(self._mean_shared_rate(situation, wide, terms)))
            per_unit = per_unit.expand(n, -1) if self._aggregated else per_unit.reshape(n, -1)
            raw_shared[wide.table] = per_unit
            shared[wide.table] = per_unit * self._shared_scale(wide, per_unit)
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
        n = len(situation.examples)
        for gradient in situation.evidence.row_gradients:
            lines = self._lines(situation, gradient)
            old = self.aged(situation, lines.table, situation.values[lines.table][: len(lines.touches)])
            rates, forgetting = self._rates(situation, lines, terms)
            if control:
                rates = _flattened(rates, lines)
            steps = torch.zeros_like(old).index_add(0, lines.row, rates * lines.gradient)
            new = old - steps * self._scale(self.settings.aggregation, lines.touches.clamp(min=1), n, old)[:, None]
            if self.settings.forgetting:
                forgotten = (1 - forgetting) * old[lines.row] * lines.share
                new = new - torch.zeros_like(old).index_add(0, lines.row, forgotten)
            values[lines.table] = new
        for wide in self._shared_lines(situation):
            values[wide.table] = self._updated_shared(situation, wide, terms, control=control)
        for table, old in situation.values.items():
            if table not in values:
                values[table] = self.aged(situation, table, old[: situation.reached(table)])
        return values

    def _updated_shared(self, situation: Situation, wide: SharedLines, terms: LineTerms, *, control: bool) -> Tensor:
        old = situation.values[wide.table]
        theta = old.flatten()
        step, forgotten = torch.zeros_like(theta), torch.zeros_like(theta)
        mean = self._mean_shared_rate(situation, wide, terms) if control else None
        for gradient, rates, forgetting in self._shared_chunks(situation, wide, terms):
            step = step + ((rates if mean is None else mean) * gradient).sum(0)
            forgotten = forgotten + ((1 - forgetting).expand_as(gradient) * theta).sum(0)
        new = theta - step * self._shared_scale(wide, theta)
        if self.settings.forgetting and self.settings.shared_forgetting:
            new = new - forgotten / wide.units
        return new.view_as(old)

    def _shared_chunks(
        self, situation: Situation, wide: SharedLines, terms: LineTerms
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(gradient, w, f) of a few units at a time."""
        theta = situation.values[wide.table].flatten()
        at_once = max(self.chunk // wide.entries, 1)
        for start in range(0, wide.units, at_once):
            gradient, feature = wide.expand(start, start + at_once)
            here = terms.at(slice(start, start + at_once))
            here = self._with_touches(here, torch.full((len(here.logits),), wide.touches, device=theta.device))
            found = self._pairs.rates(theta.expand_as(feature), feature, here)
            yield gradient, found.learning, found.forgetting

    def _mean_shared_rate(self, situation: Situation, wide: SharedLines, terms: LineTerms) -> Tensor:
        means = [rates.mean() for _, rates, _ in self._shared_chunks(situation, wide, terms)]
        return torch.stack(means).mean()

    def _rates(self, situation: Situation, lines: Lines, terms: LineTerms) -> tuple[Tensor, Tensor]:
        here = self._with_touches(terms.at(lines.unit), lines.touches[lines.row])
        found = self._pairs.rates(situation.values[lines.table][lines.row], lines.feature, here)
        return found.learning, found.forgetting

    def _with_touches(self, terms: LineTerms, touches: Tensor) -> LineTerms:
        """The optional feature of METHODS.md 8.2: log of how often the batch touches what a line is about."""
        if not self.settings.touch_feature or terms.hidden is None:
            return terms
        touched = touches.to(terms.hidden.dtype).log()[:, None]
        return LineTerms(terms.hidden + touched * self._phi["role.1"][:, -1], terms.logits)

    def _shared_scale(self, wide: SharedLines, like: Tensor) -> Tensor:
        touches = torch.tensor([wide.touches], device=like.device)
        scale = self._scale(self.settings.shared_aggregation, touches, wide.touches, like)
        return scale * self.settings.shared_scale

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

    # The meta-gradient in chunks: with γ = ∂loss/∂Θ̃ known, Σ γ·Θ̃ is a sum over pairs (METHODS.md 4.7).

    def _pair_count(self, situation: Situation) -> int:
        return sum(wide.units * wide.entries for wide in self._shared_lines(situation))

    def _meta_gradient_in_chunks(self, situation: Situation, meta_loss: MetaLoss) -> tuple[dict[str, Tensor], Tensor]:
        with torch.no_grad():
            provisional = self.look_ahead(situation)
        with torch.enable_grad():
            free = {name: value.detach().requires_grad_() for name, value in provisional.items()}
            loss = meta_loss(free)
            gammas = dict(zip(free, torch.autograd.grad(loss, list(free.values()), allow_unused=True), strict=True))
        totals = {name: torch.zeros_like(value) for name, value in self.parameters().items()}
        with torch.enable_grad():
            terms = self._unit_terms(situation)
            leaf = LineTerms(
                None if terms.hidden is None else terms.hidden.detach().requires_grad_(),
                terms.logits.detach().requires_grad_(),
            )
            ends = [tensor for tensor in (leaf.hidden, leaf.logits) if tensor is not None]
            reaching = [torch.zeros_like(end) for end in ends]
            for score in self._scores(situation, leaf, gammas):
                wanted = [*self.parameters().values(), *ends]
                found = torch.autograd.grad(score, wanted, allow_unused=True)
                _add_up([*totals.values(), *reaching], found)
            starts = [tensor for tensor in (terms.hidden, terms.logits) if tensor is not None]
            rest = torch.autograd.grad(starts, list(self.parameters().values()), reaching, allow_unused=True)
            _add_up(list(totals.values()), rest)
        return totals, loss.detach()

    def _scores(self, situation: Situation, terms: LineTerms, gammas: Mapping[str, Tensor | None]) -> Iterator[Tensor]:
        """Parts of Σ γ·Θ̃ whose sum has the meta-gradient as its derivative."""
        of_rows = Evidence(situation.evidence.losses, situation.evidence.row_gradients)
        updated = self._updated(replace(situation, evidence=of_rows), terms)
        parts = [(gamma * updated[name]).sum() for name, gamma in gammas.items() if gamma is not None]
        yield torch.stack(parts).sum() + 0 * terms.logits.sum()
        for wide in self._shared_lines(situation):
            gamma = gammas[wide.table]
            if gamma is None:
                continue
            theta, flat = situation.values[wide.table].flatten(), gamma.flatten()
            scale = self._shared_scale(wide, theta)
            forgets = self.settings.forgetting and self.settings.shared_forgetting
            for gradient, rates, forgetting in self._shared_chunks(situation, wide, terms):
                score = -(rates * (gradient * (flat * scale))).sum()
                if forgets:
                    score = score + (forgetting * (flat * theta / wide.units)).sum()
                yield score


def _flattened(rates: Tensor, lines: Lines) -> Tensor:
    """Every rate replaced by its mean over the batch for the same slot (user, positive, negative)."""
    flat = torch.empty_like(rates)
    for slot in torch.unique(lines.slot):
        here = lines.slot == slot
        flat[here] = rates[here].mean()
    return flat


def _add_up(totals: list[Tensor], parts: Sequence[Tensor | None]) -> None:
    for total, part in zip(totals, parts, strict=True):
        if part is not None:
            total.add_(part)
