"""Update strategies: from the evidence of a batch to new values for the rows it touches.

The names below are what an author of a strategy needs; they are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from melon.errors import require_torch

if TYPE_CHECKING:
    from melon.registry import Entry, Space
    from melon.strategies.base import (
        LearningRates,
        Proposal,
        RowStateSpec,
        Situation,
        Strategy,
        StrategySettings,
    )
    from melon.strategies.learned import LearnedSettings, LearnedStrategy
    from melon.strategies.reductions import row_constant_rates
    from melon.strategies.registry import STRATEGIES, space_of
    from melon.tables import TableSpec

__all__ = [
    "STRATEGIES",
    "Entry",
    "LearnedSettings",
    "LearnedStrategy",
    "LearningRates",
    "Proposal",
    "RowStateSpec",
    "Situation",
    "Space",
    "Strategy",
    "StrategySettings",
    "TableSpec",
    "row_constant_rates",
    "space_of",
]

_HOMES = {
    "STRATEGIES": "melon.strategies.registry",
    "Entry": "melon.registry",
    "RowStateSpec": "melon.strategies.base",
    "LearnedSettings": "melon.strategies.learned",
    "LearnedStrategy": "melon.strategies.learned",
    "LearningRates": "melon.strategies.base",
    "Proposal": "melon.strategies.base",
    "Situation": "melon.strategies.base",
    "Space": "melon.registry",
    "Strategy": "melon.strategies.base",
    "StrategySettings": "melon.strategies.base",
    "TableSpec": "melon.tables",
    "row_constant_rates": "melon.strategies.reductions",
    "space_of": "melon.strategies.registry",
}


_TORCH = ("melon.strategies.learned", "melon.strategies.reductions")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        if _HOMES[name] in _TORCH:
            require_torch(f"melon.strategies.{name}")
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
