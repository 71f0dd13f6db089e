"""S2Meta (docs/methods.md 3.5): the cell, the gates, and the step."""

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
    require_exact_reach,
    require_others_untouched,
    slow,
    tables_of,
    updater_of,
    worst_error,
)
from torch import Tensor

from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.strategies.base import LearningRates, Situation
from melon.strategies.default import Default
from melon.strategies.learned import MetaLoss
from melon.strategies.parameters import preprocess
from melon.strategies.registry import S2META_PRESETS, STRATEGIES
from melon.strategies.s2meta import S2Meta, lstm_step
from melon.testing import toy_batch, toy_batches
from situations import assert_close, situation_of

#: Few units, so that a test sees every entry.
SMALL = {"width": 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {**S2META_PRESETS["paper"], **SMALL},
    "row mean": {"reduction": "row_mean", "shared_reduction": "sum"},
    "batch mean": {"reduction": "mean", "shared_reduction": "mean"},
    "shared forgetting": {"shared_forgetting": True, "shared_scale": 1.0},
    "no forgetting": {"forgetting": False},
    "clamped": {"clamp": 0.2},
    "own pairs of the cold": {"cold": "current"},
}


def made(**settings: Any) -> S2Meta:
    return S2Meta({**SMALL, **settings}, seed=5)


def scene(kind: str, settings: dict[str, Any], **more: Any) -> tuple[S2Meta, Situation, MetaLoss]:
    """A look-ahead in which every tensor has a say: rows and meta-parameters are shaken."""
    past, batch = past_and_batch()
    strategy = made(**settings)
    updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=0.4, **more)
    return strategy, *look_ahead_of(updater, batch)


def constant_gates(strategy: S2Meta, rate: float, keep_logit: float = 40.0) -> None:
    """Make every i the same number and every f σ(keep_logit)."""
    ratio = rate / strategy.settings.most_rate
    with torch.no_grad():
        for name, value in strategy.parameters().items():
            if name.endswith("gate.bias"):
                value.copy_(torch.tensor([[np.log(ratio / (1 - ratio))], [keep_logit]], dtype=value.dtype))
            elif "gate." in name:
                value.zero_()


class TestCell:
    """The cell beside PyTorch's own."""

    UNITS, INPUTS = 5, 4

    def given(self, scalars: int) -> list[Tensor]:
        """Features, weights, bias, and the cell state before."""
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        sizes = ((self.INPUTS, scalars), (4 * self.UNITS, self.INPUTS), (4 * self.UNITS,), (self.UNITS,))
        return [draw(*size).requires_grad_() for size in sizes]

    @pytest.mark.parametrize("scalars", [0, 1, 50])
    def test_it_is_the_cell_of_pytorch(self, scalars: int) -> None:
        """`torch.lstm_cell` has the candidate in the third place."""
        features, weights, bias, start = self.given(scalars)
        hidden = lstm_step(features, weights, bias, start)
        order = [*range(2 * self.UNITS), *range(3 * self.UNITS, 4 * self.UNITS), *range(2 * self.UNITS, 3 * self.UNITS)]
        before = start.expand(scalars, -1)
        nothing = torch.zeros_like(before), torch.zeros(4 * self.UNITS, self.UNITS, dtype=torch.float64)
        wanted, _ = torch.lstm_cell(
            features.T, (nothing[0], before), weights[order], nothing[1], bias[order], torch.zeros_like(bias)
        )
        assert_close(hidden, wanted.T, rtol=1e-12, atol=1e-13)

    def test_what_it_sees_of_a_number(self) -> None:
        """pre(v) (methods 4.5) has the values that were computed by hand."""
        for value, wanted in ((1e-3, (-0.6908, 1.0)), (-1e-6, (-1.0, -0.0220)), (0.0, (-1.0, 0.0))):
            found = [float(part) for part in preprocess(torch.tensor(value, dtype=torch.float64), 1e-20)]
            assert found == pytest.approx(wanted, abs=5e-5)


#: Every option on BPR; on NCF, which has many more networks, those that treat its shared weights differently.
BOTH = [("bpr", option) for option in OPTIONS] + [("ncf", "default"), slow("ncf", "paper")]


class TestMetaGradient:
    """The meta-gradient equals finite differences."""

    @pytest.mark.parametrize(("kind", "option"), BOTH)
    def test_it_is_that_of_central_differences(self, kind: str, option: str) -> None:
        found = worst_error(*scene(kind, OPTIONS[option]))
        assert max(found.values()) < RELATIVE, found

    @pytest.mark.parametrize("recommender", [{"loss": "squared"}, {"negatives": 3}], ids=["squared loss", "negatives"])
    @EVERY_KIND
    def test_with_another_loss_or_more_negatives(self, kind: str, recommender: dict[str, Any]) -> None:
        found = worst_error(*scene(kind, {"most_rate": 0.02}, **recommender))
        assert max(found.values()) < RELATIVE, found

    @EVERY_KIND
    def test_every_tensor_learns(self, kind: str) -> None:
        """Otherwise a comparison with differences compares nothing. A user's bias has no part in a pairwise loss."""
        strategy, situation, meta_loss = scene(kind, {})
        gradients, _ = strategy.meta_gradient(situation, meta_loss)
        for tensor, gradient in gradients.items():
            if not tensor.startswith("user_bias."):
                assert gradient.abs().max() > 1e-9, tensor

    @EVERY_KIND
    def test_rows_out_of_reach_are_dropped_exactly(self, kind: str) -> None:
        require_exact_reach(*scene(kind, {}))


