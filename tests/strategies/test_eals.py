"""eALS as a re-weighting rule (docs/methods.md 3.2): its tests."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.bpr import BPR
from melon.models.evidence import Examples
from melon.models.ncf import NCF
from melon.strategies.base import Situation, Strategy
from melon.strategies.default import Default
from melon.strategies.eals import EALS
from melon.stream.batch import Batch
from situations import tensors_of

KINDS = pytest.mark.parametrize("kind", ["bpr", "ncf"])


def model(kind: str) -> Recommender:
    if kind == "bpr":
        return BPR({"dim": 4}, dtype=np.float64)
    return NCF({"dim": 3, "layers": (4, 3)}, dtype=np.float64)


def batches(n: int = 12, size: int = 10) -> list[Batch]:
    rng = np.random.default_rng(1)
    out = []
    for at in range(n):
        users, items = rng.integers(0, 9, size), rng.integers(0, 14, size)
        out.append(Batch(size * at, users, items, np.arange(size * at, size * (at + 1)), users, items))
    return out


def learned(kind: str, strategy: Strategy, given: list[Batch] | None = None) -> dict[str, Tensor]:
    recommender = model(kind)
    updater = Updater(recommender, strategy)
    for batch in batches() if given is None else given:
        updater.learn(batch)
    return tensors_of(recommender)


def same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 0.0) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=tolerance, atol=tolerance) for name in one)


@KINDS
@pytest.mark.parametrize("optimizer", ["sgd", "adam_lazy", "adam_dense"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_weight_one_is_default(kind: str, optimizer: str, reduction: str) -> None:
    settings = {"optimizer": optimizer, "reduction": reduction, "lr": 0.02, "weight_decay": 0.01}
    assert same(learned(kind, EALS({**settings, "w_new": 1.0})), learned(kind, Default(settings)), 1e-14)


@KINDS
@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_with_sgd_a_weight_is_a_learning_rate(kind: str, factor: float) -> None:
    ours = learned(kind, EALS({"lr": 0.02, "w_new": factor}))
    assert same(ours, learned(kind, Default({"lr": 0.02 * factor})), 1e-12)


@KINDS
@pytest.mark.parametrize("factor", [0.5, 16.0])
def test_with_adam_from_the_first_step_a_weight_is_nothing(kind: str, factor: float) -> None:
    settings = {"optimizer": "adam_lazy", "lr": 0.02, "eps": 1e-30}
    assert same(learned(kind, EALS({**settings, "w_new": factor})), learned(kind, Default(settings)), 1e-7)


@pytest.mark.parametrize("kind", ["bpr", pytest.param("ncf", marks=pytest.mark.slow)])
def test_with_moments_carried_from_weight_one_the_first_steps_are_larger(kind: str) -> None:
    """A weight of 4 enlarges the first ten steps several times."""
    settings = {"optimizer": "adam_lazy", "reduction": "mean", "lr": 0.002}
    past, now = batches(210)[:200], batches(210)[200:]
    moved = {}
    for strategy in (Default(settings), EALS({**settings, "w_new": 4.0})):
        recommender = model(kind)
        before = Updater(recommender, Default(settings))
        for batch in past:
            before.learn(batch)
        start = tensors_of(recommender)
        after = Updater(recommender, strategy, before.history)
        for name, kept in before.row_state.items():
            for key, table in kept.items():
                after.row_state[name][key].restore(table.state())
        strategy.recall(before.strategy.memory())
        for batch in now:
            after.learn(batch)
        end = tensors_of(recommender)
        moved[strategy.name] = float(sum((end[name] - start[name]).norm() ** 2 for name in start)) ** 0.5
    assert moved["eals"] > 2 * moved["default"]


def situations(kind: str) -> tuple[Recommender, Situation]:
    recommender = model(kind)
    recommender.grow(5, np.arange(5), 8, np.arange(8))
    values = tensors_of(recommender)
    items = torch.tensor([[0, 1], [2, 3], [4, 0], [7, 6], [0, 5]])
    examples = Examples(torch.tensor([0, 1, 0, 4, 2]), items)
    specs = {spec.name: spec for spec in recommender.specs}
    return recommender, Situation(specs, examples, values, {}, recommender.differentiable().evidence(values, examples))


@KINDS
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_rows_of_the_matrix_are_constant(kind: str, reduction: str) -> None:
    settings = {"lr": 0.1, "w_new": 4.0, "reduction": reduction, "shared_reduction": reduction}
    rates = EALS(settings).learning_rates(situations(kind)[1])
    scale = 0.1 / 5 if reduction == "mean" else 0.1
    expected = torch.tensor([4.0] * 5, dtype=torch.float64) * scale
    for block in (rates.rows, *rates.shared.values()):
        assert torch.allclose(block, expected[:, None].expand_as(block))
        assert int(torch.linalg.matrix_rank(block)) == 1


@pytest.mark.parametrize("settings", [{"w_new": 0}, {"w_new": -1}, {"lr": 0}])
def test_settings_that_will_not_do_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="strategy 'eals'"):
        EALS(settings)
