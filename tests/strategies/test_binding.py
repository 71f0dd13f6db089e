"""A learned strategy is bound to tables; it moves between recommenders with the same ones, and to no other."""

import pytest
from learned_scenes import recommender_of

from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.strategies.registry import STRATEGIES


@pytest.mark.parametrize(("name", "form"), [("melon", None), ("melon", "paper"), ("metasgd", None), ("sml", None)])
def test_a_strategy_that_was_bound_refuses_other_tables(name: str, form: str | None) -> None:
    strategy = STRATEGIES[name].make({} if form is None else {"form": form})
    Updater(recommender_of("bpr"), strategy)
    Updater(recommender_of("bpr"), strategy)
    with pytest.raises(SettingsError, match="make a new one for this recommender"):
        Updater(recommender_of("bpr", dim=7), strategy)
    with pytest.raises(SettingsError, match="make a new one for this recommender"):
        Updater(recommender_of("ncf"), strategy)
