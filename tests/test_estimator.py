"""`melon.Melon`: any input, any ids, newcomers, exact lists, one state, and errors that say what to do."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import melon
from melon.data.interactions import Interactions
from melon.errors import CheckpointError, DataError, NotFittedError, SettingsError
from melon.estimator import Melon, Recommendation, Recommended
from melon.learning import checkpoint
from melon.learning.step import StepMaker
from melon.models.bpr import BPR
from melon.strategies.default import Default
from melon.stream.batch import Batch
from melon.stream.pairs import pair_keys

Log = list[tuple[Any, Any, int]]


def quick(**told: Any) -> Melon:
    """A small model that chooses nothing and trains little."""
    return Melon(**{"epochs": 3, "budget": 0, "batch_size": 32, "recommender_settings": {"dim": 6}} | told)


def events(n: int = 400, seed: int = 0, users: int = 25, items: int = 40, start: int = 0) -> Log:
    generator = np.random.default_rng(seed)
    return [
        (f"u{u}", f"i{i}", start + t)
        for t, (u, i) in enumerate(zip(generator.integers(0, users, n), generator.integers(0, items, n), strict=True))
    ]


def two_tastes(n: int = 3_000, seed: int = 0) -> Log:
    """Even users take even items, odd users odd ones."""
    generator = np.random.default_rng(seed)
    users, items = generator.integers(0, 40, n), generator.integers(0, 30, n)
    return [(int(u), int(2 * i + u % 2), t) for t, (u, i) in enumerate(zip(users, items, strict=True))]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def saved_bytes(model: Melon, folder: Path) -> dict[str, bytes]:
    model.save(folder)
    return content(folder)


class TestInput:
    @pytest.mark.parametrize(
        "shape",
        [
            list,
            lambda log: pl.DataFrame(log, schema=["user", "item", "time"], orient="row"),
            lambda log: pl.DataFrame(log, schema=["user", "item", "time"], orient="row").lazy(),
            lambda log: pl.DataFrame(log, schema=["user", "item", "time"], orient="row").to_arrow(),
            lambda log: pd.DataFrame(log, columns=["user", "item", "time"]),
        ],
        ids=["tuples", "polars", "lazy", "arrow", "pandas"],
    )
    def test_all_shapes_give_the_same_model(self, tmp_path: Path, shape: Callable[[Log], Any]) -> None:
        first, then = events(), events(70, seed=1, items=50, start=400)
        plain = quick().fit(first).partial_fit(then)
        other = quick().fit(shape(first)).partial_fit(shape(then))
        assert saved_bytes(plain, tmp_path / "a") == saved_bytes(other, tmp_path / "b")

    @pytest.mark.parametrize(
        ("user", "item"),
        [
            (lambda n: n, lambda n: -n),
            (lambda n: f"Ü {n}", lambda n: " " if not n else f"item {n}"),
            (lambda n: uuid.UUID(int=n), lambda n: uuid.UUID(int=n << 90)),
            (lambda n: n, lambda n: uuid.UUID(int=n)),
        ],
        ids=["integers", "texts", "uuids", "mixed sides"],
    )
    def test_ids_come_back_as_they_were(
        self, tmp_path: Path, user: Callable[[int], Any], item: Callable[[int], Any]
    ) -> None:
        log = [(user(int(u[1:])), item(int(i[1:])), t) for u, i, t in events()]
        model = quick().fit(log[:300]).partial_fit(log[300:])
        model.save(tmp_path)
        items = {i for _, i, _ in log}
        for each in (model, melon.load(tmp_path)):
            (found,) = each.recommend([log[0][0]], k=5, filter_seen=False)
            assert found.user == log[0][0]
            assert found.source == "model"
            assert all(one.item in items and type(one.item) is type(log[0][1]) for one in found)
        assert melon.load(tmp_path).recommend([log[0][0]]) == model.recommend([log[0][0]])

    def test_columns_with_other_names_are_named_once(self) -> None:
        frame = pl.DataFrame(events(), schema=["wer", "was", "wann"], orient="row")
        model = quick().fit(frame, user="wer", item="was", time="wann")
        model.partial_fit(frame.head(3))
        assert model.n_interactions == 403

    def test_ids_of_another_kind_are_refused_and_change_nothing(self, tmp_path: Path) -> None:
        model = quick().fit(events())
        before = saved_bytes(model, tmp_path)
        with pytest.raises(DataError, match="user 5 has another type than the others, which are texts"):
            model.partial_fit([(5, "i1", 1_000)])
        with pytest.raises(DataError, match="user 5"):
            model.recommend([5])
        with pytest.raises(DataError, match=f"time of event 1 is {2**63}, which is not a time"):
            model.partial_fit([("u1", "i1", 1_000), ("u1", "i2", 2**63)])
        assert saved_bytes(model, tmp_path) == before


class TestLearning:
    def test_fit_finds_out_who_likes_what(self) -> None:
        model = Melon(epochs=15, budget=0, recommender_settings={"dim": 8}).fit(two_tastes())
        for found in model.recommend(range(40), k=10, filter_seen=False):
            right = [one for one in found if one.item % 2 == found.user % 2]
            assert len(right) >= 9

    @pytest.mark.parametrize("recommender", ["bpr", "blend"])
    def test_similar_items_have_the_same_users(self, recommender: str) -> None:
        model = Melon(recommender, epochs=15, budget=0, recommender_settings={"dim": 8}).fit(two_tastes())
        for item, like in zip(range(20), model.similar_items(range(20), k=5), strict=True):
            assert len(like) == 5
            assert item not in [one.item for one in like]
            assert all(one.item % 2 == item % 2 for one in like)
            assert [one.score for one in like] == sorted((one.score for one in like), reverse=True)
            if recommender == "bpr":  # cosines; the blend counts how often items met
                assert all(-1.0001 <= one.score <= 1.0001 for one in like)

    def test_settings_are_chosen_on_the_end_of_the_log_and_told(self) -> None:
        lines: list[str] = []
        model = Melon(budget=2, epochs=4, recommender_settings={"dim": 6}, settings={"reduction": "sum"})
        model.report = lines.append
        model.fit(two_tastes())
        assert model.choices_["default"]["reduction"] == "sum"
        assert 1 <= model.choices_["pre-training"]["epochs"] <= 4
        assert any(line.startswith("default lr=") for line in lines)
        assert model.updater.strategy.settings.plain() == model.choices_["default"]

    def test_the_same_seed_gives_the_same_model_and_another_does_not(self, tmp_path: Path) -> None:
        one, two, other = (
            saved_bytes(quick(seed=seed).fit(events()), tmp_path / name)
            for seed, name in ((1, "a"), (1, "b"), (2, "c"))
        )
        assert one == two != other

    def test_fitting_again_starts_afresh(self, tmp_path: Path) -> None:
        again = quick().fit(two_tastes(200)).fit(events())
        assert saved_bytes(again, tmp_path / "a") == saved_bytes(quick().fit(events()), tmp_path / "b")

    def test_a_fit_that_fails_leaves_the_model(self, tmp_path: Path) -> None:
        model = quick().fit(events())
        before = saved_bytes(model, tmp_path)
        with pytest.raises(DataError):
            model.fit([("u1", "i1", 1), ("u2", "i1", 2)])
        assert saved_bytes(model, tmp_path) == before

    def test_newcomers_are_known_at_once(self) -> None:
        model = quick().fit(events())
        model.partial_fit([("newcomer", "novelty", 500), ("newcomer", "i3", 501)])
        (found,) = model.recommend(["newcomer"], k=50)
        assert found.source == "model"
        assert {one.item for one in found}.isdisjoint({"novelty", "i3"})
        assert "novelty" in {one.item for one in model.recommend(["u1"], k=50)[0]}
        assert model.similar_items(["novelty"])
        assert model.n_users == 26

    def test_a_cold_start_without_fit(self) -> None:
        model = quick().partial_fit([("a", "x", 1)])
        assert model.recommend(["a"])[0].items == ()
        assert [one.item for one in model.recommend(["a"], filter_seen=False)[0]] == ["x"]
        model.partial_fit(events())
        assert model.n_interactions == 401
        assert len(model.recommend(["a"], k=5)[0]) == 5

    @pytest.mark.parametrize("log", [[("a", "x", 1)], [("a", "x", 1), ("b", "x", 2)]])
    def test_one_item_cannot_be_fitted(self, log: Log) -> None:
        with pytest.raises(DataError, match="at least two items"):
            quick().fit(log)

    @pytest.mark.parametrize("log", [[("a", "x", 1), ("a", "y", 2)], [("a", f"i{n % 3}", n) for n in range(50)]])
    def test_one_user_is_enough(self, log: Log) -> None:
        model = Melon(epochs=2).fit(log)
        assert len(model.recommend(["a"], filter_seen=False)[0]) == len({item for _, item, _ in log})
        assert model.recommend(["a"])[0].items == ()

    def test_batches_are_short_at_the_end_of_a_call(self, tmp_path: Path) -> None:
        log = events(100)
        whole = quick().partial_fit(log)
        parts = quick().partial_fit(log[:64]).partial_fit(log[64:])
        assert saved_bytes(whole, tmp_path / "a") == saved_bytes(parts, tmp_path / "b")

    def test_classes_of_ones_own(self, tmp_path: Path) -> None:
        model = quick(recommender=OwnRecommender, strategy=OwnStrategy).fit(events())
        model.save(tmp_path)
        with pytest.raises(CheckpointError, match="recommender 'mine'"):
            melon.load(tmp_path)
        loaded = melon.load(tmp_path, recommender=OwnRecommender, strategy=OwnStrategy)
        assert loaded.recommend("u1") == model.recommend("u1")
        assert "mine with my way" in repr(loaded)


class OwnRecommender(BPR):
    name = "mine"


class OwnStrategy(Default):
    name = "my way"


def twin(model: Melon, user: str, k: int, filter_seen: bool) -> list[tuple[str, float]]:
    """The slow way: one score at a time from the tables, then everything sorted."""
    live = model._model
    assert live is not None
    tables, history = model.updater.recommender.tables, model.updater.history
    at = model.updater.moment()
    row = int(live.users.rows([user])[0])
    scored = []
    for item in range(tables["item_factors"].rows):
        if filter_seen and history.seen.contains(pair_keys(np.array([row]), np.array([item])))[0]:
            continue
        at_user, at_item = np.array([row]), np.array([item])
        score = float(tables["user_factors"].gather(at_user, at)[0] @ tables["item_factors"].gather(at_item, at)[0])
        score += sum(
            float(tables[f"{side}_bias"].gather(at_one, at)[0, 0])
            for side, at_one in (("user", at_user), ("item", at_item))
        )
        scored.append((-score, item))
    return [(live.items.ids([item])[0], -score) for score, item in sorted(scored)[:k]]


class TestRecommending:
    @pytest.mark.parametrize("filter_seen", [True, False])
    @pytest.mark.parametrize("half_life", [None, 30.0])
    def test_lists_equal_a_slow_full_sort(self, half_life: float | None, filter_seen: bool) -> None:
        model = quick(recommender="bpr", dtype="float64").fit(events())
        model.partial_fit(events(90, seed=2, items=60, start=400))
        for table in model.updater.recommender.tables.values():
            table.half_life = half_life
        for found in model.recommend([f"u{n}" for n in range(25)], k=12, filter_seen=filter_seen):
            expected = twin(model, found.user, 12, filter_seen)
            assert [one.item for one in found] == [item for item, _ in expected]
            assert [one.score for one in found] == pytest.approx([score for _, score in expected], abs=1e-12)

    def test_of_equal_scores_the_item_that_came_first_wins(self) -> None:
        model = quick().fit(events())
        for name, table in model.updater.recommender.tables.items():
            table.restore({"values": torch.zeros(table.rows, table.spec.dim), "touched": torch.zeros(table.rows)})
            if name == "item_bias":
                table.scatter(torch.arange(table.rows), (torch.arange(table.rows) % 3).float().unsqueeze(1))
        arrived = list(dict.fromkeys(item for _, item, _ in events()))
        expected = sorted(arrived, key=lambda item: -(arrived.index(item) % 3))
        found = model.recommend(["u3"], k=len(arrived), filter_seen=False)[0]
        assert [one.item for one in found] == expected
        assert [one.item for one in model.recommend(["u3"], k=7, filter_seen=False)[0]] == expected[:7]

    def test_a_user_who_is_not_known_gets_the_list_of_a_newcomer(self) -> None:
        model = quick(batch_size=500).fit(events())
        model.partial_fit([(f"fan {n}", "hit", 1_000 + n) for n in range(30)])
        stranger, known = model.recommend(["stranger", "u1"], k=4)
        assert (stranger.source, known.source) == ("model", "model")
        assert [one.score for one in stranger] == pytest.approx(
            model.score("stranger", [one.item for one in stranger]), abs=1e-7
        )
        assert [one.score for one in stranger] == sorted((one.score for one in stranger), reverse=True)

    def test_the_shape_of_an_answer(self) -> None:
        model = quick().fit(events())
        (found,) = model.recommend("u1", k=3)
        assert isinstance(found, Recommended)
        assert isinstance(found[0], Recommendation)
        assert found[0].item == found.items[0][0]
        assert found[:2] == found.items[:2]
        assert [item for item, _ in found] == [one.item for one in found]
        assert model.recommend([]) == []
        assert [each.user for each in model.recommend(np.array(["u2", "u1", "u2"]))] == ["u2", "u1", "u2"]

    def test_as_a_frame(self) -> None:
        model = quick().fit(events())
        frame = model.recommend(["u1", "nobody"], k=3, as_frame=True)
        assert frame.columns == ["user", "rank", "item", "score", "source"]
        assert frame["rank"].to_list() == [1, 2, 3, 1, 2, 3]
        assert frame["source"].to_list() == ["model"] * 6
        assert frame["item"].to_list()[:3] == [one.item for one in model.recommend("u1", k=3)[0]]

    def test_scores_are_those_of_the_lists_and_strangers_count_as_zeros(self) -> None:
        model = quick().fit(events())
        (found,) = model.recommend("u1", k=5)
        items = [one.item for one in found]
        assert model.score(["u1"] * 5, items) == pytest.approx([one.score for one in found], rel=1e-5)
        assert model.score("u1", items).tolist() == model.score(["u1"] * 5, items).tolist()
        assert model.score("stranger", ["nothing"]).tolist() == [0.0]

    def test_asking_changes_nothing(self, tmp_path: Path) -> None:
        model = quick().fit(events()).partial_fit(events(40, 1, start=400))
        before = saved_bytes(model, tmp_path / "a")
        model.recommend(["u1", "nobody"])
        model.similar_items(["i1"])
        model.score("u1", "i1")
        assert saved_bytes(model, tmp_path / "b") == before

    def test_more_than_one_block_of_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = quick(dtype="float64").fit(events())
        users = [f"u{n}" for n in range(25)]
        at_once, similar = model.recommend(users), model.similar_items([f"i{n}" for n in range(10)])
        monkeypatch.setattr("melon.learning.model.SCORES_AT_ONCE", 100)
        for one, other in zip(at_once, model.recommend(users), strict=True):
            assert [each.item for each in one] == [each.item for each in other]
        for one, other in zip(similar, model.similar_items([f"i{n}" for n in range(10)]), strict=True):
            assert [each.item for each in one] == [each.item for each in other]


class TestSaving:
    @pytest.mark.parametrize("strategy", ["default", "eals"])
    @pytest.mark.parametrize("recommender", ["bpr", "ncf", "blend"])
    def test_save_load_and_go_on_equals_never_stopping(self, tmp_path: Path, recommender: str, strategy: str) -> None:
        told = {"recommender": recommender, "strategy": strategy, "epochs": 1}
        settings = {"optimizer": "adam_lazy", "lr": 0.01}
        parts = [events(75, seed=part, users=20 + 5 * part, items=30 + 9 * part, start=100 * part) for part in range(4)]
        through, stopped = (quick(**told, settings=settings).fit(parts[0]) for _ in range(2))
        for number, part in enumerate(parts[1:]):
            through.partial_fit(part)
            stopped.save(tmp_path / str(number))
            stopped = melon.load(tmp_path / str(number)).partial_fit(part)
        assert saved_bytes(through, tmp_path / "a") == saved_bytes(stopped, tmp_path / "b")
        assert through.recommend(["u1", "nobody"]) == stopped.recommend(["u1", "nobody"])

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_what_a_learned_strategy_stream_trained_is_part_of_the_state(self, tmp_path: Path, dtype: str) -> None:
        log = two_tastes(900)
        told = {"strategy": "melon", "epochs": 1, "budget": 1, "batch_size": 64, "settings": {"passes": 1}}
        through, stopped = (quick(**told, dtype=dtype).fit(log[:700]) for _ in range(2))
        stream_trained = through.updater.strategy.memory()
        untrained = quick(**told | {"settings": {"passes": 0}}, dtype=dtype).fit(log[:700]).updater.strategy.memory()
        assert any(not np.array_equal(stream_trained[name], old) for name, old in untrained.items())
        stopped.partial_fit(log[700:800]).save(tmp_path / "cut")
        stopped = melon.load(tmp_path / "cut").partial_fit(log[800:])
        through.partial_fit(log[700:800]).partial_fit(log[800:])
        assert saved_bytes(through, tmp_path / "a") == saved_bytes(stopped, tmp_path / "b")

    def test_what_a_model_was_told_comes_back(self, tmp_path: Path) -> None:
        model = quick(seed=7, batch_size=16, dtype="float64", settings={"lr": 0.2}).fit(events())
        model.save(tmp_path)
        loaded = melon.load(tmp_path, threads=2)
        for name in ("seed", "epochs", "batch_size", "budget", "dtype", "settings", "choices_", "n_users", "n_items"):
            assert getattr(loaded, name) == getattr(model, name)
        assert loaded.threads == 2
        assert loaded.updater.strategy.settings.plain()["lr"] == 0.2
        assert saved_bytes(loaded.fit(events()), tmp_path / "a") == saved_bytes(model.fit(events()), tmp_path / "b")

    def test_the_state_of_an_evaluation_is_no_model(self, tmp_path: Path) -> None:
        checkpoint.save(tmp_path, quick().fit(events()).updater)
        with pytest.raises(CheckpointError, match="has no ids"):
            melon.load(tmp_path)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C means what it usually does, even where the tests were started in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
class TestStopping:
    def test_ctrl_c_waits_for_the_batch(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = events(200)
        model, learned = quick(), []

        def step(steps: StepMaker, batch: Batch, real: Any = StepMaker.of) -> Any:
            learned.append(len(batch))
            if len(learned) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return real(steps, batch)

        before = signal.getsignal(signal.SIGINT)
        with monkeypatch.context() as patch:
            patch.setattr(StepMaker, "of", step)
            with pytest.raises(KeyboardInterrupt):
                model.partial_fit(log)
        assert signal.getsignal(signal.SIGINT) is before
        assert model.n_interactions == 96
        until_then = quick().partial_fit(log[:96])
        assert saved_bytes(model, tmp_path / "a") == saved_bytes(until_then, tmp_path / "b")
        model.partial_fit(log[96:])
        assert saved_bytes(model, tmp_path / "c") == saved_bytes(quick().partial_fit(log), tmp_path / "d")


class TestAuto:
    def test_who_names_nothing_gets_the_blend_with_plain_steps_and_a_choice_of_half_life(self) -> None:
        model = Melon(epochs=2, budget=2, recommender_settings={"dim": 6}).fit(two_tastes())
        assert repr(model).startswith("<Melon blend with default")
        assert model.updater.recommender.name == "blend"
        assert model.choices_["default"]["half_life"] is not None
        named = Melon("auto", "auto", epochs=2, budget=2, recommender_settings={"dim": 6}).fit(two_tastes())
        assert named.choices_ == model.choices_
        assert named.recommend([3], k=5) == model.recommend([3], k=5)

    def test_its_head_has_further_inputs_unless_settings_decide_otherwise(self) -> None:
        settings = Melon().partial_fit(two_tastes()[:20]).updater.recommender.settings.plain()
        assert settings.items() >= {"inputs": ["profiles", "preferences", "own"], "transitions": True}.items()
        decided = {"inputs": [], "transitions": False, "head_own_share": 0, "head_popular_share": 0}
        before = Melon(recommender_settings=decided).partial_fit(two_tastes()[:20])
        assert (
            before.updater.recommender.settings
            == Melon("blend").partial_fit(two_tastes()[:20]).updater.recommender.settings
        )


class TestErrors:
    def test_before_anything_was_learned(self, tmp_path: Path) -> None:
        for ask in (lambda m: m.recommend(["u1"]), lambda m: m.score(["u1"], ["i1"]), lambda m: m.save(tmp_path)):
            with pytest.raises(NotFittedError, match="call fit or partial_fit first"):
                ask(quick())

    @pytest.mark.parametrize("k", [0, 2.5, True])
    def test_k_must_be_a_positive_whole_number(self, k: Any) -> None:
        model = quick().fit(events())
        with pytest.raises(SettingsError, match="k = "):
            model.recommend(["u1"], k=k)
        with pytest.raises(SettingsError, match="k = "):
            model.similar_items(["i1"], k=k)

    @pytest.mark.parametrize("nothing", [[], pl.DataFrame({"user": [], "item": [], "time": []})])
    def test_nothing_to_learn(self, nothing: Any) -> None:
        with pytest.raises(DataError):
            quick().fit(nothing)
        with pytest.raises(DataError):
            quick().partial_fit(nothing)

    def test_an_item_that_was_never_seen_is_like_nothing(self) -> None:
        with pytest.raises(DataError, match="item 'novelty' has not been seen"):
            quick().fit(events()).similar_items(["i1", "novelty"])

    def test_what_is_no_id(self) -> None:
        model = quick().fit(events())
        with pytest.raises(DataError, match="neither an id nor a sequence"):
            model.recommend(3.5)
        with pytest.raises(DataError, match=r"as many users as items.*2 and 3"):
            model.score(["u1", "u2"], ["i1", "i2", "i3"])


def test_incomplete_events_are_left_out_by_fit_and_partial_fit(flips: Interactions) -> None:
    events = [(f"u{user}", int(item), n) for n, (user, item) in enumerate(zip(flips.users, flips.items, strict=True))]
    model = melon.Melon("bpr", "default", budget=0, epochs=1, progress=False)
    with pytest.warns(UserWarning, match="2 of 102 interactions left out"):
        model.fit([*events[:100], ("", 1, 100), (None, 1, 100)])
    with pytest.warns(UserWarning, match="1 of 3 interactions left out"):
        model.partial_fit([*events[100:102], ("", 1, 102)])
    assert model.n_interactions == 102
