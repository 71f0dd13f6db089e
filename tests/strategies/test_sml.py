"""SML (docs/methods.md 3.6): the transfer network, the merge, and the strategy around it."""

from dataclasses import replace
from functools import partial
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
    require_exact_half_lives,
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
from melon.testing import SMALL_RECOMMENDERS, check_pairing
from melon.testing.pairing import finite_after_many_batches
from melon.testing.toys import toy_batches
from situations import assert_close, equal, situation_of

#: A narrow network, so that a test is quick.
SMALL = {"width": 12}
FORMS: dict[str, dict[str, Any]] = {
    "bounded": {},
    "added": {"bounded": False},
    "plain": {"residual": False},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
OPTIONS: dict[str, dict[str, Any]] = {
    **FORMS,
    "adam": {"optimizer": "adam_lazy", "lr": 0.02},
    "adam, added": {"optimizer": "adam_lazy", "lr": 0.02, "bounded": False},
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

    @pytest.mark.parametrize("which", ["after", "before"])
    def test_pairs_of_channels_make_an_exact_identity(self, which: str) -> None:
        """act(z) − act(−z) = z, through all four layers."""
        dim, width = 7, 512
        transfer, parameters = transfer_of(dim, width=width, residual=False)
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
        with torch.no_grad():
            for value in parameters.tensors.values():
                value.zero_()
            parameters["table.1.weight"][:2, {"before": 0, "after": 1}[which]] = signs
            parameters["table.2.weight"][:2, :2] = torch.outer(signs, signs)
            first = parameters["table.3.weight"].view(width, 5, dim)
            last = parameters["table.4.weight"]
            for at in range(dim):
                first[2 * at : 2 * at + 2, :2, at] = torch.outer(signs, signs)
                last[at, 2 * at : 2 * at + 2] = signs
        before, after = draw(9, dim), draw(9, dim, seed=1)
        wanted = {"before": before, "after": after}[which]
        assert_close(transfer(before, after).detach(), wanted, rtol=0, atol=1e-15)

    def test_with_the_residual_it_starts_at_nothing(self) -> None:
        transfer, _ = transfer_of(6)
        assert not transfer(draw(5, 6), draw(5, 6, seed=1)).any()

    def test_rows_go_through_it_one_by_one(self) -> None:
        """Permuting rows permutes outputs."""
        transfer, _ = transfer_of(6, residual=False)
        before, after = draw(8, 6), draw(8, 6, seed=1)
        order = torch.randperm(8, generator=torch.Generator().manual_seed(2))
        whole = transfer(before, after)
        assert_close(transfer(before[order], after[order]), whole[order], rtol=1e-13, atol=1e-14)
        assert_close(transfer(before[3:4], after[3:4]), whole[3:4], rtol=1e-13, atol=1e-14)

    def test_entries_share_their_filters(self) -> None:
        """The filters see one entry of the three rows; only the layers after them mix entries."""
        transfer, parameters = transfer_of(4, residual=False)
        assert parameters["table.1.weight"].shape == (10, 3)
        assert parameters["table.2.weight"].shape == (5, 10)
        assert transfer(draw(0, 4), draw(0, 4)).shape == (0, 4)

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

    @pytest.mark.slow
    @pytest.mark.parametrize("option", OPTIONS)
    def test_it_is_that_of_central_differences_entry_by_entry(self, kind: str, option: str) -> None:
        found = worst_error(*scene(kind, OPTIONS[option]), entries=5)
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

    @pytest.mark.parametrize("option", ["bounded", "plain", slow("added"), slow("adam")])
    def test_half_lives_are_learned_by_the_same_gradient(self, kind: str, option: str) -> None:
        require_exact_half_lives(*scene(kind, {**OPTIONS[option], "half_life": 30.0, "half_life_speed": 5.0}))

    @pytest.mark.parametrize("option", ["bounded", "plain", "adam"])
    def test_rows_out_of_reach_are_dropped_exactly(self, kind: str, option: str) -> None:
        require_exact_reach(*scene(kind, OPTIONS[option]))

    @pytest.mark.parametrize("option", ["bounded", "adam", "plain"])
    def test_rows_that_the_last_interactions_do_not_touch_stay(self, kind: str, option: str) -> None:
        """Under Adam too, whose moments would move them."""
        strategy, situation, _ = scene(kind, OPTIONS[option])
        ahead = strategy.look_ahead(situation)
        untouched = 0
        for gradient in situation.evidence.row_gradients:
            table, reached = gradient.table, situation.reached(gradient.table)
            idle = gradient.touches(len(situation.values[table]))[:reached] == 0
            untouched += int(idle.sum())
            assert equal(ahead[table][idle], situation.values[table][:reached][idle])
        assert untouched


@EVERY_KIND
class TestStep:
    @pytest.mark.parametrize("bounded", [True, slow(False)])
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
        self, kind: str, ours: dict[str, Any], plain: dict[str, Any], bounded: bool
    ) -> None:
        """With the residual the strategy starts as Default with the same optimiser."""
        merging = Updater(recommender_of(kind), made(**ours, bounded=bounded, meta_lr=0.0), seed=7)
        default = Updater(recommender_of(kind), Default(plain), seed=7)
        for batch in toy_batches()[:6]:
            merging.learn(batch)
            default.learn(batch)
        for table, values in tables_of(default).items():
            assert_close(tables_of(merging)[table], values, rtol=1e-12, atol=1e-15, msg=table)

    def test_it_leaves_default_as_it_learns(self, kind: str) -> None:
        merging = Updater(recommender_of(kind), made(lr=0.2), seed=7)
        default = Updater(recommender_of(kind), Default({"lr": 0.2}), seed=7)
        for batch in toy_batches()[:6]:
            merging.learn(batch)
            default.learn(batch)
        for table in EMBEDDINGS[kind]:
            assert not equal(tables_of(merging)[table], tables_of(default)[table])

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
                new = {"bounded": new + (new - old) * said.tanh(), "added": new + said, "plain": said}[form]
            assert_close(values, new, rtol=1e-11, atol=1e-13, msg=table)

    @pytest.mark.parametrize("side", ["user", "item"])
    def test_each_table_has_a_network_of_its_own(self, kind: str, side: str) -> None:
        """The rows of users never pass through a network of items, nor the other way round."""
        past, batch = past_and_batch()
        strategy = made()
        updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=0.3)
        situation = situation_of(updater, batch)[1]
        before = strategy.propose(situation).values
        assert list(strategy._transfers) == EMBEDDINGS[kind]
        with torch.no_grad():
            for name, value in strategy.parameters().items():
                if name.startswith(side):
                    value.add_(1.0)
        for table, values in strategy.propose(situation).values.items():
            moved = table in EMBEDDINGS[kind] and table.startswith(side)
            assert equal(values, before[table]) != moved, table

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

    def test_the_provisional_rows_stay_if_asked(self, kind: str) -> None:
        past, batch = past_and_batch()
        plain, keeping = (updater_of(kind, made(keep_prelim=keep), past[:3], noise=0.5) for keep in (False, True))
        for updater in (plain, keeping):
            updater.learn(batch)
        assert [t for t, values in tables_of(keeping).items() if not equal(values, tables_of(plain)[t])]
        assert finite(keeping)


