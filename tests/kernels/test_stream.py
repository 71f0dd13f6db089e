"""Kernels of a stream beside slow twins: the same integers, compiled and as plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.data.interactions import Interactions
from melon.stream import pairs
from melon.stream.candidates import MODES, Candidates, Negatives
from melon.stream.draws import Draws
from melon.stream.history import History
from melon.stream.pairs import PairSet

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 14)), min_size=1, max_size=200)


@pytest.fixture(autouse=True, params=[("numba", pairs.SORTED_FROM), ("numba", 3), ("python", 3)])
def _kernels(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Pairs are in the hash set alone, or nearly all of them sorted."""
    choice, sorted_from = request.param
    monkeypatch.setenv("MELON_KERNEL", choice)
    monkeypatch.setattr(pairs, "SORTED_FROM", sorted_from)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    users, items = np.array(pairs, dtype=np.int64).T
    return users, items


def history_of(pairs: list[tuple[int, int]], size: int) -> History:
    history, (users, items) = History(), columns(pairs)
    for start in range(0, len(pairs), size):
        history.append(users[start : start + size], items[start : start + size])
    return history


@given(PAIRS, st.integers(2, 15), st.integers(1, 3))
@settings(max_examples=20)
def test_a_negative_is_the_first_good_draw_of_its_event(pairs: list[tuple[int, int]], pool: int, count: int) -> None:
    """Users who have taken nearly everything among them, and events below zero."""
    history, (users, items), draws = history_of(pairs, 60), columns(pairs), Draws(2, "negatives")
    items, events, seen = items % pool, np.arange(len(users)) - 5, set(pairs)
    found = Negatives(pool, history.seen, draws).draw(users, items, events, count)
    for place in range(count):
        for line, offered in enumerate(draws.integers(events, 32, pool, place << 16).tolist()):
            good = [n for n in offered if n != items[line] and (users[line], n) not in seen]
            assert not good or found[line, place] == good[0]


@pytest.mark.parametrize("mode", MODES)
@given(PAIRS, st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=15)
def test_candidates_are_the_first_good_draws(mode: str, pairs: list[tuple[int, int]], count: int, seed: int) -> None:
    users, items = columns(pairs)
    log = Interactions.from_ids(users, items, np.arange(len(users)))
    if log.n_items <= count:
        return
    draws, taken = Draws(seed, "candidates"), list(zip(log.users.tolist(), log.items.tolist(), strict=True))
    for start in range(0, len(log), 16):
        drawn = Candidates(log, mode=mode, seed=seed, count=count).draw(start, min(start + 16, len(log)))
        for event, line in enumerate(drawn.items[drawn.usable].tolist(), start) if drawn.usable.all() else ():
            own = set(taken if mode == "full-log" else taken[:event])
            offered = dict.fromkeys(draws.integers(np.array([event]), 512, drawn.pool)[0].tolist())
            good = [n for n in offered if n != taken[event][1] and (taken[event][0], n) not in own]
            assert len(good) < count or line == [taken[event][1], *good[:count]]


def test_a_set_of_pairs_grows() -> None:
    rng = np.random.default_rng(0)
    keys = (rng.integers(0, 3_000, (4, 500)) << 32) | rng.integers(0, 50, (4, 500))
    pair_set, held = PairSet(), set[int]()
    for some in keys:
        pair_set.add(some)
        held |= set(some.tolist())
        assert pair_set.keys().tolist() == sorted(held)
        assert pair_set.slots >= 2 * len(pair_set)
    assert pair_set.contains(keys.T + 1).tolist() == [[key in held for key in line] for line in (keys.T + 1).tolist()]
