"""SML (docs/methods.md 3.6): the transfer network, the merge, and the strategy around it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learned_battery import EVERY_KIND, OddInput, OwnRecommender, State
from learned_scenes import (
    RELATIVE,
    finite,
    look_ahead_of,
    past_and_batch,
    recommender_of,
    require_exact_reach,
    require_others_untouched,
    slow,
    tables_of,
    updater_of,
    worst_error,
)
from torch import Tensor

from melon.errors import CheckpointError, SettingsError
from melon.learning.updater import Updater
from melon.strategies.base import LearningRates, Situation
from melon.strategies.default import Default
from melon.strategies.learned import MetaLoss
from melon.strategies.parameters import Parameters
from melon.strategies.reductions import reduced_gradients
from melon.strategies.registry import STRATEGIES
from melon.strategies.sml import SML, SMLSettings, Transfer
from melon.testing import toy_batches
from situations import assert_close, situation_of

#: A narrow network, so that a test is quick.
SMALL = {"width": 12}
FORMS: dict[str, dict[str, Any]] = {
    "bounded": {},
    "plain": {"residual": False},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
OPTIONS: dict[str, dict[str, Any]] = {
    **FORMS,
    "adam": {"optimizer": "adam_lazy", "lr": 0.02},
    "decay of rows": {"weight_decay": 0.1},
    "row mean": {"reduction": "row_mean", "shared_reduction": "sum"},
    "batch mean": {"reduction": "mean", "shared_reduction": "mean", "lr": 3.0},
    "paper": {**STRATEGIES["sml"].presets["paper"], **SMALL},
    "own pairs of the cold": {"cold": "current"},
}
EMBEDDINGS = {"bpr": ["user_factors", "item_factors"], "ncf": ["user_gmf", "item_gmf", "user_mlp", "item_mlp"]}


def made(**settings: Any) -> SML:
    return SML({**SMALL, **settings}, seed=5)


def scene(kind: str, settings: dict[str, Any], **more: Any) -> tuple[SML, Situation, MetaLoss]:
    past, batch = past_and_batch()
    strategy = made(**settings)
    updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=0.3, **more)
    return strategy, *look_ahead_of(updater, batch)


def transfer_of(dim: int, **settings: Any) -> tuple[Transfer, Parameters]:
    parameters = Parameters(3, torch.float64, "xavier")
    return Transfer("table", dim, SMLSettings(**settings), parameters), parameters


def draw(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestTransfer:
    """T itself, on rows alone."""

    def test_it_is_as_large_as_published(self) -> None:
        _, parameters = transfer_of(64)
        assert sum(value.numel() for value in parameters.tensors.values()) == 197_279

    def test_it_is_the_published_network(self) -> None:
        """Row by row, with torch's own convolutions and a channel-major flattening."""
        dim, width = 6, 20
        transfer, parameters = transfer_of(dim, width=width, residual=False)
        before, after = draw(5, dim), draw(5, dim, seed=1)
        found = transfer(before, after)

        def act(z: Tensor) -> Tensor:
            return z * torch.sigmoid(1.702 * z)

        layers = [(parameters[f"table.{at}.weight"], parameters[f"table.{at}.bias"].squeeze(0)) for at in (1, 2, 3, 4)]
        for row in range(5):
            common = before[row] * after[row] / before[row].norm()
            image = torch.stack([before[row], after[row], common])[None, None]  # 1 × 1 × 3 × d
            hidden = act(torch.conv2d(image, layers[0][0].view(10, 1, 3, 1), layers[0][1]))
            hidden = act(torch.conv2d(hidden, layers[1][0].view(5, 10, 1, 1), layers[1][1]))
            hidden = act(layers[2][0] @ hidden.flatten() + layers[2][1])
            wanted = layers[3][0] @ hidden + layers[3][1]
            assert_close(found[row], wanted, rtol=1e-12, atol=1e-14)

    def test_with_the_residual_it_starts_at_nothing(self) -> None:
        transfer, _ = transfer_of(6)
        assert not transfer(draw(5, 6), draw(5, 6, seed=1)).any()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_row_of_zeros_is_finite_and_so_is_its_slope(self, dtype: torch.dtype) -> None:
        """A row of zeros gives finite output."""
        parameters = Parameters(3, dtype, "xavier")
        transfer = Transfer("table", 4, SMLSettings(residual=False), parameters)
        merged = transfer(torch.zeros(2, 4, dtype=dtype), torch.ones(2, 4, dtype=dtype))
        assert torch.isfinite(merged).all()
        slopes = torch.autograd.grad(merged.sum(), list(parameters.tensors.values()))
        assert all(torch.isfinite(slope).all() for slope in slopes)


