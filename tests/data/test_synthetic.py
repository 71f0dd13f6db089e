"""Synthetic streams follow the rules they claim."""

import numpy as np
import pytest

from melon.data.info import describe
from melon.data.synthetic import SYNTHETIC, flip_groups, synthetic_stream
from melon.errors import SettingsError


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
    assert len(synthetic_stream(name, n_users=2, n_items=4, n_events=1)) == 1


def test_tastes_flip_half_way() -> None:
    log = synthetic_stream("flip", n_events=4_000)
    groups = flip_groups(200)
    apart = (log.item_ids[log.items] - log.user_ids[log.users]) % groups
    assert (apart[:2_000] == 0).mean() > 0.9
    assert (apart[2_000:] == groups // 2).mean() > 0.9


def test_news_items_are_born_and_die() -> None:
    log = synthetic_stream("news", seed=5)
    info = describe(log)
    assert info.item_life_interactions["50%"] < 0.2 * len(log)
    assert info.tail_new_items > 0.15


def test_drift_is_slow_and_goes_once_round() -> None:
    log = synthetic_stream("drift", n_users=2, n_events=20_000, seed=5)
    items = log.item_ids[log.items][log.user_ids[log.users] == 0]

    def common(first: float, second: float) -> float:
        a, b = (set(items[int(at * len(items)) :][:300].tolist()) for at in (first, second))
        return len(a & b) / min(len(a), len(b))

    assert common(0.0, 0.03) > 0.5
    assert common(0.0, 0.5) == 0.0
    assert common(0.0, 0.97) > 0.5


def test_bad_settings() -> None:
    with pytest.raises(SettingsError, match=r"Did you mean 'flip'"):
        synthetic_stream("flop")
    with pytest.raises(SettingsError, match="n_users must be 2 or more"):
        synthetic_stream("flip", n_users=0)
