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
from melon.strategies.melon.interaction_model import InteractionModel, Side
from melon.strategies.melon.pair_model import PairModel
from melon.strategies.melon.settings import RateSettings
from melon.strategies.parameters import Parameters, preprocess
from melon.strategies.registry import MELON_PRESETS
from melon.stream.history import History
from melon.testing.toys import toy_batches
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


def pair_model(**settings: Any) -> tuple[PairModel, Parameters, RateSettings]:
    chosen = RateSettings(**settings)
    parameters = Parameters(3, DTYPE, chosen.init)
    return PairModel(chosen, parameters, sees_interaction=True, sees_parameter=True), parameters, chosen


class TestHeads:
    @pytest.mark.parametrize("preset", MELON_PRESETS)
    def test_rates_are_between_0_and_1_for_any_gradient(self, preset: str) -> None:
        pairs, _, _ = pair_model(**MELON_PRESETS[preset])
        gradient = torch.tensor([[0.0, 1e6, -1e6, 1e-30, 1e-5, -0.5]], dtype=DTYPE).expand(4, -1)
        losses = torch.tensor([0.0, 1e-12, 0.7, 1e6], dtype=DTYPE)
        terms = pairs.unit_terms(losses, torch.rand((4, 20), dtype=DTYPE))
        for theta in (torch.zeros_like(gradient), torch.full_like(gradient, 30.0)):
            found = pairs.rates(theta, gradient, terms)
            for rates in (found.learning, found.forgetting):
                assert rates.shape == gradient.shape
                assert bool(((rates > 0) & (rates < 1)).all())

    def test_most_rate_bounds_the_learning_rate_only(self) -> None:
        pairs, parameters, _ = pair_model(most_rate=0.2)
        with torch.no_grad():
            parameters["head.bias"].fill_(50.0)
        found = pairs.rates(torch.zeros(1, 2, dtype=DTYPE), torch.ones(1, 2, dtype=DTYPE), _terms(pairs))
        assert torch.allclose(found.learning, torch.full((1, 2), 0.2, dtype=DTYPE))
        assert torch.allclose(found.forgetting, torch.ones(1, 2, dtype=DTYPE))

    @pytest.mark.parametrize("theta_feature", [True, False])
    def test_the_affine_path_is_the_explicit_layer_and_head(self, theta_feature: bool) -> None:
        """4.11, test 9: Linear(4→20) without activation, then the head, on [h_x ; h_{x,m}]."""
        pairs, phi, chosen = pair_model(role="linear", theta_feature=theta_feature)
        generator = torch.Generator().manual_seed(0)
        theta, gradient = (torch.randn(3, 7, generator=generator, dtype=DTYPE) for _ in range(2))
        losses, h_x = (
            torch.rand(3, generator=generator, dtype=DTYPE),
            torch.rand(3, 20, generator=generator, dtype=DTYPE),
        )
        found = pairs.rates(theta, gradient * 1e-3, pairs.unit_terms(losses, h_x))
        for x in range(3):
            for m in range(7):
                features = [*preprocess(losses[x]), *preprocess(gradient[x, m] * 1e-3)]
                features += [theta[x, m]] if theta_feature else []
                role = phi["role.1"] @ torch.stack(features) + phi["role.1.bias"]
                logits = phi["head.interaction"] @ h_x[x] + phi["head.role"] @ role + phi["head.bias"][:, 0]
                wanted = torch.sigmoid(logits)
                assert float(found.learning[x, m].detach()) == pytest.approx(float(wanted[0].detach()), rel=1e-12)
                assert float(found.forgetting[x, m].detach()) == pytest.approx(float(wanted[1].detach()), rel=1e-12)
        assert chosen.role == "linear"


def _terms(pairs: PairModel) -> Any:
    return pairs.unit_terms(torch.ones(1, dtype=DTYPE), torch.zeros(1, 20, dtype=DTYPE))


def interaction_model(**settings: Any) -> tuple[InteractionModel, Parameters]:
    chosen = RateSettings(extended_width=5, interaction_width=4, **settings)
    parameters = Parameters(3, DTYPE, "xavier")
    specs = {spec.name: spec for spec in recommender_of("bpr").specs}
    return InteractionModel(specs, chosen, parameters, seed=3), parameters


def side(partners: torch.Tensor, there: torch.Tensor) -> Side:
    nodes = torch.randn(len(partners), 4, generator=torch.Generator().manual_seed(1), dtype=DTYPE)
    return Side(nodes, partners, there)


ROWS = torch.arange(2)


