"""MWNet (docs/methods.md 3.3): its six tests, its virtual and real step, and what any learned strategy must bear."""

from dataclasses import replace
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
    require_exact_half_lives,
    require_exact_reach,
    tables_of,
    updater_of,
    worst_error,
)
from torch import Tensor

from melon.errors import CheckpointError, SettingsError
from melon.learning.step import Offered
from melon.learning.updater import Updater
from melon.strategies.base import Situation
from melon.strategies.default import Default
from melon.strategies.learned import LearnedStrategy, MetaLoss
from melon.strategies.mwnet import MWNet
from melon.strategies.registry import STRATEGIES
from melon.testing import toy_batch, toy_batches
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

    @pytest.mark.parametrize("weight", [0.3, 1.7])
    def test_normalised_a_constant_is_nothing(self, kind: str, weight: float) -> None:
        strategy = made(lr=0.2, normalise=True, meta_lr=0.0)
        ours = Updater(recommender_of(kind), strategy, seed=7)
        fix_weight(strategy, weight)
        default = Updater(recommender_of(kind), Default({"lr": 0.2}), seed=7)
        for batch in toy_batches()[:6]:
            ours.learn(batch)
            default.learn(batch)
        for table, values in tables_of(default).items():
            assert_close(tables_of(ours)[table], values, rtol=1e-11, atol=1e-14, msg=table)


@EVERY_KIND
class TestMetaGradient:
    """The dot-product meta-gradient equals automatic differentiation and central differences."""

    @pytest.mark.parametrize("option", OPTIONS)
    def test_it_is_that_of_central_differences(self, kind: str, option: str) -> None:
        strategy, situation, meta_loss, _ = scene(kind, OPTIONS[option])
        found = worst_error(strategy, situation, meta_loss)
        assert set(found) == {"hidden.weight", "hidden.bias", "out.weight", "out.bias"}
        assert max(found.values()) < RELATIVE, found

    @pytest.mark.parametrize("option", OPTIONS)
    def test_the_dot_product_is_autograds(self, kind: str, option: str) -> None:
        strategy, situation, meta_loss, _ = scene(kind, OPTIONS[option])
        ours, loss = strategy.meta_gradient(situation, meta_loss)
        twin, loss_too = LearnedStrategy.meta_gradient(strategy, situation, meta_loss)
        assert ours.keys() == twin.keys()
        for name, gradient in twin.items():
            assert gradient.abs().max() > 1e-8, name  # otherwise nothing is compared
            assert_close(ours[name], gradient, rtol=1e-9, atol=1e-15, msg=name)
        assert float(loss) == pytest.approx(float(loss_too), rel=1e-13)

    @pytest.mark.parametrize("option", ["default", "normalised", "literal weights", "its own virtual step"])
    def test_it_is_that_of_the_published_way(self, kind: str, option: str) -> None:
        """A step on the weighted loss of the whole model with `create_graph`, and back through it."""
        strategy, situation, meta_loss, updater = scene(kind, OPTIONS[option])
        free = {name: value.clone().requires_grad_() for name, value in situation.values.items()}
        losses = updater.recommender.differentiable().losses(free, situation.examples)
        objective = (strategy.weights(situation) * losses).sum()
        slopes = torch.autograd.grad(objective, list(free.values()), create_graph=True, allow_unused=True)
        stepped = {}
        for (name, value), slope in zip(free.items(), slopes, strict=True):
            rate = strategy._virtual_rate(situation, name)
            stepped[name] = value if slope is None else value - rate * slope
        wanted = torch.autograd.grad(meta_loss(stepped), list(strategy.parameters().values()))
        ours, _ = strategy.meta_gradient(situation, meta_loss)
        for (name, gradient), slow in zip(ours.items(), wanted, strict=True):
            assert_close(gradient, slow, rtol=1e-8, atol=1e-14, msg=name)

    def test_half_lives_are_learned_by_the_same_gradient(self, kind: str) -> None:
        strategy, situation, meta_loss, _ = scene(kind, {"half_life": 30.0, "half_life_speed": 5.0})
        require_exact_half_lives(strategy, situation, meta_loss)

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

    def test_a_larger_virtual_step_is_a_larger_signal(self, kind: str) -> None:
        """3.3, pitfall a: the published step leaves almost nothing; the default one is a step per interaction."""
        sizes = {}
        for name, settings in {"published": dict(PAPER), "ours": {}}.items():
            _, situation, meta_loss, _ = scene(kind, {})
            strategy = MWNet({**settings, "hidden": 7, "init": "drawn"}, seed=5)
            strategy.bind(situation.specs, np.dtype(np.float64))
            gradients, _ = strategy.meta_gradient(situation, meta_loss)
            sizes[name] = max(float(gradient.abs().max()) for gradient in gradients.values())
        assert sizes["published"] < 1e-4
        assert sizes["ours"] > 300 * sizes["published"]


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


