"""Evaluation candidates against a slow twin, and blind to the future."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.data.interactions import Interactions
from melon.errors import SettingsError, StreamError
from melon.stream.candidates import MODES, NEGATIVES, Candidates, LiveCandidates
from melon.stream.history import History
from melon.stream.pairs import pair_keys

LOGS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 14)), min_size=30, max_size=80)


def log_of(pairs: list[tuple[int, int]]) -> Interactions:
    users, items = np.array(pairs, dtype=np.int64).T
    return Interactions.from_ids(users, items, np.arange(len(pairs)))


def allowed(log: Interactions, event: int, batch_start: int, mode: str) -> set[int]:
    """The items that may stand beside the positive of an event, by the words of the definition."""
    user, own = int(log.users[event]), int(log.items[event])
    known = range(event) if mode != "full-log" else range(len(log))
    taken = {int(log.items[other]) for other in known if log.users[other] == user}
    pool = {int(item) for item in (log.items[:batch_start] if mode == "known" else log.items)}
    return pool - taken - {own}


@pytest.mark.parametrize("mode", MODES)
@given(pairs=LOGS, count=st.integers(1, 6), size=st.integers(1, 30), seed=st.integers(0, 3))
@settings(max_examples=25)
def test_every_line_is_what_the_definition_allows(mode: str, pairs: list, count: int, size: int, seed: int) -> None:
    log = log_of(pairs)
    if log.n_items <= count:
        return
    candidates = Candidates(log, mode=mode, seed=seed, count=count)
    for start in range(0, len(log), size):
        stop = min(start + size, len(log))
        drawn = candidates.draw(start, stop)
        assert drawn.items.shape == (stop - start, 1 + count)
        assert (drawn.items[:, 0] == log.items[start:stop]).all()
        known = set(log.items[:start].tolist())
        for event, line, usable in zip(range(start, stop), drawn.items[:, 1:].tolist(), drawn.usable, strict=True):
            may = allowed(log, event, start, mode)
            was_there = mode != "known" or (int(log.items[event]) in known and len(known) > count)
            assert usable == (was_there and len(may) >= count)
            if usable:
                assert len(set(line)) == count
                assert set(line) <= may


@pytest.mark.parametrize("mode", MODES)
def test_uniform_over_what_is_allowed(mode: str) -> None:
    """One user who has taken a quarter of the items, each event drawn many times by changing the seed."""
    rng = np.random.default_rng(0)
    pairs = [(0, item) for item in range(10)] + [(1, item) for item in range(40)]
    pairs += [(0, int(item)) for item in rng.integers(0, 40, 20)]
    log, event, start = log_of(pairs), 60, 55
    may = sorted(allowed(log, event, start, mode))
    counts = np.zeros(log.n_items)
    for seed in range(400):
        line = Candidates(log, mode=mode, seed=seed, count=10).draw(start, 70).items[event - start, 1:]
        counts[line] += 1
    assert counts.sum() == counts[may].sum()
    share = 10 / len(may)
    deviations = (counts[may] - 400 * share) / np.sqrt(400 * share * (1 - share))
    assert np.abs(deviations).max() < 4
    assert (deviations**2).mean() < 1 + 5 * np.sqrt(2 / len(may))


def test_hard_lines_are_filled_exactly_and_uniformly() -> None:
    """A user who has taken nearly everything leaves the quick path behind."""
    pairs = [(1, item) for item in range(2_000)] + [(0, item) for item in range(1_980)] + [(0, 1_985)]
    log = log_of(pairs)
    counts = np.zeros(log.n_items)
    for seed in range(150):
        drawn = Candidates(log, seed=seed, count=10).draw(len(log) - 1, len(log))
        assert drawn.usable.all()
        counts[drawn.items[0, 1:]] += 1
    may = sorted(allowed(log, len(log) - 1, len(log) - 1, "catalogue"))
    assert len(may) == 19
    assert counts.sum() == counts[may].sum()
    share = 10 / 19
    assert np.abs((counts[may] - 150 * share) / np.sqrt(150 * share * (1 - share))).max() < 4


def test_exclusion_works_at_the_event_not_at_the_batch() -> None:
    """Within one batch, what the user took a moment ago is no longer offered, what comes next still is."""
    pairs = [(1, item) for item in range(6)] + [(0, 0), (0, 1), (0, 2)]
    drawn = Candidates(log_of(pairs), count=3).draw(6, 9)
    assert set(drawn.items[2, 1:].tolist()) == {3, 4, 5}
    offered_first = {
        item for seed in range(50) for item in Candidates(log_of(pairs), seed=seed, count=3).draw(6, 9).items[0, 1:]
    }
    assert offered_first == {1, 2, 3, 4, 5}


def test_full_log_knows_what_comes_later() -> None:
    pairs = [(1, item) for item in range(6)] + [(0, 0), (0, 1), (0, 2)]
    drawn = Candidates(log_of(pairs), mode="full-log", count=3).draw(6, 9)
    assert all(set(line) == {3, 4, 5} for line in drawn.items[:, 1:].tolist())


@given(LOGS, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=40), st.integers(1, 20))
@settings(max_examples=30)
def test_known_candidates_do_not_know_the_future(pairs: list, future: list, size: int) -> None:
    """Whatever follows the end of a batch, new users and items included, changes no line up to it."""
    count = 3
    logs = [log_of(pairs), log_of([*pairs, *future])]
    if logs[0].n_items <= count:
        return
    ours, theirs = (Candidates(log, mode="known", count=count) for log in logs)
    for start in range(0, len(pairs), size):
        stop = min(start + size, len(pairs))
        one, other = ours.draw(start, stop), theirs.draw(start, stop)
        assert (one.items == other.items).all()
        assert (one.usable == other.usable).all()


@given(LOGS, st.randoms(use_true_random=False), st.integers(0, 29))
@settings(max_examples=30)
def test_catalogue_candidates_know_the_set_of_items_and_nothing_else(pairs: list, random: object, cut: int) -> None:
    """With the same items and users, another order of events after `cut` changes no line up to it."""
    everything = list(dict.fromkeys(item for _, item in pairs))
    head, tail = pairs[:cut], pairs[cut:]
    random.shuffle(tail)  # type: ignore[attr-defined]
    # Items numbered by first appearance: give both logs the same numbering by showing every item to a stranger first.
    stranger = [(99, item) for item in everything]
    logs = [log_of([*stranger, *pairs]), log_of([*stranger, *head, *tail])]
    if len(everything) <= 3:
        return
    first, stop = len(stranger), len(stranger) + cut
    one, other = (Candidates(log, count=3).draw(first, stop) for log in logs)
    assert (one.items == other.items).all()
    assert (one.usable == other.usable).all()


def test_lines_do_not_depend_on_the_batch_they_come_in() -> None:
    rng = np.random.default_rng(0)
    log = log_of(list(zip(rng.integers(0, 9, 300).tolist(), rng.integers(0, 150, 300).tolist(), strict=True)))
    candidates = Candidates(log, count=20)
    whole = candidates.draw(0, 300)
    assert (np.concatenate([candidates.draw(at, at + 50).items for at in range(0, 300, 50)]) == whole.items).all()
    assert (Candidates(log, count=20).draw(0, 300).items == whole.items).all()
    assert (Candidates(log, count=20, seed=1).draw(0, 300).items != whole.items).any()


@pytest.mark.parametrize("mode", MODES)
def test_too_few_items_for_the_candidates(mode: str) -> None:
    log = log_of([(0, item) for item in range(10)])
    with pytest.raises(StreamError, match=r"10 items, too few for 99 .* at most 9"):
        Candidates(log, mode=mode)
    assert Candidates(log, mode=mode, count=9).draw(0, 10).items.shape == (10, 10)
    assert NEGATIVES == 99


def test_unknown_candidate_sets_are_named_with_the_choices() -> None:
    with pytest.raises(SettingsError, match="catalogue, full-log, known"):
        Candidates(log_of([(0, 0), (0, 1)]), mode="future")


def test_events_on_known_items_in_the_batch_are_left_out() -> None:
    pairs = [(1, item) for item in range(6)] + [(0, 6), (0, 3), (2, 6), (2, 2)]
    drawn = Candidates(log_of(pairs), mode="known", count=3).draw(6, 10)
    assert drawn.usable.tolist() == [False, True, False, True]
    early = Candidates(log_of(pairs), mode="known", count=3).draw(0, 4)
    assert not early.usable.any()


def test_a_user_who_had_nearly_everything_is_left_out() -> None:
    pairs = [(0, item) for item in range(10)] + [(0, 3), (1, 3)]
    assert Candidates(log_of(pairs), count=4).draw(10, 12).usable.tolist() == [False, True]


class TestLive:
    """Candidates of events that arrive now, from the history alone."""

    @staticmethod
    def past(events: int = 400, items: int = 60) -> History:
        rng, history = np.random.default_rng(2), History()
        history.append(np.arange(events) % 20, np.r_[np.arange(items), rng.integers(0, items, events - items)])
        return history

    @pytest.mark.parametrize("kernel", ["python", "numba"])
    def test_distinct_known_and_not_the_users_own(self, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MELON_KERNEL", kernel)
        history = self.past()
        users, items = np.array([3, 5, 21, 3]), np.array([7, 59, 1, 60])
        drawn = LiveCandidates(seed=1, count=20).draw(np.array([11, 12, 13, 14]), users, items, history)
        assert drawn.usable.tolist() == [True, True, True, False]  # the last item is not known yet
        assert drawn.pool == 60
        for user, line in zip(users[:3], drawn.items[:3], strict=True):
            assert len(set(line.tolist())) == 21
            assert line.max() < 60
            assert not history.seen.contains(pair_keys(np.full(20, user), line[1:])).any()

    def test_a_draw_belongs_to_the_place_in_the_log(self) -> None:
        history, candidates = self.past(), LiveCandidates(seed=4, count=15)
        users, items = np.array([1, 2, 3]), np.array([4, 5, 6])
        together = candidates.draw(np.array([7, 8, 9]), users, items, history).items
        for line in range(3):
            one = slice(line, line + 1)
            alone = candidates.draw(np.array([7, 8, 9])[one], users[one], items[one], history).items
            assert (alone[0] == together[line]).all()
        assert (candidates.draw(np.array([17, 18, 19]), users, items, history).items[:, 1:] != together[:, 1:]).any()

    def test_compiled_and_numpy_are_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn = []
        for kernel in ("python", "numba"):
            monkeypatch.setenv("MELON_KERNEL", kernel)
            places, rows = np.arange(50), np.arange(50) % 25
            drawn.append(LiveCandidates(count=40).draw(places, rows, rows, self.past()))
        assert (drawn[0].usable == drawn[1].usable).all()
        assert (drawn[0].items[drawn[0].usable] == drawn[1].items[drawn[0].usable]).all()

    def test_too_few_items_are_no_ranking(self) -> None:
        drawn = LiveCandidates(count=60).draw(np.array([1]), np.array([1]), np.array([2]), self.past())
        assert not drawn.usable.any()
