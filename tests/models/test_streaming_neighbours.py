"""Neighbours against slow twins: a dense table while nothing is evicted, and a dictionary with the eviction rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.errors import SettingsError
from melon.kernels.neighbours import EMPTY, add_up
from melon.models.streaming import neighbours as module
from melon.models.streaming.neighbours import ItemNeighbours, scratch
from melon.stream.history import NOBODY, History
from melon.types import Ints

Log = list[tuple[int, int]]
LOGS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=60)
KERNELS = ("python", "numba")


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MELON_KERNEL", request.param)
    return str(request.param)


def streamed(neighbours: ItemNeighbours, users: Ints, items: Ints, cut: int) -> History:
    history = History()
    for start in range(0, len(users), cut):
        run = users[start : start + cut], items[start : start + cut]
        neighbours.observe(*run, history.of_users)
        history.append(*run)
    return history


def sums_of(neighbours: ItemNeighbours, lasts: Ints, weights: np.ndarray, items: Ints) -> np.ndarray:
    """What the blend's inputs add up, by the kernel as plain Python."""
    kept, places = neighbours.storage, np.full(100, EMPTY, dtype=np.int32)
    sums = add_up(kept.ids, kept.counts, kept.recent, lasts, weights, items, np.float64(kept.now), places)
    assert (places == EMPTY).all()  # nothing is left behind
    return sums


def columns(log: Log) -> tuple[Ints, Ints]:
    array = np.array(log, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


class Everything:
    """The slow twin: dense tables, one interaction at a time; docs/methods.md 8.5."""

    def __init__(self, items: int, reach: int, half_life: float, both_ways: bool = True) -> None:
        self.plain, self.decayed = np.zeros((items, items)), np.zeros((items, items))
        self.past: dict[int, list[int]] = {}
        self.reach, self.half_life, self.both_ways = reach, half_life, both_ways

    def observe(self, user: int, item: int) -> None:
        self.decayed *= 0.5 ** (1 / self.half_life)
        for earlier in reversed(self.past.get(user, [])[-self.reach :]):
            if earlier != item:
                for one, other in [(earlier, item), *([(item, earlier)] if self.both_ways else [])]:
                    self.plain[one, other] += 1
                    self.decayed[one, other] += 0.5 ** (1 / self.half_life)
        self.past.setdefault(user, []).append(item)


def dense(neighbours: ItemNeighbours, items: int) -> tuple[np.ndarray, np.ndarray]:
    plain, decayed = np.zeros((items, items)), np.zeros((items, items))
    ids, counts, recent = neighbours.of(np.arange(items))
    for item, slot in zip(*np.nonzero(ids != EMPTY), strict=True):
        plain[item, ids[item, slot]] = counts[item, slot]
        decayed[item, ids[item, slot]] = recent[item, slot]
    return plain, decayed


@pytest.mark.parametrize("both_ways", [True, False])
@given(log=LOGS, cut=st.integers(1, 60))
def test_below_the_bound_counts_are_those_of_a_dense_twin(log: Log, cut: int, both_ways: bool) -> None:
    users, items = columns(log)
    fast = ItemNeighbours(slots=8, reach=5, half_life=9.0, both_ways=both_ways)
    streamed(fast, users, items, cut)
    slow = Everything(8, 5, 9.0, both_ways)
    for user, item in log:
        slow.observe(user, item)
    plain, decayed = dense(fast, 8)
    assert plain.tolist() == slow.plain.tolist()
    assert decayed == pytest.approx(slow.decayed, rel=1e-5)


@given(log=LOGS, cut=st.integers(2, 60), slots=st.integers(1, 4))
def test_a_run_counts_as_its_events_one_by_one_evictions_included(log: Log, cut: int, slots: int) -> None:
    users, items = columns(log)
    runs, single = (ItemNeighbours(slots=slots, reach=4, half_life=7.0) for _ in range(2))
    streamed(runs, users, items, cut)
    streamed(single, users, items, 1)
    assert bytes_of(runs) == bytes_of(single)


@given(log=LOGS, slots=st.integers(1, 3))
def test_the_least_decayed_count_makes_room(log: Log, slots: int) -> None:
    fast = ItemNeighbours(slots=slots, reach=3, half_life=5.0, both_ways=False)
    streamed(fast, *columns(log), 60)
    held: dict[int, list[tuple[int, int, np.float32]]] = {}  # neighbour, count, log of its decayed count
    past: dict[int, list[int]] = {}
    for now, (user, item) in enumerate(log):
        for earlier in reversed(past.get(user, [])[-3:]):
            if earlier == item:
                continue
            row = held.setdefault(earlier, [])
            there = [at for at, each in enumerate(row) if each[0] == item]
            _, count, recent = row[there[0]] if there else (item, 0, np.float32(-np.inf))
            met = item, count + 1, np.float32(np.log2(np.exp2(recent - now / 5.0) + 1) + now / 5.0)
            if there or len(row) == slots:
                row[there[0] if there else int(np.argmin([each[2] for each in row]))] = met
            else:
                row.append(met)
        past.setdefault(user, []).append(item)
    ids, counts, _ = fast.of(np.arange(8))
    for item in range(8):
        mine = [(int(other), int(count)) for other, count in zip(ids[item], counts[item], strict=True) if other >= 0]
        assert mine == [each[:2] for each in held.get(item, [])]


def test_both_implementations_agree_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 20, 1_500), rng.zipf(1.4, 1_500) % 90
    made = {}
    for name in KERNELS:
        monkeypatch.setenv("MELON_KERNEL", name)
        made[name] = ItemNeighbours(slots=12, half_life=200)
        streamed(made[name], users, items, 256)
    assert bytes_of(made["python"]) == bytes_of(made["numba"])


