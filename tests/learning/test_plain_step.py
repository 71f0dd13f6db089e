"""Plain steps by compiled kernels beside the general path: the same draws, rows within rounding, taken back exactly."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from kernel_choice import choose_kernel
from melon.errors import LearningError
from melon.journal import undoable
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.base import Situation, Strategy
from melon.strategies.default import Default
from melon.strategies.eals import EALS
from melon.strategies.melon.stream import MeLON
from melon.stream import pairs
from melon.stream.batch import Batch

SMALL_BLEND = {"dim": 5, "slots": 6, "head_units": 3, "head_negatives": 4, "head_rest": 40}


def batches(count: int = 14, size: int = 17, seed: int = 0) -> list[Batch]:
    """Users and items that repeat within a batch, and newcomers in every one."""
    rng = np.random.default_rng(seed)
    many = []
    for n in range(count):
        users, items = rng.integers(0, 12 + 3 * n, size), rng.integers(0, 9 + 3 * n, size)
        times = np.full(size, 1_000 * n)
        many.append(Batch(size * n, users, items, times, users, items))
    return many


def learned(monkeypatch: pytest.MonkeyPatch, kernel: str, updater: Updater) -> tuple[Updater, list[float], list[float]]:
    choose_kernel(monkeypatch, kernel)
    losses, moved = [], []
    for batch in batches():
        losses.append(updater.learn(batch))
        moved.append(updater.moved)
    return updater, losses, moved


@pytest.mark.parametrize(
    ("kind", "options", "strategy"),
    [
        (BPR, {"dim": 7}, Default({"lr": 0.2})),
        (BPR, {"dim": 64, "negatives": 3}, Default({"lr": 0.2, "reduction": "mean", "weight_decay": 0.05})),
        (BPR, {"dim": 5, "init": "paper"}, Default({"lr": 0.3, "half_life": 40.0})),
        (BPR, {"dim": 5}, Default({"lr": 0.3, "half_life": 300.0, "weight_decay": 0.1})),
        (BPR, {"dim": 8}, EALS({"w_new": 3.0, "reduction": "mean"})),
        (Blend, SMALL_BLEND, Default({"lr": 0.2})),
        (Blend, SMALL_BLEND | {"transitions": True}, Default({"lr": 0.2, "half_life": 60.0})),
    ],
)
def test_the_same_as_by_the_general_path(
    kind: type[Recommender], options: dict[str, Any], strategy: Default, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = [Updater(kind(options, seed=1), type(strategy)(strategy.settings.plain())) for _ in range(2)]
    slow, slow_losses, slow_moved = learned(monkeypatch, "torch", fresh[0])
    fast, losses, moved = learned(monkeypatch, "numba", fresh[1])
    assert losses == pytest.approx(slow_losses, rel=1e-5)
    assert moved == pytest.approx(slow_moved, rel=1e-4)
    for name, table in slow.recommender.tables.items():
        rows, wanted = fast.recommender.tables[name].state(), table.state()
        assert np.array_equal(rows["touched"], wanted["touched"]), name
        np.testing.assert_allclose(rows["values"], wanted["values"], rtol=1e-4, atol=1e-5, err_msg=name)
    one, other = fast.history.state(), slow.history.state()
    assert all(np.array_equal(one[name], other[name]) for name in other)
    assert fast.strategy.memory() == slow.strategy.memory()
    kept, wanted_kept = fast.recommender.streaming_state(), slow.recommender.streaming_state()
    for name, array in wanted_kept.items():
        np.testing.assert_allclose(kept[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("kind", "options"), [(BPR, {"dim": 6}), (Blend, SMALL_BLEND | {"transitions": True})])
def test_taken_back_to_the_last_bit(
    kind: type[Recommender], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newcomers, rows that decay and neighbours that give way included; what follows is as if it had never been."""
    choose_kernel(monkeypatch, "numba")
    undone, straight = (Updater(kind(options), Default({"half_life": 30.0})) for _ in range(2))
    watches = {name: table.watch() for name, table in undone.recommender.tables.items()}

    def state(updater: Updater) -> dict[str, bytes]:
        """All but the memory of strategy and head, which is stored last: nothing comes after it that could fail."""
        rows = {name: table.state() for name, table in updater.recommender.tables.items()}
        parts = {f"{name}.{part}": array for name, held in rows.items() for part, array in held.items()}
        parts |= {**updater.recommender.streaming_state(), **updater.history.state()}
        return {name: array.tobytes() for name, array in parts.items() if not name.startswith("head.")}

    for batch in batches():
        before = state(undone)
        with undoable(always=True):
            undone.learn(replace(batch, users=batch.users[::-1].copy()))
            assert state(undone) != before
        assert state(undone) == before
        undone.recommender.restore_streaming_state(straight.recommender.streaming_state())
        assert undone.learn(batch) == straight.learn(batch)
        assert state(undone) == state(straight)
        written = {name: np.unique(changes.take()).tolist() for name, changes in watches.items()}
    assert set(written["user_factors"]) >= set(batch.users.tolist())
    assert written["item_factors"] == written["item_bias"]
    undone.learn(replace(batch, first_event=undone.history.events))
    assert np.unique(watches["user_factors"].take()).tolist() == np.unique(batch.users).tolist()


