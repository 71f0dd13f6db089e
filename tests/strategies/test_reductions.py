"""The setting `reduction`: one vocabulary for all strategies."""

from typing import get_args

from melon.strategies.base import Reduction
from melon.strategies.registry import STRATEGIES


def test_every_strategy_takes_its_values_from_one_list() -> None:
    for entry in STRATEGIES:
        fields = entry.load().settings_type.model_fields
        assert not [name for name in fields if "aggregat" in name], entry.name
        for name in ("reduction", "shared_reduction"):
            if name in fields:
                assert set(get_args(fields[name].annotation)) <= set(get_args(Reduction)), (entry.name, name)
