"""MWNet (docs/methods.md 3.3): its six tests, its virtual and real step, and what any learned strategy must bear."""

from typing import Any

import numpy as np
import pytest
import torch
from learned_battery import EVERY_KIND, OddInput, OwnRecommender, State
from learned_scenes import (
    RELATIVE,
    look_ahead_of,
    past_and_batch,
    recommender_of,
    require_exact_reach,
    tables_of,
    updater_of,
    worst_error,
)

from melon.errors import CheckpointError, SettingsError
from melon.learning.updater import Updater
from melon.strategies.base import Situation
from melon.strategies.default import Default
from melon.strategies.learned import MetaLoss
from melon.strategies.mwnet import MWNet
from melon.strategies.registry import STRATEGIES
from melon.testing import toy_batches
from situations import assert_close, equal, situation_of

SMALL = {"hidden": 7, "init": "drawn", "lr": 0.1}
PAPER = STRATEGIES["mwnet"].preset("paper")

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "literal weights": {"most_weight": 1.0},
    "normalised": {"normalise": True},
    "mean": {"reduction": "mean", "lr": 3.0},
    "shared sum": {"shared_reduction": "sum", "lr": 0.03},
    "its own virtual step": {"virtual_lr": 5.0, "virtual_reduction": "mean"},
    "beside adam": {"optimizer": "adam_lazy", "lr": 0.01},
    "beside dense adam": {"optimizer": "adam_dense", "lr": 0.01},
    "paper": {**PAPER, "hidden": 7, "virtual_lr": 1.0},
    "cold ones stand for themselves": {"cold": "current"},
}


def made(**settings: Any) -> MWNet:
    return MWNet({**SMALL, **settings}, seed=5)


def scene(kind: str, settings: dict[str, Any], **more: Any) -> tuple[MWNet, Situation, MetaLoss, Updater]:
    past, batch = past_and_batch()
    strategy = made(**settings)
    updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=0.4, **more)
    return strategy, *look_ahead_of(updater, batch), updater


def fix_weight(strategy: MWNet, weight: float) -> None:
    """V ≡ weight."""
    ratio = weight / strategy.settings.most_weight
    with torch.no_grad():
        strategy.parameters()["out.weight"].zero_()
        strategy.parameters()["out.bias"].fill_(float(np.log(ratio / (1 - ratio))))


@EVERY_KIND
class TestConstantWeights:
    """With V ≡ k it is Default with lr·k."""

    @pytest.mark.parametrize("reduction", ["sum", "mean"])
    @pytest.mark.parametrize("weight", [0.3, 1.0, 1.7])
    def test_sgd_is_default_with_a_scaled_rate(self, kind: str, weight: float, reduction: str) -> None:
        strategy = made(lr=0.2, reduction=reduction, shared_reduction=reduction, meta_lr=0.0)
        ours = Updater(recommender_of(kind), strategy, seed=7)
        fix_weight(strategy, weight)
        plain = Default({"lr": 0.2 * weight, "reduction": reduction, "shared_reduction": reduction})
        default = Updater(recommender_of(kind), plain, seed=7)
        for batch in toy_batches()[:6]:
            assert ours.learn(batch) == pytest.approx(default.learn(batch), rel=1e-12)
        for table, values in tables_of(default).items():
            assert_close(tables_of(ours)[table], values, rtol=1e-11, atol=1e-14, msg=table)

    @pytest.mark.parametrize("optimizer", ["sgd", "adam_lazy", "adam_dense"])
    def test_it_starts_as_default_to_the_bit(self, kind: str, optimizer: str) -> None:
        shared = {"optimizer": optimizer, "lr": 0.02, "weight_decay": 0.01}
        ours = Updater(recommender_of(kind), MWNet({**shared, "meta_lr": 0.0}), seed=7)
        default = Updater(recommender_of(kind), Default(shared), seed=7)
        for batch in toy_batches()[:6]:
            ours.learn(batch)
            default.learn(batch)
        for table, values in tables_of(default).items():
            assert equal(tables_of(ours)[table], values), table


@EVERY_KIND
class TestMetaGradient:
    """The dot-product meta-gradient equals automatic differentiation and central differences."""

    @pytest.mark.parametrize("option", OPTIONS)
    def test_it_is_that_of_central_differences(self, kind: str, option: str) -> None:
        strategy, situation, meta_loss, _ = scene(kind, OPTIONS[option])
        found = worst_error(strategy, situation, meta_loss)
        assert set(found) == {"hidden.weight", "hidden.bias", "out.weight", "out.bias"}
        assert max(found.values()) < RELATIVE, found

    @pytest.mark.parametrize("recommender", [{"loss": "squared"}, {"negatives": 3}], ids=["squared loss", "negatives"])
    def test_with_another_loss_or_more_negatives(self, kind: str, recommender: dict[str, Any]) -> None:
        strategy, situation, meta_loss, _ = scene(kind, {"lr": 0.005}, **recommender)
        found = worst_error(strategy, situation, meta_loss)
        assert max(found.values()) < RELATIVE, found

    @pytest.mark.parametrize("option", ["default", "normalised", "mean"])
    def test_rows_out_of_reach_are_dropped_exactly(self, kind: str, option: str) -> None:
        strategy, situation, meta_loss, _ = scene(kind, OPTIONS[option])
        assert all(len(v) == situation.reached(t) for t, v in strategy.look_ahead(situation).items())
        require_exact_reach(strategy, situation, meta_loss)


