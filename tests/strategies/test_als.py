"""Element-wise ALS against slow twins that follow docs/methods.md 3.2.2 to the letter, and through the updater."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from melon.data.interactions import Interactions
from melon.errors import SettingsError
from melon.learning.pretrain import pretrain_by_strategy
from melon.learning.updater import Updater
from melon.recommenders.bpr import BPR
from melon.recommenders.ncf import NCF
from melon.strategies.als.solver import (
    Neighbourhood,
    ObservedCells,
    item_confidences,
    pretrain_als,
    second_moment,
    solve_row,
)
from melon.strategies.als.strategy import ALS
from melon.strategies.base import Situation
from melon.strategies.registry import ALL_STRATEGIES, STRATEGIES
from melon.stream.batch import batch_of
from melon.stream.candidates import Candidates
from melon.stream.history import NOBODY, RING, History
from melon.types import Floats

REG = 0.05
Weights = dict[tuple[int, int], float]


class Toy:
    """A small matrix with every cell in sight: random factors, observed cells, weights and confidences."""

    def __init__(
        self, seed: int = 0, dim: int = 5, users: int = 7, items: int = 9, c_most: float = 3.0, reg: float = REG
    ) -> None:
        rng = np.random.default_rng(seed)
        self.reg = reg
        self.users, self.items = rng.normal(size=(users, dim)), rng.normal(size=(items, dim))
        self.confidence = rng.uniform(0.05, c_most, items)  # some are larger than some ω
        cells = [(u, i) for u in range(users) for i in range(items) if rng.random() < 0.4]
        self.weights: Weights = {cell: float(rng.uniform(0.5, 2.0)) for cell in cells}

    def objective(self) -> float:
        """J, cell by cell."""
        total = self.reg * float((self.users**2).sum() + (self.items**2).sum())
        for u, user in enumerate(self.users):
            for i, item in enumerate(self.items):
                predicted = float(user @ item)
                known = self.weights.get((u, i))
                total += self.confidence[i] * predicted**2 if known is None else known * (1 - predicted) ** 2
        return total

    def user_coordinate(self, u: int, k: int) -> float:
        """The formula for p_uk; returns its denominator."""
        cache, p = sum(c * np.outer(q, q) for c, q in zip(self.confidence, self.items, strict=True)), self.users[u]
        above, below = -sum(p[j] * cache[j, k] for j in range(len(p)) if j != k), cache[k, k] + self.reg
        for (v, i), weight in self.weights.items():
            if v == u:
                q, c = self.items[i], self.confidence[i]
                without = p @ q - p[k] * q[k]
                above += (weight - (weight - c) * without) * q[k]
                below += (weight - c) * q[k] ** 2
        p[k] = above / below
        return float(below)

    def item_coordinate(self, i: int, k: int) -> float:
        """The formula for q_ik; returns its denominator."""
        cache, q, c = sum(np.outer(p, p) for p in self.users), self.items[i], self.confidence[i]
        above, below = -c * sum(q[j] * cache[j, k] for j in range(len(q)) if j != k), c * cache[k, k] + self.reg
        for (u, j), weight in self.weights.items():
            if j == i:
                p = self.users[u]
                without = p @ q - p[k] * q[k]
                above += (weight - (weight - c) * without) * p[k]
                below += (weight - c) * p[k] ** 2
        q[k] = above / below
        return float(below)

    def sweep(self) -> Iterator[float]:
        """All coordinates of all users, then of all items; yields each denominator."""
        dim = self.users.shape[1]
        yield from (self.user_coordinate(u, k) for u in range(len(self.users)) for k in range(dim))
        yield from (self.item_coordinate(i, k) for i in range(len(self.items)) for k in range(dim))

    def observed(self) -> ObservedCells:
        users, items = np.array(list(self.weights)).T
        return ObservedCells(users, items, np.array(list(self.weights.values())))

    def neighbourhood(self, **more: Any) -> Neighbourhood:
        return Neighbourhood(
            self.users.copy(),
            self.items.copy(),
            np.ones(len(self.users), dtype=bool),
            self.confidence.copy(),
            second_moment(self.users),
            second_moment(self.items, self.confidence),
            {u: {i: w for (v, i), w in self.weights.items() if v == u} for u in range(len(self.users))},
            {i: {u: w for (u, j), w in self.weights.items() if j == i} for i in range(len(self.items))},
            **more,
        )


def stream(
    events: int = 1_200, users: int = 40, items: int = 60, blocks: int = 4, noise: float = 0.1, seed: int = 0
) -> Interactions:
    """Users of a block take items of that block, apart from a little noise."""
    rng = np.random.default_rng(seed)
    who = rng.integers(users, size=events)
    inside = rng.integers(items // blocks, size=events) * blocks + who % blocks
    what = np.where(rng.random(events) < noise, rng.integers(items, size=events), inside)
    return Interactions.from_ids(who, what, np.arange(events))


def updater_of(
    dtype: torch.dtype = torch.float64, dim: int = 6, history: History | None = None, **settings: Any
) -> Updater:
    return Updater(BPR({"dim": dim}, dtype=dtype), ALS({"c0": 20.0, **settings}), history)


def learn(updater: Updater, log: Interactions, start: int, stop: int, size: int = 32) -> None:
    for first in range(start, stop, size):
        updater.learn(batch_of(log, first, min(first + size, stop)))


def factors(updater: Updater) -> tuple[Floats, Floats]:
    tables = updater.recommender.tables
    return tables["user_factors"].everything().double().numpy(), tables["item_factors"].everything().double().numpy()


def assert_caches_hold(updater: Updater, tolerance: float = 1e-8) -> None:
    memory, (users, items) = updater.strategy.memory(), factors(updater)
    known, confidence = memory["users"][:, 0].numpy(), memory["items"][:, 0].numpy()
    held_users = second_moment(users[: len(known)], known)
    held_items = second_moment(items[: len(confidence)], confidence)
    np.testing.assert_allclose(memory["user_cache"], held_users, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(memory["item_cache"], held_items, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_the_objective_never_increases_and_denominators_stay_positive(seed: int) -> None:
    toy = Toy(seed, c_most=6.0)
    assert max(toy.confidence) > max(toy.weights.values())
    before = toy.objective()
    for denominator in [*toy.sweep(), *toy.sweep()]:
        assert denominator > 0
    toy = Toy(seed, c_most=6.0)
    for _ in toy.sweep():
        after = toy.objective()
        assert after <= before + 1e-9 * abs(before)
        before = after


def test_the_denominator_is_the_sum_over_all_cells() -> None:
    toy = Toy(1, c_most=6.0)
    u, k = 2, 3
    weights = [toy.weights.get((u, i), c) for i, c in enumerate(toy.confidence)]
    expected = sum(w * q[k] ** 2 for w, q in zip(weights, toy.items, strict=True)) + REG
    assert toy.user_coordinate(u, k) == pytest.approx(expected, rel=1e-12)


@given(seed=st.integers(0, 10_000), dim=st.integers(1, 6))
def test_a_solved_row_is_the_pass_over_its_coordinates(seed: int, dim: int) -> None:
    toy = Toy(seed, dim)
    place = toy.neighbourhood()
    for k in range(dim):
        toy.user_coordinate(1, k)
    place.solve_user(1, REG)
    np.testing.assert_allclose(place.users, toy.users, rtol=1e-9, atol=1e-10)
    for k in range(dim):
        toy.item_coordinate(4, k)
    place.solve_item(4, REG)
    np.testing.assert_allclose(place.items, toy.items, rtol=1e-9, atol=1e-10)


def test_one_dimension_is_the_scalar_closed_form() -> None:
    q, weights, c = np.array([[0.5], [-1.0], [2.0]]), np.array([1.0, 3.0, 0.5]), np.array([0.2, 0.1, 4.0])
    rest = 0.7  # what unobserved items add to SQ
    cache = np.array([[rest + float((c * q[:, 0] ** 2).sum())]])
    expected = (weights * q[:, 0]).sum() / ((weights * q[:, 0] ** 2).sum() + rest + REG)
    assert solve_row(np.array([9.0]), q, weights, c, cache, REG) == pytest.approx([expected], rel=1e-12)


def test_a_row_without_cells_shrinks_and_stays_finite() -> None:
    row = np.ones(3)
    solved = solve_row(row, np.empty((0, 3)), np.empty(0), np.empty(0), np.eye(3), REG)
    np.testing.assert_array_equal(solved, np.zeros(3))


@pytest.mark.parametrize("seed", range(3))
def test_whole_sweeps_are_the_slow_loop(seed: int) -> None:
    toy = Toy(seed)
    found = pretrain_als(toy.observed(), toy.users, toy.items, toy.confidence, reg=REG, iterations=3)
    for _ in range(3):
        list(toy.sweep())
    np.testing.assert_allclose(found.users, toy.users, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.items, toy.items, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.user_cache, second_moment(toy.users), rtol=1e-8)
    np.testing.assert_allclose(found.item_cache, second_moment(toy.items, toy.confidence), rtol=1e-8)


def test_sweeps_leave_the_given_factors_alone_and_count_repeats_once() -> None:
    toy = Toy()
    before = toy.users.copy()
    cells = toy.observed()
    users, items = np.tile(cells.users, 3), np.tile(cells.items, 3)
    again = ObservedCells.from_log(users, items)
    assert set(zip(again.users, again.items, strict=True)) == set(toy.weights)
    assert len(again.users) == len(toy.weights)
    pretrain_als(again, toy.users, toy.items, toy.confidence, iterations=1)
    np.testing.assert_array_equal(toy.users, before)


def test_confidences_add_up_to_c0_and_follow_popularity() -> None:
    counts = np.array([0, 1, 4, 16])
    confidence = item_confidences(counts, 10.0, 0.5)
    assert confidence.sum() == pytest.approx(10.0)
    np.testing.assert_allclose(confidence / confidence[1], [0, 1, 2, 4])
    assert not item_confidences(np.zeros(3, dtype=np.int64), 10.0, 0.5).any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_caches_follow_a_thousand_online_updates(dtype: type) -> None:
    toy, rng = Toy(3, users=20, items=25, c_most=4.0), np.random.default_rng(0)
    toy.users, toy.items = (x.astype(dtype).astype(np.float64) for x in (toy.users, toy.items))
    toy.confidence[20:] = 0.0
    place = toy.neighbourhood(most_cells=6, dtype=dtype)
    place.counted[15:] = False
    place.user_cache = second_moment(place.users, place.counted.astype(np.float64))
    for _ in range(1_000):
        user, item = int(rng.integers(20)), int(rng.integers(25))
        place.observe(user, item, float(rng.uniform(0.5, 4)), newcomer=0.3)
        place.solve(user, item, REG)
    assert place.counted.all()
    np.testing.assert_array_equal(place.confidence[20:], 0.3)
    np.testing.assert_allclose(place.user_cache, second_moment(place.users), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(place.item_cache, second_moment(place.items, place.confidence), rtol=1e-8, atol=1e-8)
    assert max(map(len, place.user_cells.values())) == 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_caches_follow_the_tables_through_the_updater(dtype: torch.dtype) -> None:
    log, updater = stream(), updater_of(dtype)
    learn(updater, log, 0, 1_000)
    assert_caches_hold(updater)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_caches_fade_as_rows_do(dtype: torch.dtype) -> None:
    log, updater = stream(), updater_of(dtype)
    for table in updater.recommender.tables.values():
        table.half_life = 300.0
    learn(updater, log, 0, 1_000)
    updater.recommender.clock.now = 1_000 - 1_000 % 32  # the moment of the last batch
    assert_caches_hold(updater, 1e-8 if dtype == torch.float64 else 1e-4)


def test_online_steps_never_raise_the_objective() -> None:
    """While no ring has overflowed, J is over exactly the cells seen so far."""
    log, updater, toy = stream(events=300, items=40), updater_of(reg=REG), Toy()
    updater.recommender.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
    for event in range(300):
        past = log.head(event + 1)
        toy.users, toy.items = (rows.copy() for rows in factors(updater))
        toy.users, toy.items = toy.users[: past.n_users], toy.items[: past.n_items]
        updater.learn(batch_of(log, event, event + 1))
        if not updater.strategy.memory():
            continue  # there is one item so far and nothing to compare it with
        toy.weights = dict.fromkeys(zip(past.users.tolist(), past.items.tolist(), strict=True), 1.0)
        toy.confidence = updater.strategy.memory()["items"][: past.n_items, 0].numpy()
        before = toy.objective()
        toy.users, toy.items = (
            rows[:n] for rows, n in zip(factors(updater), (past.n_users, past.n_items), strict=True)
        )
        assert toy.objective() <= before * (1 + 1e-9)


def test_the_updater_solves_as_the_slow_loop_does() -> None:
    log = stream(events=120, users=12, items=16)
    updater = updater_of(w_new=3.0, reg=REG)
    toy = Toy()
    past = log.head(80)
    updater.history.append(past.users, past.items)
    updater.recommender.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
    toy.users, toy.items = (rows.copy() for rows in factors(updater))
    toy.confidence = item_confidences(np.bincount(past.items, minlength=log.n_items), 20.0, 0.4)
    assert (toy.confidence > 0).all()
    assert log.head(80).n_users == log.n_users
    toy.weights = dict.fromkeys(zip(past.users.tolist(), past.items.tolist(), strict=True), 1.0)
    for first in (80, 100):
        updater.learn(batch_of(log, first, first + 20))
        for user, item in zip(
            log.users[first : first + 20].tolist(), log.items[first : first + 20].tolist(), strict=True
        ):
            toy.weights[user, item] = 3.0
            for k in range(6):
                toy.user_coordinate(user, k)
            for k in range(6):
                toy.item_coordinate(item, k)
    for solved, slow in zip(factors(updater), (toy.users, toy.items), strict=True):
        np.testing.assert_allclose(solved, slow, rtol=1e-9, atol=1e-10)


def test_only_rows_of_the_batch_change() -> None:
    log, updater = stream(), updater_of(torch.float32)
    learn(updater, log, 0, 600)
    users, items = (rows.copy() for rows in factors(updater))
    batch = batch_of(log, 600, 620)
    updater.learn(batch)
    new_users, new_items = factors(updater)
    moved_users = np.flatnonzero((new_users != users).any(1))
    moved_items = np.flatnonzero((new_items != items).any(1))
    assert set(moved_users) == set(batch.users)
    assert set(moved_items) == set(batch.items)
    for name in ("user_bias", "item_bias"):
        assert not updater.recommender.tables[name].everything().any()


def test_a_brand_new_item_joins_the_cache() -> None:
    log = stream(events=400)
    late = Interactions.from_ids(
        np.append(log.user_ids[log.users], [log.user_ids[0], 999]), np.append(log.item_ids[log.items], [998, 998]),
        np.arange(402),
    )  # fmt: skip
    updater = updater_of(c0=20.0)
    learn(updater, late, 0, 400)
    assert updater.strategy.memory()["items"].shape[0] == log.n_items
    updater.learn(batch_of(late, 400, 402))
    memory = updater.strategy.memory()
    assert memory["items"][log.n_items].tolist() == [20.0 / late.n_items, 2.0]
    assert memory["users"][-1].tolist() == [1.0, 1.0]
    assert_caches_hold(updater)


def test_rows_that_were_only_looked_at_are_not_counted() -> None:
    log, updater = stream(), updater_of()
    learn(updater, log, 0, 64)
    updater.strategy.propose(updater.situation(batch_of(log, 64, 128)))
    learn(updater, log, 64, 96)
    assert_caches_hold(updater)


def test_a_cell_of_the_stream_weighs_w_new_even_if_it_was_known() -> None:
    log = Interactions.from_ids(np.array([0, 0, 1, 1, 0]), np.array([0, 1, 0, 2, 0]), np.arange(5))
    history = History()
    history.append(log.users[:4], log.items[:4])
    steps = []
    for w_new in (1.0, 50.0):
        updater = updater_of(history=History.from_state(history.state()), w_new=w_new)
        updater.recommender.grow(2, log.user_keys, 3, log.item_keys)
        updater.learn(batch_of(log, 4, 5))
        steps.append(float(updater.score(np.array([0]), np.array([[0]]), 5)[0, 0]))
    assert abs(1 - steps[1]) < abs(1 - steps[0])


@pytest.mark.parametrize("cut", [0, 32, 320])
def test_a_checkpoint_continues_bit_for_bit(cut: int) -> None:
    log = stream()
    whole = updater_of(torch.float32, w_new=2.0)
    learn(whole, log, 0, 640)
    first = updater_of(torch.float32, w_new=2.0)
    learn(first, log, 0, cut)
    second = updater_of(torch.float32, w_new=2.0, history=History.from_state(first.history.state()))
    for name, table in first.recommender.tables.items():
        second.recommender.tables[name].restore(table.state())
    second.strategy.recall({name: tensor.clone() for name, tensor in first.strategy.memory().items()})
    learn(second, log, cut, 640)
    for one, other in zip(factors(whole), factors(second), strict=True):
        np.testing.assert_array_equal(one, other)
    wanted, given = whole.strategy.memory(), second.strategy.memory()
    assert wanted.keys() == given.keys()
    assert all(torch.equal(wanted[name], given[name]) for name in wanted)


def test_a_step_remembers_only_what_it_touched() -> None:
    log, updater = stream(), updater_of()
    learn(updater, log, 0, 600)
    proposal = updater.strategy.propose(updater.situation(batch_of(log, 600, 604)))
    assert len(proposal.memory["user_rows"]) <= 4
    assert "users" not in proposal.memory


def test_pretraining_follows_the_blocks_and_streaming_keeps_up() -> None:
    log = stream(events=2_400, users=80, items=120, blocks=4)
    recommender, strategy = BPR({"dim": 8}), ALS({"c0": 20.0, "iterations": 10})
    assert pretrain_by_strategy(strategy, recommender, log.head(1_200))
    history = History()
    history.append(log.users[:1_200], log.items[:1_200])
    updater, candidates, hits = Updater(recommender, strategy, history), Candidates(log), []
    for start in range(1_200, 2_400, 100):
        drawn = candidates.draw(start, start + 100)
        scores = updater.score(log.users[start : start + 100], drawn.items, start)
        hits.append(((scores[:, 1:] >= scores[:, :1]).sum(1) < 5).mean())
        updater.learn(batch_of(log, start, start + 100))
    # A perfect knowledge of blocks ranks 30 of 120 items alike; chance is .05.
    assert np.mean(hits) > 0.13


def test_it_learns_from_nothing() -> None:
    log = stream(events=3_000, users=40, items=120, blocks=8, noise=0.0)
    updater, candidates, hits = updater_of(torch.float32, dim=8), Candidates(log), []
    for start in range(0, 3_000, 100):
        drawn = candidates.draw(start, start + 100)
        scores = updater.score(log.users[start : start + 100], drawn.items, start)
        hits.append(((scores[:, 1:] >= scores[:, :1]).sum(1) < 5).mean())
        updater.learn(batch_of(log, start, start + 100))
    assert np.mean(hits[20:]) > 0.3


def test_pretraining_again_starts_over() -> None:
    log, updater = stream(), updater_of(iterations=2)
    learn(updater, log, 0, 64)
    assert updater.strategy.memory()
    assert pretrain_by_strategy(updater.strategy, updater.recommender, log.head(600))
    assert not updater.strategy.memory()
    assert updater.recommender.rows_of("item") == log.head(600).n_items


def test_pretrained_rows_are_returned_and_not_written() -> None:
    log, recommender, strategy = stream(), BPR({"dim": 4}), ALS({"iterations": 2})
    recommender.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
    before = {name: table.state() for name, table in recommender.tables.items()}
    specs = {spec.name: spec for spec in recommender.specs}
    rows = strategy.pretrained_rows(specs, recommender.tables, log)
    assert rows["user_factors"].shape == (log.n_users, 4)
    for name, table in recommender.tables.items():
        for part, tensor in table.state().items():
            assert torch.equal(tensor, before[name][part])
    assert pretrain_by_strategy(strategy, recommender, log)
    written = recommender.tables["user_factors"].state()["values"]
    assert torch.equal(written, rows["user_factors"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_batches(dtype: torch.dtype) -> None:
    everything = np.arange(256)
    for users, items in [
        (np.zeros(256, dtype=np.int64), everything),
        (everything, np.append(0, np.ones(255, dtype=np.int64))),
        (np.zeros(256, dtype=np.int64), everything % 2),
        (np.zeros(2, dtype=np.int64), np.arange(2)),
    ]:
        log = Interactions.from_ids(users, items, np.arange(len(users)))
        updater = updater_of(dtype, c0=5_000.0)  # c_i far above ω
        updater.learn(batch_of(log, 0, len(log)))
        updater.learn(batch_of(log, len(log) - 1, len(log)))
        assert all(np.isfinite(rows).all() for rows in factors(updater))
        assert_caches_hold(updater)


def test_recent_partners_come_newest_first_and_stop_at_the_ring() -> None:
    history, rng = History(), np.random.default_rng(0)
    users, items = rng.integers(4, size=300), rng.integers(90, size=300)
    for start in range(0, 300, 70):
        history.append(users[start : start + 70], items[start : start + 70])
    recent = history.of_users.recent(np.array([2, 0, 77]))
    for line, count, user in zip(recent.partners, recent.counts, (2, 0, 77), strict=True):
        expected = items[users == user][::-1][:RING]
        assert count == len(expected)
        np.testing.assert_array_equal(line, np.append(expected, np.full(RING - count, NOBODY)))
    assert (History().of_items.recent(np.array([3])).partners == NOBODY).all()


def test_a_cell_seen_again_is_the_newest() -> None:
    place = Toy(users=1, items=9).neighbourhood(most_cells=3)
    place.user_cells[0] = {}
    for item in (0, 1, 2, 0, 3):
        place.observe(0, item, 1.0 + item, newcomer=1.0)
    assert list(place.user_cells[0].items()) == [(2, 3.0), (0, 1.0), (3, 4.0)]


def test_observed_cells_are_the_last_ones_inside_a_batch_too() -> None:
    log = Interactions.from_ids(np.arange(400) % 2, np.arange(400), np.arange(400))
    ends = []
    for size in (1, 398):
        updater = updater_of()
        updater.recommender.grow(2, log.user_keys, 400, log.item_keys)
        learn(updater, log, 0, 2, size=2)
        learn(updater, log, 2, 400, size)
        ends.append(factors(updater))
    for one_by_one, at_once in zip(*ends, strict=True):
        np.testing.assert_allclose(one_by_one, at_once, rtol=1e-7, atol=1e-9)


def test_it_has_no_learning_rate_matrix() -> None:
    log, updater = stream(), updater_of()
    assert not updater.strategy.explains_rates
    with pytest.raises(SettingsError, match="'als' has no learning-rate matrix"):
        updater.learning_rates(batch_of(log, 0, 50))


def test_it_refuses_shared_weights_and_says_what_fits() -> None:
    with pytest.raises(SettingsError, match="bpr"):
        Updater(NCF({"dim": 4}), ALS())
    with pytest.raises(SettingsError, match="bpr"):
        pretrain_by_strategy(ALS(), NCF({"dim": 4}), stream())
    with pytest.raises(SettingsError, match="bfloat16"):
        Updater(BPR({"dim": 4}, dtype=torch.bfloat16), ALS())


def test_it_says_when_it_cannot_look_around() -> None:
    log, updater = stream(), updater_of()
    situation = updater.situation(batch_of(log, 0, 8))
    blind = Situation(situation.specs, situation.examples, situation.values, {}, situation.evidence)
    with pytest.raises(SettingsError, match="around"):
        ALS().propose(blind)


@pytest.mark.parametrize(
    "settings", [{"reg": 0.0}, {"w_new": 0.0}, {"c0": -1.0}, {"rounds": 0}, {"learning_rate": 1.0}]
)
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match="als"):
        ALS(settings)


def test_it_is_registered_apart_from_the_nine() -> None:
    assert STRATEGIES["als"].load() is ALS
    assert "als" not in ALL_STRATEGIES
    for start in STRATEGIES["als"].space.starts:
        ALS(start)
