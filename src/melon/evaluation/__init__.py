"""Measuring: ranks, metrics, the prequential loop, comparisons, simple baselines."""

from melon.evaluation.baselines import BASELINES, make_baseline
from melon.evaluation.compare import Comparison, Sides, compare, compare_mean, holm
from melon.evaluation.lists import TRACKS, Lister, list_summaries
from melon.evaluation.predictors import Frozen, Popularity, Predictor
from melon.evaluation.prequential import Point, Tally, prequential
from melon.evaluation.ranking import LIST_METRICS, METRICS, Ranks, gains, hits, metrics, rank_first, selection_score

__all__ = [
    "BASELINES",
    "LIST_METRICS",
    "METRICS",
    "TRACKS",
    "Comparison",
    "Frozen",
    "Lister",
    "Point",
    "Popularity",
    "Predictor",
    "Ranks",
    "Sides",
    "Tally",
    "compare",
    "compare_mean",
    "gains",
    "hits",
    "holm",
    "list_summaries",
    "make_baseline",
    "metrics",
    "prequential",
    "rank_first",
    "selection_score",
]
