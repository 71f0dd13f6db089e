"""Chronological parts and the batches inside them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.data.interactions import Interactions
from melon.errors import StreamError
from melon.stream.batch import batch_of
from melon.stream.split import DEFAULT_SPLIT, Parts, batches, parse_split, split


def log_of(times: list[int]) -> Interactions:
    n = len(times)
    return Interactions.from_ids(np.arange(n) % 7, np.arange(n) % 5, np.array(times, dtype=np.int64))


def test_parts_are_cut_by_count() -> None:
    assert split(log_of(list(range(1000))), (0.95, 0.005, 0.045)) == Parts(950, 955, 1000)
    assert split(log_of(list(range(10))), (0.8, 0.1, 0.1)) == Parts(8, 9, 10)


@given(st.integers(3, 500), st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_parts_cover_the_stream_in_order_or_are_refused(n: int, first: float, second: float) -> None:
    total = first + second + 0.05
    shares = (first / total, second / total, 0.05 / total)
    cuts = [round(n * shares[0]), round(n * (shares[0] + shares[1]))]
    if not 0 < cuts[0] < cuts[1] < n:
        with pytest.raises(StreamError, match="part empty"):
            split(log_of(list(range(n))), shares)
        return
    assert split(log_of(list(range(n))), shares) == Parts(*cuts, n)


@given(st.integers(0, 50), st.integers(0, 80), st.integers(1, 30))
def test_batches_tile_a_part_and_only_the_last_is_short(start: int, length: int, size: int) -> None:
    ranges = list(batches(start, start + length, size))
    assert [event for first, last in ranges for event in range(first, last)] == list(range(start, start + length))
    assert all(last - first == size for first, last in ranges[:-1])
    assert all(0 < last - first <= size for first, last in ranges)


def test_batches_never_straddle_parts() -> None:
    parts = split(log_of(list(range(1000))), (0.7, 0.1, 0.2))
    bounds = [0, parts.train_stop, parts.validation_stop, parts.stop]
    for start, stop in pairwise(bounds):
        ranges = list(batches(start, stop, 256))
        assert ranges[0][0] == start
        assert ranges[-1][1] == stop


@pytest.mark.parametrize("size", [0, -3])
def test_a_batch_has_at_least_one_interaction(size: int) -> None:
    with pytest.raises(StreamError, match=str(size)):
        next(batches(0, 10, size))


@pytest.mark.parametrize(
    "shares",
    [
        (0.5, 0.5, 0.5),
        (0.9, 0.1, 0.0),
        (1.0, 0.0, 0.0),
        (1.2, -0.1, -0.1),
        (float("nan"), 0.5, 0.5),
        (float("inf"), 0.1, 0.1),
        (0.4, 0.3, 0.2),
    ],
)
def test_shares_that_are_no_split_are_refused(shares: tuple[float, float, float]) -> None:
    with pytest.raises(StreamError, match="add up to 1"):
        split(log_of(list(range(100))), shares)


@pytest.mark.parametrize(
    ("n", "shares", "part"),
    [
        (0, DEFAULT_SPLIT, "training"),
        (20, DEFAULT_SPLIT, "validation"),
        (10, (0.1, 0.88, 0.02), "test"),
        (10, (0.01, 0.49, 0.5), "training"),
    ],
)
def test_an_empty_part_is_named(n: int, shares: tuple[float, float, float], part: str) -> None:
    with pytest.raises(StreamError, match=f"{n} interactions leaves the {part} part empty"):
        split(log_of(list(range(n))), shares)


def test_a_split_is_read_from_text() -> None:
    assert parse_split("0.95,0.005,0.045") == DEFAULT_SPLIT
    assert parse_split(" 0.8, 0.1 ,0.1") == (0.8, 0.1, 0.1)


@pytest.mark.parametrize("text", ["", "0.9", "0.9,0.1", "0.7,0.1,0.1,0.1", "a,b,c", "0.9;0.05;0.05"])
def test_text_that_is_no_split_is_quoted(text: str) -> None:
    with pytest.raises(StreamError, match="three shares"):
        parse_split(text)


@pytest.mark.parametrize(
    ("train_stop", "window_start", "judged_from"),
    [(1_000, 800, 920), (125_000, 100_000, 115_000), (1_000_000, 975_000, 990_000), (10, 8, 9), (4, 4, 4)],
)
def test_selection_window(train_stop: int, window_start: int, judged_from: int) -> None:
    """docs/methods.md 5.7: the last min(20 %, 25,000) of training; learned parts on its first 60 %."""
    parts = Parts(train_stop, train_stop + 5, train_stop + 10)
    assert parts.window_start == window_start
    assert parts.judged_from == judged_from


@given(st.integers(1, 10**7))
def test_the_window_lies_inside_the_training_part(train_stop: int) -> None:
    parts = Parts(train_stop, train_stop + 1, train_stop + 2)
    assert 0 <= parts.window_start <= parts.judged_from <= train_stop
    assert train_stop - parts.window_start <= min(25_000, 0.2 * train_stop)
    windows = [*parts.earlier_windows, (parts.window_start, train_stop)]
    assert all(stop == start for (_, stop), (start, _) in pairwise(windows))
    assert train_stop - windows[0][0] <= 25_000
    assert all(256 <= stop - first <= 0.2 * stop for first, stop in windows[:-1])
    assert len(windows) <= 3


@pytest.mark.parametrize(
    ("train_stop", "windows"),
    [
        (30_000, [(15_360, 19_200), (19_200, 24_000)]),
        (96_000, [(71_000, 76_800)]),  # 19,200 in the window itself
        (125_000, []),
        (10**7, []),
        (1_000, []),  # less than a batch
        (1_600, [(1_024, 1_280)]),
    ],
)
def test_earlier_windows(train_stop: int, windows: list[tuple[int, int]]) -> None:
    """docs/methods.md 8.5: two at most, each a fifth of what precedes its end, 25,000 with the window itself."""
    assert Parts(train_stop, train_stop + 1, train_stop + 2).earlier_windows == windows


def test_a_batch_knows_its_events_and_the_keys_of_its_ids() -> None:
    log = Interactions.from_ids(np.array([30, 10, 30, 20]), np.array([7, 8, 9, 7]), np.array([1, 2, 3, 4]))
    batch = batch_of(log, 1, 4)
    assert len(batch) == 3
    assert batch.events.tolist() == [1, 2, 3]
    assert batch.users.tolist() == [1, 0, 2]
    assert batch.user_keys.tolist() == [10, 30, 20]
    assert batch.item_keys.tolist() == [8, 9, 7]
    assert batch.times.tolist() == [2, 3, 4]


def test_batches_of_a_read_only_log_can_be_learned() -> None:
    """A log in the shared memory of a cluster is read-only."""
    from melon.learning.updater import Updater
    from melon.models.bpr import BPR
    from melon.strategies.default import Default
    from melon.stream.batch import batch_of
    from melon.testing import toy_log

    log = toy_log(48)
    for part in (log.users, log.items, log.times):
        part.flags.writeable = False
    updater = Updater(BPR({"dim": 4}), Default())
    for start in range(0, 48, 16):
        updater.learn(batch_of(log, start, start + 16))
    assert updater.history.events == 48
