"""Meta-training of a factorised score in kernels: passes there and back, and the gradient of what is learned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from melon.kernels.meta_training.forms import (
    LEAST_LOSS,
    MetaTrainingRates,
    MetaTrainingRows,
    MetaTrainingStream,
    Numbers,
    Slopes,
    Tape,
)
from melon.kernels.policy import Kernels
from melon.learning.meta_training.record import Draw, RecordedStream
from melon.models.base import Recommender
from melon.strategies.melon.rates import DECAY_UNIT, KNOTS, Phi
from melon.strategies.stream_trained import LinearStrategy
from melon.tables import Moment
from melon.types import Floats, Ints

_TABLES = ("user_factors", "item_factors", "item_bias")


class FactorMetaTraining:
    """Passes over a recorded stream from the same rows; memory is bounded by the stream and the rows it touches."""

    def __init__(
        self, recommender: Recommender, strategy: LinearStrategy, recorded: RecordedStream, kernels: Kernels
    ) -> None:
        self._strategy, self._recorded, self._kernels = strategy, recorded, kernels
        self._start = _rows_of(recommender, recorded)
        roles = strategy.rates.roles
        slots = recorded.draws[0].items.shape[1]
        self._roles = [roles.first["user_factors"], *roles.of("item_factors", slots), *roles.of("item_bias", slots)]
        self._replays = [_replay(recorded, draw, np.array(self._roles)) for draw in recorded.draws]
        # Columns of rates: the user's row, the items' vectors, their biases.
        specs = [recommender.tables[name].spec for name in _TABLES]
        self._inputs = [
            np.concatenate([strategy.columns(spec, draw.inputs) for spec in specs], axis=1) for draw in recorded.draws
        ]
        self._tape = _tape(self._replays, self._start)

    def begin_from(self, rows: Mapping[str, Tensor], places: Mapping[str, Ints]) -> None:
        """Begin passes with other rows of some users and items."""
        for name, values in zip(_TABLES, self._start[:3], strict=True):
            values[places["user" if name == "user_factors" else "item"]] = (
                rows[name].numpy().reshape(-1, *values.shape[1:])
            )

    def run(self, number: int) -> tuple[float, Phi]:
        """The mean loss of all predictions in pass `number` at the strategy's φ, and its gradient by φ."""
        place = number % len(self._replays)
        replay, inputs, rates = self._replays[place], self._inputs[place], self._strategy.rates
        start, phi = self._start, rates.phi
        rows = MetaTrainingRows(start.users.copy(), start.items.copy(), start.bias.copy(), start.touched.copy())
        step_rates, temperature = self._rates(inputs), float(torch.exp(phi["temperature"]))
        total = self._kernels.forward(replay, rows, step_rates, self._tape, temperature)
        later = MetaTrainingRows(
            np.zeros_like(start.users), np.zeros_like(start.items), np.zeros_like(start.bias), start.touched.copy()
        )
        slopes = Slopes(np.zeros(self._tape.logs.shape), np.zeros(3), np.zeros(2), np.zeros(1))
        if np.isfinite(total):
            self._kernels.backward(replay, rows, step_rates, self._tape, temperature, later, slopes)
        events = self._recorded.predicted
        gradient = {name: torch.from_numpy(part / events) for name, part in self._by_phi(inputs, slopes).items()}
        return total / events, gradient

    def _rates(self, inputs: Floats) -> MetaTrainingRates:
        rates, phi = self._strategy.rates, self._strategy.rates.phi
        splines = phi["splines"].numpy()
        slopes = np.zeros((len(splines), len(KNOTS) + 1))
        slopes[:, 1:-1] = np.diff(splines, axis=1) / np.diff(KNOTS)
        decays = self._strategy.settings.half_life is not None
        half_lives = rates.half_lives()
        halvings = [1 / half_lives[name] if decays else 0.0 for name in _TABLES[1:]]
        decay = [1 - float(rates.kept(name)) for name in _TABLES]
        dtype = self._start.users.dtype
        base = rates.base(inputs, self._roles)
        return MetaTrainingRates(base.astype(dtype), KNOTS, splines, slopes, np.array(decay, dtype), np.array(halvings))

    def _by_phi(self, inputs: Floats, slopes: Slopes) -> dict[str, Floats]:
        """From ∂J by log rates, by what tables lose and by half-lives, to ∂J by φ."""
        rates, phi = self._strategy.rates, self._strategy.rates.phi
        by_phi = {name: np.zeros(tuple(value.shape)) for name, value in phi.items()}
        # Each interaction's place between knots, as weights of the two beside it.
        at = np.clip(np.log(self._tape.loss.astype(np.float64) + LEAST_LOSS), KNOTS[0], KNOTS[-1])
        left = np.clip(np.searchsorted(KNOTS, at) - 1, 0, len(KNOTS) - 2)
        right_part = (at - KNOTS[left]) / (KNOTS[left + 1] - KNOTS[left])
        for column, role in enumerate(self._roles):
            by_log = slopes.logs[:, column]
            by_phi["rates"][role, 0] += by_log.sum()
            by_phi["rates"][role, 1:] += by_log @ inputs[:, column]
            by_phi["splines"][role] += np.bincount(left, by_log * (1 - right_part), len(KNOTS))
            by_phi["splines"][role] += np.bincount(left + 1, by_log * right_part, len(KNOTS))
        for place, name in enumerate(_TABLES):
            by_phi["decay"][rates.row_tables.index(name)] = DECAY_UNIT * slopes.decay[place]
        for place, name in enumerate(_TABLES[1:]):
            by_phi["half_lives"][rates.item_tables.index(name)] = slopes.half_lives[place]
        by_phi["temperature"][:] = slopes.temperature
        return by_phi


def _rows_of(recommender: Recommender, recorded: RecordedStream) -> MetaTrainingRows:
    """The rows that the stream touches or predicts, as they are stored: not decayed."""
    rows = (recorded.user_rows, recorded.item_rows, recorded.item_rows)
    users, items, bias = (
        recommender.tables[name].gather(some, Moment(0)) for name, some in zip(_TABLES, rows, strict=True)
    )
    return MetaTrainingRows(users, items, bias[:, 0].copy(), recorded.touched)


def _replay(recorded: RecordedStream, draw: Draw, roles: Ints) -> MetaTrainingStream:
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
        roles,
    )


def _tape(replays: list[MetaTrainingStream], start: MetaTrainingRows) -> Tape:
    """Room for the longest course, used by every pass."""
    (n, slots), dim, dtype = replays[0].items.shape, start.users.shape[1], start.users.dtype
    users = max(len(replay.user_rows) for replay in replays)
    items = max(len(replay.item_rows) for replay in replays)

    def room(*shape: int) -> Numbers:
        return np.zeros(shape, dtype)

    idle: Ints = np.zeros(items, dtype=np.int64)
    logs, dots = room(n, len(replays[0].roles)), room(*replays[0].candidates.shape)
    return Tape(room(users, dim), room(items, dim), room(items), idle, logs, room(n, slots - 1), room(n), dots)