class TestAttention:
    def represented(self, model: InteractionModel, users: Side, items: Side) -> torch.Tensor:
        return model.represent(users, items, ROWS, ROWS)

    @pytest.mark.parametrize("extended", ["joint", "split"])
    @pytest.mark.parametrize("norm", ["none", "layer", "batch"])
    def test_without_partners_the_sum_is_empty(self, extended: str, norm: str) -> None:
        """4.3: z = 0, whatever stands in the places of partners that are not there."""
        model, _ = interaction_model(extended=extended, norm=norm)
        nobody = torch.zeros(2, 3, dtype=torch.bool)
        junk = side(torch.full((2, 3, 4), 1e3, dtype=DTYPE), nobody)
        nothing = side(torch.zeros(2, 0, 4, dtype=DTYPE), nobody[:, :0])
        zero = side(torch.zeros(2, 3, 4, dtype=DTYPE), ~nobody)
        found = self.represented(model, junk, junk)
        assert torch.isfinite(found).all()
        assert equal(found, self.represented(model, nothing, nothing))
        torch.testing.assert_close(found, self.represented(model, zero, zero))

    def test_the_order_of_partners_plays_no_part(self) -> None:
        model, _ = interaction_model(norm="none")
        partners = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(2), dtype=DTYPE)
        there = torch.tensor([[True] * 5, [True, True, True, False, False]])
        order = torch.tensor([3, 0, 4, 2, 1])
        straight, mixed = side(partners, there), side(partners[:, order], there[:, order])
        torch.testing.assert_close(
            self.represented(model, straight, straight), self.represented(model, mixed, mixed), rtol=1e-12, atol=1e-14
        )

    def test_a_partner_met_twice_weighs_more(self) -> None:
        """4.2: repeated interactions are parallel edges."""
        model, _ = interaction_model(norm="none")
        partners = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(2), dtype=DTYPE)
        there = torch.ones(2, 2, dtype=torch.bool)
        once = side(partners, there)
        twice = side(torch.cat([partners, partners[:, :1]], 1), torch.ones(2, 3, dtype=torch.bool))
        same = side(torch.cat([partners, partners], 1), torch.ones(2, 4, dtype=torch.bool))
        assert not torch.allclose(self.represented(model, once, once), self.represented(model, twice, twice))
        torch.testing.assert_close(self.represented(model, once, once), self.represented(model, same, same))

    def test_partners_come_from_the_past_and_share_one_draw(self) -> None:
        recommender = recommender_of("bpr")
        recommender.grow(3, np.arange(3), 30, np.arange(30))
        history = History()
        history.append(np.zeros(20, dtype=np.int64), np.arange(20))
        around = Surroundings(history, 0, np.arange(3), np.arange(30), recommender.tables)
        model, _ = interaction_model(neighbours=6)
        users = torch.tensor([0, 1])
        one, other = (model.side("user", users.numpy(), around) for _ in range(2))
        assert one.there.sum(1).tolist() == [6, 0]
        assert equal(one.partners, other.partners)
        rows = recommender.tables["item_factors"].everything()
        found = {int((rows == partner).all(1).nonzero()[0, 0]) for partner in one.partners[0]}
        assert len(found) == 6
        assert found <= set(range(20))

    def test_one_unit_does_not_depend_on_the_others(self) -> None:
        """4.9, row 6: with layer norm or none, a batch of one gives what the whole batch gives."""
        partners, there = torch.randn(2, 3, 4, dtype=DTYPE), torch.ones(2, 3, dtype=torch.bool)
        both = side(partners, there)
        first = Side(both.nodes[:1], both.partners[:1], both.there[:1])
        for norm in ("none", "layer"):
            model, _ = interaction_model(norm=norm)
            alone = model.represent(first, first, ROWS[:1], ROWS[:1])
            torch.testing.assert_close(alone, self.represented(model, both, both)[:1], rtol=1e-12, atol=1e-14)


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

    @pytest.mark.parametrize("preset", MELON_PRESETS)
    @pytest.mark.parametrize("name", FAMILY)
    @pytest.mark.parametrize("kind", KINDS)
    def test_rates_start_where_the_settings_say(self, kind: str, name: str, preset: str) -> None:
        strategy = FAMILY[name](MELON_PRESETS[preset])
        updater = updater_of(kind, strategy)
        settings = strategy.settings
        rates = updater.learning_rates(toy_batches()[0])
        raw = rates.raw if rates.raw is not None else rates.rows
        low, high = (settings.rate_bias + sign * (settings.spread + 0.3) for sign in (-1, 1))
        assert float(raw.min()) > settings.most_rate / (1 + math.exp(-low))
        assert float(raw.max()) < settings.most_rate / (1 + math.exp(-high))
        forget = float(strategy.parameters()["head.bias"][1, 0].detach())
        assert abs(forget - settings.forget_bias) <= settings.spread + 1e-12
        assert 1 / (1 + math.exp(-forget)) > 0.98

    def test_the_authors_architecture_has_their_number_of_meta_parameters(self) -> None:
        """4.1: 36,542 scalars for BPR, 53,182 for NCF, with the prediction vector's 2 × 1 head biases."""
        for make, wanted in ((BPR, 36_542), (NCF, 53_182)):
            strategy = FAMILY["melon"](MELON_PRESETS["code"])
            Updater(make(), strategy)
            assert sum(value.numel() for value in strategy.parameters().values()) == wanted
