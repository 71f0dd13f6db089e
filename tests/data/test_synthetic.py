"""Synthetic streams have the answer they claim: their oracle hits, and the same oracle standing still does not."""

import numpy as np
import pytest

from melon.data.info import describe
from melon.data.interactions import Interactions
from melon.data.synthetic import SYNTHETIC, Drift, Flip, News, World, synthetic_stream, world
from melon.errors import SettingsError


def hit_rate(known: World, log: Interactions, start: float, stop: float, at: float | None = None) -> float:
    """HR@5 of the oracle among 99 other items over a part of the stream; `at` makes it stand still there."""
    events = np.arange(int(start * len(log)), int(stop * len(log)))
    users, items = log.user_ids[log.users[events]].astype(int), log.item_ids[log.items[events]].astype(int)
    others = (items[:, None] + np.random.default_rng(0).integers(1, known.n_items, (len(events), 99))) % known.n_items
    then = events if at is None else np.full(len(events), int(at * len(log)))
    own = known.score(users, items, then)[:, None]
    theirs = known.score(users[:, None], others, then[:, None])
    rank = (theirs > own).sum(axis=1) + 0.5 * (theirs == own).sum(axis=1)
    return float((rank < 5).mean())


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_oracle_knows_and_the_stale_one_does_not(name: str) -> None:
    known = world(name, seed=3)
    log = known.interactions()
    assert hit_rate(known, log, 0.25, 0.5) > 0.75
    assert hit_rate(known, log, 0.75, 1.0) > 0.75
    assert hit_rate(known, log, 0.75, 1.0, at=0.25) < 0.05


@pytest.mark.parametrize("name", SYNTHETIC)
def test_same_seed_same_stream(name: str) -> None:
    assert synthetic_stream(name, seed=1).sha256 == synthetic_stream(name, seed=1).sha256
    assert synthetic_stream(name, seed=1).sha256 != synthetic_stream(name, seed=2).sha256


@pytest.mark.parametrize("name", SYNTHETIC)
def test_sizes(name: str) -> None:
    log = synthetic_stream(name, n_users=30, n_items=40, n_events=5_000, seed=0)
    assert len(log) == 5_000
    assert log.n_users == 30
    assert log.n_items <= 40
    assert bool((np.diff(log.times) >= 0).all())
    assert log.user_ids.tolist() == list(dict.fromkeys(log.user_ids[log.users].tolist()))
    small = synthetic_stream(name, n_users=2, n_items=4, n_events=1)
    assert len(small) == 1


def test_flip_is_where_it_was_asked_for() -> None:
    known = Flip(n_events=4_000, flip_at=1_000)
    log = known.interactions()
    assert hit_rate(known, log, 0.0, 0.25, at=0.0) > 0.85
    assert hit_rate(known, log, 0.25, 1.0, at=0.0) < 0.05


def test_flip_with_two_groups_is_a_against_b() -> None:
    known = Flip(groups=2, n_events=2_000)
    log = known.interactions()
    users, items = log.user_ids[log.users], log.item_ids[log.items]
    same = (users % 2) == (items % 2)
    assert same[:1_000].mean() > 0.95
    assert same[1_000:].mean() < 0.05


def test_news_items_are_born_and_die() -> None:
    known = News(seed=5)
    log = known.interactions()
    items = log.item_ids[log.items]
    assert bool((np.arange(len(log)) >= known.birth[items]).all())
    info = describe(log)
    assert info.item_life_interactions["50%"] < 0.2 * len(log)
    assert info.tail_new_items > 0.15


def test_drift_is_slow() -> None:
    known = Drift(seed=5)
    log = known.interactions()
    assert hit_rate(known, log, 0.5, 0.51, at=0.5) > 0.75
    assert hit_rate(known, log, 0.6, 0.61, at=0.5) < 0.3


def test_bad_settings() -> None:
    with pytest.raises(SettingsError, match=r"unknown synthetic stream 'flop'. Did you mean 'flip'.*drift, flip, news"):
        world("flop")
    with pytest.raises(SettingsError, match="n_users must be 2 or more for a synthetic stream, got 0"):
        world("flip", n_users=0)
    with pytest.raises(SettingsError, match="no such setting"):
        world("news", n_planets=9)
    assert all(each.description and each.answer for each in SYNTHETIC.values())