@pytest.mark.parametrize(
    ("table", "value", "what"),
    [
        ("item_bias", float("nan"), "the loss"),
        ("item_factors", float("inf"), "the loss"),
        ("user_factors", 3e38, "the new value of item_factors"),
    ],
)
def test_numbers_that_are_not_finite_are_named(
    table: str, value: float, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_kernel(monkeypatch, "numba")
    *past, last = batches(4)
    updater = Updater(BPR({"dim": 4}), Default({"lr": 1e3}))
    for batch in past:
        updater.learn(batch)
    updater.make_rows(last)
    rows = updater.recommender.tables[table]
    rows.scatter(np.arange(rows.rows), np.full_like(rows.everything(), value))
    if table == "user_factors":  # the loss stays finite
        for name in ("item_factors", "item_bias"):
            zeros = updater.recommender.tables[name]
            zeros.scatter(np.arange(zeros.rows), np.zeros_like(zeros.everything()))
    before = {name: held.state()["values"] for name, held in updater.recommender.tables.items()}
    with pytest.raises(LearningError, match=rf"{what} is not finite in the batch of events 51 to 67"):
        updater.learn(last)
    after = {name: held.state()["values"] for name, held in updater.recommender.tables.items()}
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)
    assert updater.history.events == 51


def test_which_pairings_have_it() -> None:
    class OwnDefault(Default):
        def weights(self, situation: Situation) -> Tensor:
            return situation.evidence.losses

    assert all(model.plain_steps is not None for model in (BPR(), Blend(SMALL_BLEND)))
    others = BPR({"loss": "bce"}), BPR(dtype=np.float64), NCF()
    assert all(model.plain_steps is None for model in others)
    assert all(strategy.plain_rates(1) is not None for strategy in (Default(), Default({"half_life": 9.0}), EALS()))
    settings: list[dict[str, Any]] = [{"optimizer": "adam_lazy"}, {"most_step": 0.1}]
    rest = [Default(one) for one in settings] + [OwnDefault()]
    assert all(strategy.plain_rates(1) is None for strategy in rest)


def test_what_a_plain_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of steps is kept, the latest pairs are sorted in, and who proposes otherwise has no such step."""
    choose_kernel(monkeypatch, "numba")
    monkeypatch.setattr(pairs, "SORTED_FROM", 8)
    updater = Updater(BPR({"dim": 4}), Default())
    for batch in batches(4):
        updater.learn(batch)
    assert int(updater.strategy.memory()["steps"]) == 4
    assert len(updater.history.seen.past.items)
    for kind in (Default, EALS):
        assert type("Own", (kind,), {"propose": Default.propose})().plain_rates(1) is None
        assert type("Named", (kind,), {"name": "named"})().plain_rates(1) is not None
    assert type("Own", (MeLON,), {"propose": MeLON.propose}).line_rates is Strategy.line_rates
