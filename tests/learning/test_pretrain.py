"""Pre-training: it learns, it repeats itself, and it can stop and go on at any epoch."""

from typing import Any

import numpy as np
import pytest

from kernel_choice import choose_kernel
from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.errors import LearningError, StreamError
from melon.kernels import threads
from melon.learning import general_step, pretrain
from melon.learning.pretrain import Pretraining, PretrainSettings, most_epochs, stamp_last_touches
from melon.models.autograd import Differentiable, FactorScore
from melon.models.base import Recommender, SummedSteps
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.models.registry import RECOMMENDERS
from melon.types import Ints, Plain

MAKERS = {"bpr": (BPR, {"dim": 8}), "ncf": (NCF, {"dim": 6, "layers": (8, 6)})}


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("flip", n_users=30, n_items=50, n_events=1_200, seed=3)


def make(name: str, **more: Any) -> Recommender:
    kind, settings = MAKERS[name]
    return kind({**settings, **more}, seed=1)


def training(name: str, log: Interactions, seed: int = 0, **settings: Any) -> Pretraining:
    given = PretrainSettings.parse({"batch_size": 64, **settings}, "pre-training")
    return Pretraining(make(name), log, given, seed=seed)


def bytes_of(recommender: Recommender) -> dict[str, bytes]:
    return {
        f"{name}/{part}": tensor.tobytes()
        for name, table in recommender.tables.items()
        for part, tensor in table.state().items()
    }


@pytest.mark.parametrize("name", MAKERS)
def test_the_loss_falls(name: str, log: Interactions) -> None:
    losses = list(training(name, log, l2=0.003).run(12))
    assert losses[0] < 1.05 * np.log(2) + 0.2
    assert losses[-1] < 0.75 * losses[0]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(name: str, log: Interactions) -> None:
    runs = [training(name, log, seed) for seed in (0, 0, 1)]
    losses = [list(run.run(2)) for run in runs]
    assert losses[0] == losses[1] != losses[2]
    assert bytes_of(runs[0].recommender) == bytes_of(runs[1].recommender) != bytes_of(runs[2].recommender)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_it_can_stop_at_any_epoch_and_go_on(name: str, stop: int, log: Interactions) -> None:
    straight = training(name, log)
    wanted = list(straight.run(4))
    first = training(name, log)
    losses = list(first.run(stop))
    resumed = training(name, log)
    for table_name, table in first.recommender.tables.items():
        resumed.recommender.tables[table_name].restore(table.state())
    resumed.epochs_done = stop
    losses += list(resumed.run(4))
    assert losses == wanted
    assert bytes_of(resumed.recommender) == bytes_of(straight.recommender)


def test_last_touches_are_stamped(log: Interactions) -> None:
    run = training("ncf", log)
    list(run.run(1))
    stamp_last_touches(run.recommender, log)
    for table in run.recommender.tables.values():
        if table.spec.role == "shared":
            continue
        rows = log.users if table.spec.role == "user" else log.items
        last = [int(np.flatnonzero(rows == row)[-1]) for row in range(int(rows.max()) + 1)]
        assert table.state()["touched"].tolist() == last


@pytest.mark.parametrize("name", MAKERS)
def test_l2_makes_rows_shorter(name: str, log: Interactions) -> None:
    lengths = []
    for l2 in (0.0, 0.03, 0.3):
        run = training(name, log, l2=l2)
        list(run.run(4))
        tables = [table for table in run.recommender.tables.values() if table.spec.kind == "embedding"]
        lengths.append(sum(float((table.everything() ** 2).sum()) for table in tables))
    assert lengths[0] > lengths[1] > lengths[2]


def test_one_step_by_hand(log: Interactions) -> None:
    """Summed plain steps with L2 on every touch: row -= lr · (g + l2 · row), docs/methods.md 8.5."""
    few = log.head(40)
    run = training("bpr", few, batch_size=40, lr=0.2, l2=0.05)
    before = {name: table.state()["values"].astype(np.float64) for name, table in run.recommender.tables.items()}
    ((users, items),) = run._lines()
    run.epoch()
    wanted = {name: values.copy() for name, values in before.items()}
    for user, (item, other) in zip(users.tolist(), items.tolist(), strict=True):
        p, q, r = (
            before[name][row] for name, row in (("user_factors", user), *(("item_factors", i) for i in (item, other)))
        )
        slope = -1 / (1 + np.exp(p @ q + before["item_bias"][item] - p @ r - before["item_bias"][other]))
        for name, row, gradient in (
            ("user_factors", user, slope * (q - r)),
            ("item_factors", item, slope * p),
            ("item_factors", other, -slope * p),
            ("item_bias", item, slope),
            ("item_bias", other, -slope),
        ):
            wanted[name][row] -= 0.2 * (gradient + 0.05 * before[name][row])
    for name, table in run.recommender.tables.items():
        assert np.allclose(table.everything(), wanted[name], atol=1e-6), name


def test_leaving_the_finite_numbers_is_an_error(log: Interactions) -> None:
    run = training("bpr", log, lr=1e6)
    with pytest.raises(LearningError, match=r"pre-training bpr diverged in epoch \d.*lr=1e\+06"):
        list(run.run(5))


