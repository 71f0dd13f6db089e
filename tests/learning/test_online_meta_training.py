"""Rates that go on learning: their gradient, what a failed batch leaves, and checkpoints to the last bit."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meta_training_scenes import ahead, behind, stream
from torch import Tensor

from kernel_choice import choose_kernel
from melon.errors import CheckpointError
from melon.learning import checkpoint
from melon.learning.meta_training import stream as stream_meta_training
from melon.learning.meta_training.online import OnlineMetaTraining
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.melon.linear import MeLON
from melon.strategies.stream_trained import LinearStrategy


def bpr(dtype: torch.dtype = torch.float64) -> BPR:
    return BPR({"dim": 3}, seed=3, dtype=dtype)


def ncf() -> NCF:
    return NCF({"dim": 2, "layers": (4, 3)}, seed=3, dtype=torch.float64)


@pytest.fixture(autouse=True)
def all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recommenders without compiled kernels predict among as many candidates as the others."""
    monkeypatch.setattr(stream_meta_training, "_MOST_CANDIDATES", 99)


def online_continuation(model: Any, **settings: Any) -> tuple[Updater, LinearStrategy]:
    strategy = MeLON({"lr": 0.2, "online": "next_batch", **settings})
    updater = behind(model, strategy, stream())
    assert isinstance(strategy, LinearStrategy)
    return updater, strategy


def online(updater: Updater) -> OnlineMetaTraining:
    found = updater._steps._online
    assert found is not None
    return found


def phi_of(strategy: LinearStrategy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in strategy.phi.items()}


@pytest.mark.parametrize(
    ("make", "settings"),
    [(bpr, {"half_life": 40.0}), (bpr, {"half_life": 40.0, "decay_clock": "seconds"}), (ncf, {"most_step": 0.9})],
)
def test_the_gradient_is_that_of_the_next_predictions(make: Any, settings: dict[str, Any]) -> None:
    """Central differences of a loss that the updater itself gives: it learns a batch with other rates, then scores."""
    batches = ahead(stream())
    updater, strategy = online_continuation(make(), **settings)
    updater.learn(batches[0])
    last, state = strategy.online_continuation.last, strategy.online_continuation
    assert last is not None
    updater._tick(int(batches[1].times[0]))
    meta_training = online(updater)
    recorded = meta_training._recorded(batches[1], last)
    gradient = meta_training.gradient(batches[1], last)
    assert gradient is not None
    lines = recorded.candidates[len(batches[0]) :]
    items = np.where(lines >= 0, recorded.item_rows[np.maximum(lines, 0)], 10_000)  # without a row: it scores 0
    start = phi_of(strategy)

    def loss(phi: dict[str, Tensor]) -> float:
        again, other = online_continuation(make(), **settings)
        other.rates.phi = phi  # not `take`: differences go below the least decay
        other.online_continuation = state.__class__()  # nothing to learn from: the batch is learned with these rates
        again.learn(batches[0])
        known = again.history.of_users.met(batches[1].users) > 0
        users = np.where(known, batches[1].users, 10_000)
        scores = torch.from_numpy(again.score(users, items, int(batches[1].times[0])))
        apart = torch.exp(phi["temperature"]) * (scores - scores[:, :1])
        return float(torch.logsumexp(apart, dim=1).mean())

    checked, generator = 0, torch.Generator().manual_seed(7)
    for name, slopes in gradient.items():
        if name == "half_lives" and settings.get("half_life") is None:
            continue
        # Along one direction in which every entry of the part moves.
        direction, values = torch.randn(slopes.shape, generator=generator, dtype=slopes.dtype), []
        for step in (1e-6, -1e-6):
            values.append(loss(start | {name: start[name] + step * direction}))
        found, expected = (values[0] - values[1]) / 2e-6, float((slopes * direction).sum())
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5 * float(slopes.abs().max()) + 1e-9), name
        checked += abs(found) > 1e-7
    assert checked >= 3


@pytest.mark.parametrize("make", [bpr, ncf, lambda: bpr(torch.float32)])
def test_rates_move_from_the_second_batch_on(make: Any) -> None:
    updater, strategy = online_continuation(make(), online_lr=0.02)
    strategy.start_afresh()
    seen = [phi_of(strategy)]
    for batch in ahead(stream()):
        updater.learn(batch)
        seen.append(phi_of(strategy))
    assert torch.equal(seen[0]["rates"], seen[1]["rates"])
    assert not torch.equal(seen[1]["rates"], seen[2]["rates"])
    assert float((seen[2]["rates"] - seen[1]["rates"]).abs().max()) == pytest.approx(
        0.02, rel=1e-3
    )  # Adam's first step
    assert (strategy.rates.phi["half_lives"] == 0).all()  # nothing decays


def test_compiled_kernels_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    for kernel in ("numba", "torch"):
        choose_kernel(monkeypatch, kernel)
        updater, strategy = online_continuation(bpr(torch.float32), half_life=40.0)
        for batch in ahead(stream()):
            updater.learn(batch)
        moved.append(phi_of(strategy))
    for name, value in moved[0].items():
        torch.testing.assert_close(value, moved[1][name], rtol=1e-2, atol=2e-3)


def test_frozen_rates_keep_nothing() -> None:
    strategy = MeLON({"lr": 0.2})
    updater, before = behind(bpr(), strategy, stream()), None
    for batch in ahead(stream()):
        updater.learn(batch)
        assert isinstance(strategy, LinearStrategy)
        assert strategy.online_continuation.last is None
        before = before or strategy.memory().keys()
    assert all(name.startswith("phi/") for name in before or ())


def test_a_batch_that_is_taken_back_leaves_nothing() -> None:
    updater, strategy = online_continuation(bpr(torch.float32))
    batches = ahead(stream())
    updater.learn(batches[0])
    before = {name: value.clone() for name, value in strategy.memory().items()}
    with ExitStack() as undo:
        updater.learn_undoable(batches[1], undo)
        assert not torch.equal(strategy.memory()["phi/rates"], before["phi/rates"])
    after = strategy.memory()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("make", [lambda: bpr(torch.float32), ncf])
def test_a_checkpoint_goes_on_to_the_last_bit(make: Any, tmp_path: Path) -> None:
    batches = ahead(stream())
    through, _ = online_continuation(make(), half_life=40.0)
    cut, _ = online_continuation(make(), half_life=40.0)
    for batch in batches:
        through.learn(batch)
    for batch in batches[:2]:
        cut.learn(batch)
    checkpoint.save(tmp_path / "cut", cut)
    resumed = checkpoint.load(tmp_path / "cut").updater
    for batch in batches[2:]:
        resumed.learn(batch)
    checkpoint.save(tmp_path / "resumed", resumed)
    checkpoint.save(tmp_path / "through", through)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "through").iterdir()}
    assert expected == {path.name: path.read_bytes() for path in (tmp_path / "resumed").iterdir()}


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("online/last/users", torch.zeros(3)),
        ("online/last/touched", torch.zeros(1, dtype=torch.int64)),
        ("online/last/items", torch.full((13, 2), -1)),
        ("online/first/rates", torch.zeros(2)),
    ],
)
def test_broken_memory_is_refused(part: str, broken: Tensor) -> None:
    updater, strategy = online_continuation(bpr(torch.float32))
    for batch in ahead(stream())[:2]:
        updater.learn(batch)
    before = phi_of(strategy)
    with pytest.raises(CheckpointError, match="cannot go on learning"):
        strategy.recall({**strategy.memory(), part: broken})
    assert all(torch.equal(value, before[name]) for name, value in strategy.phi.items())
