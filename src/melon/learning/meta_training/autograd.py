"""Meta-training by autograd: a pass through a recorded stream and back, each step's vector-Jacobian product in reverse.

The way there keeps nothing but the rows that it overwrites; the way back makes each step again, with its gradients open
to a second derivative. Steps are those of the rate model on any recommender, or those of a learned strategy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from melon.errors import SettingsError
from melon.kernels.meta_training import ABSENT, UNPREDICTED
from melon.learning.meta_training.record import Draw, RecordedStream
from melon.models.base import Recommender
from melon.models.evidence import Examples
from melon.strategies.base import Proposal, Situation
from melon.strategies.melon.rates import DECAY_UNIT, Phi
from melon.strategies.stream_trained import StreamTrainedStrategy
from melon.strategies.unrolled import UnrolledStrategy
from melon.tables import Moment
from melon.types import Floats, Ints

StepValues = dict[str, Tensor]
#: A pass of a score that is not factorised predicts each item among so many others, drawn anew for each pass.
_MOST_CANDIDATES = 30


@dataclass(frozen=True)
class MetaTrainingBatch:
    """A batch on the distinct rows that it touches: places of users (n) and of items (n × slots) among these."""

    rows: Mapping[str, Tensor]
    users: Tensor
    items: Tensor
    idle: Tensor  # of the items' rows
    facts: Floats  # of what each interaction touches, as they were recorded


class StreamMetaTraining(ABC):
    """Passes over a recorded stream from the same rows. How a step is made of φ is left open."""

    def __init__(self, recommender: Recommender, recorded: RecordedStream) -> None:
        self._model, self._recorded = recommender.differentiable(), recorded
        self._specs = {spec.name: spec for spec in recommender.specs}
        self._moving = [name for name, spec in self._specs.items() if recommender.learns(spec)]
        rows = {"user": recorded.user_rows, "item": recorded.item_rows}
        self._start: StepValues = {
            name: torch.from_numpy(
                table.everything().copy()
                if table.spec.role == "shared"
                else table.gather(rows[table.spec.role], Moment(0))
            )
            for name, table in recommender.tables.items()
        }
        others = recorded.candidates.shape[1] - 1
        self._most = others if recommender.factorised else min(others, _MOST_CANDIDATES)
        self._stand_for = math.log(others / self._most)
        ends = recorded.ends.tolist()
        self._bounds = list(zip([0, *ends[:-1]], ends, recorded.now.tolist(), strict=True))

    @abstractmethod
    def opened(self) -> StepValues:
        """The present φ, open to differentiation; `temperature` is the logarithm of τ."""

    @abstractmethod
    def step(
        self, batch: MetaTrainingBatch, old: Mapping[str, Tensor], phi: StepValues, *, again: bool = False
    ) -> StepValues:
        """The rows that a batch touches and the shared weights after the step; differentiable where it is made
        `again`.
        """

    @abstractmethod
    def half_lives(self, phi: StepValues) -> dict[str, Tensor]:
        """Those of the tables whose idle rows decay."""

    def run(self, number: int) -> tuple[float, Phi]:
        """The mean loss of all predictions in pass `number` at the present φ, and its gradient by φ."""
        draw, among = self._recorded.draws[number % len(self._recorded.draws)], self._recorded.among(number, self._most)
        values, phi = {name: value.clone() for name, value in self._start.items()}, self.opened()
        touched, tape = self._tensor(self._recorded.touched), list[tuple[MetaTrainingBatch, StepValues]]()
        closed = {name: value.detach() for name, value in phi.items()}
        for first, last, now in self._bounds:
            batch = self._batch(first, last, now, draw, touched)
            old = {name: self._read(name, values[name], batch) for name in values}
            tape.append((batch, {name: old[name] for name in self._moving}))
            for name, new in self.step(batch, old, closed).items():
                self._write(name, values[name], batch, new)
            touched[batch.rows["item"]] = now
        gradient = {name: torch.zeros_like(value) for name, value in closed.items()}
        later, total = {name: torch.zeros_like(values[name]) for name in self._moving}, 0.0
        for (first, last, now), (batch, old) in zip(reversed(self._bounds), reversed(tape), strict=True):
            self._step_back(batch, values, old, later, phi, gradient)
            touched[batch.rows["item"]] = now - batch.idle
            total += self._prediction_back(first, last, now - touched, values, later, phi, gradient, among)
        events = self._recorded.predicted
        return total / events, {name: (value / events).cpu().numpy() for name, value in gradient.items()}

    def _step_back(
        self,
        batch: MetaTrainingBatch,
        values: StepValues,
        old: StepValues,
        later: StepValues,
        phi: StepValues,
        gradient: StepValues,
    ) -> None:
        """From ∂J by the rows after a step to ∂J by those before it, which `values` become again."""
        for name, before in old.items():
            self._write(name, values[name], batch, before)
        with torch.enable_grad():
            rows = {name: self._read(name, values[name], batch).requires_grad_() for name in values}
            new = self.step(batch, rows, phi, again=True)
        after = [self._read(name, later[name], batch) for name in new]
        moving = [rows[name] for name in self._moving]
        slopes = torch.autograd.grad([*new.values()], [*moving, *phi.values()], after, allow_unused=True)
        for name, slope in zip(self._moving, slopes, strict=False):
            self._write(name, later[name], batch, torch.zeros_like(rows[name]) if slope is None else slope)
        _add(gradient, slopes[len(moving) :])

    def _prediction_back(
        self,
        first: int,
        last: int,
        idle: Tensor,
        values: StepValues,
        later: StepValues,
        phi: StepValues,
        gradient: StepValues,
        among: Ints,
    ) -> float:
        """The loss of a batch's predictions; its gradient is added to what is known."""
        recorded = self._recorded
        candidates = self._tensor(recorded.candidates[first:last, among])
        there = candidates[:, 0] > UNPREDICTED
        if not there.any():
            return 0.0
        candidates, users = candidates[there], self._tensor(recorded.users[first:last])[there]
        known = self._tensor(recorded.known[first:last])[there][:, None].to(next(iter(values.values())))
        # Rows of distinct items, and one of zeros for items without a row.
        distinct, places = torch.unique(candidates, return_inverse=True)
        exists = (distinct > ABSENT)[:, None].to(known)
        distinct = distinct.clamp(min=0)
        with torch.enable_grad():
            rows = {name: value.detach().requires_grad_() for name, value in values.items()}
            read = dict[str, Tensor]()
            for name, spec in self._specs.items():
                if spec.role == "user":
                    read[name] = F.embedding(users, rows[name]) * known
                elif spec.role == "item":
                    read[name] = F.embedding(distinct, rows[name]) * exists
                else:
                    read[name] = rows[name]
            scores = self._model.line_scores(self._decayed(read, idle[distinct], phi), places)
            apart = (scores - scores[:, :1]).double() * torch.exp(phi["temperature"]).to(scores.device)
            # Each candidate stands for those that this pass leaves out.
            apart = torch.cat([apart[:, :1], apart[:, 1:] + self._stand_for], dim=1)
            loss = torch.logsumexp(apart, dim=1).sum()
        moving = [rows[name] for name in self._moving]
        slopes = torch.autograd.grad(loss, [*moving, *phi.values()], allow_unused=True)
        _add(later, slopes[: len(moving)])
        _add(gradient, slopes[len(moving) :])
        return float(loss.detach())

    def _batch(self, first: int, last: int, now: int, draw: Draw, touched: Tensor) -> MetaTrainingBatch:
        user_rows, users = np.unique(self._recorded.users[first:last], return_inverse=True)
        item_rows, items = np.unique(draw.items[first:last], return_inverse=True)
        rows = {"user": self._tensor(user_rows), "item": self._tensor(item_rows)}
        places = self._tensor(users.reshape(-1)), self._tensor(items.reshape(last - first, -1))
        return MetaTrainingBatch(rows, *places, now - touched[rows["item"]], draw.facts[first:last])

    def _decayed(self, rows: Mapping[str, Tensor], idle: Tensor, phi: StepValues) -> StepValues:
        """Rows with those of items decayed by their idle time."""
        half_lives = self.half_lives(phi)
        return {
            name: value * torch.exp(-math.log(2) * idle.double() / half_lives[name].to(idle.device))[:, None].to(value)
            if name in half_lives
            else value
            for name, value in rows.items()
        }

    def _read(self, name: str, values: Tensor, batch: MetaTrainingBatch) -> Tensor:
        role = self._specs[name].role
        return values.clone() if role == "shared" else values[batch.rows[role]]

    def _write(self, name: str, values: Tensor, batch: MetaTrainingBatch, new: Tensor) -> None:
        role = self._specs[name].role
        values[slice(None) if role == "shared" else batch.rows[role]] = new.detach()

    def _tensor(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array))


def _add(totals: StepValues, slopes: tuple[Tensor | None, ...]) -> None:
    for name, slope in zip(list(totals), slopes, strict=True):
        if slope is not None:
            totals[name] += slope


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
