"""Practice of any recommender: the vector-Jacobian product of each step, batch by batch in reverse.

The way there keeps nothing but the rows that it overwrites; the way back makes each step again, with its gradients open
to a second derivative. For a factorised score compiled loops give the same numbers far sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from melon.kernels.practice.forms import ABSENT, UNPREDICTED
from melon.learning.practice.record import Draw, RecordedStream
from melon.recommenders.base import Recommender
from melon.recommenders.evidence import Examples, RowGradient
from melon.strategies.base import Proposal
from melon.strategies.melon.rates import Phi
from melon.strategies.practised import LinearStrategy
from melon.tables import Moment
from melon.types import Floats, Ints

StepValues = dict[str, Tensor]
#: Number of other items among which a pass predicts each item; drawn anew for each pass.
_MOST_CANDIDATES = 30


@dataclass(frozen=True)
class PracticeBatch:
    """A batch on the distinct rows that it touches: places of users (n) and of items (n × slots) among these."""

    rows: Mapping[str, Tensor]
    users: Tensor
    items: Tensor
    idle: Tensor  # of the items' rows
    columns: Floats  # what rates see of the touches of each table in turn


class GenericPractice:
    """Passes over a recorded stream from the same rows, for any recommender."""

    def __init__(self, recommender: Recommender, strategy: LinearStrategy, recorded: RecordedStream) -> None:
        self._recommender, self._strategy, self._recorded = recommender, strategy, recorded
        self._specs = {spec.name: spec for spec in recommender.specs}
        self._moving = [name for name, spec in self._specs.items() if recommender.learns(spec)]
        rows = {"user": recorded.user_rows, "item": recorded.item_rows}
        self._start: StepValues = {
            name: table.everything().clone()
            if table.spec.role == "shared"
            else table.gather(self._tensor(rows[table.spec.role]), Moment(0))
            for name, table in recommender.tables.items()
        }
        slots = {"user": 1, "item": recorded.draws[0].items.shape[1], "shared": 1}
        self._slots = [slots[self._specs[name].role] for name in self._moving]
        roles = strategy.rates.roles
        self._roles = [
            role for name, many in zip(self._moving, self._slots, strict=True) for role in roles.of(name, many)
        ]
        others = recorded.candidates.shape[1] - 1
        self._stand_for = math.log(max(others / _MOST_CANDIDATES, 1.0))
        ends = recorded.ends.tolist()
        self._bounds = list(zip([0, *ends[:-1]], ends, recorded.now.tolist(), strict=True))

    def run(self, number: int) -> tuple[float, Phi]:
        """The mean loss of all predictions in pass `number` at the strategy's φ, and its gradient by φ."""
        draw, among = self._recorded.draws[number % len(self._recorded.draws)], self._among(number)
        values = {name: value.clone() for name, value in self._start.items()}
        touched, tape = self._tensor(self._recorded.touched), list[tuple[PracticeBatch, StepValues]]()
        for first, last, now in self._bounds:
            batch = self._batch(first, last, now, draw, touched)
            old = {name: self._read(name, values[name], batch) for name in values}
            tape.append((batch, {name: old[name] for name in self._moving}))
            for name, new in self.step(batch, old, self._strategy.rates.phi).items():
                self._write(name, values[name], batch, new)
            touched[batch.rows["item"]] = now
        phi = {name: value.clone().requires_grad_() for name, value in self._strategy.rates.phi.items()}
        gradient = {name: torch.zeros_like(value) for name, value in phi.items()}
        later, total = {name: torch.zeros_like(values[name]) for name in self._moving}, 0.0
        for (first, last, now), (batch, old) in zip(reversed(self._bounds), reversed(tape), strict=True):
            self._step_back(batch, values, old, later, phi, gradient)
            touched[batch.rows["item"]] = now - batch.idle
            total += self._prediction_back(first, last, now - touched, values, later, phi, gradient, among)
        events = self._recorded.predicted
        return total / events, {name: value / events for name, value in gradient.items()}

    def _among(self, number: int) -> Ints:
        """The columns of candidates that pass `number` predicts among: the item taken, and some others."""
        others = self._recorded.candidates.shape[1] - 1
        drawn = np.random.default_rng(number).permutation(others)[:_MOST_CANDIDATES] + 1
        return np.append(0, np.sort(drawn))

    def step(self, batch: PracticeBatch, old: Mapping[str, Tensor], phi: Phi, *, again: bool = False) -> StepValues:
        """The rows that a batch touches and the shared weights after the step; differentiable where it is made `again`.

        The same as `LinearStrategy.propose`.
        """
        faded = self._faded(old, batch.idle, phi)
        moved = self._moved_by_evidence if self._recommender.open_evidence else self._moved_by_autograd
        with torch.set_grad_enabled(again):
            new = moved(batch, faded, phi, again)
            most_step = self._strategy.settings.most_step
            return new if most_step is None else Proposal(new).within(most_step, faded).values

    def _moved_by_evidence(self, batch: PracticeBatch, faded: StepValues, phi: Phi, again: bool) -> StepValues:
        """Gradients in closed form, which are open to differentiation."""
        evidence = self._recommender.evidence(faded, Examples(batch.users, batch.items))
        weights, new = self._weights(batch, evidence.losses, phi), dict[str, Tensor]()
        for gradient in evidence.gradients:
            old, rates = faded[gradient.table], weights[gradient.table]
            if isinstance(gradient, RowGradient):
                weighted = RowGradient(gradient.table, gradient.positions, gradient.gradient * rates[..., None])
                share = self._strategy.rates.kept(gradient.table, phi).to(old)
                new[gradient.table] = old * share - weighted.summed(len(old))
            else:
                new[gradient.table] = old - gradient.summed(len(old), rates[:, 0]) / len(rates)
        return new

    def _moved_by_autograd(self, batch: PracticeBatch, faded: StepValues, phi: Phi, again: bool) -> StepValues:
        """Each interaction has copies of its rows, whose gradients are its own."""
        copies, (n, slots) = dict[str, Tensor](), batch.items.shape
        places = {"user": batch.users, "item": batch.items.reshape(-1)}
        for name, spec in self._specs.items():
            copy = faded[name] if spec.role == "shared" else faded[name][places[spec.role]]
            copies[name] = copy if again else copy.detach().requires_grad_()
        with torch.enable_grad():
            lines = torch.arange(n, device=batch.users.device)[:, None].expand(n, slots)
            losses = self._recommender.loss_of(
                copies, lines, torch.arange(n * slots, device=lines.device).view(n, slots)
            )
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
                new[name] = faded[name] if move is None else faded[name] - move
                continue
            (slopes,) = torch.autograd.grad(total, copies[name], create_graph=again, retain_graph=True)
            rows = places[self._specs[name].role]
            move = torch.zeros_like(faded[name]).index_add(0, rows, slopes * weights[name].reshape(-1, 1))
            new[name] = faded[name] * self._strategy.rates.kept(name, phi).to(losses) - move
        return new

    def _weights(self, batch: PracticeBatch, losses: Tensor, phi: Phi) -> StepValues:
        """Rates of every table's touches, computed at once."""
        weights = self._strategy.rates.rates(batch.columns, losses.cpu(), self._roles, phi).to(losses)
        return dict(zip(self._moving, torch.split(weights, self._slots, dim=1), strict=True))

    def _step_back(
        self, batch: PracticeBatch, values: StepValues, old: StepValues, later: StepValues, phi: Phi, gradient: Phi
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
        phi: Phi,
        gradient: Phi,
        among: Ints,
    ) -> float:
        """The loss of a batch's predictions; its gradient is added to what is known."""
        recorded = self._recorded
        candidates = self._tensor(recorded.candidates[first:last, among])
        predicted = candidates[:, 0] > UNPREDICTED
        if not predicted.any():
            return 0.0
        candidates, users = candidates[predicted], self._tensor(recorded.users[first:last])[predicted]
        known = self._tensor(recorded.known[first:last])[predicted][:, None].to(next(iter(values.values())))
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
            scores = self._recommender.line_scores(self._faded(read, idle[distinct], phi), places)
            apart = (scores - scores[:, :1]).double() * torch.exp(phi["temperature"]).to(scores.device)
            # Each candidate stands for those that this pass leaves out.
            apart = torch.cat([apart[:, :1], apart[:, 1:] + self._stand_for], dim=1)
            loss = torch.logsumexp(apart, dim=1).sum()
        moving = [rows[name] for name in self._moving]
        slopes = torch.autograd.grad(loss, [*moving, *phi.values()], allow_unused=True)
        _add(later, slopes[: len(moving)])
        _add(gradient, slopes[len(moving) :])
        return float(loss.detach())

    def _batch(self, first: int, last: int, now: int, draw: Draw, touched: Tensor) -> PracticeBatch:
        user_rows, users = np.unique(self._recorded.users[first:last], return_inverse=True)
        item_rows, items = np.unique(draw.items[first:last], return_inverse=True)
        rows = {"user": self._tensor(user_rows), "item": self._tensor(item_rows)}
        places = self._tensor(users.reshape(-1)), self._tensor(items.reshape(last - first, -1))
        inputs = draw.inputs[first:last]
        columns = [self._strategy.columns(self._specs[name], inputs) for name in self._moving]
        return PracticeBatch(rows, *places, now - touched[rows["item"]], np.concatenate(columns, axis=1))

    def _faded(self, rows: Mapping[str, Tensor], idle: Tensor, phi: Phi) -> StepValues:
        """Rows with those of items faded by their idle time."""
        if self._strategy.settings.fading is None:
            return dict(rows)
        half_lives = dict(zip(self._strategy.rates.item_tables, torch.exp(phi["half_lives"]), strict=True))
        return {
            name: value * torch.exp(-math.log(2) * idle.double() / half_lives[name].to(idle.device))[:, None].to(value)
            if name in half_lives
            else value
            for name, value in rows.items()
        }

    def _read(self, name: str, values: Tensor, batch: PracticeBatch) -> Tensor:
        role = self._specs[name].role
        return values.clone() if role == "shared" else values[batch.rows[role]]

    def _write(self, name: str, values: Tensor, batch: PracticeBatch, new: Tensor) -> None:
        role = self._specs[name].role
        values[slice(None) if role == "shared" else batch.rows[role]] = new.detach()

    def _tensor(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._recommender.device)


def _add(totals: StepValues, slopes: tuple[Tensor | None, ...]) -> None:
    for name, slope in zip(list(totals), slopes, strict=True):
        if slope is not None:
            totals[name] += slope
