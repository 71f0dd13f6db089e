"""Counts at several half-lives against a slow twin that remembers every event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.errors import SettingsError
from melon.journal import undoable
from melon.models.streaming.counts import ItemCounts

RUNS = st.lists(st.lists(st.integers(0, 6), max_size=9), max_size=6)
HALF_LIVES = (0.5, 3.0, 100.0, float("inf"))


@given(RUNS)
def test_counts_idle_time_and_age_agree_with_a_slow_twin(runs: list[list[int]]) -> None:
    counts, events = ItemCounts(HALF_LIVES), list[int]()
    for run in runs:
        counts.observe(np.array(run, dtype=np.int64))
        events += run
    now, items, since = len(events), np.arange(9), np.empty((2, 9), dtype=np.float32)
    counts.by_kind(9, since)
    for item in items:
        moments = [at for at, each in enumerate(events) if each == item]
        slow = [sum(2.0 ** (-(now - at) / half_life) for at in moments) for half_life in HALF_LIVES]
        assert counts.read(items)[item] == pytest.approx(slow, abs=1e-12)
        assert since[:, item].tolist() == ([now - moments[-1], now - moments[0]] if moments else [now, now])


@given(RUNS)
def test_a_run_counts_as_its_events_one_by_one(runs: list[list[int]]) -> None:
    whole, single = ItemCounts(HALF_LIVES), ItemCounts(HALF_LIVES)
    for run in runs:
        whole.observe(np.array(run, dtype=np.int64))
        for item in run:
            single.observe(np.array([item]))
    items = np.arange(8)
    assert whole.read(items) == pytest.approx(single.read(items), rel=1e-12)


def test_any_shape_is_read_and_unseen_items_in_between_stay_unseen() -> None:
    counts = ItemCounts([10.0, 20.0])
    assert counts.read(np.zeros((2, 3), dtype=np.int64)).shape == (2, 3, 2)
    counts.observe(np.array([5]))
    items = np.array([[0, 5], [4, 99]])
    assert counts.read(items)[..., 0].tolist() == [[0, 2**-0.1], [0, 0]]


def test_a_state_goes_on_as_the_counts_would_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    counts = ItemCounts(HALF_LIVES)
    counts.observe(rng.integers(0, 30, 100))
    again = ItemCounts.from_state({name: array.copy() for name, array in counts.state().items()})
    for _ in range(3):
        more = rng.integers(0, 60, 77)
        counts.observe(more)
        again.observe(more)
    assert {name: array.tobytes() for name, array in again.state().items()} == {
        name: array.tobytes() for name, array in counts.state().items()
    }


def test_a_half_life_is_positive() -> None:
    with pytest.raises(SettingsError, match="half_life = -1"):
        ItemCounts([5.0, -1])


def test_items_can_be_new_at_any_time() -> None:
    counts = ItemCounts([10.0])
    assert counts.read(np.array([[0, 5], [7, 1]]))[..., 0].tolist() == [[0, 0], [0, 0]]
    counts.observe(np.array([2]))
    assert counts.read(np.array([[1_000, 2]]))[..., 0].tolist() == [[0, 2 ** (-1 / 10)]]
    counts.observe(np.array([1_000]))
    assert counts.read(np.array([1_000, 2]))[:, 0].tolist() == pytest.approx([2 ** (-1 / 10), 2 ** (-2 / 10)])


def test_reading_changes_nothing() -> None:
    counts = ItemCounts([10.0])
    counts.observe(np.array([3, 3, 1]))
    before = {name: array.tolist() for name, array in counts.state().items()}
    counts.read(np.arange(100))
    assert {name: array.tolist() for name, array in counts.state().items()} == before


def test_ages_ago_is_nothing_and_no_warning() -> None:
    counts = ItemCounts([1.0])
    counts.observe(np.array([0]))
    counts.observe(np.ones(5_000, dtype=np.int64))
    assert counts.read(np.array([0])).tolist() == [[0.0]]


@pytest.mark.parametrize("asked_before", [False, True])
@given(st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=4), st.integers(1, 12))
def test_the_highest_counts_are_those_of_sorted_counts(asked_before: bool, runs: list[list[int]], many: int) -> None:
    counts, kinds = ItemCounts(HALF_LIVES), np.array([3, 0, 1])
    for run in runs:
        taken = np.array(run, dtype=np.int64)
        if asked_before:
            with undoable(always=True):
                counts.observe(taken)
                counts.most_counted(kinds, many)
            counts.most_counted(kinds, many)
        counts.observe(taken)
    items = np.arange(31)
    found, known = counts.most_counted(kinds, many), items[counts.read(items)[:, 3] > 0]
    for kind, rows in zip(kinds, np.split(found, len(kinds)), strict=True):
        held = counts.read(known)[:, kind]
        assert len(set(rows.tolist())) == len(rows) == min(many, len(known))
        assert sorted(counts.read(rows)[:, kind]) == pytest.approx(sorted(held)[len(held) - len(rows) :], rel=1e-12)


def test_the_highest_counts_do_not_depend_on_when_they_were_asked_for_before() -> None:
    """Where counts have decayed to nothing and tie, too."""
    kinds, draws = np.array([0, 1]), np.random.default_rng(0)
    asked = ItemCounts([0.05, 3.0])
    for _ in range(40):
        asked.observe(draws.integers(0, 40, 5) if draws.random() < 0.5 else np.full(9, 7))
        fresh = ItemCounts.from_state(asked.state())
        found, wanted = (np.split(one.most_counted(kinds, 12), 2) for one in (asked, fresh))
        assert [sorted(rows.tolist()) for rows in found] == [sorted(rows.tolist()) for rows in wanted]


def test_counts_by_kind_are_the_same_however_they_were_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melon.models.streaming.counts._LATELY", 40)
    rng = np.random.default_rng(0)
    counts = ItemCounts([5.0, 100.0, float("inf")])
    counts._lately = np.zeros(40, dtype=np.int64)
    for round_ in range(30):
        items = rng.integers(0, 20 + 3 * round_, int(rng.integers(1, 60)))
        if round_ % 7 == 3:
            with undoable(always=True):
                counts.observe(items)
                counts.by_kind(50, np.empty((2, 50), dtype=np.float32))
        counts.observe(items)
        n_items = int(rng.integers(10, 130))
        since = np.empty((2, n_items), dtype=np.float32)
        table = counts.by_kind(n_items, since)
        known = min(n_items, len(counts.storage[0]))
        assert np.array_equal(table[:, :known], counts.storage[0][:known].T.astype(np.float32))
        assert not table[:, known:n_items].any()
