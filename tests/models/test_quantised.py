"""Rows in 8 bits: what they find beside exact products, how they follow rows that change, and each user alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from melon.kernels import policy
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.models import bpr as bpr_module
from melon.models.bpr import BPR
from melon.models.catalogue import QuantisedRows, Within
from melon.strategies.default import Default
from melon.stream.pairs import SeenPairs, pair_keys
from melon.tables import Moment

USERS, ITEMS = 7, 500


def recommender(dim: int) -> BPR:
    policy.warm_up("lists")
    bpr = BPR({"dim": dim})
    bpr.grow(USERS, np.arange(USERS), ITEMS, np.arange(ITEMS))
    write(bpr, np.arange(ITEMS), seed=0)
    return bpr


def write(bpr: BPR, rows: np.ndarray, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for name in ("item_factors", "item_bias"):
        values = generator.normal(size=(len(rows), bpr.tables[name].spec.dim))
        bpr.tables[name].scatter(rows, values)


def products(bpr: BPR, at: Moment) -> np.ndarray:
    """p_u · q_i + b_i of all users and items, without what is the same for all items."""
    users = bpr.tables["user_factors"].gather(np.arange(USERS), at)
    vectors, biases = (bpr.tables[name].gather(np.arange(ITEMS), at) for name in ("item_factors", "item_bias"))
    return users @ vectors.T + biases.T


@pytest.mark.parametrize("half_lives", [{}, {"item_factors": 9.0, "item_bias": 30.0}])
@pytest.mark.parametrize("dim", [3, 8, 70])
def test_finds_what_exact_products_find(dim: int, half_lives: dict[str, float]) -> None:
    bpr, users, quantised = recommender(dim), np.arange(USERS), QuantisedRows()
    kernels = policy.load("lists")
    assert kernels is not None
    seen, rng = SeenPairs(), np.random.default_rng(0)
    seen.add(pair_keys(rng.integers(0, USERS, 600), rng.integers(0, ITEMS, 600)))
    allowed = rng.random(ITEMS) < 0.8
    for step in range(4):
        bpr.clock.now += 40 * step * step  # the reference moves, too
        write(bpr, rng.choice(ITEMS, 30, replace=False), seed=step)
        at = Moment(bpr.clock.now + 3, half_lives)
        near = quantised.follow(kernels, bpr.tables, ITEMS, at, at.now)
        anew = QuantisedRows().follow(kernels, bpr.tables, ITEMS, at, at.now)
        for within in (Within(), Within(seen, allowed)):
            lists = near(users, 20, within)
            for user, (rows, line) in enumerate(zip(lists, products(bpr, at), strict=True)):
                left = np.ones(ITEMS, dtype=bool) if within.seen is None else allowed.copy()
                if within.seen is not None:
                    left &= ~seen.contains(pair_keys(np.full(ITEMS, user), np.arange(ITEMS)))
                    assert left[rows].all()
                best = np.argsort(-np.where(left, line, -np.inf))[:10]
                assert np.isin(best, rows).mean() >= 0.9
                alone = near(users[user : user + 1], 20, within)[0]
                assert sorted(alone.tolist()) == sorted(rows.tolist()) == sorted(anew(users, 20, within)[user].tolist())


def test_knows_items_that_came_and_fewer_than_there_are() -> None:
    bpr, quantised, users = recommender(5), QuantisedRows(), np.arange(2)
    kernels = policy.load("lists")
    assert kernels is not None
    now = bpr.clock.now
    assert max(rows.max() for rows in quantised.follow(kernels, bpr.tables, 9, None, now)(users, 20, Within())) <= 8
    bpr.grow(USERS, np.arange(0), ITEMS + 700, np.arange(700))
    new = np.arange(ITEMS, ITEMS + 700)
    bpr.tables["item_bias"].scatter((new), np.full((700, 1), 50.0))
    for rows in quantised.follow(kernels, bpr.tables, ITEMS + 700, None, now)(users, 20, Within()):
        assert rows.min() >= ITEMS
    assert not copy.deepcopy(quantised)._watched


@pytest.mark.parametrize("half_life", [None, 5_000.0])
def test_two_stage_lists_of_bpr_are_the_exact_ones_while_rows_change(
    half_life: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpr_module, "TWO_STAGE_FROM", 100)
    strategy = Default({"half_life": half_life, "lr": 0.3, "optimizer": "sgd"})
    model, rng = LiveModel(Updater(BPR({"dim": 12, "lists": "two_stage"}), strategy)), np.random.default_rng(0)
    for _ in range(3):
        users = rng.integers(0, 40, 2_000)
        items = rng.integers(0, 200, 2_000) * 6 + users % 6
        model.learn_events(users.tolist(), items.tolist(), batch_size=100)
        exact = copy.deepcopy(model)
        recommender = exact.updater.recommender
        recommender.settings = recommender.settings.model_copy(update={"lists": "exact"})
        for limits in ({}, {"allowed": rng.random(model.rows_of("item")) < 0.5}, {"boost": rng.random(300)}):
            both = (each.best(np.arange(40), 10, filter_seen=True, **limits) for each in (model, exact))
            for (rows, scores), (wanted, said) in zip(*both, strict=True):
                assert np.isin(rows, wanted).mean() >= 0.9
                assert scores == pytest.approx(said, rel=1e-4, abs=1e-5)
