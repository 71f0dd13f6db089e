"""Decayed counts against a slow twin that remembers every event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.errors import SettingsError
from melon.recommenders.popularity import DecayedCounts

RUNS = st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=6)


class EveryEvent:
    """The slow twin: an event that is k events old counts 2^(-k / half-life)."""

    def __init__(self, half_life: float) -> None:
        self.half_life, self.events = half_life, list[int]()

    def read(self, item: int) -> float:
        now = len(self.events)
        return sum(2.0 ** (-(now - at) / self.half_life) for at, each in enumerate(self.events) if each == item)


@given(RUNS, st.sampled_from([0.5, 1.0, 3.0, 100.0, float("inf")]))
def test_counts_agree_with_a_slow_twin(runs: list[list[int]], half_life: float) -> None:
    fast, slow = DecayedCounts(half_life), EveryEvent(half_life)
    for run in runs:
        fast.observe(np.array(run, dtype=np.int64))
        slow.events += run
        assert fast.events == len(slow.events)
        assert fast.read(np.arange(9)) == pytest.approx([slow.read(item) for item in range(9)], abs=1e-12)


@given(RUNS)
def test_all_time_counts_are_counts(runs: list[list[int]]) -> None:
    counts = DecayedCounts()
    for run in runs:
        counts.observe(np.array(run, dtype=np.int64))
    everything = [item for run in runs for item in run]
    assert counts.read(np.arange(7)).tolist() == [everything.count(item) for item in range(7)]


def test_cutting_the_run_changes_nothing_to_speak_of() -> None:
    items = np.random.default_rng(0).integers(0, 20, 500)
    whole, cut = DecayedCounts(50), DecayedCounts(50)
    whole.observe(items)
    for part in np.split(items, [1, 7, 300, 301]):
        cut.observe(part)
    assert cut.read(np.arange(20)) == pytest.approx(whole.read(np.arange(20)), rel=1e-12)


def test_items_can_be_new_at_any_time_and_any_shape_can_be_read() -> None:
    counts = DecayedCounts(10)
    assert counts.read(np.array([[0, 5], [7, 1]])).tolist() == [[0, 0], [0, 0]]
    counts.observe(np.array([2]))
    assert counts.read(np.array([[1_000, 2]])).tolist() == [[0, 2 ** (-1 / 10)]]
    counts.observe(np.array([1_000]))
    assert counts.read(np.array([1_000, 2])).tolist() == pytest.approx([2 ** (-1 / 10), 2 ** (-2 / 10)])


def test_reading_changes_nothing() -> None:
    counts = DecayedCounts(10)
    counts.observe(np.array([3, 3, 1]))
    before = {name: array.tolist() for name, array in counts.state().items()}
    counts.read(np.arange(100))
    assert {name: array.tolist() for name, array in counts.state().items()} == before


def test_a_state_goes_on_as_the_counts_would() -> None:
    rng = np.random.default_rng(1)
    counts = DecayedCounts(25)
    counts.observe(rng.integers(0, 30, 100))
    again = DecayedCounts.from_state({name: array.copy() for name, array in counts.state().items()})
    more = rng.integers(0, 40, 77)
    for each in (counts, again):
        each.observe(more)
    assert again.read(np.arange(50)).tobytes() == counts.read(np.arange(50)).tobytes()


def test_ages_ago_is_nothing_and_no_warning() -> None:
    counts = DecayedCounts(1)
    counts.observe(np.array([0]))
    counts.observe(np.ones(5_000, dtype=np.int64))
    assert counts.read(np.array([0])).tolist() == [0.0]


@pytest.mark.parametrize("half_life", [0, -1, float("nan")])
def test_a_half_life_is_positive(half_life: float) -> None:
    with pytest.raises(SettingsError, match="half_life"):
        DecayedCounts(half_life)
