"""History against deques: what was met, in bounded memory, the same bytes however it arrived."""

from collections import Counter, defaultdict, deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.data.interactions import Interactions
from melon.journal import undoable
from melon.stream.draws import Draws
from melon.stream.history import NEIGHBOURS, NOBODY, RING, History, PartnerRings
from melon.stream.pairs import pair_keys

BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), max_size=70),
    max_size=8,
)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def remembered(rings: PartnerRings, row: int) -> list[int]:
    """What the rings still know of a row, as a multiset, through the public door."""
    return sorted(partner for partner in _sample(rings, row, RING) if partner != NOBODY)


def _sample(rings: PartnerRings, row: int, most: int, moment: int = 0) -> list[int]:
    return rings.sample(np.array([row]), Draws(0, "neighbours"), moment, most).partners[0].tolist()


def same_bytes(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in one
    )


@given(BATCHES)
@settings(max_examples=40)
def test_rings_are_bounded_deques(batches: list[list[tuple[int, int]]]) -> None:
    rings, twin, met = PartnerRings(), defaultdict(lambda: deque(maxlen=RING)), Counter()
    for pairs in batches:
        rings.append(*columns(pairs))
        for row, partner in pairs:
            twin[row].append(partner)
            met[row] += 1
    rows = np.arange(8)
    assert rings.met(rows).tolist() == [met[row] for row in range(8)]
    assert rings.last(rows).tolist() == [twin[row][-1] if twin[row] else NOBODY for row in range(8)]
    recent, few = rings.recent(rows), rings.recent(rows, 3)
    assert recent.counts.tolist() == [len(twin[row]) for row in range(8)]
    for row in range(8):
        assert remembered(rings, row) == sorted(twin[row])
        newest_first = [*reversed(twin[row])]
        assert recent.partners[row].tolist() == newest_first + [NOBODY] * (RING - len(newest_first))
        assert few.partners[row].tolist() == recent.partners[row, :3].tolist()
        assert few.counts[row] == min(recent.counts[row], 3)


def test_one_user_256_times_in_a_batch() -> None:
    rings = PartnerRings()
    rings.append(np.array([3, 3, 1]), np.array([900, 901, 7]))
    rings.append(np.full(256, 3), np.arange(256))
    assert rings.met(np.array([0, 1, 3])).tolist() == [0, 1, 258]
    assert rings.last(np.array([3, 1])).tolist() == [255, 7]
    assert remembered(rings, 3) == list(range(256 - RING, 256))
    assert remembered(rings, 1) == [7]


def test_unknown_rows_have_met_nobody() -> None:
    empty, rows = PartnerRings(), np.array([0, 5, 10**6])
    for rings in (empty, PartnerRings.from_state(empty.state(), 0, 0)):
        assert rings.met(rows).tolist() == [0, 0, 0]
        assert rings.last(rows).tolist() == [NOBODY] * 3
        assert (rings.sample(rows, Draws(0, "n"), 0).partners == NOBODY).all()
    empty.append(np.array([2]), np.array([4]))
    assert empty.met(rows).tolist() == [0, 0, 0]
    assert empty.last(np.array([2, 5])).tolist() == [4, NOBODY]
    assert empty.sample(np.array([], dtype=np.int64), Draws(0, "n"), 0).partners.shape == (0, NEIGHBOURS)


def test_rows_come_back_as_64_bit_numbers_fit_for_pair_keys() -> None:
    rings = PartnerRings()
    rings.append(np.array([0, 1]), np.array([5, 6]))
    newest = rings.last(np.array([0, 1]))
    assert newest.dtype == np.int64
    assert pair_keys(newest, np.array([1, 1])).tolist() == [(5 << 32) + 1, (6 << 32) + 1]
    assert rings.sample(np.array([0]), Draws(0, "n"), 0).partners.dtype == np.int64


@given(st.integers(0, 120), st.integers(1, NEIGHBOURS), st.integers(0, 10**6))
@settings(max_examples=40)
def test_sampling_is_without_replacement(met: int, most: int, moment: int) -> None:
    rings = PartnerRings()
    rings.append(np.array([0, *[1] * met]), np.arange(met + 1) + 100)
    sampled = rings.sample(np.array([1, 0, 7]), Draws(0, "n"), moment, most)
    held = min(met, RING)
    assert sampled.counts.tolist() == [min(held, most), 1, 0]
    chosen = sampled.partners[0, : sampled.counts[0]]
    assert len(set(chosen.tolist())) == len(chosen)
    assert set(chosen.tolist()) <= set(range(met - held + 101, met + 101))
    assert (sampled.partners[0, sampled.counts[0] :] == NOBODY).all()


