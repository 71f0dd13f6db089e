"""MeLON's default form: the plain step before meta-training, rates by what is known of rows."""

from typing import Any

import numpy as np
import pytest
import torch
from learned_scenes import recommender_of

from kernel_choice import choose_kernel
from melon.errors import CheckpointError, SettingsError
from melon.kernels.meta_training.forms import MOST_LOG_RATE
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.evidence import RowGradient
from melon.strategies.base import Strategy
from melon.strategies.default import Default
from melon.strategies.melon import strategy as network
from melon.strategies.melon.linear import MeLON, MeLONI, MeLONP
from melon.strategies.melon.rates import KNOTS, LinearRates, Roles
from melon.strategies.registry import MELON_PRESETS, STRATEGIES, space_of
from melon.strategies.stream_trained import LinearStrategy
from melon.tables import TableSpec
from melon.testing.toys import toy_batches
from situations import assert_close

SPECS = {
    "rows": TableSpec("rows", "user", "embedding", 3),
    "things": TableSpec("things", "item", "embedding", 3),
    "all": TableSpec("all", "shared", "weight", 3, rows=2),
}


def learned(strategy: Strategy, kind: str = "bpr", batches: int = 6, **settings: Any) -> Updater:
    updater = Updater(recommender_of(kind, **settings), strategy, seed=4)
    for batch in toy_batches()[:batches]:
        updater.learn(batch)
    return updater


def shaken(strategy: LinearStrategy) -> LinearStrategy:
    """Rates away from the plain step."""
    generator = torch.Generator().manual_seed(1)
    for name in ("rates", "splines"):
        phi = strategy.rates.phi[name]
        phi += 0.2 * strategy.trainable()[name] * torch.randn(phi.shape, generator=generator, dtype=torch.float64)
    strategy.rates.phi["decay"] += 0.4
    return strategy


class TestBeforeMetaTraining:
    @pytest.mark.parametrize("kind", ["bpr", "ncf"])
    @pytest.mark.parametrize("make", [MeLON, MeLONI, MeLONP])
    @pytest.mark.parametrize("settings", [{}, {"half_life": 30.0, "most_step": 0.2}])
    def test_it_is_the_plain_step(self, kind: str, make: type[LinearStrategy], settings: dict[str, Any]) -> None:
        ours = learned(make({"lr": 0.2, **settings}), kind, negatives=2)
        plain = learned(Default({"lr": 0.2, **settings}), kind, negatives=2)
        for name, table in ours.recommender.tables.items():
            assert_close(table.everything(), plain.recommender.tables[name].everything())

    def test_no_rate_can_be_larger_than_the_cap(self) -> None:
        with pytest.raises(SettingsError, match="lr = 25"):
            MeLON({"lr": 25.0})
        assert np.exp(MOST_LOG_RATE) > 20


class TestRates:
    def rates(self, inputs: Any = ("age", "loss")) -> LinearRates:
        return LinearRates(SPECS, Roles.apart(SPECS), inputs, lr=0.5)

    def test_roles_are_tables_and_the_parts_that_items_play(self) -> None:
        roles = Roles.apart(SPECS)
        assert (roles.of("rows", 1), roles.of("things", 3), roles.of("all", 1)) == ([0], [1, 2, 2], [3])
        assert roles.count == 4
        assert Roles.by_table(SPECS).of("things", 3) == [1, 1, 1]
        assert Roles.one(SPECS).of("things", 2) == [0, 0]

    def test_hats_bend_at_knots_and_are_flat_outside(self) -> None:
        rates = self.rates()
        rates.phi["splines"][0] = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0])
        losses = np.exp([KNOTS[0] - 3, KNOTS[0], (KNOTS[0] + KNOTS[1]) / 2, KNOTS[1], KNOTS[-1], KNOTS[-1] + 2])
        found = rates.rates(np.zeros((6, 1, 7)), torch.from_numpy(losses), [0])[:, 0]
        np.testing.assert_allclose(np.log(found.numpy() / 0.5), [1, 1, 0.5, 0, 2, 2], atol=1e-5)

    def test_a_rate_follows_its_inputs_up_to_the_cap(self) -> None:
        rates, columns = self.rates(), np.zeros((2, 1, 7))
        rates.phi["rates"][0, 1], columns[:, 0, 0] = 2.0, [0.5, 9.0]
        found = rates.rates(columns, torch.ones(2), [0])[:, 0]
        np.testing.assert_allclose(found, [0.5 * np.e, np.exp(3)])

    @pytest.mark.parametrize(("name", "bad"), [("decay", 6.0), ("decay", -0.1), ("rates", float("nan"))])
    def test_numbers_that_meta_training_cannot_give_are_refused(self, name: str, bad: float) -> None:
        rates = self.rates()
        phi = {**rates.phi, name: torch.full_like(rates.phi[name], bad)}
        with pytest.raises(
            CheckpointError, match=f"{name} of strategy 'melon' has numbers that meta-training cannot give"
        ):
            rates.take(phi, "melon")
        assert torch.isfinite(rates.phi[name]).all()

    def test_rates_of_another_shape_are_refused(self) -> None:
        strategy, other = learned(MeLON()).strategy, learned(MeLON(), "ncf").strategy
        with pytest.raises(CheckpointError, match=r"has learned: rates is torch.float64 of shape \(\d+, 8\) instead"):
            strategy.recall(other.memory())
        with pytest.raises(CheckpointError, match="rates is nothing"):
            strategy.recall({})


