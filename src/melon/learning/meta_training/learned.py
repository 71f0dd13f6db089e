"""Meta-training of a learned strategy's meta-model through a whole stream, where its step can be differentiated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from melon.errors import SettingsError
from melon.learning.meta_training.record import RecordedStream
from melon.learning.meta_training.stream import MetaTrainingBatch, StepValues, StreamMetaTraining
from melon.models.base import Recommender
from melon.models.evidence import Examples
from melon.strategies.base import Proposal, Situation
from melon.strategies.unrolled import UnrolledStrategy


class UnrolledMetaTraining(StreamMetaTraining):
    """Passes whose steps are those of the strategy; what its meta-model sees is constant to the gradient."""

    def __init__(self, recommender: Recommender, strategy: UnrolledStrategy, recorded: RecordedStream) -> None:
        super().__init__(recommender, recorded)
        if not self._model.open_evidence:
            raise SettingsError(
                f"{strategy.name} with form = stream needs gradients that can be differentiated, which bpr and ncf "
                f"with their usual loss have and {recommender.name!r} has not; use its published form."
            )
        self._strategy = strategy

    def opened(self) -> StepValues:
        return self._strategy.parameters()

    def half_lives(self, phi: StepValues) -> dict[str, Tensor]:
        return self._strategy.open_half_lives(self._specs, phi)

    def step(
        self, batch: MetaTrainingBatch, old: Mapping[str, Tensor], phi: StepValues, *, again: bool = False
    ) -> StepValues:
        """The same as the strategy's `propose`."""
        with torch.set_grad_enabled(again):
            decayed, examples = self._decayed(old, batch.idle, phi), Examples(batch.users, batch.items)
            evidence = self._model.evidence(decayed, examples)
            ahead = self._strategy.look_ahead(Situation(self._specs, examples, decayed, {}, evidence))
            new = {name: ahead[name] for name in self._moving}
            most_step = self._strategy.settings.most_step
            return new if most_step is None else Proposal(new).within(most_step, decayed).values
