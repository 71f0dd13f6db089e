"""History against deques: what was met, in bounded memory, the same bytes however it arrived."""

from collections import Counter, defaultdict, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.data.interactions import Interactions
from melon.errors import CheckpointError
from melon.journal import undoable
from melon.stream.draws import Draws
from melon.stream.history import NOBODY, RING, History, PartnerRings
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
    return sorted(partner for partner in rings.recent(np.array([row])).partners[0].tolist() if partner != NOBODY)


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
    empty.append(np.array([2]), np.array([4]))
    assert empty.met(rows).tolist() == [0, 0, 0]
    assert empty.last(np.array([2, 5])).tolist() == [4, NOBODY]


def test_rows_come_back_as_64_bit_numbers_fit_for_pair_keys() -> None:
    rings = PartnerRings()
    rings.append(np.array([0, 1]), np.array([5, 6]))
    newest = rings.last(np.array([0, 1]))
    assert newest.dtype == np.int64
    assert pair_keys(newest, np.array([1, 1])).tolist() == [(5 << 32) + 1, (6 << 32) + 1]


class TestTheWholePast:
    def kept(self, pairs: list[tuple[int, int]], split: int) -> History:
        """Pairs of which the first arrive before everything is kept."""
        history, (users, items) = History(), columns(pairs)
        history.append(users[:split], items[:split])
        history.keep_everything(users[:split], items[:split])
        for start in range(split, len(pairs), 9):
            history.append(users[start : start + 9], items[start : start + 9])
        return history

    def sampled(self, history: History, role: str, most: int) -> list[list[int]]:
        found = history.neighbours(role, np.arange(8), Draws(0, "n"), most)
        lines = [line[:count] for line, count in zip(found.partners.tolist(), found.counts.tolist(), strict=True)]
        assert (found.partners != NOBODY).sum() == found.counts.sum()
        return lines

    @given(BATCHES, st.integers(1, 12))
    @settings(max_examples=40)
    def test_all_partners_are_there_from_both_sides(self, batches: list[list[tuple[int, int]]], most: int) -> None:
        pairs = [(user, item % 7) for batch in batches for user, item in batch]
        history = self.kept(pairs, len(pairs) // 3)
        for role, met in (("user", lambda row: [i for u, i in pairs if u == row]),
                          ("item", lambda row: [u for u, i in pairs if i == row])):  # fmt: skip
            assert self.sampled(history, role, 600) == [met(row) for row in range(8)]
            for row, line in enumerate(self.sampled(history, role, most)):
                assert len(line) == min(most, len(met(row)))
                assert not Counter(line) - Counter(met(row)), "without replacement; parallel edges stay"
            last = history.last(role, np.arange(8), Draws(0, "n")).tolist()
            assert last == [met(row)[-1] if met(row) else NOBODY for row in range(8)]

    def test_ten_of_far_more_than_a_ring_are_uniform_and_drawn_anew_for_each_batch(self) -> None:
        n, counts = 3 * RING, Counter()
        history = self.kept([(0, item) for item in range(n)], 40)
        draws = list[list[int]]()
        for moment in range(2_000):
            with history.as_before(n + (moment << 40), static=False):
                draws.append(self.sampled(history, "user", 10)[0])
            counts.update(draws[-1])
        expected = 2_000 * 10 / n
        assert set(counts) == set(range(n))
        assert sum((count - expected) ** 2 / expected for count in counts.values()) < n + 5 * np.sqrt(2 * n)
        assert draws[0] != draws[1]

    def test_a_batch_of_the_past_sees_what_preceded_it_or_in_the_published_code_everything(self) -> None:
        pairs = [(event % 3, event) for event in range(60)]
        history = self.kept(pairs, 60)
        with history.as_before(30 + (5 << 40), static=False):
            assert self.sampled(history, "user", 40)[:3] == [list(range(user, 30, 3)) for user in range(3)]
            assert history.last("user", np.arange(4), Draws(0, "n")).tolist() == [27, 28, 29, NOBODY]
        last = set[int]()
        for epoch in range(200):
            with history.as_before(30 + (epoch << 40), static=True):
                assert [len(line) for line in self.sampled(history, "user", 40)[:3]] == [20, 20, 20]
                last.add(int(history.last("user", np.array([1]), Draws(0, "n"))[0]))
        assert last == set(range(1, 60, 3))
        assert [len(line) for line in self.sampled(history, "user", 40)[:3]] == [20, 20, 20]

    def test_it_is_saved_forgotten_moved_and_taken_back(self) -> None:
        history = self.kept([(event % 4, event % 5) for event in range(80)], 20)
        again = History.from_state({name: array.copy() for name, array in history.state().items()})
        assert same_bytes(history.state(), again.state())
        before, more = history.state(), (np.array([1, 6]), np.array([3, 3]))
        with undoable(always=True):
            history.append(*more)
            assert self.sampled(history, "user", 90)[6] == [3]
        assert same_bytes(history.state(), before)
        history.retract(1, 3)
        assert 3 not in self.sampled(history, "user", 90)[1]
        kept = self.sampled(history, "user", 90)[1]
        history.move(1, 2)
        assert self.sampled(history, "user", 90)[1] == []
        assert sorted(self.sampled(history, "user", 90)[2]) == sorted(kept + [i % 5 for i in range(80) if i % 4 == 2])

    def test_a_history_that_kept_rings_alone_cannot_be_continued(self) -> None:
        history = History()
        history.append(np.array([0, 1]), np.array([1, 1]))
        with pytest.raises(CheckpointError, match="whole history continues one of 2 interactions"):
            history.keep_everything(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


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
