"""The prequential loop: predicted before learned, on the same candidates for all, blind to what comes later."""

import inspect
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.evaluation.lists import TRACKS, Lister
from melon.evaluation.predictors import Frozen, Popularity, Predictor
from melon.evaluation.prequential import Point, Tally, drawn_ahead, prequential
from melon.learning.updater import Updater
from melon.models.catalogue import Catalogue
from melon.models.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES
from melon.stream.batch import Batch
from melon.stream.candidates import Candidates
from melon.stream.history import History
from melon.types import Ints, Scores

SMALL = {"bpr": {"dim": 6}, "ncf": {"dim": 4, "layers": (6, 5)}}
START, EVENTS, COUNT = 200, 520, 12


def changing_log(*, other_from: int | None = None) -> Interactions:
    """Users and items keep arriving. With `other_from`, everything from there on differs, except how many items."""
    rng, when = np.random.default_rng(8), np.arange(EVENTS)
    users = rng.integers(0, 8 + when // 20)
    items = rng.integers(0, 15 + when // 10)
    if other_from is not None:
        again = np.random.default_rng(99)
        later = when >= other_from
        users[later], items[later] = again.integers(0, 60, later.sum()), again.integers(0, 67, later.sum())
    items[-67:] = np.arange(67)  # the catalogue is as large either way
    return Interactions.from_ids(users + 1_000, items + 7, 5 * (when // 3))


class ByFormula(Catalogue):
    def __init__(self, score: Callable[[Ints, Ints], Any], n_items: int) -> None:
        self._score, self._n_items = score, n_items

    def scores(self, users: Any, *, unseen: bool = False) -> Any:
        lines = np.tile(np.arange(self._n_items), (len(users), 1))
        return np.asarray(self._score(users, lines))


class Spy:
    """Scores by formula; writes down what it was asked and taught, in order."""

    moved = 0.25

    def __init__(self, score: Callable[[Ints, Ints], Any] | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._score = score or (lambda users, items: np.sin(users[:, None] * 1.7 + items * 0.3))

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        self.calls.append(("score", (users.copy(), items.copy(), time)))
        return np.asarray(self._score(users, items))

    def catalogue(self, n_items: int, time: int) -> Catalogue:
        return ByFormula(self._score, n_items)

    def learn(self, batch: Batch) -> None:
        self.calls.append(("learn", batch))


def updater(log: Interactions, recommender: str, strategy: str, settings: dict[str, Any] | None = None) -> Updater:
    history = History()
    history.append(log.users[:START], log.items[:START])
    return Updater(
        RECOMMENDERS[recommender].load()(SMALL[recommender], seed=2), STRATEGIES[strategy].make(settings), history
    )


def every_pairing() -> dict[str, Callable[[Interactions], Predictor]]:
    """Each strategy on each recommender that it can drive."""
    made: dict[str, Callable[[Interactions], Predictor]] = {}
    for strategy, recommender in product(STRATEGIES.names(), SMALL):
        made[f"{strategy} {recommender}"] = partial(updater, recommender=recommender, strategy=strategy)
    return made


PREDICTORS: dict[str, Callable[[Interactions], Predictor]] = {
    **every_pairing(),
    "adam": lambda log: updater(log, "bpr", "default", {"optimizer": "adam_lazy", "lr": 0.01}),
    "adam_dense": lambda log: updater(log, "bpr", "default", {"optimizer": "adam_dense", "lr": 0.01}),
    "half_life": lambda log: updater(log, "bpr", "default", {"half_life": 100.0}),
    "half_life of ncf": lambda log: updater(log, "ncf", "default", {"half_life": 100.0}),
    "frozen": lambda log: Frozen(updater(log, "bpr", "default")),
    "popularity": lambda log: Popularity(float("inf"), log.items[:START]),
    "recent popularity": lambda log: Popularity(50, log.items[:START]),
}


def run(log: Interactions, predictor: Predictor, mode: str = "catalogue", **more: Any) -> Iterator[Point]:
    candidates = Candidates(log, mode=mode, seed=4, count=COUNT)
    return prequential(predictor, log, candidates, START, len(log), batch_size=64, **more)


def test_it_is_a_generator_that_does_nothing_before_it_is_asked() -> None:
    spy = Spy()
    points = run(changing_log(), spy)
    assert inspect.isgenerator(points)
    assert spy.calls == []
    next(points)
    assert [kind for kind, _ in spy.calls] == ["score", "learn"]


def test_every_batch_is_scored_before_it_is_learned() -> None:
    log, spy = changing_log(), Spy()
    points = list(run(log, spy))
    assert [kind for kind, _ in spy.calls] == ["score", "learn"] * len(points)
    learned = START
    for (_, (users, items, time)), (_, batch) in zip(spy.calls[::2], spy.calls[1::2], strict=True):
        assert batch.first_event == learned
        assert users.tolist() == log.users[learned : learned + len(batch)].tolist() == batch.users.tolist()
        assert items[:, 0].tolist() == batch.items.tolist()
        assert time == log.times[learned]
        learned += len(batch)
    assert learned == len(log)


def test_batches_stay_inside_their_part_and_the_last_may_be_short() -> None:
    points = list(run(changing_log(), Spy()))
    assert [(point.start, point.stop) for point in points] == [
        (start, min(start + 64, EVENTS)) for start in range(START, EVENTS, 64)
    ]
    first = list(prequential(Spy(), changing_log(), Candidates(changing_log(), count=COUNT), 7, 30, batch_size=20))
    assert [(point.start, point.stop) for point in first] == [(7, 27), (27, 30)]


def test_ranks_agree_with_the_candidates() -> None:
    log, spy = changing_log(), Spy()
    candidates = Candidates(log, seed=4, count=COUNT)
    for point in run(log, spy):
        offered = candidates.draw(point.start, point.stop).items
        scores = np.sin(log.users[point.start : point.stop, None] * 1.7 + offered * 0.3)
        assert point.ranks.rank.tolist() == [1 + sum(other > line[0] for other in line[1:]) for line in scores]
        assert point.events.tolist() == list(range(point.start, point.stop))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_no_number_names_its_batch_and_nothing_is_learned(bad: float) -> None:
    def score(users: Ints, items: Ints) -> Any:
        scores = np.zeros(items.shape)
        if spy.calls[-1][1][2] >= changing_log().times[START + 64]:
            scores[3, 1] = bad
        return scores

    spy = Spy(score)
    points = run(changing_log(), spy)
    next(points)
    with pytest.raises(LearningError, match=r"the batch of events 264 to 327 \(interaction 3, candidate 1\)"):
        next(points)
    assert [kind for kind, _ in spy.calls] == ["score", "learn", "score"]


def test_ranks_by_lists_agree_with_a_slow_twin() -> None:
    """Both tracks, among what two users or the user alone had had when the batch began."""
    log = changing_log()
    lists: dict[str, list[float]] = {track: [] for track in TRACKS}
    starts: list[int] = []
    for point in run(log, Spy(), lister=Lister(log, START)):
        assert point.lists is not None
        for track in TRACKS:
            lists[track] += point.lists.tracks[track].rank.tolist()
        starts += [point.start] * (point.stop - point.start)
    misses = 0
    for number, start in enumerate(starts):
        event = START + number
        user, item, known = int(log.users[event]), int(log.items[event]), int(log.items[:start].max()) + 1
        past = {int(log.items[e]) for e in range(start) if log.users[e] == user}
        takers = [len(set(log.users[:start][log.items[:start] == i].tolist())) for i in range(known)]
        may = np.array([taken >= 2 or each in past for each, taken in enumerate(takers)])
        if item >= known or not may[item]:
            misses += 1
            assert lists["all"][number] == lists["first_time"][number] == np.inf
            continue
        score = np.sin(user * 1.7 + np.arange(known) * 0.3)
        assert lists["all"][number] == 1 + (may & (score > score[item])).sum()
        if item in past:
            assert np.isnan(lists["first_time"][number])
        else:
            better = sum(score[i] > score[item] for i in np.flatnonzero(may) if i not in past)
            assert lists["first_time"][number] == 1 + better
    assert misses
    assert np.isnan(lists["first_time"]).any()


@pytest.mark.parametrize("recommender", SMALL)
def test_catalogue_scores_are_the_scores_of_the_candidates(recommender: str) -> None:
    log = changing_log()
    model = updater(log, recommender, "default")
    for _ in run(log, model):
        pass
    users, items = np.arange(5), np.tile(np.arange(log.n_items + 3), (5, 1))
    listed, everything = model.score(users, items, 0), model.score_catalogue(users, log.n_items + 3, 0)
    assert np.allclose(listed, everything, atol=1e-6)


@pytest.mark.parametrize("recommender", SMALL)
def test_items_without_a_row_tie_exactly(recommender: str) -> None:
    """Each is a row of zeros; rounding that depends on the place in a matrix must not tell them apart."""
    log = changing_log()
    model = updater(log, recommender, "default")
    for _ in run(log, model):
        pass
    known = log.n_items
    users = np.arange(40)
    items = np.stack([np.random.default_rng(user).permutation(2 * known) for user in users])
    scores, everything = model.score(users, items, 0), model.score_catalogue(users, 2 * known, 0)
    for line in range(len(users)):
        assert len(set(scores[line][items[line] >= known].tolist())) == 1
        assert len(set(scores[line][items[line] < known].tolist())) > known // 2
    assert (everything[:, known:] == everything[:, [known]]).all()


@pytest.mark.parametrize("mode", ["catalogue", "known"])
@pytest.mark.parametrize("name", PREDICTORS)
def test_what_comes_later_changes_no_rank(name: str, mode: str) -> None:
    """docs/methods.md 7.3, end to end: altering the log from event t on changes nothing before t."""
    cut = START + 3 * 64 + 20
    logs = changing_log(), changing_log(other_from=cut)
    assert logs[0].n_items == logs[1].n_items
    assert logs[0].items[cut:].tolist() != logs[1].items[cut:].tolist()
    tallies = []
    for log in logs:
        tally = Tally()
        for point in run(log, PREDICTORS[name](log), mode, lister=Lister(log, START)):
            tally.add(point)
        tallies.append(tally)
    one, other = tallies
    for first, second in zip(one.points[:3], other.points[:3], strict=True):
        assert first.ranks.rank.tobytes() == second.ranks.rank.tobytes()
        assert first.usable.tolist() == second.usable.tolist()
        assert first.lists is not None
        assert second.lists is not None
        for track in TRACKS:
            assert first.lists.tracks[track].rank.tobytes() == second.lists.tracks[track].rank.tobytes()
            assert first.lists.tracks[track].listed.tobytes() == second.lists.tracks[track].listed.tobytes()
    # The batch that holds the cut was predicted before any of it was learned: its events before the cut are the same.
    before = [tally.rank[tally.events < cut].tobytes() for tally in tallies]
    assert before[0] == before[1]
    if name != "frozen":
        assert one.rank.tobytes() != other.rank.tobytes()


def test_scoring_changes_nothing() -> None:
    log = changing_log()
    model = updater(log, "bpr", "default", {"optimizer": "adam_lazy", "lr": 0.01})
    for _ in prequential(model, log, Candidates(log, count=COUNT), START, START + 64, batch_size=64):
        pass

    def state() -> list[bytes]:
        tables = [*model.recommender.tables.values(), *(t for kept in model.row_state.values() for t in kept.values())]
        held = [tensor.tobytes() for table in tables for tensor in table.state().values()]
        return held + [array.tobytes() for array in model.history.state().values()]

    before = state()
    model.score(log.users[300:350], np.tile(np.arange(80), (50, 1)), 5_000)
    model.score_catalogue(log.users[300:350], 90, 5_000)
    assert state() == before


def test_events_on_unknown_items_are_left_out_and_counted() -> None:
    log = changing_log()
    tally = Tally()
    for point in run(log, Spy(), "known"):
        tally.add(point)
        known = set(log.items[: point.start].tolist())
        assert point.usable.tolist() == [item in known for item in log.items[point.start : point.stop].tolist()]
        assert len(point.ranks) == point.usable.sum() == len(point.events)
    assert 0 < tally.left_out < EVENTS - START
    assert tally.left_out + len(tally.rank) == EVENTS - START == tally.left_out + len(tally.ties)


def test_a_batch_where_all_is_left_out_is_a_point_without_ranks() -> None:
    users, items = np.zeros(60, dtype=np.int64), np.arange(60)
    log = Interactions.from_ids(users, items, items)
    spy = Spy()
    points = list(prequential(spy, log, Candidates(log, mode="known", count=5), 20, 60, batch_size=20))
    assert [len(point.ranks) for point in points] == [0, 0]
    assert [kind for kind, _ in spy.calls] == ["score", "learn"] * 2  # it is learned all the same


def test_nothing_tallied_is_empty() -> None:
    tally = Tally()
    assert len(tally.events) == len(tally.rank) == len(tally.ties) == tally.left_out == 0
    assert tally.lists == []
    assert tally.list_rank("all") is None


def test_popularity_follows_its_counts() -> None:
    log = changing_log()
    predictor = Popularity(float("inf"), log.items[:START])
    seen = log.items[:START].tolist()
    for point in run(log, predictor):
        seen += log.items[point.start : point.stop].tolist()
        counts = [seen.count(item) for item in range(log.n_items)]
        assert predictor.score(np.arange(2), np.tile(np.arange(log.n_items), (2, 1)), 0).tolist() == [counts] * 2
        assert predictor.catalogue(log.n_items, 0).scores(np.arange(3)).tolist() == [counts] * 3


def test_frozen_learns_nothing() -> None:
    log = changing_log()
    model = updater(log, "bpr", "default")
    frozen = Frozen(model)
    before = [t.tobytes() for table in model.recommender.tables.values() for t in table.state().values()]
    for _ in run(log, frozen):
        pass
    assert [t.tobytes() for table in model.recommender.tables.values() for t in table.state().values()] == before
    assert model.history.events == START


class TestCandidatesDrawnAhead:
    def test_each_batch_comes_with_its_own(self) -> None:
        candidates, ranges = Candidates(changing_log(), count=COUNT), [(0, 16), (16, 40), (40, 41)]
        for first, last, found in drawn_ahead(candidates, ranges):
            wanted = candidates.draw(first, last)
            assert (found.items == wanted.items).all()
            assert (found.usable == wanted.usable).all()
        assert list(drawn_ahead(candidates, [])) == []

    def test_a_loop_that_stops_early_leaves_no_thread_behind(self) -> None:
        coming = drawn_ahead(Candidates(changing_log(), count=COUNT), [(0, 16), (16, 32), (32, 48)])
        next(coming)
        coming.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("melon-candidates")]

    def test_what_goes_wrong_there_is_told_here(self) -> None:
        with pytest.raises(IndexError):
            list(drawn_ahead(Candidates(changing_log(), count=COUNT), [(EVENTS + 5, EVENTS + 9)]))
