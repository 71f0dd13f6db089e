"""A model in use: events by id, time that never runs back, batches that fail, and readers in other threads."""

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melon.data.frames import interactions_from
from melon.data.ids import IdBook
from melon.errors import DataError, LearningError
from melon.fitting.auto import SETTINGS
from melon.journal import GrowingRows
from melon.learning.deltas import state_digest
from melon.learning.heads import HeadTeacher
from melon.learning.model import LiveModel
from melon.learning.step import StepMaker
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.models.ials import IALS
from melon.models.ncf import NCF
from melon.models.streaming.counts import ItemCounts
from melon.strategies.learned import LearnedStrategy
from melon.strategies.registry import STRATEGIES
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.tables import Table

Event = tuple[Any, Any, int]
RECOMMENDERS: dict[str, tuple[type[Recommender], dict[str, Any]]] = {
    "bpr": (BPR, {"dim": 4}),
    "ncf": (NCF, {"dim": 3, "layers": (4, 3)}),
    "blend": (Blend, {"dim": 4, "slots": 6, "head_units": 3, "head_negatives": 4, **SETTINGS}),
}


def events(count: int, *, seed: int = 0, start: int = 0, users: int = 20, items: int = 25) -> list[Event]:
    rng = np.random.default_rng(seed)
    return [
        (f"u{user}", f"i{item}", start + 3 * n)
        for n, (user, item) in enumerate(zip(rng.integers(0, users, count), rng.integers(0, items, count), strict=True))
    ]


def make(recommender: str = "bpr", strategy: str = "default", **settings: Any) -> LiveModel:
    kind, options = {**RECOMMENDERS, "ials": (IALS, {"dim": 4})}[recommender]
    return LiveModel(Updater(kind(options), STRATEGIES[strategy].make(settings)))


def learn(model: LiveModel, log: list[Event], **options: Any) -> list[float]:
    users, items, times = ([event[part] for event in log] for part in range(3))
    return model.learn_events(users, items, times, **options)


def saved(model: LiveModel, folder: Path) -> dict[str, bytes]:
    model.save(folder, {})
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def learned_by_logs(model: LiveModel, log: list[Event], batch_size: int) -> None:
    """The slow way: each call as a log of its own, whose rows are translated id by id."""
    interactions = interactions_from(log)
    for start in range(0, len(interactions), batch_size):
        users, items = (column[start : start + batch_size] for column in (interactions.users, interactions.items))
        rows = [
            book.rows(ids[column], add=True)
            for book, ids, column in (
                (model.users, interactions.user_ids, users),
                (model.items, interactions.item_ids, items),
            )
        ]
        times = interactions.times[start : start + batch_size]
        keys = interactions.user_keys[users], interactions.item_keys[items]
        model.updater.learn(Batch(model.updater.history.events, *rows, times, *keys))
        model.popular.observe(rows[1])
        model.last_time = int(times[-1])