def test_the_virtual_step_is_the_real_one_unless_said_otherwise() -> None:
    _, situation, _, _ = scene("ncf", {})
    n = len(situation.examples)

    def rates(**settings: Any) -> tuple[float, float]:
        strategy = MWNet(settings)
        return strategy._virtual_rate(situation, "user_gmf"), strategy._virtual_rate(situation, "layer_1")

    assert rates(lr=0.2) == (0.2, 0.2 / n)
    assert rates(lr=4.0, reduction="mean") == (4.0 / n, 4.0 / n)
    assert rates(lr=0.2, shared_reduction="sum") == (0.2, 0.2)
    assert rates(lr=0.001, optimizer="adam_lazy", reduction="mean") == (0.3, 0.3 / n)
    assert rates(lr=0.2, virtual_lr=0.7, virtual_reduction="mean") == (0.7 / n, 0.7 / n)
    assert rates(lr=0.2, virtual_lr=0.7) == (0.7, 0.7 / n)


@EVERY_KIND
class TestWeights:
    @pytest.mark.parametrize("most", [1.0, 2.0])
    def test_they_lie_between_nothing_and_the_most(self, kind: str, most: float) -> None:
        """0 < a_x < most_weight."""
        strategy, situation, _, _ = scene(kind, {"most_weight": most})
        weights = strategy.weights(situation).detach()
        assert ((weights > 0) & (weights < most)).all()
        assert weights.max() - weights.min() > 0.01

    def test_normalised_they_are_one_on_average(self, kind: str) -> None:
        strategy, situation, _, _ = scene(kind, {"normalise": True})
        assert float(strategy.weights(situation).detach().mean()) == pytest.approx(1.0, rel=1e-12)

    def test_normalised_they_are_finite_even_where_all_vanish(self, kind: str) -> None:
        strategy, situation, _, _ = scene(kind, {"normalise": True})
        with torch.no_grad():
            strategy.parameters()["out.bias"].fill_(-1e4)
        assert torch.isfinite(strategy.weights(situation)).all()

    @pytest.mark.parametrize("reduction", ["sum", "mean"])
    def test_the_matrix_is_constant_along_an_interaction(self, kind: str, reduction: str) -> None:
        """W_{x,m} = η a_x, of rank 1."""
        strategy, _, _, updater = scene(kind, {"reduction": reduction, "shared_reduction": reduction})
        _, batch = past_and_batch()
        situation = situation_of(updater, batch)[1]
        rates = strategy.learning_rates(situation)
        scale = 0.1 if reduction == "sum" else 0.1 / len(batch)
        wanted = scale * strategy.weights(situation).detach()
        for block in (rates.rows, *rates.shared.values()):
            assert_close(block, wanted[:, None].expand_as(block), rtol=1e-12, atol=0)
            assert int(torch.linalg.matrix_rank(block, rtol=1e-10)) == 1
        assert set(rates.shared) == {name for name, spec in situation.specs.items() if spec.role == "shared"}
        assert len(torch.unique(rates.rows[:, 0])) > 1


class TestOptimizers:
    def test_steps_are_counted_when_they_are_kept_and_remembered(self) -> None:
        strategy = made(optimizer="adam_lazy", lr=0.01)
        updater = updater_of("bpr", strategy, toy_batches()[:4])
        assert int(strategy.memory()["steps"]) == 4
        updater.learning_rates(toy_batches()[4])
        assert int(strategy.memory()["steps"]) == 4
        other = made(optimizer="adam_lazy", lr=0.01)
        updater_of("bpr", other)
        other.recall(strategy.memory())
        assert int(other.memory()["steps"]) == 4

    def test_on_a_new_stream_moments_and_their_count_begin_anew(self) -> None:
        """φ goes along from meta-training, the state of Adam on the rows does not, so neither does its step count."""
        stream_trained = updater_of("bpr", made(optimizer="adam_lazy", lr=0.01), toy_batches()[:4])
        strategy = made(optimizer="adam_lazy", lr=0.01)
        updater = updater_of("bpr", strategy)
        updater.take_over(stream_trained.meta_training())
        memory, before = strategy.memory(), stream_trained.strategy.memory()
        assert int(memory["steps"]) == 0
        assert int(memory["adam/steps"]) == 3  # nobody had a past in the first batch
        assert all(equal(memory[name], before[name]) for name in memory if name.startswith("phi/"))

    def test_a_memory_without_a_step_count_is_refused(self) -> None:
        strategy = made()
        updater_of("bpr", strategy, toy_batches()[:2])
        memory = {name: tensor for name, tensor in strategy.memory().items() if name != "steps"}
        with pytest.raises(CheckpointError, match="how many steps"):
            strategy.recall(memory)

    @EVERY_KIND
    def test_the_paper_preset_runs(self, kind: str) -> None:
        updater = updater_of(kind, MWNet(PAPER), toy_batches()[:6], dtype=np.float32)
        assert updater.strategy.dense
        assert all(torch.isfinite(table).all() for table in tables_of(updater).values())


@pytest.mark.parametrize(
    "settings",
    [{"hidden": 0}, {"most_weight": 0.0}, {"virtual_lr": 0.0}, {"virtual_reduction": "max"}, {"init": "odd"}, {"w": 1}],
)
def test_settings_that_will_not_do_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="strategy 'mwnet'"):
        MWNet(settings)


class TestOddInput(OddInput):
    def made(self, **settings: Any) -> MWNet:
        return MWNet({"lr": 0.1, **settings}, seed=5)


class TestAUsersOwnRecommender(OwnRecommender):
    def made(self, **settings: Any) -> MWNet:
        return made(**settings)


class TestState(State):
    def made(self, **settings: Any) -> MWNet:
        return made(**settings)