def test_at_most_ten_neighbours_are_sampled() -> None:
    rings = PartnerRings()
    rings.append(np.zeros(40, dtype=np.int64), np.arange(40))
    assert rings.sample(np.array([0]), Draws(0, "n"), 0).partners.shape == (1, 10)


def test_sampling_is_uniform_and_changes_with_the_moment() -> None:
    rings, counts = PartnerRings(), Counter()
    rings.append(np.zeros(60, dtype=np.int64), np.arange(60))
    for moment in range(2_000):
        counts.update(_sample(rings, 0, 10, moment))
    expected = 2_000 * 10 / RING
    assert set(counts) == set(range(10, 60))
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < RING + 5 * np.sqrt(2 * RING)
    assert _sample(rings, 0, 10, 1) == _sample(rings, 0, 10, 1) != _sample(rings, 0, 10, 2)


def test_parallel_edges_are_kept() -> None:
    rings = PartnerRings()
    rings.append(np.zeros(4, dtype=np.int64), np.array([8, 8, 8, 9]))
    assert sorted(_sample(rings, 0, 10)[:4]) == [8, 8, 8, 9]


@given(BATCHES)
@settings(max_examples=40)
def test_bulk_append_equals_batch_by_batch_and_the_state_comes_back(batches: list[list[tuple[int, int]]]) -> None:
    slow, bulk = History(), History()
    for pairs in batches:
        slow.append(*columns(pairs))
    bulk.append(*columns([pair for pairs in batches for pair in pairs]))
    again = History.from_state({name: array.copy() for name, array in slow.state().items()})
    assert same_bytes(slow.state(), bulk.state())
    assert same_bytes(slow.state(), again.state())
    pairs = [pair for pairs in batches for pair in pairs]
    assert slow.events == again.events == len(pairs)
    assert slow.known_items == again.known_items == max((item for _, item in pairs), default=-1) + 1
    assert len(again.seen) == len(set(pairs))
    more = np.array([0, 6, 6]), np.array([3, 2000, 3])
    slow.append(*more)
    again.append(*more)
    assert same_bytes(slow.state(), again.state())


@given(BATCHES)
@settings(max_examples=40)
def test_a_log_that_is_expected_makes_the_same_history(batches: list[list[tuple[int, int]]]) -> None:
    users, items = columns([pair for pairs in batches for pair in pairs])
    log = Interactions.from_ids(users, items, np.arange(len(users)))
    plain, expecting = History(), History()
    expecting.expect(log)
    for history in (plain, expecting):
        for start in range(0, len(log), 7):
            history.append(log.users[start : start + 7], log.items[start : start + 7])
    assert same_bytes(plain.state(), expecting.state())
    assert plain.known_items == expecting.known_items


def test_state_is_a_copy() -> None:
    history = History()
    history.append(np.array([0, 1]), np.array([1, 1]))
    before = {name: array.copy() for name, array in history.state().items()}
    for array in history.state().values():
        array[...] = 0
    assert same_bytes(history.state(), before)


class TestBoundedPairs:
    def _filled(self, bound: int | None, events: int = 600) -> tuple[History, list[tuple[int, int]]]:
        rng, history = np.random.default_rng(0), History()
        history.bound(bound)
        users, items = rng.integers(0, 12, events), rng.integers(0, 40, events)
        for start in range(0, events, 7):
            history.append(users[start : start + 7], items[start : start + 7])
        return history, list(zip(users.tolist(), items.tolist(), strict=True))

    def test_the_newest_pairs_stay_and_memory_is_bounded(self) -> None:
        history, log = self._filled(120)
        everything, _ = self._filled(None)
        assert len(history.seen) <= 120 < len(everything.seen)
        assert set(history.seen.keys().tolist()) <= set(everything.seen.keys().tolist())
        newest = {user: [item for who, item in log if who == user][-2:] for user in range(12)}
        pairs = np.array([(user << 32) | item for user, items in newest.items() for item in items])
        assert history.seen.contains(pairs).all()

    def test_a_history_that_is_loaded_forgets_the_same(self) -> None:
        history, _ = self._filled(120)
        loaded = History.from_state(history.state())
        assert loaded.max_pairs == 120
        more = np.random.default_rng(1).integers(0, (12, 40), (200, 2))
        for each in (history, loaded):
            each.append(more[:, 0].copy(), more[:, 1].copy())
        assert history.seen.keys().tolist() == loaded.seen.keys().tolist()

    def test_forgetting_is_taken_back_with_its_batch(self) -> None:
        history, _ = self._filled(120)
        before, users = history.seen.keys().tolist(), np.repeat(np.arange(12), 40)
        with undoable(always=True):
            history.append(users, np.tile(np.arange(40), 12))
            assert len(history.seen) <= 120
        assert history.seen.keys().tolist() == before