class TestNothingInCommon:
    """Where the last interactions share no row with the batch, the meta-gradient is exactly 0."""

    def gradients(self, kind: str, last: Offered) -> dict[str, Tensor]:
        updater = updater_of(kind, made(), toy_batches(), noise=0.5)
        users, items = np.array([0, 1, 2]), np.array([[0, 1], [2, 3], [4, 5]])
        seen: list[dict[str, Tensor]] = []
        plain = updater.strategy.adapt  # type: ignore[attr-defined]

        def spy(gradients: dict[str, Tensor], situation: Situation) -> Situation:
            seen.append(gradients)
            return plain(gradients, situation)  # type: ignore[no-any-return]

        updater.strategy.adapt = spy  # type: ignore[attr-defined]
        updater.step(Offered(users, items), last, toy_batch(400, users, items[:, 0]))
        return seen[0]

    def test_the_meta_gradient_is_exactly_zero(self) -> None:
        apart = Offered(np.array([5, 6]), np.array([[10, 11], [12, 13]]))
        assert all(not gradient.any() for gradient in self.gradients("bpr", apart).values())
        one_item = Offered(np.array([5, 6]), np.array([[10, 11], [12, 5]]))
        assert all(gradient.any() for gradient in self.gradients("bpr", one_item).values())

    def test_shared_weights_are_always_in_common(self) -> None:
        apart = Offered(np.array([5, 6]), np.array([[10, 11], [12, 13]]))
        assert all(gradient.any() for gradient in self.gradients("ncf", apart).values())


@EVERY_KIND
class TestWeights:
    @pytest.mark.parametrize("most", [1.0, 2.0])
    def test_they_lie_between_nothing_and_the_most(self, kind: str, most: float) -> None:
        """0 < a_x < most_weight."""
        strategy, situation, _, _ = scene(kind, {"most_weight": most})
        weights = strategy.weights(situation).detach()
        assert ((weights > 0) & (weights < most)).all()
        assert weights.max() - weights.min() > 0.01

    def test_equal_losses_have_equal_weights(self, kind: str) -> None:
        """Equal losses have equal weights."""
        strategy, situation, _, _ = scene(kind, {})
        losses = situation.evidence.losses.clone()
        losses[1::2] = losses[0]
        weights = strategy.weights(replace(situation, evidence=replace(situation.evidence, losses=losses))).detach()
        assert len(torch.unique(weights[1::2])) == 1
        assert weights[1] == weights[0]
        assert len(torch.unique(weights)) > 2

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
    def test_only_adam_keeps_something_for_each_row(self) -> None:
        assert not updater_of("bpr", made()).row_state["item_bias"]
        kept = updater_of("bpr", made(optimizer="adam_lazy"), toy_batches()[:2]).row_state["item_bias"]
        assert set(kept) == {"moment_1", "moment_2"}
        assert made(optimizer="adam_dense").dense
        assert not made().dense

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


@pytest.mark.slow
class TestOddInputWithAdam(OddInput):
    def made(self, **settings: Any) -> MWNet:
        return MWNet({"optimizer": "adam_lazy", "lr": 0.01, "normalise": True, **settings}, seed=5)


class TestAUsersOwnRecommender(OwnRecommender):
    def made(self, **settings: Any) -> MWNet:
        return made(**settings)


class TestState(State):
    def made(self, **settings: Any) -> MWNet:
        return made(**settings)


@pytest.mark.slow
class TestStateWithAdam(State):
    def made(self, **settings: Any) -> MWNet:
        return made(optimizer="adam_lazy", **settings)
