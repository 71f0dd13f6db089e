"""What a worker does for a tuning: pre-train once for all trials, then try settings on the selection window."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.work import Work
from melon.data.interactions import Interactions
from melon.errors import MelonError
from melon.evaluation.compare import gains, hits
from melon.evaluation.prequential import Point, Tally
from melon.evaluation.ranking import selection_score
from melon.types import Plain

#: A trial is stopped early where it is this many standard errors behind the best, after this many batches and this
#: share of all.
_ERRORS, _FEWEST_BATCHES, _LEAST_SHARE = 3.0, 10, 0.25
_NOTHING_RANKED = "no event could be ranked: there are too few items beside what users have taken; lower --negatives."


@dataclass
class Curve:
    """Batch by batch through window and validation: interactions with a rank, and the sum of their HR@5 + NDCG@10."""

    ranked: list[int] = field(default_factory=list)
    gained: list[float] = field(default_factory=list)

    def add(self, point: Point) -> None:
        """One more batch."""
        rank = point.ranks.rank
        self.ranked.append(len(rank))
        self.gained.append(float((hits(rank) + gains(rank)).sum()))

    def score(self) -> float:
        """The running score."""
        return sum(self.gained) / max(sum(self.ranked), 1)

    def behind(self, best: Curve) -> tuple[float, float]:
        """How far it lies behind another on the batches it has seen, and the standard error of that.

        Both met the same candidates, so the difference is taken batch by batch.
        """
        n = np.array(self.ranked, dtype=np.float64)
        difference = np.array(best.gained[: len(n)]) - np.array(self.gained)
        total = max(float(n.sum()), 1.0)
        mean = float(difference.sum()) / total
        spread = float(np.square(difference - mean * n).sum()) * len(n) / max(len(n) - 1, 1)
        return mean, math.sqrt(spread) / total

    def hopeless(self, best: Curve) -> bool:
        """Whether it is so far behind the best that the rest is not worth its time."""
        seen = len(self.ranked)
        if seen < max(_FEWEST_BATCHES, _LEAST_SHARE * len(best.ranked)):
            return False
        mean, error = self.behind(best)
        return mean > max(_ERRORS * error, 0.0)


@dataclass(frozen=True)
class Tried:
    """The outcome of a trial: a score, or a problem; `pruned` where it was stopped early."""

    key: str
    seconds: float = 0.0
    score: float | None = None
    curve: Curve | None = None
    pruned: bool = False
    problem: str | None = None
    pretrain: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Foundation:
    """Pre-training, chosen on the selection window and made once for all trials."""

    stream: str
    group: str
    config: CellConfig
    lays_foundation: bool = True
    keeps_work: bool = True

    @property
    def key(self) -> str:
        """A tuning has one."""
        return "pre-training"

    def run(self, log: Interactions, work: Work) -> Tried:
        """Choose and pre-train."""
        torch.set_num_threads(self.config.threads)
        began = time.perf_counter()
        try:
            cell = Cell(log, self.config, work=work)
            choice, _ = cell.fitting.window()
            cell.fitting.window_again()
        except MelonError as problem:
            return self.lost(str(problem))
        return Tried(self.key, time.perf_counter() - began, choice["score"], pretrain=choice["settings"])

    def lost(self, problem: str) -> Tried:
        """The outcome of a pre-training whose worker died; without it there are no trials."""
        return Tried(self.key, problem=problem)


@dataclass(frozen=True)
class TrialJob:
    """One point of the space. With the `best` curve of earlier rounds it may be stopped early."""

    key: str
    stream: str
    group: str
    config: CellConfig
    settings: Plain
    best: Curve | None = None
    lays_foundation: bool = False
    keeps_work: bool = False

    def run(self, log: Interactions, work: Work) -> Tried:
        """Practise, stream through window and validation, and score what is judged."""
        torch.set_num_threads(self.config.threads)
        began = time.perf_counter()
        curve, tally = Curve(), Tally()
        try:
            cell = Cell(log, self.config, work=work)
            selection, (_, start) = cell.selection, cell.fitting.window()
            again = cell.fitting.window_again()
            updater = selection.at_window(self.config.strategy, self.settings, start, again)
            for point in selection.through(updater):
                curve.add(point)
                if point.start >= selection.parts.judged_from:
                    tally.add(point)
                if self.best is not None and curve.hopeless(self.best):
                    return Tried(self.key, time.perf_counter() - began, curve.score(), curve, pruned=True)
        except MelonError as problem:
            return Tried(self.key, time.perf_counter() - began, problem=str(problem))
        seconds = time.perf_counter() - began
        if not len(tally.rank):
            return Tried(self.key, seconds, problem=_NOTHING_RANKED)
        return Tried(self.key, seconds, selection_score(tally.rank), curve)

    def lost(self, problem: str) -> Tried:
        """The outcome of a trial whose worker died."""
        return Tried(self.key, problem=problem)
