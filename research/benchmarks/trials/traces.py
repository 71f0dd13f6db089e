"""Traces for `online.py`: rates that go on learning by the exact gradient through all past steps, carried forward."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from types import ModuleType

import numpy as np
import torch
from melon.kernels.meta_training.forms import MetaTrainingRows

from melon.adam import Adam, Moments
from melon.data.interactions import Interactions
from melon.kernels.meta_training import forms, forward
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.record import RecordedStream, record
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.strategies.melon.rates import KNOTS, Phi
from melon.strategies.stream_trained import LinearStrategy
from melon.stream.batch import Batch
from melon.stream.candidates import Candidates, CandidateSet
from melon.types import Floats, Ints, Scores
from trials import trace_loops
from trials.kernels import compiled
from trials.trace_loops import Traces

_ADAM = Adam(0.9, 0.98, 1e-9)
#: Drawn apart from the candidates that judge.
_APART = 1_000
#: What an epoch adds to the numbers of events, and the one from which the first of a recording leads back to none.
_EPOCH, _LIVE = 1 << 40, -2
_TABLES = ("user_factors", "item_factors", "item_bias")


def trace_loops_compiled() -> ModuleType:
    """The loops, compiled."""
    return compiled("traces", (forms, forward, trace_loops), ("learn", "judge"))


class LiveDraws(Candidates):
    """Candidates of batches whose training negatives are drawn as they are online: as in no epoch of meta-training."""

    def draw(self, start: int, stop: int) -> CandidateSet:
        return super().draw(start % _EPOCH, start % _EPOCH + stop - start)


class TraceMetaTraining(FactorMetaTraining):
    """One way through a recorded stream, batch by batch: φ may change on the way."""

    def __init__(
        self, recommender: Recommender, strategy: LinearStrategy, recorded: RecordedStream, kernels: ModuleType
    ) -> None:
        super().__init__(recommender, strategy, recorded, kernels)
        rows, dim, dtype = self._start, self._start.users.shape[1], self._start.users.dtype
        roles, width = strategy.rates.phi["rates"].shape
        self._numbers = roles * (width + len(KNOTS)) + 5
        held: Ints = np.full(len(rows.items), -1)
        touched = np.unique(recorded.draws[0].items)
        held[touched] = np.arange(len(touched))
        self._rows = MetaTrainingRows(rows.users.copy(), rows.items.copy(), rows.bias.copy(), rows.touched.copy())
        self._later = MetaTrainingRows(*(np.zeros_like(part) for part in rows))
        self._traces = Traces(
            np.zeros((len(rows.users), self._numbers, dim), dtype),
            np.zeros((len(touched), self._numbers, dim), dtype),
            np.zeros((len(touched), self._numbers), dtype),
            held,
        )
        self._seen = np.ascontiguousarray(self._inputs[0], dtype)

    @property
    def rows(self) -> MetaTrainingRows:
        """Rows as they are after what was learned."""
        return self._rows

    def judge(self, t: int) -> tuple[float, Phi]:
        """The summed loss of batch t's predictions, and its gradient by φ through all steps before it."""
        by_phi, temperature = np.zeros(self._numbers + 1), float(torch.exp(self._strategy.rates.phi["temperature"]))
        held = self._rows, self._rates(self._inputs[0]), self._tape, self._traces
        loss = self._kernels.judge(self._replays[0], *held, t, temperature, self._later, by_phi)
        return loss, self._as_phi(by_phi)

    def learn(self, t: int) -> None:
        """The step of batch t at the present φ."""
        rates = self._rates(self._inputs[0])
        self._kernels.learn(self._replays[0], self._rows, rates, self._tape, self._traces, self._seen, t)

    def _as_phi(self, numbers: Floats) -> Phi:
        rates = self._strategy.rates
        slopes = {name: torch.zeros_like(value) for name, value in rates.phi.items()}
        roles, width = rates.phi["rates"].shape
        in_rates, in_hats = roles * width, roles * len(KNOTS)
        slopes["rates"] += torch.from_numpy(numbers[:in_rates].reshape(roles, width))
        slopes["splines"] += torch.from_numpy(numbers[in_rates : in_rates + in_hats].reshape(roles, -1))
        rest = numbers[in_rates + in_hats :]
        for place, name in enumerate(_TABLES):
            slopes["decay"][rates.row_tables.index(name)] = rest[place]
        for place, name in enumerate(_TABLES[1:]):
            slopes["half_lives"][rates.item_tables.index(name)] = rest[3 + place]
        slopes["temperature"][:] = rest[5]
        return slopes


class OnlineContinuationByTraces:
    """An updater whose rates learn from each batch of the judged part by what all steps before it were worth.

    `coming` are all batches that will be learned; rows and traces are carried along beside the updater's own.
    """

    def __init__(
        self, updater: Updater, coming: Sequence[Batch], log: Interactions, judged_from: int, rate: float
    ) -> None:
        self._live, self._from, self._rate = updater, judged_from, rate
        strategy = updater.strategy
        assert isinstance(strategy, LinearStrategy)
        candidates = LiveDraws(log, mode="known", seed=updater.seed + _APART, count=99)
        aside = deepcopy(updater)  # which recording uses up
        recorded = record(aside, [batch.in_epoch(_LIVE) for batch in coming], candidates, 1)
        self._meta_training = TraceMetaTraining(aside.recommender, strategy, recorded, trace_loops_compiled())
        self._coming, self._t = coming, 0
        self._moments = {name: Moments.zeros_like(value) for name, value in strategy.phi.items()}
        self._steps = 0

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        return self._live.score(users, items, time)

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        return self._live.score_catalogue(users, n_items, time)

    @property
    def moved(self) -> float:
        return self._live.moved

    def learn(self, batch: Batch) -> float:
        assert batch.first_event == self._coming[self._t].first_event
        if batch.first_event >= self._from:
            self._improve()
        self._meta_training.learn(self._t)
        self._t += 1
        return self._live.learn(batch)

    def _improve(self) -> None:
        strategy = self._live.strategy
        assert isinstance(strategy, LinearStrategy)
        loss, gradient = self._meta_training.judge(self._t)
        if not np.isfinite(loss) or not all(torch.isfinite(part).all() for part in gradient.values()):
            return
        phi, masks = strategy.phi, strategy.trainable()
        self._moments = {name: _ADAM.moments(self._moments[name], gradient[name] * masks[name]) for name in phi}
        self._steps += 1
        strategy.take({name: _ADAM.step(phi[name], self._moments[name], self._steps, self._rate) for name in phi})

    def apart(self) -> float:
        """The largest difference between the updater's rows and those carried along, relative to the largest row."""
        recorded, tables, worst = self._meta_training._recorded, self._live.recommender.tables, 0.0
        pairs = (("user_factors", recorded.user_rows), ("item_factors", recorded.item_rows))
        for (name, places), own in zip(pairs, self._meta_training.rows[:2], strict=True):
            there = places < tables[name].rows
            stored = tables[name].view().storage[torch.from_numpy(places[there])].numpy()
            worst = max(worst, float(np.abs(stored - own[there]).max() / np.abs(own).max()))
        return worst