class TestEvents:
    @pytest.mark.parametrize("recommender", RECOMMENDERS)
    @pytest.mark.parametrize("strategy", ["default", "eals", "melon"])
    def test_the_same_bytes_as_by_logs_of_their_own(self, recommender: str, strategy: str, tmp_path: Path) -> None:
        direct, slow = make(recommender, strategy, half_life=50.0), make(recommender, strategy, half_life=50.0)
        for part in range(4):
            log = events(40, seed=part, start=1_000 * part, users=15 + 5 * part, items=20 + 5 * part)
            learn(direct, log, batch_size=16)
            learned_by_logs(slow, log, 16)
        assert saved(direct, tmp_path / "a") == saved(slow, tmp_path / "b")

    @pytest.mark.parametrize("kind", ["integers", "texts"])
    def test_arrays_lists_and_logs_are_learned_alike(self, kind: str, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        users, items, times = rng.integers(0, 9, 50), rng.integers(0, 9, 50), np.arange(50)
        if kind == "texts":
            users, items = np.array([f"u{n}" for n in users], object), np.array([f"i{n}" for n in items], object)
        models = [make() for _ in range(3)]
        models[0].learn_events(users, items, times, batch_size=16)
        models[1].learn_events(users.tolist(), items.tolist(), times.tolist(), batch_size=16)
        log = interactions_from(list(zip(users.tolist(), items.tolist(), times.tolist(), strict=True)))
        assert len(list(models[2].learn(log, 16))) == 4
        states = [saved(model, tmp_path / str(n)) for n, model in enumerate(models)]
        assert states[0] == states[1] == states[2]

    def test_one_call_is_one_batch_unless_it_is_cut(self) -> None:
        model = make()
        assert len(learn(model, events(60))) == 1
        assert len(learn(model, events(60, start=500), batch_size=25)) == 3
        assert model.learn_events([], [], []) == []
        assert model.updater.history.events == 120

    def test_events_are_learned_in_order_of_time(self, tmp_path: Path) -> None:
        one, other = make(), make()
        log = events(30)
        order = np.random.default_rng(1).permutation(30)
        learn(one, log)
        learn(other, [log[n] for n in order])
        assert saved(one, tmp_path / "a") == saved(other, tmp_path / "b")

    def test_events_without_a_time_happen_now(self) -> None:
        model = make()
        learn(model, events(10))
        model.learn_events(["u1"], ["i1"])
        assert (model.last_time, model.late) == (27, 0)

    def test_now_is_when_they_are_learned_and_not_when_they_came(self) -> None:
        model = make()
        learn(model, events(10))
        waiting = threading.Thread(target=model.learn_events, args=(["u1"], ["i1"]))
        with model._lock:
            waiting.start()
            waiting.join(0.05)
            model.learn_events(["u2"], ["i1"], [5_000])
        waiting.join()
        assert (model.last_time, model.late) == (5_000, 0)

    def test_what_cannot_be_learned_is_refused_and_leaves_nothing(self, tmp_path: Path) -> None:
        model = make()
        learn(model, events(30))
        before = saved(model, tmp_path)
        wrong: list[tuple[Any, Any, Any, str]] = [
            (["new"], ["i1"], [1, 2], "equally long, got 1, 1 and 2"),
            (["new", 7], ["i1", "i2"], [1, 2], "user 7 has another type"),
            (["new"], [3], [1], "item 3 has another type"),
            (["new"], ["i1"], [-1], "the time of event 0 is -1"),
            (["new"], ["i1"], [0.5], "whole numbers, got float64"),
            (["new"], ["i1"], np.array([2**63], dtype=np.uint64), "the time of event 0 is 9223372036854775808"),
        ]
        for users, items, times, message in wrong:
            with pytest.raises(DataError, match=message):
                model.learn_events(users, items, times)
            assert saved(model, tmp_path) == before


class TestLateEvents:
    def test_they_are_learned_at_the_last_time_and_counted(self, tmp_path: Path) -> None:
        model, twin = make(half_life=1_000.0), make(half_life=1_000.0)
        for each in (model, twin):
            learn(each, events(40, start=10_000))
        last = model.last_time
        learn(model, [("u1", "i1", 10), ("u2", "i2", last + 5)])
        learn(twin, [("u1", "i1", last), ("u2", "i2", last + 5)])
        assert (model.late, twin.late, model.last_time) == (1, 0, last + 5)
        twin.late = 1
        assert saved(model, tmp_path / "a") == saved(twin, tmp_path / "b")

    def test_the_count_is_saved(self, tmp_path: Path) -> None:
        model = make()
        learn(model, events(10, start=50))
        learn(model, events(3))
        model.save(tmp_path, {})
        assert LiveModel.load(tmp_path)[0].late == model.late == 3


class Injected(Exception):
    pass


def failing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: int = 0) -> list[int]:
    """Let a method fail at its call number `after`, once it has done its work; returns a list that counts calls."""
    original, calls = getattr(owner, name), [0]

    def broken(*given: Any, **more: Any) -> Any:
        calls[0] += 1
        done = original(*given, **more)
        if calls[0] > after:
            raise Injected(name)
        return done

    monkeypatch.setattr(owner, name, broken)
    return calls


