"""Meta-training of rates by touch on any recommender, by autograd; the role of a parameter is left out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from melon.learning.meta_training.record import RecordedStream
from melon.learning.meta_training.stream import MetaTrainingBatch, StepValues, StreamMetaTraining
from melon.models.base import Recommender
from melon.models.evidence import Examples, RowGradient
from melon.strategies.base import Proposal
from melon.strategies.melon.rates import DECAY_UNIT
from melon.strategies.melon.touch_rates import touch_rates
from melon.strategies.stream_trained import StreamTrainedStrategy


class GenericMetaTraining(StreamMetaTraining):
    """Passes over a recorded stream from the same rows, for any recommender."""

    def __init__(self, recommender: Recommender, strategy: StreamTrainedStrategy, recorded: RecordedStream) -> None:
        super().__init__(recommender, recorded)
        self._strategy = strategy
        slots = {"user": 1, "item": recorded.draws[0].items.shape[1], "shared": 1}
        self._slots = [slots[self._specs[name].role] for name in self._moving]
        roles = strategy.rates.roles
        self._roles = [
            role for name, many in zip(self._moving, self._slots, strict=True) for role in roles.of(name, many)
        ]

    def opened(self) -> StepValues:
        return {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in self._strategy.phi.items()}

    def half_lives(self, phi: StepValues) -> dict[str, Tensor]:
        if self._strategy.settings.half_life is None:
            return {}
        return dict(zip(self._strategy.rates.item_tables, torch.exp(phi["half_lives"]), strict=True))

    def step(
        self, batch: MetaTrainingBatch, old: Mapping[str, Tensor], phi: StepValues, *, again: bool = False
    ) -> StepValues:
        """The rows that a batch touches and the shared weights after the step; differentiable where it is made `again`.

        The same as `StreamTrainedStrategy.propose`.
        """
        decayed = self._decayed(old, batch.idle, phi)
        moved = self._moved_by_evidence if self._model.open_evidence else self._moved_by_autograd
        with torch.set_grad_enabled(again):
            new = moved(batch, decayed, phi, again)
            most_step = self._strategy.settings.most_step
            return new if most_step is None else Proposal(new).within(most_step, decayed).values

    def _moved_by_evidence(
        self, batch: MetaTrainingBatch, decayed: StepValues, phi: StepValues, again: bool
    ) -> StepValues:
        """Gradients in closed form, which are open to differentiation."""
        evidence = self._model.evidence(decayed, Examples(batch.users, batch.items))
        weights, new = self._weights(batch, evidence.losses, phi), dict[str, Tensor]()
        for gradient in evidence.gradients:
            old, rates = decayed[gradient.table], weights[gradient.table]
            if isinstance(gradient, RowGradient):
                weighted = RowGradient(gradient.table, gradient.positions, gradient.gradient * rates[..., None])
                share = self._kept(gradient.table, phi).to(old)
                new[gradient.table] = old * share - weighted.summed(len(old))
            else:
                new[gradient.table] = old - gradient.summed(len(old), rates[:, 0]) / len(rates)
        return new

    def _moved_by_autograd(
        self, batch: MetaTrainingBatch, decayed: StepValues, phi: StepValues, again: bool
    ) -> StepValues:
        """Each interaction has copies of its rows, whose gradients are its own."""
        copies, (n, slots) = dict[str, Tensor](), batch.items.shape
        places = {"user": batch.users, "item": batch.items.reshape(-1)}
        for name, spec in self._specs.items():
            copy = decayed[name] if spec.role == "shared" else decayed[name][places[spec.role]]
            copies[name] = copy if again else copy.detach().requires_grad_()
        with torch.enable_grad():
            lines = torch.arange(n, device=batch.users.device)[:, None].expand(n, slots)
            losses = self._model.loss_of(copies, lines, torch.arange(n * slots, device=lines.device).view(n, slots))
            total = losses.sum()
        weights, new = self._weights(batch, losses if again else losses.detach(), phi), dict[str, Tensor]()
        for name in self._moving:
            if self._specs[name].role == "shared":
                (move,) = torch.autograd.grad(
                    losses,
                    copies[name],
                    weights[name][:, 0] / n,
                    create_graph=again,
                    retain_graph=True,
                    allow_unused=True,
                )
                new[name] = decayed[name] if move is None else decayed[name] - move
                continue
            (slopes,) = torch.autograd.grad(total, copies[name], create_graph=again, retain_graph=True)
            rows = places[self._specs[name].role]
            move = torch.zeros_like(decayed[name]).index_add(0, rows, slopes * weights[name].reshape(-1, 1))
            new[name] = decayed[name] * self._kept(name, phi).to(losses) - move
        return new

    def _weights(self, batch: MetaTrainingBatch, losses: Tensor, phi: StepValues) -> StepValues:
        """Rates of every table's touches, computed at once."""
        columns = [self._strategy.columns(self._specs[name], batch.facts) for name in self._moving]
        weights = touch_rates(np.concatenate(columns, axis=1), losses.cpu(), self._roles, phi).to(losses)
        return dict(zip(self._moving, torch.split(weights, self._slots, dim=1), strict=True))

    def _kept(self, table: str, phi: StepValues) -> Tensor:
        """What a touch leaves of a row."""
        return 1 - DECAY_UNIT * phi["decay"][self._strategy.rates.row_tables.index(table)]
