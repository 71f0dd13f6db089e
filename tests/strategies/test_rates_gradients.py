"""The meta-gradient (METHODS.md 3.0.4, 4.11): against central differences, in chunks, and without unreachable rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from rate_scenes import FAMILY, KINDS, look_ahead_of, past_and_batch, strategy_of, updater_of
from torch import Tensor

from melon.strategies.base import Situation
from melon.strategies.learned import LearnedStrategy, MetaLoss
from melon.strategies.rates.presets import RATE_PRESETS

#: Central differences are exact up to h², unless a ReLU flips within h; then a smaller h goes round it.
STEPS = (3e-6, 1e-6, 3e-7)
RELATIVE, ABSOLUTE = 1e-5, 1e-9

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {name: value for name, value in RATE_PRESETS["paper"].items() if name != "role_width"},
    "code": RATE_PRESETS["code"],
    "split": {"extended": "split"},
    "two layers": {"interaction_layers": 2},
    "linear role": {"role": "linear"},
    "pairwise": {"pairwise": True},
    "touch feature": {"touch_feature": True},
    "without theta": {"theta_feature": False},
    "batch loss": {"loss_feature": "batch"},
    "no forgetting": {"forgetting": False},
    "shared forgetting": {"shared_forgetting": True},
    "row mean": {"aggregation": "row_mean", "shared_aggregation": "sum"},
    "square root": {"aggregation": "sqrt", "shared_aggregation": "sqrt"},
    "batch mean": {"aggregation": "batch", "shared_aggregation": "batch"},
    "bounded rate": {"most_rate": 0.3, "slope": 0.2},
    "few neighbours": {"neighbours": 2, "cold": "current"},
}


def scene(kind: str, name: str, settings: dict[str, Any], **more: Any) -> tuple[LearnedStrategy, Situation, MetaLoss]:
    past, batch = past_and_batch()
    strategy = strategy_of(name, **settings)
    updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=0.4, **more)
    return strategy, *look_ahead_of(updater, batch)


def chosen(gradient: Tensor) -> list[int]:
    """At least five scalars of a tensor: those with the largest gradients, and some from all over it."""
    flat = gradient.flatten()
    ranked = flat.abs().argsort(descending=True).tolist()
    spread = torch.linspace(0, len(flat) - 1, min(3, len(flat))).long().tolist()
    return list(dict.fromkeys([*ranked[:2], *spread, *ranked]))[:5]


def difference(
    strategy: LearnedStrategy, situation: Situation, loss: MetaLoss, value: Tensor, at: int, h: float
) -> float:
    flat, found = value.detach().view(-1), []
    middle = float(flat[at])
    for moved in (middle + h, middle - h):
        flat[at] = moved
        found.append(float(loss(strategy.look_ahead(situation))))
    flat[at] = middle
    return (found[0] - found[1]) / (2 * h)


@torch.no_grad()
def worst_error(
    strategy: LearnedStrategy, situation: Situation, meta_loss: MetaLoss, leave_out: str = "-"
) -> dict[str, float]:
    """For each tensor, the largest |difference − gradient| / (|gradient| + absolute / relative)."""
    gradients, _ = strategy.meta_gradient(situation, meta_loss)
    worst: dict[str, float] = {}
    for name, value in strategy.parameters().items():
        if name.startswith(leave_out):
            continue
        worst[name] = 0.0
        for at in chosen(gradients[name]):
            exact = float(gradients[name].flatten()[at])
            best = float("inf")
            for h in STEPS:
                apart = abs(difference(strategy, situation, meta_loss, value, at, h) - exact)
                best = min(best, apart / (abs(exact) + ABSOLUTE / RELATIVE))
                if best < RELATIVE:
                    break
            worst[name] = max(worst[name], best)
    return worst


#: Options that change what is normalised, or through what the gradient goes on its way there.
NORMALISED = ("default", "paper", "code", "split", "two layers", "pairwise", "shared forgetting")


@pytest.mark.parametrize(
    ("option", "norm"), [*((each, "none") for each in OPTIONS), *((each, "layer") for each in NORMALISED)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_meta_gradient_is_that_of_central_differences(kind: str, option: str, norm: str) -> None:
    strategy, situation, meta_loss = scene(kind, "melon", {**OPTIONS[option], "norm": norm})
    found = worst_error(strategy, situation, meta_loss)
    assert max(found.values()) < RELATIVE, found


@pytest.mark.parametrize("option", ["default", "paper", "touch feature", "square root", "shared forgetting"])
@pytest.mark.parametrize("name", ["melon_i", "melon_p"])
@pytest.mark.parametrize("kind", KINDS)
def test_meta_gradient_of_the_ablations(kind: str, name: str, option: str) -> None:
    strategy, situation, meta_loss = scene(kind, name, OPTIONS[option])
    found = worst_error(strategy, situation, meta_loss)
    assert max(found.values()) < RELATIVE, found


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("kind", KINDS)
def test_half_lives_are_learned_by_the_same_gradient(kind: str, name: str) -> None:
    """METHODS.md 8.3: idle rows fade by 0.5^(idle / half-life); losses, gradients and features stay as they were."""
    strategy, situation, meta_loss = scene(kind, name, {"fading": 30.0, "fading_speed": 5.0, "norm": "none"})
    gradients, _ = strategy.meta_gradient(situation, meta_loss)
    strategy.at_once = -1
    in_chunks, _ = strategy.meta_gradient(situation, meta_loss)
    around, h, found = situation.around, 1e-5, 0
    assert around is not None
    read_at = strategy.half_lives(situation.specs)

    def loss_at(table: str, moved: float) -> float:
        """As if rows of one table had been read at the half-life to which its φ moves."""
        phi = strategy.parameters()[f"fading.{table}"].detach()
        phi += moved
        half_lives = strategy.half_lives(situation.specs)
        phi -= moved

        def faded(_: Situation, which: str, values: Tensor) -> Tensor:
            if which not in read_at:
                return values
            halvings = around.idle[which][: len(values), None].double() * (1 / half_lives[which] - 1 / read_at[which])
            return values * 0.5**halvings

        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(strategy, "aged", faded)
            return float(meta_loss(strategy.look_ahead(situation)))

    for table in around.idle:
        exact = float(gradients[f"fading.{table}"])
        assert (loss_at(table, h) - loss_at(table, -h)) / (2 * h) == pytest.approx(exact, rel=RELATIVE, abs=ABSOLUTE)
        assert float(in_chunks[f"fading.{table}"]) == pytest.approx(exact, rel=1e-9, abs=1e-14)
        found += abs(exact) > 1e-6
    assert found > 1
    strategy.at_once = 1 << 30
    rest = worst_error(strategy, situation, meta_loss, leave_out="fading.")
    assert max(rest.values()) < RELATIVE, rest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recommender", [{"loss": "squared"}, {"negatives": 3}], ids=["squared loss", "negatives"])
def test_meta_gradient_with_another_loss_or_more_negatives(kind: str, recommender: dict[str, Any]) -> None:
    # A squared error bursts at the default's rates, so the past is learned with small ones.
    strategy, situation, meta_loss = scene(kind, "melon", {"rate_bias": -4.0}, **recommender)
    found = worst_error(strategy, situation, meta_loss)
    assert max(found.values()) < RELATIVE, found


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_learns(kind: str, name: str) -> None:
    """Otherwise a comparison with differences compares nothing."""
    strategy, situation, meta_loss = scene(kind, name, {"norm": "none"})
    gradients, _ = strategy.meta_gradient(situation, meta_loss)
    for tensor, gradient in gradients.items():
        assert gradient.abs().max() > 1e-6, tensor


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], rtol=1e-9, atol=1e-14, msg=name)


@pytest.mark.parametrize("option", ["default", "paper", "code", "touch feature", "linear role", "square root"])
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 64])
def test_chunks_change_nothing(kind: str, name: str, option: str, chunk: int) -> None:
    strategy, situation, meta_loss = scene(kind, name, OPTIONS[option])
    whole, loss = strategy.meta_gradient(situation, meta_loss)
    strategy.at_once, strategy.chunk = -1, chunk
    pieces, loss_too = strategy.meta_gradient(situation, meta_loss)
    assert_same(whole, pieces)
    assert float(loss) == pytest.approx(float(loss_too), rel=1e-12)


@pytest.mark.parametrize("option", ["default", "code", "row mean", "square root", "batch mean"])
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_out_of_reach_are_dropped_exactly(kind: str, name: str, option: str) -> None:
    strategy, situation, meta_loss = scene(kind, name, OPTIONS[option])
    assert situation.reach is not None
    assert any(situation.reached(table) < len(values) for table, values in situation.values.items())
    short, loss = strategy.meta_gradient(situation, meta_loss)
    full, loss_too = strategy.meta_gradient(replace(situation, reach=None), meta_loss)
    assert_same(short, full)
    assert float(loss) == float(loss_too)
