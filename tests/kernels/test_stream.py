"""The compiled loops of a stream beside numpy: the same integers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.data.interactions import Interactions
from melon.stream import pairs
from melon.stream.candidates import MODES, Candidates
from melon.stream.draws import Draws
from melon.stream.history import History
from melon.stream.negatives import Negatives
from melon.stream.pairs import PairSet

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 14)), min_size=1, max_size=200)


@pytest.fixture(autouse=True, params=[pairs.SORTED_FROM, 3])
def _as_found(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Loops as on this machine; pairs in the hash set alone, or nearly all of them sorted."""
    monkeypatch.delenv("MELON_KERNEL", raising=False)
    monkeypatch.setattr(pairs, "SORTED_FROM", request.param)


def both_ways(make: Callable[[], Any]) -> tuple[Any, Any]:
    """What comes out by numpy and by the loops."""
    found = []
    for choice in ("torch", "numba"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MELON_KERNEL", choice)
            found.append(make())
    return found[0], found[1]


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    users, items = np.array(pairs, dtype=np.int64).T
    return users, items


def history_of(pairs: list[tuple[int, int]], size: int) -> History:
    history, (users, items) = History(), columns(pairs)
    for start in range(0, len(pairs), size):
        history.append(users[start : start + size], items[start : start + size])
    return history


@given(PAIRS, st.integers(1, 80))
@settings(max_examples=40)
def test_a_history_has_the_same_bytes(pairs: list[tuple[int, int]], size: int) -> None:
    one, other = both_ways(lambda: history_of(pairs, size))
    assert (one.of_users.most_met, one.of_items.most_met) == (other.of_users.most_met, other.of_items.most_met)
    states = one.state(), other.state()
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


@given(PAIRS, st.integers(0, 50), st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_same_partners_are_sampled_in_the_same_order(pairs: list[tuple[int, int]], most: int, moment: int) -> None:
    history = history_of(pairs, 50)
    for rings in (history.of_users, history.of_items, History().of_users):
        one, other = both_ways(lambda rings=rings: rings.sample(np.arange(17), Draws(1, "n"), moment, most))
        assert np.array_equal(one.partners, other.partners)
        assert np.array_equal(one.counts, other.counts)


def test_a_set_of_pairs_grows_alike() -> None:
    rng = np.random.default_rng(0)
    keys = (rng.integers(0, 3_000, (4, 5_000)) << 32) | rng.integers(0, 50, (4, 5_000))

    def built() -> tuple[list[int], np.ndarray, np.ndarray]:
        pair_set = PairSet()
        sizes = []
        for some in keys:
            pair_set.add(some)
            sizes.append(len(pair_set))
        assert pair_set.slots >= 2 * len(pair_set)
        return sizes, pair_set.keys(), pair_set.contains(keys.T + 1)

    one, other = both_ways(built)
    assert one[0] == other[0]
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(one[1:], other[1:], strict=True))


@given(PAIRS, st.integers(2, 15), st.integers(1, 3))
@settings(max_examples=40)
def test_the_same_negatives_are_drawn(pairs: list[tuple[int, int]], pool: int, count: int) -> None:
    """Users who have taken nearly everything among them, and events below zero, which replay has."""
    history, (users, items) = history_of(pairs, 60), columns(pairs)
    negatives = Negatives(pool, history.seen, Draws(2, "negatives"))
    events = np.arange(len(users)) - 5
    one, other = both_ways(lambda: negatives.draw(users, items % pool, events, count))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("mode", MODES)
@given(PAIRS, st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=30)
def test_the_same_candidates_are_drawn(mode: str, pairs: list[tuple[int, int]], count: int, seed: int) -> None:
    users, items = columns(pairs)
    log = Interactions.from_ids(users, items, np.arange(len(users)))
    if log.n_items <= count:
        return

    def drawn() -> list[tuple[np.ndarray, np.ndarray]]:
        candidates = Candidates(log, mode=mode, seed=seed, count=count)
        sets = [candidates.draw(start, min(start + 16, len(log))) for start in range(0, len(log), 16)]
        return [(one.items, one.usable) for one in sets]

    for one, other in zip(*both_ways(drawn), strict=True):
        assert np.array_equal(one[1], other[1])
        assert np.array_equal(one[0][one[1]], other[0][other[1]])
