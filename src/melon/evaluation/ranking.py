"""Ranks and metrics (docs/methods.md 5.4, 5.5): mid rank for ties, an error for anything that is not a number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from melon.errors import LearningError
from melon.types import Floats, Ints, Scores

CUTS = (5, 10, 20)
Metrics = dict[str, float]


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


def rank_among_all(scores: Scores, positives: Ints, hidden: tuple[Ints, Ints], place: str) -> Ranks:
    """Rank each line's positive among all items except the hidden (line, item) cells."""
    require_finite(scores, place)
    own = scores[np.arange(len(scores)), positives][:, None]
    better, equal = scores > own, scores == own
    better[hidden] = False
    equal[hidden] = False
    equal[np.arange(len(scores)), positives] = False
    ties = equal.sum(1)
    return Ranks(1.0 + better.sum(1) + ties / 2, ties)


def require_finite(scores: Scores, place: str) -> None:
    """A score that is not a finite number ends the evaluation; it is never a hit."""
    finite = np.isfinite(scores)
    if not finite.all():
        line, column = (int(index) for index in np.argwhere(~finite)[0])
        raise LearningError(
            f"a score is {scores[line, column]} in {place} (interaction {line}, candidate {column}); "
            "the model has left the finite numbers. Try a smaller learning rate."
        )


def metrics(rank: Floats) -> Metrics:
    """HR and NDCG at 5, 10 and 20, as float64 means over interactions; an empty set has no metrics."""
    if not len(rank):
        return {}
    gain = 1.0 / np.log2(rank + 1)
    hits = {f"HR@{cut}": float(np.mean(rank <= cut)) for cut in CUTS}
    return hits | {f"NDCG@{cut}": float(np.mean(np.where(rank <= cut, gain, 0.0))) for cut in CUTS}


def selection_score(rank: Floats) -> float:
    """What settings are compared by: HR@5 + NDCG@10 (docs/methods.md 5.7); where nothing was ranked, all are alike."""
    measured = metrics(rank)
    return measured["HR@5"] + measured["NDCG@10"] if measured else 0.0