#: Everything that changes a model while it learns a batch, and the parts of a step.
STAGES = (
    (IdBook, "rows"),
    (ItemCounts, "observe"),
    (HeadTeacher, "step"),
    (Updater, "make_rows"),
    (StepMaker, "of"),
    (LearnedStrategy, "adapt"),
    (Table, "scatter"),
    (Table, "grow"),
    (GrowingRows, "touch"),
    (GrowingRows, "overwrites"),
    (History, "append"),
)


def pairings() -> list[Any]:
    """Every recommender with every strategy that can drive it, and settings with state of their own."""
    quick = {("bpr", "default"), ("bpr", "metasgd"), ("ncf", "melon"), ("blend", "melon")}  # the others take a minute
    pairs = [
        pytest.param(name, entry.name, {}, marks=() if (name, entry.name) in quick else pytest.mark.slow)
        for name in RECOMMENDERS
        for entry in STRATEGIES
    ]
    more = [
        ("bpr", "default", {"optimizer": "adam_lazy"}),
        ("blend", "default", {"half_life": 60.0}),
        ("ials", "default", {}),
    ]
    return [*pairs, *more]


class TestBatchesThatFail:
    @pytest.mark.parametrize(("recommender", "strategy", "settings"), pairings())
    def test_they_leave_nothing(
        self, recommender: str, strategy: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whichever call fails: known users and items, newcomers, and a time that would move the clock."""
        model, twin = make(recommender, strategy, **settings), make(recommender, strategy, **settings)
        bad = events(30, seed=5, start=5_000, users=40, items=50)
        for each in (model, twin):
            learn(each, events(60), batch_size=20)
        before, failed = state_digest(model), 0
        for owner, name in STAGES:
            with monkeypatch.context() as patched:
                calls = failing(patched, owner, name, after=1_000)
                learn(copy.deepcopy(model), bad)
            for number in range(calls[0]):
                with monkeypatch.context() as patched:
                    failing(patched, owner, name, after=number)
                    with pytest.raises(Injected):
                        learn(model, bad)
                assert state_digest(model) == before, (name, number)
                failed += 1
        assert failed > 9
        for each in (model, twin):
            learn(each, events(40, seed=6, start=300, users=30, items=40), batch_size=20)
        assert state_digest(model) == state_digest(twin)
        assert model.recommend(["u1", "u29"], 5) == twin.recommend(["u1", "u29"], 5)

    def test_the_first_batch_leaves_an_empty_model_that_takes_any_ids(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = make()
        with monkeypatch.context() as patched:
            failing(patched, History, "append")
            with pytest.raises(Injected):
                learn(model, events(30))
        assert (len(model.users), len(model.items), model.updater.history.events) == (0, 0, 0)
        learn(model, [(1, 2, 3), (2, 1, 4)])
        assert model.users.kind == "int"

    def test_a_step_that_is_far_too_long_is_taken_back(self, tmp_path: Path) -> None:
        model = make("ncf", lr=1e6)
        for number in range(40):
            before, known = saved(model, tmp_path), (len(model.users), len(model.items))
            try:
                learn(model, [(f"{user}/{number}", item, time) for user, item, time in events(20, seed=number)])
            except LearningError:
                break
        else:
            pytest.fail("a rate of a million did no harm")
        assert saved(model, tmp_path) == before
        assert (len(model.users), len(model.items)) == known
        assert model.rows_of("user") == known[0]

    def test_batches_before_it_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = make()
        failing(monkeypatch, model.updater.history, "append", after=2)
        with pytest.raises(Injected):
            learn(model, events(60), batch_size=20)
        assert model.updater.history.events == 40

    def test_an_id_of_the_wrong_kind_is_noticed_before_the_first_batch(self) -> None:
        model = make()
        with pytest.raises(DataError):
            learn(model, [*events(20), ("u2", 7, 600)], batch_size=20)
        assert model.updater.history.events == 0

    def test_a_recommender_of_ones_own_is_taken_back_by_its_state(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Counting(BPR):
            name = "counting"
            counts = np.zeros(100, dtype=np.int64)

            def observe(self, users: Any, items: Any, times: Any, past: Any) -> None:
                np.add.at(self.counts, items, 1)

            def streaming_state(self) -> dict[str, Any]:
                return {"counts": self.counts.copy()}

            def restore_streaming_state(self, state: Any) -> None:
                self.counts = state["counts"].copy()

        recommender = Counting({"dim": 4})
        model = LiveModel(Updater(recommender, STRATEGIES["default"].make({})))
        learn(model, events(30))
        before = recommender.counts.copy()
        with monkeypatch.context() as patched:
            failing(patched, History, "append")
            with pytest.raises(Injected):
                learn(model, events(30, start=200))
        assert recommender.counts.tolist() == before.tolist()


class TestReaders:
    @pytest.mark.parametrize("recommender", ["bpr", "blend"])
    def test_threads_that_read_change_nothing_and_are_never_refused(self, recommender: str, tmp_path: Path) -> None:
        model, unread = make(recommender, half_life=500.0), make(recommender, half_life=500.0)
        parts = [events(40, seed=n, start=200 * n, users=20 + 3 * n, items=25 + 3 * n) for n in range(25)]
        for each in (model, unread):
            learn(each, parts[0])
        wrong: list[BaseException] = []
        done = threading.Event()

        def read(number: int) -> None:
            rng = np.random.default_rng(number)
            try:
                while not done.is_set():
                    users = [f"u{n}" for n in rng.integers(0, 110, 3)]
                    lists = model.recommend(users, 5, filter_seen=bool(number % 2))
                    assert all(len(one) for one in lists)
                    model.score(users, [f"i{n}" for n in rng.integers(0, 110, 3)])
                    model.similar_items(["i1"], 4)
            except BaseException as error:
                wrong.append(error)

        readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for reader in readers:
            reader.start()
        for part in parts[1:]:
            learn(model, part, batch_size=10)
        done.set()
        for reader in readers:
            reader.join()
        for part in parts[1:]:
            learn(unread, part, batch_size=10)
        assert not wrong
        assert saved(model, tmp_path / "a") == saved(unread, tmp_path / "b")

    @pytest.mark.parametrize("strategy", ["default", "melon"])
    def test_reading_and_saving_leave_even_the_clock_alone(self, strategy: str, tmp_path: Path) -> None:
        model = make("blend", strategy, half_life=100.0)
        learn(model, events(60), batch_size=20)
        recommender = model.updater.recommender

        def moment() -> tuple[Any, ...]:
            return recommender.clock.now, {name: table.half_life for name, table in recommender.tables.items()}

        before = moment()
        model.updater.score(np.array([0]), np.array([[0, 1]]), time=10**9)
        model.updater.score_catalogue(np.array([0]), 5, time=10**9)
        model.recommend(["u1", "nobody"], 5)
        model.similar_items(["i1"], 3)
        model.save(tmp_path, {})
        assert moment() == before

    def test_a_copy_has_a_lock_of_its_own(self) -> None:
        model = make()
        learn(model, events(40))
        other = copy.deepcopy(model)
        learn(other, events(5, start=500))
        assert other.updater.history.events == model.updater.history.events + 5
        with model._lock:
            worker = threading.Thread(target=other.recommend, args=(["u1"], 3))
            worker.start()
            worker.join(10)
            assert not worker.is_alive()


def test_popular_items_are_counted_with_one_half_life() -> None:
    model = make()
    learn(model, events(40))
    assert isinstance(model.popular, ItemCounts)
    rows, counts = model.most_popular(3)
    assert counts.tolist() == sorted(counts.tolist(), reverse=True)
    assert counts.tolist() == model.popular.read(rows)[:, 0].tolist()