@EVERY_KIND
class TestRates:
    """The effective rates: −Δ_m / Σ_x g_{x,m}."""

    def rates(self, kind: str, **settings: Any) -> tuple[Updater, Situation, LearningRates]:
        past, batch = past_and_batch()
        updater = updater_of(kind, made(**settings), past, noise=0.5, phi_noise=0.3)
        return updater, situation_of(updater, batch)[1], updater.learning_rates(batch)

    @pytest.mark.parametrize("option", ["bounded", "added", "plain", "adam", "row mean"])
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

    def test_two_interactions_of_one_user_show_the_same(self, kind: str) -> None:
        _, situation, rates = self.rates(kind)
        users, compared = situation.examples.users, 0
        columns = [at for at, (table, _) in enumerate(rates.slots) if table.startswith("user")]
        for user in torch.unique(users):
            mine = rates.rows[users == user][:, columns]
            compared += len(mine) > 1
            assert equal(mine, mine[:1].expand_as(mine))
        assert compared

    def test_they_start_as_the_rate_of_fine_tuning(self, kind: str) -> None:
        past, batch = past_and_batch()
        updater = updater_of(kind, made(meta_lr=0.0), past, noise=0.5)
        rates = updater.learning_rates(batch).rows
        there = rates != 0
        assert_close(rates[there], torch.full_like(rates[there], 0.3), rtol=1e-9, atol=0)
        assert there.float().mean() > 0.5


@pytest.mark.parametrize("recommender", ["bpr", slow("ncf"), slow("blend")])
@pytest.mark.parametrize("option", ["plain", slow("added"), slow("adam")])
def test_other_settings_conform_too(recommender: str, option: str) -> None:
    exempt = {
        finite_after_many_batches.__name__: "checked by a slow test",
        "learning_rates_explain_the_update": "T moves entries whose gradients add up to 0",
    }
    made_so = partial(SML, {**SMALL, "meta_lr": 1e-4, **OPTIONS[option]})
    check_pairing(SMALL_RECOMMENDERS[recommender], made_so, family="parameter", exempt=exempt)


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

    def test_steps_of_the_optimiser_start_afresh_after_meta_training(self) -> None:
        """Its moments do, so what counts with them does too."""
        updater = updater_of("bpr", made(optimizer="adam_lazy", lr=0.01), past_and_batch()[0])
        meta_training = updater.meta_training()
        assert int(meta_training["steps"]) == 6
        fresh = updater_of("bpr", made(optimizer="adam_lazy", lr=0.01))
        fresh.take_over(meta_training)
        assert int(fresh.strategy.memory()["steps"]) == 0
        assert equal(fresh.strategy.memory()["phi/item_factors.4.bias"], meta_training["phi/item_factors.4.bias"])


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


@pytest.mark.slow
@EVERY_KIND
def test_many_batches_stay_finite(kind: str) -> None:
    updater = updater_of(kind, SML({}), dtype=np.float32)
    batches = toy_batches()
    for number in range(300):
        batch = batches[number % len(batches)]
        updater.learn(replace(batch, first_event=number * len(batch)))
    assert finite(updater)
