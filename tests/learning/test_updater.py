"""The updater (docs/methods.md 7) with Default and eALS on both recommenders."""

from typing import Any

import numpy as np
import pytest
import torch

from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.learning.general_step import all_finite
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.base import Proposal, Situation, Strategy
from melon.strategies.default import Default
from melon.strategies.eals import EALS
from melon.stream.batch import Batch, batch_of
from melon.testing import state_of

RECOMMENDERS = {"bpr": (BPR, {"dim": 4}), "ncf": (NCF, {"dim": 3, "layers": (4, 3)})}
STRATEGIES: dict[str, tuple[type[Strategy], dict[str, Any]]] = {
    "sgd": (Default, {"lr": 0.05}),
    "adam": (Default, {"optimizer": "adam_lazy", "lr": 0.01, "reduction": "mean"}),
    "dense": (Default, {"optimizer": "adam_dense", "lr": 0.01, "weight_decay": 0.001}),
    "eals": (EALS, {"lr": 0.02, "w_new": 4.0}),
}
EVERY = pytest.mark.parametrize(("kind", "how"), [(kind, how) for kind in RECOMMENDERS for how in STRATEGIES])
SIZE = 16


def drifting(events: int, *, seed: int = 0, n_users: int = 30, n_items: int = 40) -> Interactions:
    """Two groups of users, two halves of a slowly moving window of items; the halves are swapped mid-way."""
    rng, when = np.random.default_rng(seed), np.arange(events)
    users = rng.integers(0, n_users, events)
    swapped = (users + (when >= events // 2)) % 2
    items = when * n_items // events + 2 * rng.integers(0, 8, events) + swapped
    return Interactions.from_ids(users, items, when)


def batches_of(log: Interactions, size: int = SIZE) -> list[Batch]:
    return [batch_of(log, start, min(start + size, len(log))) for start in range(0, len(log), size)]


def make(kind: str, how: str, *, dtype: Any = np.float32, seed: int = 0, **extra: Any) -> Updater:
    (recommender, settings), (strategy, step) = RECOMMENDERS[kind], STRATEGIES[how]
    return Updater(recommender(settings, seed=seed, dtype=dtype), strategy(step), seed=seed, **extra)


def trained(kind: str, how: str, batches: list[Batch], **extra: Any) -> Updater:
    updater = make(kind, how, **extra)
    for batch in batches:
        updater.learn(batch)
    return updater


def same_bytes(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def handmade(first: int, users: Any, items: Any) -> Batch:
    columns = np.asarray(users, dtype=np.int64), np.asarray(items, dtype=np.int64)
    return Batch(first, *columns, np.arange(first, first + len(columns[0])), *columns)


@EVERY
class TestEveryPairing:
    """What `melon.testing` does not ask of each pairing."""

    def test_nothing_leaves_the_finite_numbers_in_200_batches_of_drift(self, kind: str, how: str) -> None:
        """7.6"""
        updater = trained(kind, how, batches_of(drifting(200 * SIZE)))
        assert all(np.isfinite(array).all() for array in state_of(updater).values())
        assert updater.history.events == 200 * SIZE

    def test_an_empty_batch_is_nothing(self, kind: str, how: str) -> None:
        updater = trained(kind, how, batches_of(drifting(64)))
        before = state_of(updater)
        assert updater.learn(handmade(64, [], [])) == 0.0
        assert same_bytes(before, state_of(updater))


@pytest.mark.parametrize("how", STRATEGIES)
def test_the_very_first_batch_with_a_single_item(how: str) -> None:
    """There is no negative yet, so nothing can be learned; but it happened, and the next batch is learned."""
    updater = make("bpr", how)
    assert updater.learn(handmade(0, [0, 1, 0], [0, 0, 0])) == 0.0
    assert updater.history.events == 3
    assert updater.recommender.rows_of("item") == 1
    assert updater.learn(handmade(3, [0, 2], [1, 1])) > 0


@pytest.mark.parametrize("kind", RECOMMENDERS)
class TestGrowth:
    def test_unseen_users_and_items_get_rows(self, kind: str) -> None:
        updater = trained(kind, "adam", batches_of(drifting(64)))
        users, items = updater.recommender.rows_of("user"), updater.recommender.rows_of("item")
        assert np.isfinite(updater.score(np.array([users + 5]), np.array([[items + 5, 0]]), 64)).all()
        updater.learn(handmade(64, [users, users + 1], [items, 0]))
        assert updater.recommender.rows_of("user") == users + 2
        assert updater.recommender.rows_of("item") == items + 1
        for kept in updater.row_state.values():
            for table in kept.values():
                if table.spec.role != "shared":
                    assert table.rows == updater.recommender.rows_of(table.spec.role)

    def test_a_row_starts_by_its_id_whenever_it_arrives(self, kind: str) -> None:
        """The same newcomers in another order; a stream of one item takes no step, so rows are as they started."""
        one, other = make(kind, "sgd"), make(kind, "sgd")
        zeros = np.zeros(3, dtype=np.int64)
        one.learn(Batch(0, np.array([0, 1, 2]), zeros, np.arange(3), np.array([50, 60, 70]), zeros))
        other.learn(Batch(0, np.array([0, 1, 2]), zeros, np.arange(3), np.array([70, 50, 60]), zeros))
        for name, table in one.recommender.tables.items():
            if table.spec.role == "user":
                there = other.recommender.tables[name].everything()
                assert np.array_equal(table.everything(), there[[1, 2, 0]])

    def test_skipped_rows_are_made_too(self, kind: str) -> None:
        updater = make(kind, "sgd")
        updater.learn(handmade(0, [7, 2], [3, 5]))
        assert updater.recommender.rows_of("user") == 8
        assert updater.recommender.rows_of("item") == 6
        assert updater.row_state.keys() <= updater.recommender.tables.keys()


@pytest.mark.parametrize("kind", RECOMMENDERS)
def test_how_far_a_step_moved_the_rows_it_touched(kind: str) -> None:
    """Against the stored rows before and after: vectors of users and items that the batch or its negatives touch."""
    *past, batch = batches_of(drifting(64))
    updater = trained(kind, "sgd", past)
    updater.make_rows(batch)
    tables = [table for table in updater.recommender.tables.values() if table.spec.kind == "embedding"]
    before = [table.everything().copy() for table in tables]
    around = updater.situation(batch).around
    updater.learn(batch)
    steps = [
        np.linalg.norm((table.everything() - old)[around.users if table.spec.role == "user" else around.items], axis=1)
        for table, old in zip(tables, before, strict=True)
    ]
    assert updater.moved == pytest.approx(float(np.concatenate(steps).mean()), rel=1e-5)
    assert updater.moved > 0


class Broken(Default):
    """Proposes a number that is not finite in one place, once it is told to."""

    where: str | None = None

    def propose(self, situation: Situation) -> Proposal:
        proposal = super().propose(situation)
        for part in (proposal.values, *proposal.row_state.values()):
            for name, values in part.items():
                if name == self.where:
                    values[-1, -1] = float("inf")
        return proposal


class TestNonFinite:
    @pytest.mark.parametrize("kind", RECOMMENDERS)
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_a_loss_is_an_error_that_names_the_batch_and_writes_nothing(self, kind: str, bad: float) -> None:
        *past, last = batches_of(drifting(64))
        updater = trained(kind, "adam", past)
        updater.make_rows(last)
        table = updater.recommender.tables["item_bias"]
        table.scatter(last.items[:1], np.array([[bad]]))
        before = state_of(updater)
        with pytest.raises(LearningError, match=rf"the loss .* events 48 to 63 \({kind} with default\); nothing"):
            updater.learn(last)
        assert same_bytes(before, state_of(updater))

    @pytest.mark.parametrize("where", ["item_factors", "item_bias", "moment_2"])
    def test_a_proposal_is_an_error_that_names_the_batch_and_writes_nothing(self, where: str) -> None:
        *past, last = batches_of(drifting(64))
        strategy = Broken({"optimizer": "adam_lazy", "lr": 0.01})
        updater = Updater(BPR({"dim": 4}), strategy)
        for batch in past:
            updater.learn(batch)
        updater.make_rows(last)
        before = state_of(updater)
        strategy.where = where
        with pytest.raises(LearningError, match=rf"{where}.* not finite in the batch of events 48 to 63"):
            updater.learn(last)
        assert same_bytes(before, state_of(updater))
        strategy.where = None
        assert np.isfinite(updater.learn(last))


class TestStream:
    def test_the_loss_is_the_mean_before_the_step(self) -> None:
        *past, last = batches_of(drifting(96))
        updater = trained("bpr", "sgd", past)
        expected = float(updater.situation(last).evidence.losses.mean())
        assert updater.learn(last) == pytest.approx(expected)

    def test_a_swap_of_popularity_is_followed(self) -> None:
        """7.6: items swap popularity mid-stream; a larger rate follows faster."""
        rng, late = np.random.default_rng(0), {}
        users, when = rng.integers(0, 400, 3_200), np.arange(3_200)
        # Items 0 to 9 are taken before event 1,600, items 10 to 19 from then on; each by whoever comes.
        items = rng.integers(0, 10, 3_200) + 10 * (when >= 1_600)
        items[:40] = when[:40] % 20
        log = Interactions.from_ids(users, items, when)
        for rate in (0.01, 0.1):
            updater = Updater(BPR({"dim": 8}), Default({"lr": rate}))
            losses = [updater.learn(batch) for batch in batches_of(log)]
            assert np.mean(losses[80:100]) < np.mean(losses[100:103])
            late[rate] = np.mean(losses[110:150])
        assert late[0.1] < 0.9 * late[0.01]

    def test_learning_rates_leave_existing_rows_alone(self) -> None:
        updater = trained("ncf", "adam", batches_of(drifting(96)))
        before = state_of(updater)
        rates = updater.learning_rates(handmade(96, [0, 1, 2], [0, 1, 2]))
        assert len(rates.rows) == 3
        assert same_bytes(before, state_of(updater))


class TestDecayFactors:
    def test_after_so_many_interactions(self) -> None:
        """An idle row is read at half its size after a half-life; a learned row is fresh."""
        updater = make("bpr", "sgd")
        updater.learn(handmade(0, [0, 1], [0, 1]))
        table = updater.recommender.tables["user_factors"]
        plain = table.gather(np.array([0, 1]))
        table.half_life = 2.0
        assert np.allclose(table.gather(np.array([0, 1]), updater.moment()), plain / 2)
        updater.learn(handmade(2, [0, 0], [0, 1]))
        assert table.state()["touched"].tolist() == [2, 0]


class TestMostStep:
    @EVERY
    def test_no_row_moves_further(self, kind: str, how: str) -> None:
        log = drifting(96)
        recommender, settings = RECOMMENDERS[kind]
        strategy, step = STRATEGIES[how]
        moves = {}
        for most in (None, 1e-3, 1e3):
            told = {**step, "lr": 0.5, "most_step": most}
            updater = Updater(recommender(settings, dtype=np.float64), strategy(told))
            updater.learn(batch_of(log, 0, 16))  # makes the rows
            start = {name: table.everything().copy() for name, table in updater.recommender.tables.items()}
            updater.learn(
                Batch(16, *(each[:16] for each in (log.users, log.items, log.times)), log.users[:16], log.items[:16])
            )
            moves[most] = {name: table.everything() - start[name] for name, table in updater.recommender.tables.items()}
        lengths = {
            most: np.concatenate([np.linalg.norm(move, axis=1) for move in made.values()])
            for most, made in moves.items()
        }
        assert lengths[None].max() > 1e-3
        assert lengths[1e-3].max() == pytest.approx(1e-3)
        assert all(np.array_equal(moves[None][name], moves[1e3][name]) for name in moves[None])

    def test_a_longer_move_keeps_its_direction(self) -> None:
        before = {"rows": torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])}
        proposed = Proposal({"rows": torch.tensor([[3.0, 4.0], [1.0, 1.5], [2.0, 0.0]])})
        within = proposed.within(1.0, before).values["rows"]
        assert within.tolist() == [pytest.approx([0.6, 0.8]), [1.0, 1.5], [2.0, 0.0]]

    def test_it_keeps_a_wild_step_finite(self) -> None:
        log = drifting(640)
        for most, alive in ((None, False), (0.5, True)):
            updater = Updater(NCF({"dim": 3, "layers": (4, 3)}), Default({"lr": 1e4, "most_step": most}))
            try:
                for batch in batches_of(log):
                    updater.learn(batch)
            except LearningError:
                assert not alive
            else:
                assert alive


def test_large_numbers_are_finite() -> None:
    """A sum of finite numbers may overflow; the numbers are finite all the same."""
    assert all_finite([torch.full((4,), 3e38)])
    assert not all_finite([torch.ones(2), torch.tensor([1.0, float("inf")])])
    assert not all_finite([torch.tensor([float("nan")])])
