"""The rate model: the plain step before meta-training, a rate for every (interaction, parameter) pair after it."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learned_scenes import recommender_of

from melon.data.files import load_stream
from melon.data.synthetic import synthetic_stream
from melon.errors import CheckpointError, SettingsError
from melon.kernels.melon.rates import MOST_LOG_RATE, UNITS
from melon.learning.meta_training.loop import meta_train_through, meta_training_candidates
from melon.learning.rate_matrix import batch_rates, describe_rates, variation_within_rows
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.evidence import RowGradient
from melon.strategies.base import Strategy
from melon.strategies.default import Default
from melon.strategies.melon.published import PublishedStrategy
from melon.strategies.melon.rates import INPUTS, KNOTS, RateParameters, Roles
from melon.strategies.melon.stream import MeLON, MeLONI, MeLONP
from melon.strategies.melon.touch_rates import TouchRates
from melon.strategies.registry import STRATEGIES, space_of
from melon.strategies.stream_trained import StreamTrainedStrategy
from melon.stream.batch import batch_of
from melon.stream.split import batches
from melon.tables import TableSpec
from melon.testing import toy_batches

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
SPECS = {
    "rows": TableSpec("rows", "user", "embedding", 3),
    "things": TableSpec("things", "item", "embedding", 3),
    "all": TableSpec("all", "shared", "weight", 3, rows=2),
}


def learned(strategy: Strategy, kind: str = "bpr", dtype: Any = np.float32, **settings: Any) -> Updater:
    updater = Updater(recommender_of(kind, dtype, **settings), strategy, seed=4)
    for batch in toy_batches()[:6]:
        updater.learn(batch)
    return updater


def shaken(strategy: StreamTrainedStrategy) -> StreamTrainedStrategy:
    """Rates away from the plain step."""
    generator, rates = np.random.default_rng(1), strategy.rates
    phi = {name: value.copy() for name, value in rates.phi.items()}
    for name in ("facts", "splines", "alpha", "beta", "hidden", "out"):
        phi[name] += 0.2 * rates.free[name] * generator.normal(size=phi[name].shape)
    rates.phi = {**phi, "decay": phi["decay"] + 0.4}
    return strategy


def everything(updater: Updater) -> dict[str, Any]:
    return {name: np.asarray(table.everything()) for name, table in updater.recommender.tables.items()}


class TestBeforeMetaTraining:
    @pytest.mark.parametrize("kind", ["bpr", "ncf"])
    @pytest.mark.parametrize("make", [MeLON, MeLONI, MeLONP])
    @pytest.mark.parametrize("settings", [{}, {"half_life": 30.0, "most_step": 0.2}])
    def test_it_is_the_plain_step(self, kind: str, make: type[StreamTrainedStrategy], settings: dict[str, Any]) -> None:
        ours = everything(learned(make({"lr": 0.2, **settings}), kind, negatives=2))
        plain = everything(learned(Default({"lr": 0.2, **settings}), kind, negatives=2))
        for name, rows in ours.items():
            np.testing.assert_allclose(rows, plain[name], rtol=1e-5, atol=1e-6)

    def test_no_rate_can_be_larger_than_the_cap(self) -> None:
        with pytest.raises(SettingsError, match="lr = 25"):
            MeLON({"lr": 25.0})
        assert np.exp(MOST_LOG_RATE) > 20


class TestRates:
    def rates(self, inputs: Any = ("age", "loss")) -> RateParameters:
        return RateParameters(SPECS, Roles.apart(SPECS), inputs, lr=0.5)

    def found(self, rates: RateParameters, columns: Any, losses: Any) -> Any:
        phi = {name: torch.from_numpy(value) for name, value in rates.phi.items()}
        return TouchRates(rates, phi, torch.as_tensor(losses), {"rows": columns}).plain("rows")[:, 0].numpy()

    def test_roles_are_tables_and_the_parts_that_items_play(self) -> None:
        roles = Roles.apart(SPECS)
        assert (roles.of("rows", 1), roles.of("things", 3), roles.of("all", 1)) == ([0], [1, 2, 2], [3])
        assert roles.count == 4
        assert Roles.by_table(SPECS).of("things", 3) == [1, 1, 1]
        assert Roles.one(SPECS).of("things", 2) == [0, 0]

    def test_splines_bend_at_knots_and_are_flat_outside(self) -> None:
        rates = self.rates()
        rates.phi["splines"][0] = [1.0, 0.0, 0.0, 0.0, 2.0]
        losses = np.exp([KNOTS[0] - 3, KNOTS[0], (KNOTS[0] + KNOTS[1]) / 2, KNOTS[1], KNOTS[-1], KNOTS[-1] + 2])
        found = self.found(rates, np.zeros((6, 1, 7)), losses)
        np.testing.assert_allclose(np.log(found / 0.5), [1, 1, 0.5, 0, 2, 2], atol=1e-5)

    def test_a_rate_follows_its_facts_up_to_the_cap(self) -> None:
        rates, columns = self.rates(), np.zeros((2, 1, 7))
        rates.phi["facts"][0, 1], columns[:, 0, 0] = 2.0, [0.5, 9.0]
        np.testing.assert_allclose(self.found(rates, columns, np.ones(2)), [0.5 * np.e, np.exp(3)])

    def test_a_role_has_a_network_only_where_the_score_is_factorised(self) -> None:
        assert not self.rates().has_role
        assert self.rates(INPUTS).has_role
        assert self.rates(INPUTS).phi["out"].size == 0
        free = self.rates(INPUTS).free
        assert free["alpha"].tolist() == [[True] * 3] * 3 + [[False, True, True]], "of a shared weight, no product"
        strategy = learned(MeLON()).strategy
        assert isinstance(strategy, MeLON)
        assert strategy.rates.phi["out"].shape == (strategy.rates.roles.count, UNITS)
        assert not strategy.rates.knows_roles  # which begins without effect

    @pytest.mark.parametrize(
        ("name", "bad"), [("decay", 6.0), ("decay", -0.1), ("facts", float("nan")), ("scales", 0.0)]
    )
    def test_numbers_that_meta_training_cannot_give_are_refused(self, name: str, bad: float) -> None:
        rates = self.rates()
        phi = {**rates.phi, name: np.full_like(rates.phi[name], bad)}
        with pytest.raises(
            CheckpointError, match=f"{name} of strategy 'melon' has numbers that meta-training cannot give"
        ):
            rates.take(phi, "melon")
        assert np.isfinite(rates.phi[name]).all()

    def test_rates_of_another_shape_are_refused(self) -> None:
        strategy, other = learned(MeLON()).strategy, learned(MeLON(), "ncf").strategy
        with pytest.raises(CheckpointError, match=r"has learned: facts is float64 of shape \(\d+, 8\) instead"):
            strategy.recall(other.memory())
        with pytest.raises(CheckpointError, match="facts is nothing"):
            strategy.recall({})


class TestForms:
    @pytest.mark.parametrize("name", ["melon", "melon_i", "melon_p"])
    def test_a_preset_chooses_the_form(self, name: str) -> None:
        entry = STRATEGIES[name]
        assert isinstance(entry.make(entry.preset("default")), StreamTrainedStrategy)
        for preset in ("paper", "code"):
            made = entry.make(entry.preset(preset), seed=3)
            assert isinstance(made, PublishedStrategy)
            assert (made.name, made.seed) == (name, 3)
        assert space_of(name).axes.keys() == {"lr", "half_life"}
        assert space_of(entry.load()) is space_of(name)

    def test_a_setting_of_the_other_form_says_how_to_get_there(self) -> None:
        with pytest.raises(SettingsError, match="role_width is a setting of its published form; choose preset = paper"):
            MeLON({"role_width": 6})

    def test_inputs_are_a_list_of_words(self) -> None:
        assert MeLON({"inputs": "age, loss,age"}).settings.inputs == ("age", "loss")


@pytest.mark.parametrize("make", [MeLON, MeLONI, MeLONP])
@pytest.mark.parametrize("settings", [{}, {"half_life": 30.0}])
def test_compiled_steps_are_those_that_are_proposed(
    make: type[StreamTrainedStrategy], settings: dict[str, Any]
) -> None:
    """A bound on steps that binds nowhere sends every batch through `propose`."""
    rows = []
    for more in ({}, {"most_step": 1e6}):
        strategy = make({"lr": 0.1, **settings, **more})
        updater = Updater(BPR({"dim": 4, "negatives": 3}, seed=3), strategy, seed=4)
        shaken(strategy)
        strategy.rates.phi["facts"][:, 4] = 3.0 * strategy.rates.free["facts"][:, 4]  # some reach the cap
        losses = [updater.learn(batch) for batch in toy_batches()[:6]]
        recent = updater.row_state["item_factors"]["recent"].everything()
        rows.append({**everything(updater), "recent": np.asarray(recent), "losses": np.array(losses)})
    for name, values in rows[0].items():
        np.testing.assert_allclose(rows[1][name], values, rtol=1e-4, atol=1e-5)


class TestOthersThatMetaTrain:
    """Their rates are restrictions of the same model, and meta-training moves nothing else."""

    @pytest.mark.parametrize(("name", "by"), [("mwnet", "interaction"), ("metasgd", "table")])
    def test_a_preset_makes_them_restrictions(self, name: str, by: str) -> None:
        entry = STRATEGIES[name]
        strategy = entry.make({**entry.preset("stream"), "lr": 0.1}, seed=3)
        assert isinstance(strategy, StreamTrainedStrategy)
        assert (strategy.name, strategy.seed) == (name, 3)
        assert not isinstance(entry.make({}), StreamTrainedStrategy)
        assert space_of(name, entry.preset("stream")).axes.keys() == {"lr", "half_life"}
        updater, plain = learned(strategy), learned(Default({"lr": 0.1, "optimizer": "sgd", "reduction": "sum"}))
        for key, rows in everything(updater).items():
            np.testing.assert_allclose(rows, everything(plain)[key], rtol=1e-5, atol=1e-6)
        free = strategy.rates.free
        assert not any(free[part].any() for part in ("decay", "alpha", "beta", "hidden", "out"))
        assert not free["facts"][:, 1:].any()
        assert bool(free["splines"].any()) == (by == "interaction")
        for part in ("facts", "splines"):
            strategy.rates.phi[part] += free[part] * np.random.default_rng(2).random(free[part].shape)
        rates = np.asarray(updater.learning_rates(toy_batches()[6]).rows)
        constant, varied = (rates.T, rates) if by == "interaction" else (rates, rates.T)
        assert (constant == constant[:1]).all()
        assert not (varied == varied[:1]).all()


class TestMatrix:
    @pytest.mark.parametrize("kind", ["bpr", "ncf"])
    @pytest.mark.parametrize("make", [MeLON, MeLONI, MeLONP])
    def test_it_explains_the_step_and_decay_the_rest(self, kind: str, make: type[StreamTrainedStrategy]) -> None:
        strategy = make({"lr": 0.1})
        updater = learned(strategy, kind, negatives=2)
        shaken(strategy)
        situation = updater.situation(toy_batches()[6])
        rates, new = strategy.learning_rates(situation), strategy.propose(situation).values
        for gradient in situation.evidence.gradients:
            old, grads, kept = situation.values[gradient.table], gradient.expand(), 1.0
            if gradient.table in rates.shared:
                move = (rates.shared[gradient.table].view_as(grads) * grads).sum(0)
            else:
                assert isinstance(gradient, RowGradient)
                own = [place for place, (table, _) in enumerate(rates.slots) if table == gradient.table]
                weighted = rates.rows[:, own].reshape(grads.shape) * grads
                move = RowGradient(gradient.table, gradient.positions, weighted).summed(len(old))
                kept = strategy.rates.kept(gradient.table)
            torch.testing.assert_close(new[gradient.table], old * kept - move, rtol=1e-4, atol=1e-5)

    def test_learned_half_lives_reach_the_tables(self) -> None:
        strategy = MeLON({"half_life": 100.0})
        updater = Updater(BPR({"dim": 3}), strategy)
        strategy.rates.phi["half_lives"][1] += 1
        found = updater.moment().half_lives
        assert found == pytest.approx({"item_factors": 100.0, "item_bias": 100 * np.e})


class TestWhatARateIsFor:
    """The registry, README and the docs say what has a rate of its own; these are the matrices."""

    def rates(self, strategy: StreamTrainedStrategy) -> tuple[Any, Any]:
        updater = learned(strategy)
        shaken(strategy)
        rates = updater.learning_rates(toy_batches()[6])
        return np.asarray(rates.rows), np.array([table for table, _ in rates.slots])

    def test_melon_has_one_for_every_pair(self) -> None:
        rates, tables = self.rates(MeLON({"lr": 0.2}))
        own = rates[:, tables == "user_factors"]
        assert (own.std(1) > 0.01 * own.mean(1)).all()  # within a row
        assert (own.std(0) > 0.01 * own.mean(0)).all()  # from interaction to interaction

    def test_melon_i_has_one_for_every_interaction(self) -> None:
        rates, _ = self.rates(MeLONI({"lr": 0.2}))
        np.testing.assert_allclose(rates, np.repeat(rates[:, :1], rates.shape[1], 1), rtol=1e-6)
        assert rates[:, 0].std() > 0

    def test_melon_p_has_one_for_every_parameter(self) -> None:
        """Whichever interaction touches a row finds the same rates there."""
        strategy = MeLONP({"lr": 0.2})
        updater = learned(strategy, negatives=3)
        shaken(strategy)
        situation = updater.situation(toy_batches()[6])
        matrix = strategy.learning_rates(situation)
        rows = np.asarray(matrix.rows)[:, [table == "item_factors" for table, _ in matrix.slots]]
        items = situation.examples.items.numpy()
        by_row: dict[int, Any] = {}
        for line, named in enumerate(items):
            for own, row in zip(rows[line].reshape(len(named), -1), named, strict=True):
                np.testing.assert_allclose(by_row.setdefault(int(row), own), own, rtol=1e-5)
        assert len(by_row) < items.size  # some were touched twice

    @pytest.mark.parametrize(("name", "past", "stop"), [("drift", 1_500, 2_750), ("amazon_grocery", 9_000, 11_000)])
    def test_meta_training_gives_a_matrix_of_high_rank(self, name: str, past: int, stop: int) -> None:
        """On a made-up stream and on a recorded one: rates vary within rows, and no few patterns make up the matrix."""
        if name == "drift":
            log = synthetic_stream(name, n_users=60, n_items=120, n_events=3_000, seed=1)
        elif (DATA / f"{name}.parquet").exists():
            log = load_stream(DATA / f"{name}.parquet").head(stop + 250)
        else:
            pytest.skip(f"{name} is not in {DATA}; point MELON_DATA at the folder with the real streams")
        strategy = MeLON({"lr": 0.3, "passes": 40})
        updater = Updater(BPR({"dim": 32}, seed=1), strategy, seed=1)
        for bounds in batches(0, past, 250):
            updater.learn(batch_of(log, *bounds))
        coming = [batch_of(log, *bounds) for bounds in batches(past, stop, 250)]
        trained = meta_train_through(updater, coming, meta_training_candidates(log, 1, 50))
        assert trained.losses[-1] < trained.losses[0]
        updater = Updater(BPR({"dim": 32}, seed=1), strategy, seed=1)
        for bounds in batches(0, stop, 250):
            updater.learn(batch_of(log, *bounds))
        cells = batch_rates(updater, batch_of(log, stop, stop + 250), stop, "").rows
        assert describe_rates(cells).rank >= 20
        assert min(variation_within_rows(cells).values()) > 0.02
