"""The set of pairs against Python's own set and dict."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.data.interactions import Interactions, Taken
from melon.stream import pairs as module
from melon.stream.pairs import FirstSeen, PairSet, SeenPairs, pair_keys

ROWS = st.integers(0, 2**31 - 1)
PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)) | st.tuples(ROWS, ROWS), max_size=60)


def keys_of(pairs: list[tuple[int, int]]) -> np.ndarray:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return pair_keys(array[:, 0], array[:, 1])


@given(PAIRS)
def test_keys_tell_pairs_apart(pairs: list[tuple[int, int]]) -> None:
    keys = keys_of(pairs)
    assert len(set(keys.tolist())) == len(set(pairs))
    assert (keys >= 0).all()


@given(st.lists(PAIRS, max_size=6), PAIRS)
def test_pair_set_is_a_set(rounds: list[list[tuple[int, int]]], asked: list[tuple[int, int]]) -> None:
    pair_set, twin = PairSet(), set()
    for pairs in rounds:
        pair_set.add(keys_of(pairs))
        twin |= set(pairs)
        assert len(pair_set) == len(twin)
    assert pair_set.contains(keys_of(asked)).tolist() == [pair in twin for pair in asked]
    assert pair_set.keys().tolist() == sorted(keys_of(sorted(twin)).tolist())


@given(PAIRS, PAIRS)
def test_the_same_set_has_the_same_bytes_however_it_was_built(one: list, other: list) -> None:
    forward, backward = PairSet(keys_of(one)), PairSet(keys_of(other))
    forward.add(keys_of(other))
    backward.add(keys_of(one))
    assert forward.keys().tobytes() == backward.keys().tobytes()


def test_growth_keeps_every_key_and_leaves_half_of_the_slots_free() -> None:
    rng, pair_set, twin = np.random.default_rng(0), PairSet(), set()
    for _ in range(30):
        keys = pair_keys(rng.integers(0, 3_000, 2_000), rng.integers(0, 50, 2_000))
        pair_set.add(keys)
        twin |= set(keys.tolist())
        assert len(pair_set) == len(twin)
        assert pair_set.slots >= 2 * len(pair_set)
    known = np.array(sorted(twin))
    assert pair_set.contains(known).all()
    slots = pair_set.find(known)
    assert len(np.unique(slots)) == len(known)
    assert (pair_set.find(known) == slots).all()
    unknown = pair_keys(rng.integers(3_000, 4_000, 5_000), rng.integers(0, 50, 5_000))
    assert (pair_set.find(unknown) == -1).all()


SMALL_PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=60)


@pytest.mark.parametrize("kernel", ["python", "numba"])
@given(st.lists(SMALL_PAIRS, min_size=1, max_size=6), SMALL_PAIRS, st.sampled_from([0, 3, 10, 1000]))
@settings(max_examples=40)
def test_all_pairs_so_far_are_a_set_wherever_they_are_kept(kernel: str, rounds: list, asked: list, most: int) -> None:
    """Some sorted and some in the hash set; taken out again by pair and by user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELON_KERNEL", kernel)
        patch.setattr(module, "SORTED_FROM", most)
        seen, twin = SeenPairs(), set()
        for pairs in rounds:
            seen.add(keys_of(pairs))
            twin |= set(pairs)
            assert len(seen) == len(twin)
        copy = deepcopy(seen)
        for user in (None, 4, 99):
            if user is None:
                seen.remove(keys_of(rounds[0][:5]))
                twin -= set(rounds[0][:5])
            else:
                seen.forget(user)
                twin = {pair for pair in twin if pair[0] != user}
            assert seen.contains(keys_of(asked)).tolist() == [pair in twin for pair in asked]
            assert seen.keys().tolist() == sorted(keys_of(sorted(twin)).tolist())
        assert set(copy.keys().tolist()) >= set(seen.keys().tolist())
        copy.add(keys_of(asked))
        assert copy.contains(keys_of(asked)).all()


@given(PAIRS.filter(bool))
def test_what_users_took_is_each_pair_once(pairs: list[tuple[int, int]]) -> None:
    users, items = np.array(pairs).T
    log = Interactions.from_ids(users, items, np.arange(len(pairs)))
    keys = pair_keys(log.users, log.items)
    assert log.taken.keys().tolist() == sorted(set(keys.tolist()))
    assert log.taken.items.itemsize == 4
    assert np.array_equal(np.diff(log.taken.starts), np.bincount(log.users[~log.repeats]))
    assert not len(Taken.of(keys[:0]).keys())


def test_any_shape_can_be_asked() -> None:
    pair_set = PairSet(np.array([1, 5, 9]))
    asked = np.array([[1, 2, 5], [9, 9, 0]])
    assert pair_set.contains(asked).tolist() == [[True, False, True], [True, True, False]]
    assert pair_set.contains(asked.T).tolist() == [[True, True], [False, True], [True, False]]
    assert pair_set.contains(np.empty((0, 3), dtype=np.int64)).shape == (0, 3)
    assert pair_set.contains(np.empty((3, 0), dtype=np.int64)).shape == (3, 0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=80), st.integers(0, 90))
def test_first_seen_is_a_dict_of_first_occurrences(log: list[tuple[int, int]], event: int) -> None:
    array = np.array(log, dtype=np.int64).reshape(-1, 2)
    first_seen, twin = FirstSeen(array[:, 0], array[:, 1]), {}
    for number, pair in enumerate(log):
        twin.setdefault(pair, number)
    everything = [(user, item) for user in range(8) for item in range(8)]
    keys = keys_of(everything)
    assert first_seen.ever(keys).tolist() == [pair in twin for pair in everything]
    before = first_seen.before(keys, np.full(len(keys), event))
    assert before.tolist() == [pair in twin and twin[pair] < event for pair in everything]