@EVERY_KIND
class TestMetaGradient:
    """The meta-gradient equals finite differences on every tensor."""

    @pytest.mark.parametrize("option", OPTIONS)
    def test_it_is_that_of_central_differences(self, kind: str, option: str) -> None:
        found = worst_error(*scene(kind, OPTIONS[option]))
        assert max(found.values()) < RELATIVE, found

    @pytest.mark.parametrize("loss", [slow("squared"), "bce"])
    @EVERY_FORM
    def test_with_another_loss(self, kind: str, form: str, loss: str) -> None:
        found = worst_error(*scene(kind, {**FORMS[form], "lr": 0.01}, loss=loss))
        assert max(found.values()) < RELATIVE, found

    @EVERY_FORM
    def test_every_tensor_learns(self, kind: str, form: str) -> None:
        """Where T adds the same to all items of the scene, a pairwise loss does not see it."""
        strategy, situation, meta_loss = scene(kind, FORMS[form])
        gradients, _ = strategy.meta_gradient(situation, meta_loss)
        assert len(gradients) == 8 * len(EMBEDDINGS[kind])
        for tensor, gradient in gradients.items():
            unseen = form != "bounded" and tensor.startswith("item") and tensor.endswith("4.bias")
            assert unseen or gradient.abs().max() > 1e-9, tensor

    @pytest.mark.parametrize("option", ["bounded", "plain", "adam"])
    def test_rows_out_of_reach_are_dropped_exactly(self, kind: str, option: str) -> None:
        require_exact_reach(*scene(kind, OPTIONS[option]))


@EVERY_KIND
class TestStep:
    @pytest.mark.parametrize(
        ("ours", "plain"),
        [
            ({"lr": 0.2}, {"lr": 0.2}),
            ({"lr": 2.0, "reduction": "mean"}, {"lr": 2.0, "reduction": "mean"}),
            ({"lr": 0.2, "shared_reduction": "sum"}, {"lr": 0.2, "shared_reduction": "sum"}),
            ({"lr": 0.02, "optimizer": "adam_lazy"}, {"lr": 0.02, "optimizer": "adam_lazy"}),
            ({"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.1, "weight_decay": 0.1}),
        ],
        ids=["sum", "mean", "shared sum", "adam", "decay"],
    )
    def test_it_starts_as_default_with_the_same_optimiser(
        self, kind: str, ours: dict[str, Any], plain: dict[str, Any]
    ) -> None:
        """With the residual the strategy starts as Default with the same optimiser."""
        merging = Updater(recommender_of(kind), made(**ours, meta_lr=0.0), seed=7)
        default = Updater(recommender_of(kind), Default(plain), seed=7)
        for batch in toy_batches()[:6]:
            merging.learn(batch)
            default.learn(batch)
        for table, values in tables_of(default).items():
            assert_close(tables_of(merging)[table], values, rtol=1e-12, atol=1e-15, msg=table)

    @EVERY_FORM
    def test_touched_embeddings_are_merged_and_all_else_is_fine_tuned(self, kind: str, form: str) -> None:
        past, batch = past_and_batch()
        strategy = made(**FORMS[form])
        updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=0.3)
        situation = situation_of(updater, batch)[1]
        plain = Default({"lr": 0.3}).propose(situation).values
        for table, values in strategy.propose(situation).values.items():
            old, new = situation.values[table], plain[table]
            if table in EMBEDDINGS[kind]:
                said = strategy._transfers[table](old, new).detach()
                new = {"bounded": new + (new - old) * said.tanh(), "plain": said}[form]
            assert_close(values, new, rtol=1e-11, atol=1e-13, msg=table)

    @EVERY_FORM
    def test_other_rows_keep_their_bytes(self, kind: str, form: str) -> None:
        """T(θ, θ) is not θ, and a row that nobody touches must not go through it."""
        past, batch = past_and_batch()
        updater = updater_of(kind, made(**FORMS[form]), past, noise=0.5, phi_noise=0.3)
        require_others_untouched(updater, batch)

    def test_a_bounded_merge_is_a_step_of_no_more_than_twice_the_rate(self, kind: str) -> None:
        past, batch = past_and_batch()
        strategy = made()
        updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=30.0)
        situation = situation_of(updater, batch)[1]
        plain, merged = Default({"lr": 0.3}).propose(situation).values, strategy.propose(situation).values
        for table in EMBEDDINGS[kind]:
            step, plain_step = merged[table] - situation.values[table], plain[table] - situation.values[table]
            assert (step.abs() <= 2 * plain_step.abs() + 1e-12).all()
            assert (step * plain_step >= -1e-12).all()


