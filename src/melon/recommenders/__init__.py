"""Recommenders score (user, item) pairs and say what each interaction teaches about the rows it touches.

The names below are what an author of a recommender needs; they are imported when they are first used.
"""

from typing import TYPE_CHECKING

from melon.lazy import exports

if TYPE_CHECKING:
    from melon.recommenders.base import Context, Recommender, RecommenderSettings
    from melon.recommenders.bpr import BPR
    from melon.recommenders.evidence import DenseGradient, Evidence, Examples, RowGradient
    from melon.recommenders.heads import HeadedRecommender
    from melon.recommenders.ncf import NCF
    from melon.recommenders.registry import RECOMMENDERS
    from melon.registry import Entry
    from melon.tables import TableSpec

__all__ = [
    "BPR",
    "NCF",
    "RECOMMENDERS",
    "Context",
    "DenseGradient",
    "Entry",
    "Evidence",
    "Examples",
    "HeadedRecommender",
    "Recommender",
    "RecommenderSettings",
    "RowGradient",
    "TableSpec",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "BPR": "melon.recommenders.bpr",
        "NCF": "melon.recommenders.ncf",
        "RECOMMENDERS": "melon.recommenders.registry",
        "Context": "melon.recommenders.base",
        "DenseGradient": "melon.recommenders.evidence",
        "Entry": "melon.registry",
        "Evidence": "melon.recommenders.evidence",
        "Examples": "melon.recommenders.evidence",
        "HeadedRecommender": "melon.recommenders.heads",
        "Recommender": "melon.recommenders.base",
        "RecommenderSettings": "melon.recommenders.base",
        "RowGradient": "melon.recommenders.evidence",
        "TableSpec": "melon.tables",
    },
)
