"""Ranks and metrics (docs/methods.md 5.4, 5.5): mid rank for ties, an error for anything that is not a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from melon.errors import LearningError
from melon.types import Floats, Ints, Scores

Metrics = dict[str, float]


def hits(rank: Floats, cut: int = 5) -> Floats:
    """1 where the item taken was among the first `cut`."""
    return np.where(rank <= cut, 1.0, 0.0)


def gains(rank: Floats, cut: int = 10) -> Floats:
    """The event's part in NDCG."""
    return np.where(rank <= cut, 1.0 / np.log2(rank + 1), 0.0)


def reciprocals(rank: Floats, cut: int = 10) -> Floats:
    """The event's part in MRR."""
    return np.where(rank <= cut, 1.0 / rank, 0.0)


#: Every metric by name: the value of each event, whose mean is reported. Tables, results and the service follow it.
METRICS: dict[str, Callable[[Floats], Floats]] = {
    "HR@5": partial(hits, cut=5),
    "HR@10": partial(hits, cut=10),
    "HR@20": partial(hits, cut=20),
    "NDCG@5": partial(gains, cut=5),
    "NDCG@10": partial(gains, cut=10),
    "NDCG@20": partial(gains, cut=20),
}
#: Those of lists of the whole catalogue.
LIST_METRICS: dict[str, Callable[[Floats], Floats]] = {
    **METRICS,
    "MRR@5": partial(reciprocals, cut=5),
    "MRR@10": partial(reciprocals, cut=10),
    "MRR@20": partial(reciprocals, cut=20),
}


@dataclass(frozen=True)
class Ranks:
    """The rank of the item taken among its candidates, and how many of them tie with it."""

    rank: Floats
    ties: Ints

    def __len__(self) -> int:
        return len(self.rank)


def rank_first(scores: Scores, place: str) -> Ranks:
    """Rank column 0 of each line: 1 + better + ties / 2. A constant line ranks in the middle, never at the top."""
    require_finite(scores, place)
    first = scores[:, :1]
    better = (scores[:, 1:] > first).sum(1)
    ties = (scores[:, 1:] == first).sum(1)
    return Ranks(1.0 + better + ties / 2, ties)


def require_finite(scores: Scores, place: str) -> None:
    """A score that is not a finite number ends the evaluation; it is never a hit."""
    finite = np.isfinite(scores)
    if not finite.all():
        line, column = (int(index) for index in np.argwhere(~finite)[0])
        raise LearningError(
            f"a score is {scores[line, column]} in {place} (interaction {line}, candidate {column}); "
            "the model has diverged. Try a smaller learning rate."
        )


def metrics(rank: Floats, which: Mapping[str, Callable[[Floats], Floats]] = METRICS) -> Metrics:
    """Every metric as a float64 mean over interactions; an empty set has none."""
    return {name: float(np.mean(value(rank))) for name, value in which.items()} if len(rank) else {}


def selection_score(rank: Floats) -> float:
    """What settings are compared by: HR@5 + NDCG@10 (docs/methods.md 5.7); where nothing was ranked, all are alike."""
    measured = metrics(rank)
    return measured["HR@5"] + measured["NDCG@10"] if measured else 0.0
