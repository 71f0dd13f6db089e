"""Update strategies: from the evidence of a batch to new values for the rows it touches.

The names below are what an author of a strategy needs; they are imported when they are first used.
"""

from typing import TYPE_CHECKING

from melon.registry import exported

if TYPE_CHECKING:
    from melon.registry import Entry as Entry
    from melon.registry import Space as Space
    from melon.strategies.base import LearningRates as LearningRates
    from melon.strategies.base import Proposal as Proposal
    from melon.strategies.base import RowStateSpec as RowStateSpec
    from melon.strategies.base import Situation as Situation
    from melon.strategies.base import Strategy as Strategy
    from melon.strategies.base import StrategySettings as StrategySettings
    from melon.strategies.learned import LearnedSettings as LearnedSettings
    from melon.strategies.learned import LearnedStrategy as LearnedStrategy
    from melon.strategies.reductions import row_constant_rates as row_constant_rates
    from melon.strategies.registry import STRATEGIES as STRATEGIES
    from melon.strategies.registry import space_of as space_of
    from melon.tables import TableSpec as TableSpec

_HOMES = {
    "Entry": "melon.registry",
    "LearnedSettings": "melon.strategies.learned",
    "LearnedStrategy": "melon.strategies.learned",
    "LearningRates": "melon.strategies.base",
    "Proposal": "melon.strategies.base",
    "RowStateSpec": "melon.strategies.base",
    "STRATEGIES": "melon.strategies.registry",
    "Situation": "melon.strategies.base",
    "Space": "melon.registry",
    "Strategy": "melon.strategies.base",
    "StrategySettings": "melon.strategies.base",
    "TableSpec": "melon.tables",
    "row_constant_rates": "melon.strategies.reductions",
    "space_of": "melon.strategies.registry",
}
__all__ = [*_HOMES]  # noqa: PLE0604  (they are strings)
__getattr__, __dir__ = exported(__name__, _HOMES, torch=("melon.strategies.learned", "melon.strategies.reductions"))
