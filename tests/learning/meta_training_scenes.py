"""A small stream to meta-train on, and the slow twins of meta-training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.kernels import meta_training as kernels
from melon.kernels.melon import rates as rate_kernels
from melon.learning.meta_training.autograd import GenericMetaTraining
from melon.learning.meta_training.loop import meta_training_candidates
from melon.learning.meta_training.record import RecordedStream, record
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.strategies.melon.stream import MeLON
from melon.strategies.stream_trained import StreamTrainedStrategy
from melon.stream.batch import Batch, batch_of
from melon.stream.split import batches

#: The kernels as they are written, run by Python: slow, and in any precision.
SLOW_KERNELS = SimpleNamespace(forward=kernels.forward, backward=kernels.backward)
BEFORE, SIZE = 60, 13


def stream(events: int = 104) -> Interactions:
    return synthetic_stream("flip", n_users=14, n_items=18, n_events=events, seed=2)


def ahead(log: Interactions) -> list[Batch]:
    """The batches to meta-train on; users and items that are new come among them."""
    return [batch_of(log, *bounds) for bounds in batches(BEFORE, len(log), SIZE)]


def behind(recommender: Recommender, strategy: StreamTrainedStrategy, log: Interactions) -> Updater:
    """An updater that has learned what comes before, with rows large enough to matter."""
    updater = Updater(recommender, strategy, seed=5)
    for bounds in batches(0, BEFORE, SIZE):
        updater.learn(batch_of(log, *bounds))
    generator = torch.Generator().manual_seed(1)
    for table in recommender.tables.values():
        values = table.everything()
        noise = 0.4 * torch.randn(values.shape, generator=generator, dtype=torch.float64).numpy()
        values += noise.astype(values.dtype)
    return updater


@contextmanager
def exact_functions() -> Iterator[None]:
    """The functions of the rate model in double precision instead of polynomials."""
    names = ("log", "exp", "tanh")
    kept = {name: getattr(rate_kernels, name) for name in names}
    try:
        for name in names:
            setattr(rate_kernels, name, partial(getattr(np, name), dtype=np.float64))
        yield
    finally:
        for name, function in kept.items():
            setattr(rate_kernels, name, function)


def shaken(strategy: StreamTrainedStrategy) -> StreamTrainedStrategy:
    """φ away from its start, the cap included, so that no part of the gradient is 0."""
    generator, rates = np.random.default_rng(3), strategy.rates
    phi = {name: value.copy() for name, value in rates.phi.items()}
    for name in ("facts", "splines", "alpha", "beta", "hidden", "hidden_bias", "out"):
        phi[name] += 0.3 * rates.free[name] * generator.normal(size=phi[name].shape)
    phi["facts"][-1, 4] = 9.0 * rates.free["facts"][-1, 4]  # touches: some of these rates reach the cap
    phi["decay"] += 1 + generator.random(phi["decay"].shape)
    phi["half_lives"] += generator.random(phi["half_lives"].shape)
    phi["temperature"] += 0.3
    rates.phi = phi
    return strategy


def scene(
    recommender: Recommender, kind: type[StreamTrainedStrategy] = MeLON, **settings: Any
) -> tuple[RecordedStream, StreamTrainedStrategy]:
    """A recorded stream and a strategy with a φ of its own."""
    log, strategy = stream(), kind({"lr": 0.2, "half_life": 40.0, **settings})
    updater = behind(recommender, strategy, log)
    recorded = record(updater, ahead(log), meta_training_candidates(log, seed=5, count=7), draws=2)
    return recorded, shaken(strategy)


def in_one_graph(meta_training: GenericMetaTraining, phi: dict[str, Tensor]) -> Tensor:
    """The mean loss of a pass as one expression of φ, every step of it open to autograd."""
    recorded, values = meta_training._recorded, dict(meta_training._start)
    touched, total = torch.from_numpy(recorded.touched.copy()), torch.zeros((), dtype=torch.float64)
    for first, last, now in meta_training._bounds:
        total = total + _predicted(meta_training, values, first, last, now - touched, phi)
        batch = meta_training._batch(first, last, now, recorded.draws[0], touched)
        old = {name: meta_training._read(name, value, batch).requires_grad_() for name, value in values.items()}
        for name, new in meta_training.step(batch, old, phi, again=True).items():
            role = meta_training._specs[name].role
            values[name] = new if role == "shared" else values[name].index_copy(0, batch.rows[role], new)
        touched[batch.rows["item"]] = now
    return total / recorded.predicted


def _predicted(
    meta_training: GenericMetaTraining,
    values: dict[str, Tensor],
    first: int,
    last: int,
    idle: Tensor,
    phi: dict[str, Tensor],
) -> Tensor:
    recorded, losses = meta_training._recorded, []
    decayed = meta_training._decayed(
        {n: v for n, v in values.items() if meta_training._specs[n].role == "item"}, idle, phi
    )
    for line in range(first, last):
        items = recorded.candidates[line]
        if items[0] == kernels.UNPREDICTED:
            continue
        scores = []
        for item in items.tolist():
            read = {}
            for name, spec in meta_training._specs.items():
                rows = decayed.get(name, values[name])
                row = int(recorded.users[line]) if spec.role == "user" else item
                there = bool(recorded.known[line]) if spec.role == "user" else item != kernels.ABSENT
                read[name] = rows if spec.role == "shared" else rows[[row]] * there
            one = torch.zeros((1, 1), dtype=torch.long)
            scores.append(meta_training._model.scores(read, one, one)[0, 0])
        line_scores = torch.stack(scores)
        losses.append(torch.logsumexp(torch.exp(phi["temperature"]) * (line_scores - line_scores[0]), 0))
    return torch.stack(losses).sum()
