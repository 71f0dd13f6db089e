"""Passes of meta-training: Adam on the gradient of a whole pass, with bad passes taken back (docs/methods.md 4.12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from melon.adam import Adam, Moments
from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.kernels import policy
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.generic import GenericMetaTraining
from melon.learning.meta_training.learned import UnrolledMetaTraining
from melon.learning.meta_training.record import record
from melon.learning.updater import Updater
from melon.strategies.melon.rates import Phi
from melon.strategies.stream_trained import LinearStrategy
from melon.strategies.unrolled import UnrolledStrategy
from melon.stream.batch import Batch
from melon.stream.candidates import Candidates

#: A pass whose loss is this many times the first one's is rejected.
_ASTRAY = 1.5
_ADAM = Adam(0.9, 0.98, 1e-9)
#: Passes take turns with this many draws of training negatives.
_DRAWS = 2
_APART = 1_000

Pass = Callable[[int], tuple[float, Phi]]
MetaTrainable = LinearStrategy | UnrolledStrategy


@dataclass(frozen=True)
class StreamTrained:
    """The losses of the passes that counted, and how many were rejected."""

    losses: list[float]
    rejected: int


def meta_training_candidates(log: Interactions, seed: int, count: int) -> Candidates:
    """Candidates for meta-training on a log: others than those that choose settings, from all items that the log has.

    They are fewer where no user has left so many items, as in a small catalogue.
    """
    left = log.n_items - 1 - np.diff(log.taken.starts)
    if count > left.max():
        count = min(max(int(np.median(left)), 1), log.n_items - 1)
    return Candidates(log, seed=seed + _APART, count=count)


def meta_train_through(updater: Updater, batches: Sequence[Batch], candidates: Candidates) -> StreamTrained:
    """Let the updater's strategy meta-train on batches behind its history. The updater itself is used up by it."""
    strategy, recommender = updater.strategy, updater.recommender
    assert isinstance(strategy, MetaTrainable)
    if not strategy.settings.passes:
        return StreamTrained([], 0)
    recorded = record(updater, batches, candidates, _DRAWS)
    if isinstance(strategy, UnrolledStrategy):
        return meta_train(strategy, UnrolledMetaTraining(recommender, strategy, recorded).run)
    kernels = None
    if recommender.factorised:
        kernels = policy.load("meta_training", like=recommender.tables["item_factors"].view().storage)
    if kernels is None:
        return meta_train(strategy, GenericMetaTraining(recommender, strategy, recorded).run)
    return meta_train(strategy, FactorMetaTraining(recommender, strategy, recorded, kernels).run)


def meta_train(strategy: MetaTrainable, run: Pass) -> StreamTrained:
    """Improve the strategy's φ, pass by pass; `run` gives the loss of a pass at the present φ and its gradient."""
    settings, masks = strategy.settings, strategy.trainable()
    start = {name: value.clone() for name, value in strategy.phi.items()}
    good, moments, steps = start, _no_moments(start), 0
    scale, losses, rejected = settings.meta_training_lr, list[float](), 0
    for number in range(settings.passes):
        loss, gradient = run(number)
        finite = math.isfinite(loss) and all(torch.isfinite(part).all() for part in gradient.values())
        if not finite or (losses and loss >= _ASTRAY * losses[0]):
            if not losses:
                raise LearningError(
                    f"meta-training of {strategy.name} is not finite at its start, the plain step with lr = "
                    f"{settings.lr:g}. Try a smaller learning rate (--set lr=…)."
                )
            rejected, scale = rejected + 1, scale / 2
            moments, steps = _no_moments(start), 0
            strategy.take(good)
            continue
        losses.append(loss)
        good, steps = strategy.phi, steps + 1
        rate = scale * min(1.0, 2 * (1 - number / settings.passes) + 0.05)
        improved = dict[str, torch.Tensor]()
        for name, value in good.items():
            slope = gradient[name]
            if strategy.pulled(name):  # towards the plain step
                slope = slope + settings.meta_training_l2 * (value - start[name])
            moments[name] = _ADAM.moments(moments[name], slope * masks[name])
            improved[name] = _ADAM.step(value, moments[name], steps, rate)
        strategy.take(improved)
    return StreamTrained(losses, rejected)


def _no_moments(phi: Phi) -> dict[str, Moments]:
    return {name: Moments.zeros_like(value) for name, value in phi.items()}
