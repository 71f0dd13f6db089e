"""Recommenders score (user, item) pairs and say what each interaction teaches about the rows it touches.

The names below are what an author of a recommender needs; they are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from melon.errors import require_torch

if TYPE_CHECKING:
    from melon.models.autograd import TorchRecommender
    from melon.models.base import Context, Recommender, RecommenderSettings
    from melon.models.bpr import BPR
    from melon.models.evidence import DenseGradient, Evidence, Examples, RowGradient
    from melon.models.ncf import NCF
    from melon.models.registry import RECOMMENDERS
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
    "TorchRecommender",
]

_HOMES = {
    "BPR": "melon.models.bpr",
    "NCF": "melon.models.ncf",
    "RECOMMENDERS": "melon.models.registry",
    "Context": "melon.models.base",
    "DenseGradient": "melon.models.evidence",
    "Entry": "melon.registry",
    "Evidence": "melon.models.evidence",
    "Examples": "melon.models.evidence",
    "Recommender": "melon.models.base",
    "RecommenderSettings": "melon.models.base",
    "RowGradient": "melon.models.evidence",
    "TableSpec": "melon.tables",
    "TorchRecommender": "melon.models.autograd",
}


_TORCH = ("melon.models.autograd", "melon.models.evidence", "melon.models.ncf")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        if _HOMES[name] in _TORCH:
            require_torch(f"melon.models.{name}")
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
