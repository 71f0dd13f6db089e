"""Meta-training of the rate model on any recommender, by autograd."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from melon.learning.meta_training.record import RecordedStream
from melon.learning.meta_training.stream import MetaTrainingBatch, StepValues, StreamMetaTraining
from melon.models.base import Recommender
from melon.models.evidence import Examples
from melon.strategies.base import Proposal
from melon.strategies.melon.rates import DECAY_UNIT
from melon.strategies.stream_trained import StreamTrainedStrategy


class GenericMetaTraining(StreamMetaTraining):
    """Passes over a recorded stream from the same rows, for any recommender."""

    def __init__(self, recommender: Recommender, strategy: StreamTrainedStrategy, recorded: RecordedStream) -> None:
        super().__init__(recommender, recorded)
        self._strategy = strategy
        strategy.rates.measure(*(self._start[name].numpy() for name in strategy.rates.scaled))

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
        rates = self._strategy.touch_rates(phi, evidence.losses, self._specs, batch.facts)
        weights = rates.of(evidence, decayed, self._specs)
        return {
            gradient.table: weights[gradient.table].moved(
                gradient, decayed[gradient.table], self._kept(gradient.table, phi).to(decayed[gradient.table])
            )
            for gradient in evidence.gradients
        }

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
        """Rates of every table's touches, which know nothing of values and gradients."""
        rates = self._strategy.touch_rates(phi, losses, self._specs, batch.facts)
        return {name: rates.plain(name).to(losses) for name in self._moving}

    def _kept(self, table: str, phi: StepValues) -> Tensor:
        """What a touch leaves of a row; shared weights stay as they are."""
        if table not in self._strategy.rates.row_tables:
            return torch.ones(())
        return 1 - DECAY_UNIT * phi["decay"][self._strategy.rates.row_tables.index(table)]
