"""A small stream to meta-train on, and the slow twins of meta-training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.kernels.meta_training import backward, forms, forward
from melon.learning.meta_training.generic import GenericMetaTraining
from melon.learning.meta_training.loop import meta_training_candidates
from melon.learning.meta_training.record import RecordedStream, record
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.strategies.melon.linear import MeLON
from melon.strategies.stream_trained import LinearStrategy
from melon.stream.batch import Batch, batch_of
from melon.stream.split import batches

#: The kernels as they are written, run by Python: slow, and in any precision.
SLOW_KERNELS = SimpleNamespace(forward=forward.forward, backward=backward.backward)
BEFORE, SIZE = 60, 13


def stream(events: int = 104) -> Interactions:
    return synthetic_stream("flip", n_users=14, n_items=18, n_events=events, seed=2)


def ahead(log: Interactions) -> list[Batch]:
    """The batches to meta-train on; users and items that are new come among them."""
    return [batch_of(log, *bounds) for bounds in batches(BEFORE, len(log), SIZE)]


def behind(recommender: Recommender, strategy: LinearStrategy, log: Interactions) -> Updater:
    """An updater that has learned what comes before, with rows large enough to matter."""
    updater = Updater(recommender, strategy, seed=5)
    for bounds in batches(0, BEFORE, SIZE):
        updater.learn(batch_of(log, *bounds))
    generator = torch.Generator().manual_seed(1)
    for table in recommender.tables.values():
        values = table.everything()
        values += 0.4 * torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values)
    return updater


def shaken(strategy: LinearStrategy) -> LinearStrategy:
    """φ away from its start, the cap included, so that no part of the gradient is 0."""
    generator, phi, free = torch.Generator().manual_seed(3), strategy.rates.phi, strategy.trainable()
    for name in ("rates", "splines"):
        phi[name] += 0.3 * free[name] * torch.randn(phi[name].shape, generator=generator, dtype=torch.float64)
    phi["rates"][-1, 4] = 9.0 * free["rates"][-1, 4]  # touches: some of these rates reach the cap
    phi["decay"] += 1 + torch.rand(phi["decay"].shape, generator=generator, dtype=torch.float64)
    phi["half_lives"] += torch.rand(phi["half_lives"].shape, generator=generator, dtype=torch.float64)
    phi["temperature"] += 0.3
    return strategy


def scene(
    recommender: Recommender, kind: type[LinearStrategy] = MeLON, **settings: Any
) -> tuple[RecordedStream, LinearStrategy]:
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
        if items[0] == forms.UNPREDICTED:
            continue
        scores = []
        for item in items.tolist():
            read = {}
            for name, spec in meta_training._specs.items():
                rows = decayed.get(name, values[name])
                row = int(recorded.users[line]) if spec.role == "user" else item
                there = bool(recorded.known[line]) if spec.role == "user" else item != forms.ABSENT
                read[name] = rows if spec.role == "shared" else rows[[row]] * there
            one = torch.zeros((1, 1), dtype=torch.long)
            scores.append(meta_training._recommender.taught_scores(read, one, one)[0, 0])
        line_scores = torch.stack(scores)
        losses.append(torch.logsumexp(torch.exp(phi["temperature"]) * (line_scores - line_scores[0]), 0))
    return torch.stack(losses).sum()
