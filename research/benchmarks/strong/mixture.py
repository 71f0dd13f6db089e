"""A stretch of a stream under the project's protocol, for a peer alone and mixed with recent popularity."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np

from melon.data.interactions import Interactions
from melon.evaluation.baselines import HALF_LIVES, WEIGHTS
from melon.evaluation.ranking import rank_first, selection_score
from melon.models.streaming.counts import ItemCounts
from melon.stream.candidates import Candidates
from melon.stream.split import Parts, batches
from melon.types import Floats, Ints

#: What is done to a score before popularity is added; the logarithm is the one of item-kNN.
SHAPES = {"as it is": lambda scores: scores, "logarithm": lambda scores: np.log1p(20 * np.maximum(scores, 0))}


class Peer(Protocol):
    """Scores before it learns. Of items from `known` on it knows nothing."""

    known: int

    def score(self, users: Ints, items: Ints) -> Floats:
        """Scores of candidates, one line per user."""

    def learn(self, users: Ints, items: Ints) -> None:
        """Learn a batch that has been scored."""


@dataclass(frozen=True)
class Scores:
    """What a peer gave to the candidates of each event (seeds × events × candidates), and CPU ms of each `learn`."""

    values: Floats
    learn_ms: list[float]


class Stretch:
    """Events that are judged batch by batch, with their candidates under each seed and the popularity of these."""

    def __init__(self, log: Interactions, start: int, parts: Sequence[tuple[int, int]], seeds: Sequence[int]) -> None:
        self._log, self._start = log, start
        self._judged = [batch for part in parts for batch in batches(*part)]
        self.events = np.concatenate([np.arange(*batch) for batch in self._judged])
        draws = [Candidates(log, seed=seed) for seed in seeds]
        drawn = [[each.draw(*batch) for each in draws] for batch in self._judged]
        if not all(each.usable.all() for line in drawn for each in line):
            sys.exit("an event has too few candidates; these peers are for streams where all events are judged.")
        self._items = [np.stack([each.items for each in line]) for line in drawn]
        counts, popular = ItemCounts(HALF_LIVES), []
        counts.observe(log.items[: parts[0][0]])
        for (first, last), items in zip(self._judged, self._items, strict=True):
            popular.append(np.log1p(counts.read(items)).astype(np.float32))
            counts.observe(log.items[first:last])
        self._popular = np.concatenate(popular, axis=1)

    @classmethod
    def window(cls, log: Interactions, parts: Parts) -> Stretch:
        """What settings are compared on: the judged part of the selection window, and validation; seed 0."""
        cuts = parts.judged_from, parts.train_stop, parts.validation_stop
        return cls(log.head(parts.validation_stop), cuts[0], [cuts[:2], cuts[1:]], [0])

    @classmethod
    def test(cls, log: Interactions, parts: Parts, seeds: Sequence[int]) -> Stretch:
        """The test part; validation is learned before it."""
        return cls(log, parts.train_stop, [(parts.validation_stop, parts.stop)], seeds)

    def follow(self, peer: Peer) -> Scores:
        """Predict, then learn, batch by batch."""
        log, values, spent = self._log, [], []
        for first, last in batches(self._start, self._judged[0][0]):
            peer.learn(log.users[first:last], log.items[first:last])
        for (first, last), items in zip(self._judged, self._items, strict=True):
            users = log.users[first:last]
            scores = peer.score(np.tile(users, len(items)), items.reshape(-1, items.shape[-1]))
            values.append(unknown_last(scores, items.reshape(scores.shape) < peer.known).reshape(items.shape))
            began = time.process_time()
            peer.learn(users, log.items[first:last])
            spent.append(1e3 * (time.process_time() - began))
        return Scores(np.concatenate(values, axis=1), spent)

    def ranks(self, scores: Scores, seed: int = 0, mixture: Any = None) -> Floats:
        """The rank of each event, under one of the seeds; with popularity where a mixture is given."""
        values = scores.values[seed]
        if mixture is not None:
            at = HALF_LIVES.index(mixture["half_life"])
            values = SHAPES[mixture["shape"]](values) + mixture["weight"] * self._popular[seed, ..., at]
        return rank_first(values, "a stretch of the stream").rank

    def best_mixture(self, scores: Scores, shapes: Sequence[str]) -> tuple[float, Any]:
        """The best of the grid of half-lives and weights, and its score."""
        shaped = {shape: SHAPES[shape](scores.values[0]).astype(np.float32) for shape in shapes}
        popular = {half_life: self._popular[0, ..., at].copy() for at, half_life in enumerate(HALF_LIVES)}
        best: tuple[float, Any] = (float("-inf"), None)
        for shape, half_life, weight in product(shapes, HALF_LIVES, WEIGHTS):
            mixed = shaped[shape] + np.float32(weight) * popular[half_life]
            score = selection_score(rank_first(mixed, "the selection window").rank)
            if score > best[0]:
                best = score, {"shape": shape, "half_life": half_life, "weight": weight}
        return best


def unknown_last(scores: Floats, known: Any) -> Floats:
    """Items that a peer knows nothing of are level with the last of the others."""
    least = np.where(known, scores, np.inf).min(1, keepdims=True)
    return np.where(known, scores, np.where(np.isfinite(least), least, 0.0))
