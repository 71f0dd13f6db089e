"""Recommenders score (user, item) pairs and say what each interaction teaches about the rows it touches.

The names below are what an author of a recommender needs; they are imported when they are first used.
"""

from typing import TYPE_CHECKING

from melon.registry import exported

if TYPE_CHECKING:
    from melon.models.autograd import TorchRecommender as TorchRecommender
    from melon.models.base import Context as Context
    from melon.models.base import Recommender as Recommender
    from melon.models.base import RecommenderSettings as RecommenderSettings
    from melon.models.bpr import BPR as BPR
    from melon.models.evidence import DenseGradient as DenseGradient
    from melon.models.evidence import Evidence as Evidence
    from melon.models.evidence import Examples as Examples
    from melon.models.evidence import RowGradient as RowGradient
    from melon.models.ncf import NCF as NCF
    from melon.models.registry import RECOMMENDERS as RECOMMENDERS
    from melon.registry import Entry as Entry
    from melon.tables import TableSpec as TableSpec

_HOMES = {
    "BPR": "melon.models.bpr",
    "Context": "melon.models.base",
    "DenseGradient": "melon.models.evidence",
    "Entry": "melon.registry",
    "Evidence": "melon.models.evidence",
    "Examples": "melon.models.evidence",
    "NCF": "melon.models.ncf",
    "RECOMMENDERS": "melon.models.registry",
    "Recommender": "melon.models.base",
    "RecommenderSettings": "melon.models.base",
    "RowGradient": "melon.models.evidence",
    "TableSpec": "melon.tables",
    "TorchRecommender": "melon.models.autograd",
}
__all__ = [*_HOMES]  # noqa: PLE0604  (they are strings)
__getattr__, __dir__ = exported(
    __name__, _HOMES, torch=("melon.models.autograd", "melon.models.evidence", "melon.models.ncf")
)
