"""Meta-training and deployment of MeLON: Adam's rate falls from pass to pass."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from learned_scenes import require_saved_goes_on
from melon_scenes import FAMILY, strategy_of, updater_of

from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.strategies.melon.strategy import NetworkMeLON, RateStrategy
from melon.testing.toys import toy_batches
from situations import equal


def meta_train(strategy: RateStrategy, passes: int) -> dict[str, torch.Tensor]:
    """What φ knows after some passes, each from a recommender that has learned nothing."""
    meta_training: dict[str, torch.Tensor] = {}
    for _ in range(passes):
        updater = updater_of("bpr", strategy)
        updater.take_over(meta_training)
        for batch in toy_batches()[:4]:
            updater.learn(batch)
        meta_training = updater.meta_training()
    return meta_training


def first_step(strategy: RateStrategy, meta_training: dict[str, torch.Tensor]) -> float:
    """How far the next batch moves φ; the moments of the last pass are Adam's whatever its rate was."""
    updater = updater_of("bpr", strategy)
    updater.take_over(meta_training)
    past, batch = toy_batches()[:2]
    before = None
    for each in (past, batch):
        before = {name: value.detach().clone() for name, value in strategy.parameters().items()}
        updater.learn(each)
    assert before is not None
    after = strategy.parameters()
    return float(torch.cat([(after[name].detach() - value).flatten() for name, value in before.items()]).norm())


def test_without_cooling_meta_training_is_as_ever() -> None:
    found = [meta_train(strategy_of(passes=passes, meta_cooling=1.0), 3) for passes in (1, 2, 7)]
    for other in found[1:]:
        assert all(equal(found[0][name], other[name]) for name in other)


def test_the_first_pass_has_the_whole_rate() -> None:
    warm, cool = (meta_train(strategy_of(passes=5, meta_cooling=left), 1) for left in (1.0, 0.01))
    assert all(equal(warm[name], cool[name]) for name in warm)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("passes", [1, 2, 4])
def test_what_is_left_after_meta_training_is_what_the_setting_says(name: str, passes: int) -> None:
    """From the same φ and the same moments, Adam's step is in proportion to its rate."""
    left = 0.2
    meta_training = meta_train(strategy_of(name, passes=passes, meta_cooling=left), passes)
    cool, warm = (
        first_step(strategy_of(name, passes=passes, meta_cooling=each, meta_lr=1e-9), meta_training)
        for each in (left, 1.0)
    )
    assert cool == pytest.approx(left * warm, rel=1e-3)


def test_the_rate_falls_evenly_from_pass_to_pass_and_no_further() -> None:
    steps = []
    for done in range(6):
        strategy = strategy_of(passes=4, meta_cooling=0.0001, meta_lr=1e-9)
        meta_training = meta_train(strategy_of(passes=4, meta_lr=0.0), 1)
        # The count goes up by one when the meta-training is taken over.
        steps.append(first_step(strategy, {**meta_training, "stream": torch.tensor(done - 1)}))
    ratios = [later / sooner for sooner, later in pairwise(steps)]
    assert ratios[:4] == pytest.approx([0.1] * 4, rel=1e-3)
    assert ratios[4] == pytest.approx(1.0, rel=1e-6)


def test_a_model_that_was_saved_goes_on_at_the_cooled_rate(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"passes": 1, "meta_cooling": 0.3, "meta_lr": 0.05}
    stream_trained = Updater(BPR({"dim": 4}), NetworkMeLON(settings))
    *past, last = toy_batches()[:6]
    for batch in past[:3]:
        stream_trained.learn(batch)
    updater = Updater(BPR({"dim": 4}), NetworkMeLON(settings))
    updater.take_over(stream_trained.meta_training())
    for batch in past:
        updater.learn(batch)
    require_saved_goes_on(updater, tmp_path, last)


def test_what_was_saved_before_there_was_cooling_counts_as_not_stream_trained() -> None:
    meta_training = meta_train(strategy_of(passes=2), 1)
    fresh = {**meta_training, "stream": torch.tensor(0)}
    del meta_training["stream"]
    steps = [first_step(strategy_of(passes=2, meta_cooling=0.1), told) for told in (meta_training, fresh)]
    assert steps[0] == steps[1] > 0


@pytest.mark.parametrize("left", [0.0, 1.5, -1.0])
def test_a_rate_neither_rises_nor_vanishes(left: float) -> None:
    with pytest.raises(SettingsError, match="meta_cooling"):
        strategy_of(meta_cooling=left)