class TestForms:
    @pytest.mark.parametrize("name", ["melon", "melon_i", "melon_p"])
    def test_a_preset_chooses_the_form(self, name: str) -> None:
        entry = STRATEGIES[name]
        assert isinstance(entry.load()(entry.preset("default")), LinearStrategy)
        for preset in ("network", "paper", "code"):
            made = entry.load()(entry.preset(preset), seed=3)
            assert isinstance(made, network.RateStrategy)
            assert (made.name, made.seed) == (name, 3)
            assert "most_rate" in space_of(name, entry.preset(preset)).axes
        assert space_of(name).axes.keys() == {"lr", "half_life"}
        assert space_of(entry.load()) is space_of(name)

    def test_a_setting_of_the_other_form_says_how_to_get_there(self) -> None:
        with pytest.raises(SettingsError, match="most_rate is a setting of its network form; choose preset ="):
            MeLON({"most_rate": 0.6})

    def test_the_published_presets_name_their_form(self) -> None:
        assert all(MELON_PRESETS[name]["form"] == "network" for name in ("network", "paper", "code"))

    def test_inputs_are_a_list_of_words(self) -> None:
        assert MeLON({"inputs": "age, loss,age"}).settings.inputs == ("age", "loss")


@pytest.mark.parametrize("make", [MeLON, MeLONI, MeLONP])
@pytest.mark.parametrize("settings", [{}, {"half_life": 30.0}])
def test_compiled_steps_are_those_that_are_proposed(
    make: type[LinearStrategy], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {}
    for kernel in ("torch", "numba"):
        choose_kernel(monkeypatch, kernel)
        strategy = make({"lr": 0.1, **settings})
        updater = Updater(BPR({"dim": 4, "negatives": 3}, seed=3), strategy, seed=4)
        shaken(strategy).rates.phi["rates"][:, 4] = 3.0 * strategy.trainable()["rates"][:, 4]  # some reach the cap
        losses = [updater.learn(batch) for batch in toy_batches()[:6]]
        states = {key: state["recent"] for key, state in updater.row_state.items() if state}
        rows[kernel] = losses, {name: t.everything() for name, t in {**updater.recommender.tables, **states}.items()}
    np.testing.assert_allclose(rows["torch"][0], rows["numba"][0], rtol=1e-5)
    for name, values in rows["torch"][1].items():
        assert_close(rows["numba"][1][name], values, rtol=1e-4, atol=1e-5)


class TestOthersThatMetaTrain:
    """Their rates are special cases of MeLON's, and meta-training moves nothing else."""

    @pytest.mark.parametrize(("name", "by"), [("mwnet", "interaction"), ("metasgd", "table")])
    def test_a_preset_makes_them_special_cases(self, name: str, by: str) -> None:
        entry = STRATEGIES[name]
        strategy = entry.load()({**entry.preset("stream"), "lr": 0.1}, seed=3)
        assert isinstance(strategy, LinearStrategy)
        assert (strategy.name, strategy.seed) == (name, 3)
        assert not isinstance(entry.load()({}), LinearStrategy)
        assert space_of(name, entry.preset("stream")).axes.keys() == {"lr", "half_life"}
        updater, plain = learned(strategy), learned(Default({"lr": 0.1, "optimizer": "sgd", "reduction": "sum"}))
        for key, table in updater.recommender.tables.items():
            assert_close(table.everything(), plain.recommender.tables[key].everything())
        free = strategy.trainable()
        assert not free["decay"].any()
        assert not free["rates"][:, 1:].any()
        assert bool(free["splines"].any()) == (by == "interaction")
        for phi in ("rates", "splines"):
            strategy.rates.phi[phi] += free[phi] * torch.rand(free[phi].shape, dtype=torch.float64)
        rates = updater.learning_rates(toy_batches()[6]).rows
        constant, varied = (rates.T, rates) if by == "interaction" else (rates, rates.T)
        assert (constant == constant[:1]).all()
        assert not (varied == varied[:1]).all()


class TestMatrix:
    def test_it_is_two_dimensional_after_meta_training(self) -> None:
        updater = learned(shaken(learned(MeLON({"lr": 0.1})).strategy))  # type: ignore[arg-type]
        rates = updater.learning_rates(toy_batches()[6])
        assert np.linalg.matrix_rank(rates.rows.numpy(), tol=1e-6) > 1
        user = [place for place, (table, _) in enumerate(rates.slots) if table == "user_factors"]
        assert (rates.rows[:, user] == rates.rows[:, user[:1]]).all()

    @pytest.mark.parametrize("kind", ["bpr", "ncf"])
    @pytest.mark.parametrize("make", [MeLON, MeLONI, MeLONP])
    def test_it_explains_the_step_and_decay_the_rest(self, kind: str, make: type[LinearStrategy]) -> None:
        strategy = make({"lr": 0.1})
        updater = learned(strategy, kind, negatives=2)
        shaken(strategy)
        situation = updater.situation(toy_batches()[6])
        rates, new = strategy.learning_rates(situation), strategy.propose(situation).values
        for gradient in situation.evidence.gradients:
            old, grads = situation.values[gradient.table], gradient.expand()
            if gradient.table in rates.shared:
                move = (rates.shared[gradient.table].view_as(grads) * grads).sum(0)
                kept = torch.ones(())
            else:
                assert isinstance(gradient, RowGradient)
                own = [place for place, (table, _) in enumerate(rates.slots) if table == gradient.table]
                weighted = rates.rows[:, own].reshape(grads.shape) * grads
                move = RowGradient(gradient.table, gradient.positions, weighted).summed(len(old))
                kept = strategy.rates.kept(gradient.table)
            assert_close(new[gradient.table], old * kept.to(old) - move, rtol=1e-4, atol=1e-6)

    def test_the_clock_of_idle_rows_may_be_seconds(self) -> None:
        strategy = MeLON({"half_life": 1e5, "decay_clock": "seconds"})
        updater = learned(strategy)
        assert updater.moment(10**9).now == 10**9
        assert strategy.half_lives({}) == pytest.approx({"item_factors": 1e5, "item_bias": 1e5})

    def test_learned_half_lives_reach_the_tables(self) -> None:
        strategy = MeLON({"half_life": 100.0})
        updater = Updater(BPR({"dim": 3}), strategy)
        strategy.rates.phi["half_lives"][1] += 1
        found = updater.moment(0).half_lives
        assert found == pytest.approx({"item_factors": 100.0, "item_bias": 100 * np.e})


class TestWhatARateIsFor:
    """The registry, README and the docs say which form has a rate for what; these are the matrices."""

    def within_rows(self, updater: Updater) -> dict[tuple[str, int], float]:
        """The largest difference of rates within a row, by slot, relative to the mean."""
        rates = updater.learning_rates(toy_batches()[6])
        places: dict[tuple[str, int], list[int]] = {}
        for place, slot in enumerate(rates.slots):
            places.setdefault(slot, []).append(place)
        spread = {slot: rates.rows[:, columns] for slot, columns in places.items() if len(columns) > 1}
        return {slot: float((w.amax(1) - w.amin(1)).max() / w.mean()) for slot, w in spread.items()}

    def test_the_default_form_has_one_for_each_row(self) -> None:
        strategy = MeLON({"lr": 0.2})
        updater = learned(strategy)
        shaken(strategy)
        assert set(self.within_rows(updater).values()) == {0.0}
        between = updater.learning_rates(toy_batches()[6]).rows
        assert between.std(0).max() > 0
        assert between.std(1).max() > 0

    def test_the_papers_form_has_one_for_each_parameter(self) -> None:
        updater = learned(STRATEGIES["melon"].load()(MELON_PRESETS["paper"]))
        assert min(self.within_rows(updater).values()) > 0

    def test_the_registry_says_so(self) -> None:
        default, _, paper = STRATEGIES["melon"].summary.partition(";")
        assert "(interaction, row)" in default
        assert "parameter" not in default
        assert "(interaction, parameter)" in paper
        assert "preset paper" in paper