def test_sums_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(3)
    users, items = rng.integers(0, 6, 200), rng.integers(0, 30, 200)
    neighbours = ItemNeighbours(slots=30, reach=7, half_life=40.0)
    history = streamed(neighbours, users, items, 50)
    lasts = history.of_users.recent(np.arange(8)).partners[:, :9]
    weights = rng.random(lasts.shape)
    offered = rng.integers(0, 40, (8, 11))
    offered[0, :2] = 3  # an item may be offered twice
    plain, decayed = dense(neighbours, 50)
    wanted = np.zeros((3, 8, 11))
    for line, column in np.ndindex(8, 11):
        for place, last in enumerate(lasts[line]):
            if last != NOBODY:
                met = weights[line, place] * plain[last, offered[line, column]]
                wanted[0, line, column] += met
                wanted[1, line, column] += met / (place + 1)
                wanted[2, line, column] += weights[line, place] * decayed[last, offered[line, column]]
    assert sums_of(neighbours, lasts, weights, offered) == pytest.approx(wanted, rel=1e-9)


def test_nobody_has_met_anybody_at_first(kernel: str) -> None:
    neighbours = ItemNeighbours()
    assert (neighbours.of(np.array([0, 9]))[0] == EMPTY).all()
    neighbours.observe(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), History().of_users)
    assert neighbours.rows == 0


def test_an_interrupted_kernel_leaves_nothing_behind() -> None:
    """A kernel that runs as plain Python may be interrupted anywhere."""

    def interrupted() -> None:
        with scratch(5) as places:
            places[:3] = 10**6
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with scratch(5) as places:
        assert (places == EMPTY).all()


def test_a_state_goes_on_bit_for_bit(kernel: str) -> None:
    rng = np.random.default_rng(5)
    users, items = rng.integers(0, 9, 600), rng.integers(0, 80, 600)
    original = ItemNeighbours(slots=6, half_life=30)
    history = streamed(original, users[:300], items[:300] // 2, 100)
    copy = ItemNeighbours.from_state({name: array.copy() for name, array in original.state().items()})
    assert bytes_of(copy) == bytes_of(original)
    for each in (original, copy):
        each.observe(users[300:], items[300:], history.of_users)
    assert bytes_of(copy) == bytes_of(original)
    assert copy.slots == 6
    assert sum(array.nbytes for array in copy.storage[:3]) == 12 * 6 * len(copy.storage.ids)


def test_decayed_counts_keep_their_digits_on_a_long_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REFER_ANEW", 3.0)
    rng = np.random.default_rng(6)
    log = [(int(user), int(item)) for user, item in zip(rng.integers(0, 3, 400), rng.integers(0, 5, 400), strict=True)]
    neighbours, slow = ItemNeighbours(slots=5, reach=2, half_life=20.0), Everything(5, 2, 20.0)
    streamed(neighbours, *columns(log), 16)
    for user, item in log:
        slow.observe(user, item)
    assert dense(neighbours, 5)[1] == pytest.approx(slow.decayed, rel=1e-4)
    assert neighbours.state()["reference"][0] > 10


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"slots": 0}, {"reach": 51}, {"half_life": 0.0}):
        with pytest.raises(SettingsError, match="at least one slot"):
            ItemNeighbours(**wrong)  # type: ignore[arg-type]


def bytes_of(neighbours: ItemNeighbours) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in neighbours.state().items()}
