"""Optional inputs of the rates: what they are, that they start without effect, and that their state is state."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learned_scenes import require_saved_goes_on, slow
from melon_scenes import FAMILY, KINDS, SMALL, look_ahead_of, past_and_batch, strategy_of, tables_of, updater_of

from melon.errors import CheckpointError, SettingsError
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.melon.inputs import HALF_LIVES, RECENT_WIDTH, RecentCounts
from melon.strategies.melon.settings import RateSettings
from melon.strategies.melon.strategy import NetworkMeLON
from melon.testing import SMALL_RECOMMENDERS, check_pairing
from melon.testing.pairing import state_of
from melon.testing.toys import toy_batch, toy_batches
from situations import equal, situation_of

EACH = ("touches", "idle", "item_rate", "role")
CHOICES = [*([each] for each in EACH), list(EACH)]
EVERY_CHOICE = pytest.mark.parametrize("inputs", CHOICES, ids="+".join)


def same_tables(one: Updater, other: Updater) -> bool:
    tables, others = tables_of(one), tables_of(other)
    return all(equal(values, others[name]) for name, values in tables.items())


class TestTheyStartWithoutEffect:
    @pytest.mark.parametrize("inputs", [*map(slow, CHOICES[:-1]), CHOICES[-1]], ids="+".join)
    @pytest.mark.parametrize("dtype", [slow(torch.float64), torch.float32])
    @pytest.mark.parametrize("name", FAMILY)
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_fresh_model_steps_as_one_without_them(
        self, kind: str, name: str, dtype: torch.dtype, inputs: list[str]
    ) -> None:
        past, batch = past_and_batch()
        found = []
        for chosen in ([], inputs):
            updater = updater_of(kind, strategy_of(name, inputs=chosen, meta_lr=0.0), past, dtype=dtype)
            updater.learn(batch)
            found.append(updater)
        assert same_tables(*found)

    @EVERY_CHOICE
    def test_then_they_are_learned(self, inputs: list[str]) -> None:
        past, batch = past_and_batch()
        strategy = strategy_of(inputs=inputs)
        updater = updater_of("bpr", strategy, past, noise=0.5)
        before = strategy.parameters()["role.inputs"].detach().clone()
        updater.learn(batch)
        assert (strategy.parameters()["role.inputs"] != before).any(0).all()

    @pytest.mark.parametrize("name", ["melon", "melon_p"])
    def test_everything_else_is_drawn_as_without_them(self, name: str) -> None:
        plain, told = strategy_of(name), strategy_of(name, inputs=list(EACH))
        for strategy in (plain, told):
            updater_of("bpr", strategy)
        for tensor, value in plain.parameters().items():
            assert equal(told.parameters()[tensor], value), tensor
        assert not told.parameters()["role.inputs"].any()

    def test_one_rate_per_interaction_has_no_role_to_tell_them(self) -> None:
        strategy = strategy_of("melon_i", inputs=list(EACH))
        updater = updater_of("bpr", strategy)
        assert "role.inputs" not in strategy.parameters()
        assert not any(updater.row_state.values())


class TestWhatTheyChange:
    """Each moves the rates of what it is about, and of nothing else."""

    def rates(self, inputs: list[str], column: int) -> dict[tuple[str, int], torch.Tensor]:
        """Rates by (table, slot) when one column of the inputs is given weight, less those without."""
        past, batch = past_and_batch()
        found = []
        for weight in (0.0, 3.0):
            strategy = strategy_of(inputs=inputs)
            updater = updater_of("bpr", strategy, past, noise=0.5)
            with torch.no_grad():
                strategy.parameters()["role.inputs"].zero_()[:, column] = weight
            rates = updater.learning_rates(batch)
            found.append(rates.rows)
        change = found[1] - found[0]
        return {
            place: change[:, [at for at, each in enumerate(rates.slots) if each == place]] for place in set(rates.slots)
        }

    @pytest.mark.parametrize(
        ("column", "moved"),
        [
            (0, [("user_factors", 0)]),
            (1, [("item_factors", 0), ("item_bias", 0)]),
            (2, [("item_factors", 1), ("item_bias", 1)]),
        ],
    )
    def test_a_role_is_one_of_three(self, column: int, moved: list[tuple[str, int]]) -> None:
        for place, change in self.rates(["role"], column).items():
            assert bool(change.any()) is (place in moved), place

    def test_touches_tell_nothing_of_a_row_that_is_touched_once(self) -> None:
        _, batch = past_and_batch()
        change = self.rates(["touches"], 0)["user_factors", 0]
        once = np.bincount(batch.users)[batch.users] == 1
        assert once.any()
        assert not change[once].any()
        assert change[~once].any()

    def test_idle_tells_nothing_of_a_newcomer(self) -> None:
        strategy = strategy_of(inputs=["idle"])
        updater = updater_of("bpr", strategy, toy_batches()[:4], noise=0.5)
        newcomer = updater.recommender.rows_of("user")
        with torch.no_grad():
            strategy.parameters()["role.inputs"].fill_(3.0)
        batch = toy_batch(updater.history.events, np.array([newcomer, 0]), np.array([0, 1]))
        told = updater.learning_rates(batch).rows
        with torch.no_grad():
            strategy.parameters()["role.inputs"].zero_()
        plain = updater.learning_rates(batch).rows
        width = updater.recommender.tables["user_factors"].spec.dim
        assert equal(told[0, :width], plain[0, :width])
        assert not equal(told[1, :width], plain[1, :width])


class TestRecentCounts:
    @given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=8), st.integers(0, 2**40))
    def test_they_are_those_of_a_slow_sum(self, runs: list[list[int]], start: int) -> None:
        kept, taken, now = torch.zeros(6, RECENT_WIDTH, dtype=torch.float64), [], start
        for run in runs:
            kept = RecentCounts(kept, now).after(torch.tensor(run))
            taken += [(now, item) for item in run]
            now += 97 * len(run)
        wanted = [
            [sum(2 ** (-(now - moment) / h) for moment, item in taken if item == row) for h in HALF_LIVES]
            for row in range(6)
        ]
        np.testing.assert_allclose(RecentCounts(kept, now).now(), wanted, rtol=1e-12, atol=1e-300)

    def test_a_late_moment_is_exact_in_float32(self) -> None:
        now = 3_000_000_019
        kept = RecentCounts(torch.zeros(2, RECENT_WIDTH), now).after(torch.tensor([1, 1, 1]))
        assert kept.dtype == torch.float32
        assert RecentCounts(kept, now).now().tolist() == [[0.0, 0.0], [3.0, 3.0]]
        np.testing.assert_allclose(RecentCounts(kept, now + 300).now()[1], [1.5, 3 * 2**-0.1], rtol=1e-12)

    def test_rows_that_nobody_takes_keep_their_bytes(self) -> None:
        kept = torch.rand(4, RECENT_WIDTH) / 1_000_000
        after = RecentCounts(kept, 1000).after(torch.tensor([2]))
        assert equal(after[[0, 1, 3]], kept[[0, 1, 3]])

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_stream_counts_what_is_taken_and_no_negative(self, kind: str) -> None:
        batches = toy_batches()[:5]
        updater = updater_of(kind, strategy_of(inputs=["item_rate"]), batches)
        items = updater.recommender.rows_of("item")
        table = next(state["recent"] for state in updater.row_state.values() if state)
        found = RecentCounts(table.gather(torch.arange(items)), updater.history.events).now()
        wanted = np.zeros((items, len(HALF_LIVES)))
        for batch in batches:
            age = updater.history.events - batch.first_event
            np.add.at(wanted, batch.items, 2.0 ** (-age / np.array(HALF_LIVES)))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)

    def test_the_look_ahead_counts_nothing(self) -> None:
        past, batch = past_and_batch()
        updater = updater_of("bpr", strategy_of(inputs=list(EACH)), past)
        table = next(state["recent"] for state in updater.row_state.values() if state)
        rows = torch.arange(table.rows)
        before = table.gather(rows)
        look_ahead_of(updater, batch)
        assert equal(table.gather(rows), before)

    def test_a_recommender_without_items_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="item_rate"):
            strategy_of(inputs=["item_rate"]).bind({}, np.dtype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_was_saved_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    *past, last = toy_batches()[:7]
    make: dict[str, Any] = {"bpr": partial(BPR, {"dim": 4}), "ncf": partial(NCF, {"dim": 3, "layers": (5, 4)})}
    updater = Updater(make[kind](), NetworkMeLON({"inputs": list(EACH)}))
    for batch in past:
        updater.learn(batch)
    assert any("recent" in name for name in require_saved_goes_on(updater, tmp_path, last))


def test_meta_training_takes_the_weights_along_but_not_the_counts() -> None:
    strategy = NetworkMeLON({"inputs": list(EACH)})
    stream_trained = Updater(BPR({"dim": 4}), strategy)
    for batch in toy_batches()[:5]:
        stream_trained.learn(batch)
    meta_training = stream_trained.meta_training()
    fresh = Updater(BPR({"dim": 4}), NetworkMeLON({"inputs": list(EACH)}))
    fresh.take_over(meta_training)
    assert equal(fresh.strategy.parameters()["role.inputs"], strategy.parameters()["role.inputs"])  # type: ignore[attr-defined]
    assert not any("recent" in name for name in meta_training)


@pytest.mark.parametrize("recommender", [slow("bpr"), slow("ncf"), slow("blend")])
def test_conformance(recommender: str) -> None:
    report = check_pairing(SMALL_RECOMMENDERS[recommender], partial(NetworkMeLON, {**SMALL, "inputs": list(EACH)}))
    assert report.applicable


class TestSettings:
    def parse(self, **values: Any) -> tuple[str, ...]:
        return RateSettings.parse(values, "strategy 'melon'").inputs

    def test_a_list_and_its_text_are_the_same(self) -> None:
        assert self.parse(inputs="idle, touches") == self.parse(inputs=["idle", "touches"]) == ("idle", "touches")
        assert self.parse(inputs="") == self.parse() == ()

    def test_an_input_counts_once_and_their_order_plays_no_part(self) -> None:
        assert self.parse(inputs=["idle", "idle"]) == ("idle",)
        ones = [strategy_of(inputs=chosen, meta_lr=0.05) for chosen in (["role", "touches"], ["touches", "role"])]
        past, _ = past_and_batch()
        assert same_tables(*(updater_of("bpr", strategy, past) for strategy in ones))

    def test_an_unknown_one_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=r"inputs.*'idle'"):
            self.parse(inputs=["idleness"])

    def test_a_meta_model_without_them_is_not_taken_for_one_with(self) -> None:
        past, _ = past_and_batch()
        plain = updater_of("bpr", strategy_of(), past).meta_training()
        with pytest.raises(CheckpointError, match=r"has no role\.inputs"):
            updater_of("bpr", strategy_of(inputs=["idle"])).take_over(plain)


def test_a_situation_can_be_looked_at_without_its_being_learned() -> None:
    past, batch = past_and_batch()
    updater = updater_of("bpr", strategy_of(inputs=list(EACH)), past)
    _, situation = situation_of(updater, batch)
    before = state_of(updater)
    updater.strategy.learning_rates(situation)
    updater.strategy.propose(situation)
    assert all(np.array_equal(before[name], after) for name, after in state_of(updater).items())
