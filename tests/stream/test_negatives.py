"""Training negatives: from what exists, not taken so far, never the positive, and a function of the event alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.errors import StreamError
from melon.stream.candidates import Negatives
from melon.stream.draws import Draws
from melon.stream.history import History

PAST = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=60)
NOW = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=20)


def history_of(pairs: list[tuple[int, int]]) -> History:
    history, array = History(), np.array(pairs, dtype=np.int64).reshape(-1, 2)
    history.append(array[:, 0], array[:, 1])
    return history


def sampler(history: History, pool: int, *, seed: int = 0) -> Negatives:
    return Negatives(pool, history.seen, Draws(seed, "training negatives"))


@given(PAST, NOW, st.integers(1, 3))
@settings(max_examples=40)
def test_never_own_never_seen_only_from_the_pool(past: list, now: list, count: int) -> None:
    users, items = np.array(now, dtype=np.int64).T
    pool = int(max(items.max() + 1, 2))
    history, seen = history_of(past), set(past)
    drawn = sampler(history, pool).draw(users, items, np.arange(len(now)) + 1000, count)
    assert drawn.shape == (len(now), count)
    for (user, item), line in zip(now, drawn.tolist(), strict=True):
        left = {other for other in range(pool) if other != item and (user, other) not in seen}
        for negative in line:
            assert 0 <= negative < pool
            assert negative != item
            assert negative in left or not left


@given(PAST, NOW, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_an_events_negative_is_its_own(past: list, now: list, random: object) -> None:
    users, items = np.array(now, dtype=np.int64).T
    events = np.arange(len(now)) + 50
    negatives = sampler(history_of(past), 10)
    drawn = negatives.draw(users, items, events, 2)
    order = np.array(random.sample(range(len(now)), len(now)))  # type: ignore[attr-defined]
    assert (negatives.draw(users[order], items[order], events[order], 2) == drawn[order]).all()
    for line in range(len(now)):
        one = slice(line, line + 1)
        assert (negatives.draw(users[one], items[one], events[one], 2) == drawn[one]).all()


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    users, items, events = np.arange(100) % 5, np.arange(100) % 50, np.arange(100)
    history = history_of([(0, 1)])
    one, again, other = (sampler(history, 50, seed=seed).draw(users, items, events) for seed in (0, 0, 1))
    assert (one == again).all()
    assert (one != other).mean() > 0.9


def test_uniform_over_what_is_left() -> None:
    history = history_of([(0, item) for item in range(0, 20, 2)])
    n = 20_000
    drawn = sampler(history, 20).draw(np.zeros(n, dtype=np.int64), np.full(n, 1), np.arange(n), 1)[:, 0]
    counts = np.bincount(drawn, minlength=20)
    left = [item for item in range(1, 20, 2) if item != 1]
    assert counts.sum() == counts[left].sum()
    expected = n / len(left)
    assert ((counts[left] - expected) ** 2 / expected).sum() < len(left) + 5 * np.sqrt(2 * len(left))


def test_several_negatives_are_independent() -> None:
    n = 20_000
    drawn = sampler(History(), 10).draw(np.arange(n) % 7, np.zeros(n, dtype=np.int64), np.arange(n), 3)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(drawn[:, one], drawn[:, other])[0, 1]) < 4 / np.sqrt(n)


def test_a_user_who_has_taken_all_but_one_gets_that_one() -> None:
    history = history_of([(0, item) for item in range(300) if item != 217])
    drawn = sampler(history, 300).draw(np.zeros(20, dtype=np.int64), np.arange(20), np.arange(20))
    assert (drawn == 217).all()


def test_a_user_who_has_taken_everything_gets_any_other_item() -> None:
    history = history_of([(0, item) for item in range(5)])
    n = 2_000
    items = np.arange(n) % 5
    drawn = sampler(history, 5).draw(np.zeros(n, dtype=np.int64), items, np.arange(n))[:, 0]
    assert (drawn != items).all()
    counts = np.bincount((drawn - items) % 5, minlength=5)[1:]
    assert ((counts - n / 4) ** 2 / (n / 4)).sum() < 3 + 5 * np.sqrt(6)


def test_one_item_has_no_negative() -> None:
    with pytest.raises(StreamError, match="no negative among 1 items"):
        sampler(History(), 1).draw(np.array([0]), np.array([0]), np.array([0]))
