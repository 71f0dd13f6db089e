"""A learned strategy is bound to tables; it moves between recommenders with the same ones, and to no other."""

import pytest
from learned_scenes import recommender_of

from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.strategies.melon.lines import LineBook
from melon.strategies.registry import STRATEGIES
from melon.testing.toys import toy_batches


@pytest.mark.parametrize(("name", "form"), [("melon", None), ("melon", "network"), ("metasgd", None), ("sml", None)])
def test_a_strategy_that_was_bound_refuses_other_tables(name: str, form: str | None) -> None:
    strategy = STRATEGIES[name].load()({} if form is None else {"form": form})
    Updater(recommender_of("bpr"), strategy)
    Updater(recommender_of("bpr"), strategy)
    with pytest.raises(SettingsError, match="make a new one for this recommender"):
        Updater(recommender_of("bpr", dim=7), strategy)
    with pytest.raises(SettingsError, match="make a new one for this recommender"):
        Updater(recommender_of("ncf"), strategy)


def test_lines_of_gradients_that_are_gone_are_not_mistaken_for_those_of_others() -> None:
    updater = Updater(recommender_of("bpr"), STRATEGIES["default"].load()({}))
    for batch in toy_batches()[:3]:
        updater.learn(batch)
    situation = updater.situation(toy_batches()[3])
    gradient = next(each for each in situation.evidence.gradients if each.table == "item_factors")
    book = LineBook(situation, pairwise=False, aggregated=False)
    for shift in range(20):  # a position tensor that is freed leaves its address to the next one
        moved = type(gradient)(gradient.table, (gradient.positions + shift) % 4, gradient.gradient)
        assert book.of(moved).lines.row.tolist() == moved.positions.reshape(-1).tolist()
        del moved
