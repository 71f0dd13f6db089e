"""Measuring: ranks, metrics, the prequential loop, comparisons, simple baselines."""

from melon.evaluation.compare import Comparison, Sides, compare, compare_mean, holm
from melon.evaluation.predictors import SIMPLE_BASELINES, Frozen, Popularity, Predictor, make_baseline
from melon.evaluation.prequential import Point, Tally, prequential
from melon.evaluation.ranking import METRICS, Ranks, gains, hits, metrics, rank_among_all, rank_first, selection_score

__all__ = [
    "METRICS",
    "SIMPLE_BASELINES",
    "Comparison",
    "Frozen",
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
    "make_baseline",
    "metrics",
    "prequential",
    "rank_among_all",
    "rank_first",
    "selection_score",
]
