"""The end of a log as a log of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.data.interactions import Interactions


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abcdef")), min_size=1, max_size=40),
    st.integers(0, 40),
)
def test_it_is_what_the_same_events_alone_would_give(events: list[tuple[int, str]], start: int) -> None:
    users, items = np.array([u for u, _ in events]), np.array([i for _, i in events], dtype=object)
    times = np.arange(len(events))
    found = Interactions.from_ids(users, items, times).tail(start)
    wanted = Interactions.from_ids(users[start:], items[start:], times[start:])
    for name in ("users", "items", "times", "user_ids", "item_ids"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()


@pytest.mark.parametrize("start", [0, 2])
def test_its_fingerprint_is_that_of_its_events(start: int) -> None:
    log = Interactions.from_ids(np.array([5, 6, 5, 7]), np.array([1, 1, 2, 1]), np.arange(4))
    alone = Interactions.from_ids(log.user_ids[log.users[start:]], log.item_ids[log.items[start:]], log.times[start:])
    assert log.tail(start).sha256 == alone.sha256
