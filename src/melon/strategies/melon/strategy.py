"""MeLON and its two ablations: a learned rate for every line, added up into new rows (docs/methods.md 3.0.5, 4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from melon.kernels import policy
from melon.kernels.generator import padded
from melon.kernels.melon.forms import RowTouches, UnitTerms
from melon.strategies.base import LearningRates, Memory, Proposal, Reduction, Situation
from melon.strategies.learned import LearnedStrategy
from melon.strategies.melon.interaction_model import InteractionModel
from melon.strategies.melon.kernel import PairKernel, at_work, pair_kernel
from melon.strategies.melon.lines import LineBook, SharedLines, TableLines, shared_lines
from melon.strategies.melon.pair_model import PairModel
from melon.strategies.melon.reference import Rates, line_rates, shared_rates
from melon.strategies.melon.settings import RateSettings
from melon.strategies.parameters import Parameters
from melon.tables import TableSpec
from melon.types import AnyArray, Floats, Ints


class RateStrategy(LearnedStrategy):
    """θ'_m = f̄_m θ_m − Σ_x w_{x,m} g_{x,m}, the sum scaled as the reduction says."""

    settings_type = RateSettings
    settings: RateSettings
    sees_interaction: ClassVar[bool]
    sees_parameter: ClassVar[bool]

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self.per_branch = self.settings.pairwise
        self.init = self.settings.init
        self._stream_trained = 0

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        if self.sees_interaction:
            self._interactions = InteractionModel(specs, self.settings, parameters, self.seed)
        self._pairs = PairModel(
            self.settings, parameters, sees_interaction=self.sees_interaction, sees_parameter=self.sees_parameter
        )

    def memory(self) -> Memory:
        return {**super().memory(), "stream": np.array(self._stream_trained)}

    def recall(self, memory: Mapping[str, AnyArray]) -> None:
        super().recall(memory)
        self._has_stream_trained(int(memory.get("stream", 0)))

    def start_afresh(self) -> None:
        self._has_stream_trained(self._stream_trained + 1)

    def _has_stream_trained(self, passes: int) -> None:
        """Adam's rate falls from pass to pass; a stream goes on with what is left after the last of them."""
        self._stream_trained = passes
        done = min(passes / self.settings.passes, 1.0) if self.settings.passes else 0.0
        self._meta_optimizer.warmth = self.settings.meta_cooling**done

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        return self._updated(situation, self._unit_terms(situation))

    @property
    def kernels(self) -> tuple[policy.KernelName, ...]:
        return (("melon", padded(self.settings.role_width)),)

    def at_work(self) -> AbstractContextManager[None]:
        return at_work(self._pairs.network, next(iter(self.parameters().values())))

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        return Proposal(self._updated(situation, self._unit_terms(situation)))

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        terms, n, book = self._unit_terms(situation), len(situation.examples), self._book(situation)
        raw, realised, slots = [], [], []
        for gradient in situation.evidence.row_gradients:
            table, (width, dim) = book.of(gradient), gradient.gradient.shape[1:]
            old, positions = situation.values[table.table], gradient.positions.reshape(-1)
            touched = self._touched(situation, table, old)
            rates = line_rates(touched, terms, self._pairs.network).learning.expand(-1, dim)
            if self._aggregated:  # one rate for each row: every interaction that touches the row shows it
                row = torch.from_numpy(table.lines.row).to(old.device)
                rates = torch.zeros_like(old).index_copy(0, row, rates)[positions]
            scale = torch.from_numpy(touched.scale).to(old)[positions, None]
            raw.append(rates.reshape(n, -1))
            realised.append((rates * scale).reshape(n, -1))
            slots += [(table.table, slot) for slot in range(width) for _ in range(dim)]
        shared, raw_shared = {}, {}
        for wide in self._shared_lines(situation):
            shown = self._shared_rates(situation, wide, terms)
            per_unit = torch.cat([rates.learning.expand_as(gradient) for gradient, rates in shown])
            per_unit = per_unit.expand(n, -1) if self._aggregated else per_unit.reshape(n, -1)
            raw_shared[wide.table] = per_unit
            shared[wide.table] = per_unit * self._shared_scale(wide)
        return LearningRates(torch.cat(realised, 1), tuple(slots), shared, torch.cat(raw, 1), raw_shared)

    # The pieces of an update.

    @property
    def _aggregated(self) -> bool:
        """Without the interaction's side, per-interaction gradients would still make W two-dimensional (4.8)."""
        return not self.sees_interaction

    def _book(self, situation: Situation) -> LineBook:
        return LineBook(situation, pairwise=self.settings.pairwise, aggregated=self._aggregated)

    def _shared_lines(self, situation: Situation) -> Iterator[SharedLines]:
        for gradient in situation.evidence.shared_gradients:
            yield shared_lines(situation, gradient, pairwise=self.settings.pairwise, aggregated=self._aggregated)

    def _unit_terms(self, situation: Situation) -> UnitTerms:
        """Terms of every unit: one for each interaction, or for each of its pairs, or one for the whole batch."""
        examples, losses = situation.examples, situation.evidence.losses
        if self._aggregated:
            return self._pairs.unit_terms(losses.mean()[None], None)
        branches = examples.items.shape[1] if self.settings.pairwise else 1
        if self.settings.loss_feature == "batch":
            losses = losses.mean().expand_as(losses)
        assert situation.around is not None
        users = examples.users.cpu().numpy().repeat(branches)
        items = examples.items[:, :branches].reshape(-1).cpu().numpy()
        losses = losses.repeat_interleave(branches) if branches > 1 else losses
        targets, kernel = self._interactions.targets(users, items, situation.around), self._interactions.kernel()
        if kernel is not None:
            weights = (*self._interactions.weights, self._pairs.heads)
            return kernel.unit_terms(losses, targets, self.settings.slope, *weights)
        return self._pairs.unit_terms(losses, self._interactions.units(*targets))

    def _updated(self, situation: Situation, terms: UnitTerms) -> dict[str, Tensor]:
        kernel = pair_kernel(self._pairs.network, terms.logits)
        values = self._moved_rows(situation, terms, kernel)
        for wide in self._shared_lines(situation):
            values[wide.table] = self._updated_shared(situation, wide, terms, kernel)
        for table, old in situation.values.items():
            if table not in values:
                values[table] = self.aged(situation, table, old[: situation.reached(table)])
        return values

    def _moved_rows(self, situation: Situation, terms: UnitTerms, kernel: PairKernel) -> dict[str, Tensor]:
        """New rows of users and items."""
        network, book = self._pairs.network, self._book(situation)
        tables = [book.of(gradient) for gradient in situation.evidence.row_gradients]
        values = [situation.values[table.table][: len(table.lines.touches)] for table in tables]
        olds = [self.aged(situation, table.table, old) for table, old in zip(tables, values, strict=True)]
        touched = [self._touched(situation, table, old) for table, old in zip(tables, olds, strict=True)]
        moved = kernel.moved_rows(touched, terms, network)
        return dict(zip([table.table for table in tables], moved, strict=True))

    def _touched(self, situation: Situation, table: TableLines, old: Tensor) -> RowTouches:
        """Lines as a kernel takes them."""
        lines = table.lines
        return RowTouches(
            values=situation.values[table.table][: len(lines.touches)],
            old=old,
            row=lines.row,
            unit=lines.unit,
            source=lines.source,
            gradient=table.gradient,
            feature=table.feature,
            scale=self._scale(self.settings.reduction, lines.touches, len(situation.examples)),
            share=lines.share if self.settings.forgetting else None,
        )

    def _updated_shared(self, situation: Situation, wide: SharedLines, terms: UnitTerms, kernel: PairKernel) -> Tensor:
        old = situation.values[wide.table]
        scale, share = self._shared_scale(wide), 0.0
        if self.settings.forgetting and self.settings.shared_forgetting:
            share = 1 / wide.units
        return old + kernel.shared_move(old.flatten(), wide, terms, self._pairs.network, scale, share).view_as(old)

    def _shared_rates(
        self, situation: Situation, wide: SharedLines, terms: UnitTerms
    ) -> Iterator[tuple[Tensor, Rates]]:
        theta = situation.values[wide.table].flatten()
        return shared_rates(theta, wide, terms, self._pairs.network)

    def _shared_scale(self, wide: SharedLines) -> float:
        scales = {
            "sum": 1.0,
            "row_mean": 1 / wide.touches,
            "sqrt": 1 / math.sqrt(wide.touches),
            "mean": 1 / wide.touches,
        }
        return scales[self.settings.shared_reduction] * self.settings.shared_scale

    @staticmethod
    def _scale(reduction: Reduction, touches: Ints, n: int) -> Floats:
        """By what a row's summed step is multiplied."""
        if reduction == "sum":
            return np.ones(len(touches))
        if reduction == "mean":
            return np.full(len(touches), 1 / n)
        return 1 / np.maximum(touches, 1) if reduction == "row_mean" else 1 / np.sqrt(np.maximum(touches, 1))


class NetworkMeLON(RateStrategy):
    """W is two-dimensional: a rate for every (interaction, parameter) pair, from the interaction's neighbourhood and
    the parameter's role in it.
    """

    name = "melon"
    sees_interaction = True
    sees_parameter = True


class NetworkMeLONI(RateStrategy):
    """The ablation that sees the interaction only. W is row-constant: w_x = σ(ωᵀ h_x + b)."""

    name = "melon_i"
    sees_interaction = True
    sees_parameter = False


class NetworkMeLONP(RateStrategy):
    """The ablation that sees the parameter only: a rate from its role, whatever the interaction's neighbourhood."""

    name = "melon_p"
    sees_interaction = False
    sees_parameter = True