@EVERY_KIND
class TestStep:
    @pytest.mark.parametrize("reduction", ["mean", slow("sum")])
    @pytest.mark.parametrize("forgetting", [True, slow(False)])
    def test_constant_gates_are_default(self, kind: str, reduction: str, forgetting: bool) -> None:
        """With f = 1 and i = η it is plain SGD."""
        strategy = made(
            reduction=reduction,
            shared_reduction=reduction,
            shared_scale=1.0,
            forgetting=forgetting,
            shared_forgetting=forgetting,
            meta_lr=0.0,
        )
        ours = Updater(recommender_of(kind), strategy, seed=7)
        constant_gates(strategy, 0.2)
        plain = Default({"lr": 0.2, "reduction": reduction, "shared_reduction": reduction})
        default = Updater(recommender_of(kind), plain, seed=7)
        for batch in toy_batches()[:6]:
            ours.learn(batch)
            default.learn(batch)
        for table, values in tables_of(default).items():
            assert_close(tables_of(ours)[table], values, rtol=1e-11, atol=1e-13, msg=table)

    def test_it_starts_as_the_default_strategy(self, kind: str) -> None:
        """The gates start nearly alike: a step of most_rate / 2 for each interaction, and hardly any forgetting."""
        past, batch = past_and_batch()
        updater = updater_of(kind, S2Meta({"meta_lr": 0.0}), past)
        rates = updater.learning_rates(batch)
        assert_close(rates.rows, torch.full_like(rates.rows, 0.3), rtol=0.1, atol=0)
        for block in rates.shared.values():
            assert_close(block, torch.full_like(block, 0.03 / 16), rtol=0.1, atol=0)

    def test_forgetting_shrinks_touched_rows_once_and_spares_shared_weights(self, kind: str) -> None:
        keep = 0.9
        for shared in (False, True):
            strategy = made(meta_lr=0.0, shared_forgetting=shared)
            updater = updater_of(kind, strategy, noise=0.5)
            constant_gates(strategy, 1e-300, float(np.log(keep / (1 - keep))))
            updater.learn(toy_batch(0, np.arange(3), np.arange(3)))  # makes the rows
            before = tables_of(updater)
            updater.learn(toy_batch(3, np.array([0, 0, 0, 1]), np.array([0, 0, 1, 2])))
            for table, values in tables_of(updater).items():
                touched = updater.recommender.tables[table].state()["touched"] == 3
                still = updater.recommender.tables[table].spec.role == "shared" and not shared
                rate = 1.0 if still or table == "user_bias" else keep
                assert_close(values[touched], rate * before[table][touched], rtol=1e-12, atol=1e-200, msg=table)

    def test_other_rows_keep_their_bytes(self, kind: str) -> None:
        """Untouched rows keep their bytes, the cell's state included."""
        past, batch = past_and_batch()
        updater = updater_of(kind, made(), past, noise=0.5)
        require_others_untouched(updater, batch)


@EVERY_KIND
class TestRates:
    """1.3: one rate per parameter."""

    def rates(self, kind: str, **settings: Any) -> tuple[Updater, Situation, LearningRates]:
        past, batch = past_and_batch()
        updater = updater_of(kind, made(**settings), past, noise=0.5, phi_noise=0.4)
        return updater, situation_of(updater, batch)[1], updater.learning_rates(batch)

    @pytest.mark.parametrize("option", ["default", "row mean", "batch mean", "clamped"])
    def test_without_forgetting_they_explain_the_step(self, kind: str, option: str) -> None:
        updater, situation, rates = self.rates(kind, **{**OPTIONS[option], "forgetting": False})
        proposed, at = updater.strategy.propose(situation).values, 0
        for gradient in situation.evidence.row_gradients:
            n, slots, dim = gradient.gradient.shape
            block = rates.rows[:, at : at + slots * dim].reshape(n, slots, dim)
            at += slots * dim
            old = situation.values[gradient.table]
            step = replace(gradient, gradient=block * gradient.gradient).summed(len(old))
            assert_close(old - proposed[gradient.table], step, rtol=1e-9, atol=1e-13)
        for wide in situation.evidence.shared_gradients:
            old = situation.values[wide.table]
            step = (rates.shared[wide.table] * wide.expand().flatten(1)).sum(0)
            assert_close((old - proposed[wide.table]).flatten(), step, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("preset", S2META_PRESETS)
@EVERY_KIND
def test_presets_learn(kind: str, preset: str) -> None:
    updater = updater_of(kind, STRATEGIES["s2meta"].make(S2META_PRESETS[preset]), toy_batches()[:8], dtype=np.float32)
    assert finite(updater)
    assert updater.moved > 0


def test_a_network_is_as_large_as_published() -> None:
    """≈ 1,570 scalars each in ScenarioMeta; the cell's two biases are one here."""
    strategy = S2Meta()
    tables = set(updater_of("bpr", strategy).recommender.tables)
    sizes = {name: value.numel() for name, value in strategy.parameters().items()}
    own = sum(size for name, size in sizes.items() if name.startswith("item_factors."))
    assert own == 4 * 16 * (5 + 16 + 1) + 4 * 16 + 2 * 17
    assert {name.partition(".")[0] for name in sizes} == tables


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"width": 0}, "width"),
            ({"clamp": 0.0}, "clamp"),
            ({"most_rate": -1}, "most_rate"),
            ({"reduction": "sqrt"}, "reduction"),
        ],
    )
    def test_what_will_not_do_is_told(self, settings: dict[str, Any], told: str) -> None:
        with pytest.raises(SettingsError, match=told):
            S2Meta(settings)


class TestOddInput(OddInput):
    def made(self, **settings: Any) -> S2Meta:
        return S2Meta(settings, seed=5)


class TestState(State):
    def made(self, **settings: Any) -> S2Meta:
        return made(**settings)


class TestOwnRecommender(OwnRecommender):
    def made(self, **settings: Any) -> S2Meta:
        return made(**{"shared_forgetting": True, **settings})
