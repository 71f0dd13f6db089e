"""What a worker does for a tuning: pre-train once for all trials, then try settings on the selection window."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.work import Work
from melon.data.interactions import Interactions
from melon.errors import MelonError
from melon.evaluation.prequential import Tally
from melon.evaluation.ranking import selection_score
from melon.fitting.search import Curve
from melon.types import Plain

_NOTHING_RANKED = "no event could be ranked: there are too few items beside what users have taken; lower --negatives."


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
