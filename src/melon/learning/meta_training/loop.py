"""Passes of meta-training: Adam on the gradient of a whole pass, with bad passes taken back (docs/methods.md 4.12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.kernels import policy
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.record import record
from melon.learning.updater import Updater
from melon.strategies.melon.rates import Phi
from melon.strategies.stream_trained import StreamTrainedStrategy
from melon.stream.batch import Batch
from melon.stream.candidates import Candidates

if TYPE_CHECKING:
    from melon.strategies.unrolled import UnrolledStrategy

#: A pass whose loss is this many times the first one's is rejected.
_ASTRAY = 1.5
#: Adam's means of gradients and of their squares.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.98, 1e-9
#: Passes take turns with this many draws of training negatives; fewer where there is no role of a parameter to learn.
_DRAWS, _DRAWS_WITHOUT_ROLE = 4, 2
_APART = 1_000

Pass = Callable[[int], tuple[float, Phi]]


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
    """Let the updater's strategy meta-train on batches behind its history. The updater itself is used up by it.

    A factorised score has kernels; other recommenders, and networks, are differentiated by PyTorch.
    """
    strategy, recommender = updater.strategy, updater.recommender
    if isinstance(strategy, StreamTrainedStrategy):
        if not strategy.passes:
            return StreamTrained([], 0)
        role = strategy.rates.has_role and recommender.factorised
        recorded = record(updater, batches, candidates, _DRAWS if role else _DRAWS_WITHOUT_ROLE)
        if recommender.factorised:
            kernels = policy.load("meta_training")
            return meta_train(strategy, FactorMetaTraining(recommender, strategy, recorded, kernels).run)
        from melon.learning.meta_training.autograd import GenericMetaTraining

        return meta_train(strategy, GenericMetaTraining(recommender, strategy, recorded).run)
    from melon.learning.meta_training.autograd import UnrolledMetaTraining
    from melon.strategies.unrolled import UnrolledStrategy

    assert isinstance(strategy, UnrolledStrategy)
    if not strategy.passes:
        return StreamTrained([], 0)
    recorded = record(updater, batches, candidates, _DRAWS_WITHOUT_ROLE)
    return meta_train(strategy, UnrolledMetaTraining(recommender, strategy, recorded).run)


def meta_train(strategy: StreamTrainedStrategy | UnrolledStrategy, run: Pass) -> StreamTrained:
    """Improve the strategy's φ, pass by pass; `run` gives the loss of a pass at the present φ and its gradient."""
    settings, start = strategy.settings, {name: value.copy() for name, value in strategy.phi.items()}
    free = {name: strategy.free(name) for name in start}
    first, second, steps = _zeros(start), _zeros(start), 0
    good, scale, losses, rejected = start, settings.meta_training_lr, list[float](), 0
    for number in range(strategy.passes):
        loss, gradient = run(number)
        finite = math.isfinite(loss) and all(np.isfinite(part).all() for part in gradient.values())
        if not finite or (losses and loss >= _ASTRAY * losses[0]):
            if not losses:
                raise LearningError(
                    f"meta-training of {strategy.name} is not finite at its start, the plain step with lr = "
                    f"{settings.lr:g}. Try a smaller learning rate (--set lr=…)."
                )
            rejected, scale = rejected + 1, scale / 2
            first, second, steps = _zeros(start), _zeros(start), 0
            strategy.take(good)
            continue
        losses.append(loss)
        good, steps = strategy.phi, steps + 1
        rate = scale * min(1.0, 2 * (1 - number / strategy.passes) + 0.05)
        improved: Phi = {}
        for name, value in good.items():
            slope, anchor = gradient[name], strategy.anchor(name, start[name])
            if anchor is not None:
                slope = slope + settings.meta_training_l2 * (value - anchor)
            slope = slope * free[name]
            first[name] = _BETA_1 * first[name] + (1 - _BETA_1) * slope
            second[name] = _BETA_2 * second[name] + (1 - _BETA_2) * slope**2
            spread = np.sqrt(second[name] / (1 - _BETA_2**steps)) + _EPSILON
            improved[name] = value - strategy.speed(name) * rate * first[name] / (1 - _BETA_1**steps) / spread
        strategy.take(improved)
    return StreamTrained(losses, rejected)


def _zeros(phi: Phi) -> Phi:
    return {name: np.zeros_like(value) for name, value in phi.items()}
