"""The meta-gradient (docs/methods.md 3.0.4): against central differences, in chunks, without unreachable rows."""

from typing import Any

import pytest
from learned_scenes import RELATIVE, require_exact_reach, slow, worst_error
from melon_scenes import FAMILY, KINDS, look_ahead_of, past_and_batch, strategy_of, updater_of
from torch import Tensor

from melon.strategies.base import Situation
from melon.strategies.learned import LearnedStrategy, MetaLoss
from melon.strategies.melon import published as pairs
from melon.strategies.registry import MELON_PRESETS
from situations import assert_close

OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "code": MELON_PRESETS["code"],
    "no forgetting": {"forgetting": False},
    "few neighbours": {"neighbours": 2, "cold": "current"},
}


def scene(kind: str, name: str, settings: dict[str, Any], **more: Any) -> tuple[LearnedStrategy, Situation, MetaLoss]:
    past, batch = past_and_batch()
    strategy = strategy_of(name, **settings)
    updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=0.4, **more)
    return strategy, *look_ahead_of(updater, batch)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_meta_gradient_is_that_of_central_differences(kind: str, option: str) -> None:
    strategy, situation, meta_loss = scene(kind, "melon", OPTIONS[option])
    found = worst_error(strategy, situation, meta_loss)
    assert max(found.values()) < RELATIVE, found


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_meta_gradient_is_that_of_central_differences_entry_by_entry(kind: str, option: str) -> None:
    found = worst_error(*scene(kind, "melon", OPTIONS[option]), entries=5)
    assert max(found.values()) < RELATIVE, found


@pytest.mark.parametrize("option", ["paper", "code"])
@pytest.mark.parametrize("name", ["melon_i", "melon_p"])
@pytest.mark.parametrize("kind", KINDS)
def test_meta_gradient_of_the_ablations(kind: str, name: str, option: str) -> None:
    strategy, situation, meta_loss = scene(kind, name, OPTIONS[option])
    found = worst_error(strategy, situation, meta_loss)
    assert max(found.values()) < RELATIVE, found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recommender", [{"loss": "squared"}, {"negatives": 3}], ids=["squared loss", "negatives"])
def test_meta_gradient_with_another_loss_or_more_negatives(kind: str, recommender: dict[str, Any]) -> None:
    strategy, situation, meta_loss = scene(kind, "melon", {}, **recommender)
    found = worst_error(strategy, situation, meta_loss)
    assert max(found.values()) < RELATIVE, found


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_learns(kind: str, name: str) -> None:
    """Otherwise a comparison with differences compares nothing."""
    strategy, situation, meta_loss = scene(kind, name, {})
    gradients, _ = strategy.meta_gradient(situation, meta_loss)
    for tensor, gradient in gradients.items():
        assert gradient.abs().max() > 1e-6, tensor


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        assert_close(gradient, other[name], rtol=1e-9, atol=1e-14, msg=name)


@pytest.mark.parametrize("option", ["paper", "code"])
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [slow(1), 64])
def test_chunks_change_nothing(kind: str, name: str, option: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, situation, meta_loss = scene(kind, name, OPTIONS[option])
    whole, loss = strategy.meta_gradient(situation, meta_loss)
    monkeypatch.setattr(pairs, "PAIRS_AT_ONCE", chunk)
    pieces, loss_too = strategy.meta_gradient(situation, meta_loss)
    assert_same(whole, pieces)
    assert float(loss) == pytest.approx(float(loss_too), rel=1e-12)


@pytest.mark.parametrize("option", ["paper", "code"])
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_out_of_reach_are_dropped_exactly(kind: str, name: str, option: str) -> None:
    strategy, situation, meta_loss = scene(kind, name, OPTIONS[option])
    assert situation.reach is not None
    require_exact_reach(strategy, situation, meta_loss)
