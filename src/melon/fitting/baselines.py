"""Baselines with settings of their own, chosen on the selection window: recent popularity and the simple baselines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from melon.evaluation.predictors import (
    HALF_LIVES,
    SIMPLE_BASELINES,
    WEIGHTS,
    BaselineColumns,
    BaselineScores,
    Frozen,
    Popularity,
)
from melon.evaluation.ranking import rank_first, selection_score
from melon.fitting.pretrained import PretrainedState, deploy
from melon.fitting.search import Choice, Curve, Trial, edges, words
from melon.fitting.selection import Selection
from melon.registry import Space
from melon.stream.batch import Batch
from melon.types import Flags, Floats, Ints, Plain, Scores

POPULARITY_SPACE = Space(
    {"half_life": (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)}, ({"half_life": 3_000},)
)
#: How many of a grid's trials a record keeps, the best ones.
_RECORDED_TRIALS = 20


def choose_popularity(selection: Selection) -> Choice:
    """The half-life of recent popularity."""

    def judge(point: Plain, opponent: Curve | None) -> Trial:
        return selection.raced(point, Popularity(point["half_life"], selection.before_window.items), opponent)

    return selection.searched("recent popularity", POPULARITY_SPACE, judge)


def choose_baselines(selection: Selection, start: PretrainedState) -> dict[str, Choice]:
    """The best mixture for each simple baseline, from one pass and a whole grid of half-lives and weights."""
    frozen = Frozen(deploy(selection.plan.make_strategy({}, "default"), start, selection.before_window))
    kinds = [kind for kinds in SIMPLE_BASELINES.values() for kind in kinds]
    trials = BaselineTrials(BaselineColumns(selection.before_window, kinds, frozen))
    for point in selection.through(trials):
        if point.start >= selection.parts.judged_from:
            trials.keep(point.usable)
    choices = {name: trials.best(kinds) for name, kinds in SIMPLE_BASELINES.items()}
    for name, choice in choices.items():
        selection.progress.note(f"{name} {words(choice.settings)}: {choice.score or 0:.4f}")
    return choices


class BaselineTrials:
    """A predictor that keeps the columns of the batches it scored, so that a whole grid of baselines can be tried."""

    moved = 0.0

    def __init__(self, columns: BaselineColumns) -> None:
        self.columns = columns
        self._latest: tuple[BaselineScores, Floats] = {}, np.empty(0)
        self._judged: list[tuple[BaselineScores, Floats]] = []

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        self._latest = self.columns.read(users, items, time)
        return self._latest[1][..., 0]

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        return self.score(users, np.broadcast_to(np.arange(n_items), (len(users), n_items)), time)

    def learn(self, batch: Batch) -> None:
        self.columns.observe(batch.users, batch.items)

    def keep(self, usable: Flags) -> None:
        """Judge the batch that was scored last."""
        columns, popular = self._latest
        self._judged.append(({kind: column[usable] for kind, column in columns.items()}, popular[usable]))

    def best(self, kinds: Sequence[str]) -> Choice:
        """The best point of the grid for a baseline that can be made of these columns."""
        popular = np.concatenate([popular for _, popular in self._judged])
        trials = []
        for kind in kinds:
            column = np.concatenate([columns[kind] for columns, _ in self._judged])
            for (at, half_life), weight in product(enumerate(HALF_LIVES), WEIGHTS):
                rank = rank_first(column + weight * popular[..., at], "the selection window").rank
                point = {"kind": kind, "half_life": half_life, "weight": weight}
                trials.append(Trial(point, selection_score(rank)))
        trials.sort(key=lambda trial: -(trial.score or 0.0))
        axes = {"kind": tuple(kinds), "half_life": HALF_LIVES, "weight": WEIGHTS}
        chosen = trials[0]
        return Choice(chosen.settings, chosen.score, tuple(trials[:_RECORDED_TRIALS]), edges(axes, chosen.settings))
