"""The look-ahead batch (docs/methods.md 3.0.2): one last interaction for each user and each item of the batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.learning.step import last_interactions
from melon.stream.history import RING, History

Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8)), min_size=1, max_size=30)


def history_of(past: Pairs) -> History:
    history = History()
    if past:
        history.append(*columns(past))
    return history


def columns(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    users, items = zip(*pairs, strict=True)
    return np.array(users), np.array(items)


def found(past: Pairs, batch: Pairs, cold: str) -> Pairs:
    events = np.arange(1000, 1000 + len(batch))
    last = last_interactions(*columns(batch), events, history_of(past), cold)
    assert len(last) == len(last.users) == len(last.items) == len(last.events)
    return list(zip(last.users.tolist(), last.items.tolist(), strict=True))


def by_hand(past: Pairs, batch: Pairs, cold: str) -> Pairs:
    """First the users' lines, then the items'."""
    out: list[tuple[int, int] | None] = []
    for user, item in batch:
        items = [i for u, i in past if u == user]
        out.append((user, items[-1]) if items else (user, item) if cold == "current" else None)
    for user, item in batch:
        users = [u for u, i in past if i == item]
        out.append((users[-1], item) if users else (user, item) if cold == "current" else None)
    return [pair for pair in out if pair is not None]


@settings(max_examples=80)
@given(past=st.one_of(st.just([]), PAIRS), batch=PAIRS, cold=st.sampled_from(["drop", "current"]))
def test_it_is_what_each_one_did_last(past: Pairs, batch: Pairs, cold: str) -> None:
    assert found(past, batch, cold) == by_hand(past, batch, cold)


@settings(max_examples=30)
@given(past=st.one_of(st.just([]), PAIRS), batch=PAIRS)
def test_with_current_there_are_exactly_2n(past: Pairs, batch: Pairs) -> None:
    assert len(found(past, batch, "current")) == 2 * len(batch)


def test_cold_ones_stand_for_themselves_or_are_dropped() -> None:
    past, batch = [(0, 1), (2, 3)], [(0, 3), (5, 1), (7, 8)]
    assert found(past, batch, "current") == [(0, 1), (5, 1), (7, 8), (2, 3), (0, 1), (7, 8)]
    assert found(past, batch, "drop") == [(0, 1), (2, 3), (0, 1)]
    assert found([], batch, "drop") == []


def test_last_is_the_last_event_also_when_pairs_repeat() -> None:
    """docs/methods.md 4.9, row 16: not the item whose first occurrence is latest."""
    assert found([(0, 1), (0, 2), (0, 1)], [(0, 5)], "drop") == [(0, 1)]


def test_last_is_right_when_the_ring_has_gone_round() -> None:
    past = [(0, item) for item in range(2 * RING + 3)]
    assert found(past, [(0, 500)], "drop") == [(0, 2 * RING + 2)]


def test_the_batch_itself_is_not_seen() -> None:
    """Within a batch everything is frozen: a user's second interaction looks back as far as the first."""
    assert found([(0, 1)], [(0, 2), (0, 3)], "drop") == [(0, 1), (0, 1)]


@pytest.mark.parametrize("cold", ["drop", "current"])
def test_each_draw_has_a_number_of_its_own(cold: str) -> None:
    batch = [(0, 1), (1, 1), (4, 6)]
    last = last_interactions(*columns(batch), np.arange(10, 13), history_of([(0, 2), (3, 1)]), cold)
    assert len(np.unique(last.events)) == len(last)