def test_rows_that_are_there_already_stay(log: Interactions) -> None:
    """A recommender that knows part of the log keeps its rows; the others are made from the keys of their ids."""
    half = training("bpr", log.head(300))
    grown = Pretraining(half.recommender, log, PretrainSettings(), seed=0)
    fresh = training("bpr", log)
    assert bytes_of(grown.recommender) == bytes_of(fresh.recommender)


def test_nothing_and_one_item_are_errors() -> None:
    nothing = Interactions.from_ids(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    with pytest.raises(StreamError, match="nothing to pre-train on"):
        Pretraining(make("bpr"), nothing, PretrainSettings(), seed=0)
    one = Interactions.from_ids(np.arange(5), np.zeros(5, dtype=np.int64), np.arange(5))
    with pytest.raises(StreamError, match="one item"):
        Pretraining(make("bpr"), one, PretrainSettings(), seed=0)


def test_how_many_epochs_a_log_is_worth() -> None:
    assert most_epochs(1) == most_epochs(0) == pretrain.MOST_EPOCHS
    assert most_epochs(10**9) == pretrain.FEWEST_EPOCHS
    assert most_epochs(pretrain.INTERACTIONS_SEEN // 20) == 20


def test_a_recommender_of_ones_own_can_be_pretrained(log: Interactions) -> None:
    """The general path serves a recommender without closed forms; the closed form gives the same rows."""

    class ByAutograd(FactorScore):
        evidence = Differentiable.evidence

    class Plain(BPR):
        def differentiable(self) -> Differentiable:
            return ByAutograd(self)

    settings = PretrainSettings(batch_size=128)
    closed, general = (kind({"dim": 4}, seed=1, dtype=np.float64) for kind in (BPR, Plain))
    losses = [list(Pretraining(each, log.head(400), settings, seed=0).run(2)) for each in (closed, general)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    for name, table in closed.tables.items():
        assert np.allclose(table.everything(), general.tables[name].everything(), atol=1e-9)


def after_epochs(name: str, kernel: str, log: Interactions, **settings: Any) -> tuple[list[float], Recommender]:
    with pytest.MonkeyPatch.context() as patch:
        choose_kernel(patch, kernel)
        recommender = RECOMMENDERS[name].load()({"dim": 9, **settings}, seed=1)
        run = Pretraining(recommender, log, PretrainSettings(batch_size=100, lr=0.15, l2=0.05), seed=0)
        return list(run.run(2)), recommender


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bpr", {}),
        ("bpr", {"negatives": 3, "init": "paper"}),
        ("blend", {}),
    ],
)
def test_compiled_kernels_take_the_steps_of_the_general_path(
    name: str, settings: Plain, log: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that name rows several times, and a last one that is short."""
    steps: list[int] = []
    step = general_step._summed_step

    def spy(recommender: Recommender, users: Ints, items: Ints, summed: SummedSteps) -> Any:
        steps.append(len(users))
        return step(recommender, users, items, summed)

    monkeypatch.setattr(general_step, "_summed_step", spy)
    monkeypatch.setattr(pretrain, "_LEARNED_AT_ONCE", 500)
    few = log.head(1_130)
    losses, general = after_epochs(name, "torch", few, **settings)
    assert steps == 2 * [*[100] * 11, 30]
    again, compiled = after_epochs(name, "numba", few, **settings)
    assert len(steps) == 24
    assert again == pytest.approx(losses, rel=1e-5)
    for table, rows in general.tables.items():
        np.testing.assert_allclose(compiled.tables[table].everything(), rows.everything(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("user", "item"), [(-1, 0), (0, -1), (9, 0), (0, 9)])
def test_rows_that_do_not_exist_never_reach_the_kernels(user: int, item: int) -> None:
    recommender = BPR({"dim": 4})
    recommender.grow(9, np.arange(9), 9, np.arange(9))
    with pytest.raises(LearningError, match="does not exist: there are 9 rows"):
        recommender.pretrain(np.array([user]), np.array([[item, 1]]), SummedSteps(1, 0.1, 0.1, 0.1))


@pytest.mark.parametrize("name", MAKERS)
def test_neither_threads_nor_blocks_change_a_bit(name: str, log: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = training(name, log)
    losses = list(wanted.run(2))
    monkeypatch.setattr(pretrain, "_LEARNED_AT_ONCE", 130)
    for count in (1, 3):
        monkeypatch.setattr(threads, "allowed", lambda count=count: count)
        run = training(name, log)
        assert list(run.run(2)) == pytest.approx(losses, rel=1e-12)
        assert bytes_of(run.recommender) == bytes_of(wanted.recommender)


def test_what_the_kernels_do_not_know_takes_the_general_path(log: Interactions) -> None:
    users, items = log.users[:4], log.items[:8].reshape(4, 2)
    steps = SummedSteps(2, 0.1, 0.03, 0.01)
    others = (BPR({"loss": "bce"}), NCF(), BPR(dtype=np.float64))
    assert [each.pretrain(users, items, steps) for each in others] == [None] * len(others)


def test_written_rows_are_recorded(log: Interactions) -> None:
    run = training("bpr", log)
    changes = run.recommender.tables["item_factors"].watch()
    run.epoch()
    assert np.unique(changes.take()).tolist() == list(range(log.n_items))
