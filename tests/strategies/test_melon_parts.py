"""The parts of the rate model one by one (docs/methods.md 4.3–4.6): preprocessing, attention, heads, starts, Adam."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from melon_scenes import FAMILY, KINDS, recommender_of, strategy_of, updater_of

from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.base import Surroundings
from melon.strategies.melon.published import BIASES, SPREADS, InteractionModel, PairModel, PublishedSettings, rates
from melon.strategies.parameters import Parameters, preprocess
from melon.strategies.registry import MELON_PRESETS
from melon.stream.history import History
from melon.testing import toy_batches
from situations import equal

DTYPE = torch.float64


class TestPreprocess:
    @pytest.mark.parametrize(
        ("value", "scale", "direction"),
        [
            (1e-3, -0.6908, 1),
            (-1e-3, -0.6908, -1),
            (4.5e-5, -1, 0.9912),
            (-1e-6, -1, -0.0220),
            (0.0, -1, 0),
            (0.6931, -0.0367, 1),
        ],
    )
    def test_reference_values(self, value: float, scale: float, direction: float) -> None:
        found = [float(part) for part in preprocess(torch.tensor(value, dtype=DTYPE))]
        assert found == pytest.approx([scale, direction], abs=5e-5)

    def test_is_continuous_at_the_kink(self) -> None:
        kink = math.exp(-10)
        below, above = (preprocess(torch.tensor(kink * factor, dtype=DTYPE)) for factor in (1 - 1e-9, 1 + 1e-9))
        for one, other in zip(below, above, strict=True):
            # 1e-8 inside the logarithm moves it by 1e-8 / e^-10 / 10.
            assert float(one) == pytest.approx(float(other), abs=3e-5)

    def test_is_never_differentiated(self) -> None:
        free = torch.tensor([1e-6, 1.0], dtype=DTYPE, requires_grad=True)
        assert not any(part.requires_grad for part in preprocess(free))


FORMS = ("paper", "code")


def pair_model(form: str) -> tuple[PairModel, Parameters]:
    parameters = Parameters(3, DTYPE, "xavier")
    return PairModel(PublishedSettings(form=form), parameters, sees_interaction=True, sees_parameter=True), parameters


class TestHeads:
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_rates_are_between_0_and_1_for_any_gradient(self, form: str, dtype: torch.dtype) -> None:
        parameters = Parameters(3, dtype, "normal")
        pairs = PairModel(PublishedSettings(form=form), parameters, sees_interaction=True, sees_parameter=True)
        gradient = torch.tensor([[0.0, 1e6, -1e6, 1e-30, 1e-5, -0.5]], dtype=dtype).expand(4, -1)
        losses = torch.tensor([0.0, 1e-12, 0.7, 1e6], dtype=dtype)
        network = pairs.network(losses, torch.rand((4, 20), dtype=dtype))
        for theta in (torch.zeros_like(gradient), torch.full_like(gradient, 30.0)):
            found = rates(theta, gradient, network)
            assert found.shape == (2, *gradient.shape)
            assert bool(((found > 0) & (found < 1)).all())

    def test_the_affine_path_is_the_explicit_layer_and_head(self) -> None:
        """Linear(4→20) without activation, then the head, on [h_x ; h_{x,m}]."""
        pairs, phi = pair_model("code")
        generator = torch.Generator().manual_seed(0)
        theta, gradient = (torch.randn(3, 7, generator=generator, dtype=DTYPE) for _ in range(2))
        losses, h_x = (
            torch.rand(3, generator=generator, dtype=DTYPE),
            torch.rand(3, 20, generator=generator, dtype=DTYPE),
        )
        found = rates(theta, gradient * 1e-3, pairs.network(losses, h_x)).detach()
        for x in range(3):
            for m in range(7):
                features = [*preprocess(losses[x]), *preprocess(gradient[x, m] * 1e-3)]
                role = phi["role.1"] @ torch.stack(features) + phi["role.1.bias"]
                logits = phi["head.interaction"] @ h_x[x] + phi["head.role"] @ role + phi["head.bias"][:, 0]
                torch.testing.assert_close(found[:, x, m], torch.sigmoid(logits).detach(), rtol=1e-12, atol=0)


def interaction_model(form: str = "paper", **settings: Any) -> InteractionModel:
    chosen = PublishedSettings(form=form, extended_width=5, interaction_width=4, **settings)
    specs = {spec.name: spec for spec in recommender_of("bpr").specs}
    return InteractionModel(specs, chosen, Parameters(3, DTYPE, "xavier"), seed=3)


def extended(model: InteractionModel, partners: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    nodes = torch.randn(len(partners), 4, generator=torch.Generator().manual_seed(1), dtype=DTYPE)
    return model.extend("user", nodes, partners, there)


class TestAttention:
    @pytest.mark.parametrize("form", FORMS)
    def test_without_partners_the_sum_is_empty(self, form: str) -> None:
        """4.3: z = 0, whatever stands in the places of partners that are not there."""
        model, nobody = interaction_model(form), torch.zeros(2, 3, dtype=torch.bool)
        found = extended(model, torch.full((2, 3, 4), 1e3, dtype=DTYPE), nobody)
        assert torch.isfinite(found).all()
        assert equal(found, extended(model, torch.zeros(2, 0, 4, dtype=DTYPE), nobody[:, :0]))
        torch.testing.assert_close(found, extended(model, torch.zeros(2, 3, 4, dtype=DTYPE), ~nobody))

    def test_the_order_of_partners_plays_no_part(self) -> None:
        model = interaction_model()
        partners = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(2), dtype=DTYPE)
        there = torch.tensor([[True] * 5, [True, True, True, False, False]])
        order = torch.tensor([3, 0, 4, 2, 1])
        mixed = extended(model, partners[:, order], there[:, order])
        torch.testing.assert_close(extended(model, partners, there), mixed, rtol=1e-12, atol=1e-14)

    def test_a_partner_met_twice_weighs_more(self) -> None:
        """4.2: repeated interactions are parallel edges."""
        model = interaction_model()
        partners = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(2), dtype=DTYPE)
        once = extended(model, partners, torch.ones(2, 2, dtype=torch.bool))
        twice = extended(model, torch.cat([partners, partners[:, :1]], 1), torch.ones(2, 3, dtype=torch.bool))
        same = extended(model, torch.cat([partners, partners], 1), torch.ones(2, 4, dtype=torch.bool))
        assert not torch.allclose(once, twice)
        torch.testing.assert_close(once, same)

    def test_partners_come_from_the_past_and_share_one_draw(self, monkeypatch: pytest.MonkeyPatch) -> None:
        recommender = recommender_of("bpr")
        recommender.grow(3, np.arange(3), 30, np.arange(30))
        history = History()
        history.append(np.zeros(20, dtype=np.int64), np.arange(20))
        history.keep_everything(np.zeros(20, dtype=np.int64), np.arange(20))
        around = Surroundings(history, 0, np.arange(3), np.arange(30), recommender.tables)
        model, met = interaction_model(neighbours=6), list[Any]()
        plain = model.extend
        monkeypatch.setattr(model, "extend", lambda *given: met.append(given) or plain(*given))
        one, other = (model.units(np.array([0, 1, 0]), np.array([2, 2, 2]), around) for _ in range(2))
        assert equal(one, other)
        assert equal(one[0], one[2])
        _, _, partners, there = next(given for given in met if given[0] == "user")
        assert there.sum(1).tolist() == [6, 0]
        rows = recommender.tables["item_factors"].everything()
        found = {int((rows == partner.numpy()).all(1).nonzero()[0][0]) for partner in partners[0]}
        assert len(found) == 6
        assert found <= set(range(20))

    def test_one_unit_does_not_depend_on_the_others(self) -> None:
        """4.9, row 6: without a norm, a batch of one gives what the whole batch gives."""
        recommender, history = recommender_of("bpr"), History()
        recommender.grow(3, np.arange(3), 30, np.arange(30))
        history.append(np.zeros(20, dtype=np.int64), np.arange(20))
        history.keep_everything(np.zeros(20, dtype=np.int64), np.arange(20))
        around = Surroundings(history, 0, np.arange(3), np.arange(30), recommender.tables)
        model = interaction_model()
        both = model.units(np.array([0, 1]), np.array([2, 5]), around)
        alone = model.units(np.array([0]), np.array([2]), around)
        torch.testing.assert_close(alone, both[:1], rtol=1e-12, atol=1e-14)


class TestInitialValues:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_seed_decides(self, kind: str) -> None:
        def drawn(seed: int) -> dict[str, torch.Tensor]:
            strategy = strategy_of(seed=seed)
            Updater(recommender_of(kind), strategy)
            return strategy.parameters()

        first, again, other = drawn(1), drawn(1), drawn(2)
        assert all(equal(first[name], again[name]) for name in first)
        assert not equal(first["user.attention"], other["user.attention"])
        assert not equal(first["user.attention"], first["item.attention"])

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_recommender_is_left_alone(self, kind: str) -> None:
        """4.9, row 27."""
        recommender = recommender_of(kind)
        before = {name: table.state()["values"] for name, table in recommender.tables.items()}
        Updater(recommender, strategy_of())
        for name, table in recommender.tables.items():
            assert equal(table.state()["values"], before[name])

    @pytest.mark.parametrize("preset", FORMS)
    @pytest.mark.parametrize("name", FAMILY)
    @pytest.mark.parametrize("kind", KINDS)
    def test_rates_start_where_the_settings_say(self, kind: str, name: str, preset: str) -> None:
        strategy = FAMILY[name](MELON_PRESETS[preset])
        updater = updater_of(kind, strategy)
        rate, forget = SPREADS[:, 0]
        found = updater.learning_rates(toy_batches()[0])
        raw = found.raw if found.raw is not None else found.rows
        low, high = (BIASES[0, 0] + sign * (rate + 0.3) for sign in (-1, 1))
        assert float(raw.min()) > 1 / (1 + math.exp(-low))
        assert float(raw.max()) < 1 / (1 + math.exp(-high))
        bias = float(strategy.parameters()["head.bias"][1, 0].detach())
        assert abs(bias - BIASES[1, 0]) <= forget + 1e-12
        assert 1 / (1 + math.exp(-bias)) > 0.98

    def test_the_authors_architecture_has_their_number_of_meta_parameters(self) -> None:
        """4.1: 36,542 scalars for BPR, 53,182 for NCF, with the prediction vector's 2 × 1 head biases."""
        for make, wanted in ((BPR, 36_542), (NCF, 53_182)):
            strategy = FAMILY["melon"](MELON_PRESETS["code"])
            Updater(make(), strategy)
            assert sum(value.numel() for value in strategy.parameters().values()) == wanted
