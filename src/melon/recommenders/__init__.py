"""Recommenders score (user, item) pairs and say what each interaction teaches about the rows it touches.

The names below are what an author of a recommender needs; they are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from melon.recommenders.base import Context, Recommender, RecommenderSettings
    from melon.recommenders.bpr import BPR
    from melon.recommenders.evidence import DenseGradient, Evidence, Examples, RowGradient
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
    "Recommender",
    "RecommenderSettings",
    "RowGradient",
    "TableSpec",
]

_HOMES = {
    "BPR": "melon.recommenders.bpr",
    "NCF": "melon.recommenders.ncf",
    "RECOMMENDERS": "melon.recommenders.registry",
    "Context": "melon.recommenders.base",
    "DenseGradient": "melon.recommenders.evidence",
    "Entry": "melon.registry",
    "Evidence": "melon.recommenders.evidence",
    "Examples": "melon.recommenders.evidence",
    "Recommender": "melon.recommenders.base",
    "RecommenderSettings": "melon.recommenders.base",
    "RowGradient": "melon.recommenders.evidence",
    "TableSpec": "melon.tables",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