@EVERY_KIND
class TestRates:
    """The effective rates: −Δ_m / Σ_x g_{x,m}."""

    def rates(self, kind: str, **settings: Any) -> tuple[Updater, Situation, LearningRates]:
        past, batch = past_and_batch()
        updater = updater_of(kind, made(**settings), past, noise=0.5, phi_noise=0.3)
        return updater, situation_of(updater, batch)[1], updater.learning_rates(batch)

    @pytest.mark.parametrize("option", ["bounded", "plain", "adam", "row mean"])
    def test_they_explain_the_step_wherever_there_is_a_gradient(self, kind: str, option: str) -> None:
        updater, situation, rates = self.rates(kind, **OPTIONS[option])
        proposed, at, compared = updater.strategy.propose(situation).values, 0, 0
        assert torch.isfinite(rates.rows).all()
        totals = reduced_gradients(situation, "sum")
        for gradient in situation.evidence.row_gradients:
            n, slots, dim = gradient.gradient.shape
            block = rates.rows[:, at : at + slots * dim].reshape(n, slots, dim)
            at += slots * dim
            old = situation.values[gradient.table]
            step = replace(gradient, gradient=block * gradient.gradient).summed(len(old))
            there = totals[gradient.table] != 0
            compared += int(there.sum())
            moved = (old - proposed[gradient.table])[there]
            assert_close(moved, step[there], rtol=1e-9, atol=1e-12)
            assert not block[~there[gradient.positions]].any()
        for wide in situation.evidence.shared_gradients:
            old = situation.values[wide.table]
            step = (rates.shared[wide.table] * wide.expand().flatten(1)).sum(0).view_as(old)
            there = totals[wide.table] != 0
            assert_close((old - proposed[wide.table])[there], step[there], rtol=1e-9, atol=1e-12)
        assert compared > 50


@pytest.mark.parametrize("preset", STRATEGIES["sml"].presets)
@EVERY_KIND
def test_presets_learn(kind: str, preset: str) -> None:
    settings = STRATEGIES["sml"].presets[preset]
    updater = updater_of(kind, STRATEGIES["sml"].make(settings), toy_batches()[:8], dtype=np.float32)
    assert finite(updater)
    assert updater.moved > 0


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"optimizer": "adam_dense"}, "optimizer"),
            ({"lr": 0}, "lr"),
            ({"width": 0}, "width"),
            ({"reduction": "sqrt"}, "reduction"),
            ({"loss": "bce"}, "loss"),
        ],
    )
    def test_what_will_not_do_is_told(self, settings: dict[str, Any], told: str) -> None:
        with pytest.raises(SettingsError, match=told):
            SML(settings)

    def test_the_memory_of_another_width_is_refused(self) -> None:
        one, other = made(), made(width=13)
        for strategy in (one, other):
            updater_of("bpr", strategy)
        with pytest.raises(CheckpointError, match=r"has user_factors.3.weight as \(12, 20\) instead of \(13, 20\)"):
            other.recall(one.memory())


class Battery:
    @pytest.fixture(autouse=True, params=["bounded", slow("plain"), slow("adam")])
    def option(self, request: pytest.FixtureRequest) -> None:
        self.settings = {"meta_lr": 1e-4, **OPTIONS[request.param]}

    def made(self, **settings: Any) -> SML:
        return made(**{**self.settings, **settings})


class TestOddInput(Battery, OddInput):
    pass


class TestState(Battery, State):
    pass


class TestOwnRecommender(Battery, OwnRecommender):
    pass
