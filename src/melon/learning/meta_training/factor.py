"""Meta-training of a factorised score in kernels: passes there and back, and the gradient of what is learned."""

from __future__ import annotations

import numpy as np

from melon.kernels.melon.rates import Line
from melon.kernels.meta_training import (
    MetaTrainingRows,
    MetaTrainingStep,
    MetaTrainingStream,
    Slopes,
    Tape,
)
from melon.kernels.policy import Kernels
from melon.kernels.types import Numbers
from melon.learning.meta_training.record import Draw, RecordedStream
from melon.models.base import Recommender
from melon.models.plain import TAUGHT
from melon.strategies.melon.rates import DECAY_UNIT, Phi
from melon.strategies.stream_trained import StreamTrainedStrategy
from melon.tables import Moment
from melon.types import Ints


class FactorMetaTraining:
    """Passes over a recorded stream from the same rows; memory is bounded by the stream and the rows it touches."""

    def __init__(
        self,
        recommender: Recommender,
        strategy: StreamTrainedStrategy,
        recorded: RecordedStream,
        kernels: Kernels,
        dtype: type[np.floating] = np.float32,
    ) -> None:
        self._strategy, self._recorded, self._kernels, self._dtype = strategy, recorded, kernels, dtype
        self._start = _rows_of(recommender, recorded, dtype)
        strategy.rates.measure(self._start.users, self._start.items, self._start.bias)
        self._slots = recorded.draws[0].items.shape[1]
        self._line = Line.room(1 + self._slots, self._start.users)
        self._replays = [
            _replay(recorded, draw, np.ascontiguousarray(strategy.seen(draw.facts), dtype=dtype))
            for draw in recorded.draws
        ]
        self._tape = _tape(self._replays, self._start)

    def run(self, number: int) -> tuple[float, Phi]:
        """The mean loss of all predictions in pass `number` at the strategy's φ, and its gradient by φ."""
        replay, rates, start = self._replays[number % len(self._replays)], self._strategy.rates, self._start
        rows = MetaTrainingRows(start.users.copy(), start.items.copy(), start.bias.copy(), start.touched.copy())
        step, temperature = self._step(), float(np.exp(rates.phi["temperature"][0]))
        total = self._kernels.forward(replay, rows, step, self._tape, temperature)
        slopes = Slopes(rates.slopes(), np.zeros(3), np.zeros(2), np.zeros(1))
        if np.isfinite(total):
            users, items, bias = (np.zeros_like(part) for part in start[:3])
            later = MetaTrainingRows(users, items, bias, start.touched.copy())
            self._kernels.backward(replay, rows, step, self._tape, temperature, later, slopes)
        events = self._recorded.predicted
        return total / events, {name: part / events for name, part in self._by_phi(slopes).items()}

    def _step(self) -> MetaTrainingStep:
        rates, decays = self._strategy.rates, self._strategy.settings.half_life is not None
        half_lives = rates.half_lives()
        halvings = [1 / half_lives[name] if decays else 0.0 for name in TAUGHT[1:]]
        decay = np.array([1 - rates.kept(name) for name in TAUGHT], dtype=self._dtype)
        return MetaTrainingStep(rates.model(self._slots, self._dtype), self._line, decay, np.array(halvings))

    def _by_phi(self, slopes: Slopes) -> Phi:
        rates = self._strategy.rates
        by_phi = rates.by_phi(slopes.rates)
        for place, name in enumerate(TAUGHT):
            by_phi["decay"][rates.row_tables.index(name)] = DECAY_UNIT * slopes.decay[place]
        for place, name in enumerate(TAUGHT[1:]):
            by_phi["half_lives"][rates.item_tables.index(name)] = slopes.half_lives[place]
        by_phi["temperature"][:] = slopes.temperature
        return by_phi


def _rows_of(recommender: Recommender, recorded: RecordedStream, dtype: type[np.floating]) -> MetaTrainingRows:
    """The rows that the stream touches or predicts, as they are stored: not decayed."""
    rows = (recorded.user_rows, recorded.item_rows, recorded.item_rows)
    users, items, bias = (
        recommender.tables[name].gather(some, Moment(0)).astype(dtype) for name, some in zip(TAUGHT, rows, strict=True)
    )
    return MetaTrainingRows(users, items, bias[:, 0].copy(), recorded.touched)


def _replay(recorded: RecordedStream, draw: Draw, facts: Numbers) -> MetaTrainingStream:
    bounds = list(zip([0, *recorded.ends[:-1]], recorded.ends, strict=True))
    users = [np.unique(recorded.users[first:last], return_inverse=True) for first, last in bounds]
    items = [np.unique(draw.items[first:last], return_inverse=True) for first, last in bounds]
    return MetaTrainingStream(
        recorded.ends,
        recorded.now,
        recorded.users,
        recorded.known,
        draw.items,
        recorded.candidates,
        np.concatenate([rows for rows, _ in users]),
        np.cumsum([len(rows) for rows, _ in users]),
        np.concatenate([at.reshape(-1) for _, at in users]),
        np.concatenate([rows for rows, _ in items]),
        np.cumsum([len(rows) for rows, _ in items]),
        np.concatenate([at.reshape(-1) for _, at in items]).reshape(draw.items.shape),
        facts,
    )


def _tape(replays: list[MetaTrainingStream], start: MetaTrainingRows) -> Tape:
    """Room for the longest pass, used by every pass."""
    dim, dtype = start.users.shape[1], start.users.dtype
    users = max(len(replay.user_rows) for replay in replays)
    items = max(len(replay.item_rows) for replay in replays)
    idle: Ints = np.zeros(items, dtype=np.int64)
    dots = np.zeros(replays[0].candidates.shape, dtype)
    return Tape(np.zeros((users, dim), dtype), np.zeros((items, dim), dtype), np.zeros(items, dtype), idle, dots)
