"""Lists of a model in use: exact against a slow twin, each for its user alone, within limits, and after learning."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from melon.errors import DataError
from melon.fitting.auto import SETTINGS
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.blend import catalogue
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.registry import STRATEGIES

USERS, ITEMS = 30, 700
KINDS: dict[str, tuple[type[Recommender], dict[str, Any]]] = {
    "bpr": (BPR, {"dim": 9}),
    "ncf": (NCF, {"dim": 3, "layers": (4, 3)}),
    "blend": (Blend, {"dim": 5, "slots": 8, "head_units": 5, "head_negatives": 4, "head_rest": 20, **SETTINGS}),
    "blend without hidden units": (Blend, {"dim": 5, "slots": 8, "head_units": 0, "head_rest": 20}),
    "blend with transitions": (Blend, {"dim": 4, "slots": 8, "head_units": 4, "head_rest": 20, "transitions": True}),
}


def model_of(kind: str, *, half_life: float | None = 40.0, events: int = 400, **settings: Any) -> LiveModel:
    make, options = KINDS[kind]
    strategy = STRATEGIES["default"].load()({"half_life": half_life, "lr": 0.05})
    model = LiveModel(Updater(make({**options, **settings}), strategy))
    learn(model, events)
    return model


def learn(model: LiveModel, events: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, USERS, events), (ITEMS * rng.random(events) ** 2).astype(np.int64)
    model.learn_events(users.tolist(), items.tolist(), batch_size=50)


def slow_lists(model: LiveModel, users: np.ndarray, k: int, *, seen: bool, mask: Any = None, boost: Any = 0.0) -> Any:
    """Scores of pairs by `score`, sorted; what the user has had is looked up pair by pair."""
    n_items = model.rows_of("item")
    items = np.broadcast_to(np.arange(n_items), (len(users), n_items))
    scores = model.updater.score(users, items, model.last_time) + boost
    for line, user in zip(scores, users.tolist(), strict=True):
        rows = [row for row in range(n_items) if mask is None or mask[row]]
        if not seen:
            rows = [row for row in rows if not model.updater.history.seen.contains(np.array([(user << 32) | row]))[0]]
        yield sorted(rows, key=lambda row: (-line[row], row))[:k], line


@pytest.mark.parametrize("half_life", [None, 40.0])
@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_those_of_a_slow_twin(kind: str, half_life: float | None) -> None:
    model, users = model_of(kind, half_life=half_life), np.array([3, 0, 17, 29, 3])
    for seen in (True, False):
        lists = list(model.best(users, 12, filter_seen=not seen))
        for (rows, scores), (expected, line) in zip(lists, slow_lists(model, users, 12, seen=seen), strict=True):
            # Where the twin's order differs, scores are equal to rounding.
            assert line[rows] == pytest.approx(line[expected], rel=1e-5, abs=1e-5)
            assert scores == pytest.approx(line[rows], rel=1e-5, abs=1e-5)
            assert len(set(rows.tolist())) == 12


@pytest.mark.parametrize("lists", ["exact", "two_stage"])
@pytest.mark.parametrize("kind", ["bpr", "ncf", "blend"])
def test_a_list_does_not_depend_on_who_else_is_asked_for(
    kind: str, lists: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "FROM", 0)
    model = model_of(kind, **({"lists": lists} if kind == "blend" else {}))
    if lists == "two_stage":
        learn(model, 20, seed=1)
    alone = {user: next(model.best(np.array([user]), 9, filter_seen=True)) for user in range(8)}
    for company in ([0, 1], [1, 0], [5, 2, 7], [7, 6, 5, 4, 3, 2, 1, 0]):
        for user, (rows, scores) in zip(company, model.best(np.array(company), 9, filter_seen=True), strict=True):
            assert rows.tolist() == alone[user][0].tolist()
            assert scores.tobytes() == alone[user][1].tobytes()


@pytest.mark.parametrize("kind", ["bpr", "blend"])
def test_the_kept_scorer_follows_what_is_learned(kind: str) -> None:
    model, users = model_of(kind), np.arange(6)
    before = [rows.tolist() for rows, _ in model.best(users, 10, filter_seen=True)]
    kept = model.updater._kept
    assert [rows.tolist() for rows, _ in model.best(users, 10, filter_seen=True)] == before
    assert model.updater._kept is kept
    learn(model, 60, seed=5)
    fresh = copy.deepcopy(model)
    for (rows, scores), (again, same) in zip(
        model.best(users, 10, filter_seen=True), fresh.best(users, 10, filter_seen=True), strict=True
    ):
        assert (rows.tolist(), scores.tobytes()) == (again.tolist(), same.tobytes())
    table = model.updater.recommender.tables["item_factors"]  # written by other means than learning
    table.scatter(np.arange(3), np.full((3, table.spec.dim), 9.0))
    expected = [rows for rows, _ in slow_lists(model, users, 10, seen=True)]
    assert [rows.tolist() for rows, _ in model.best(users, 10, filter_seen=False)] == expected


@pytest.mark.parametrize("kind", ["bpr", "blend"])
def test_lists_within_limits(kind: str) -> None:
    model, users, rng = model_of(kind), np.array([1, 2]), np.random.default_rng(0)
    n_items = model.rows_of("item")
    allowed, boost = rng.random(n_items) < 0.3, rng.normal(size=n_items - 5)
    exclude = np.array([0, 1, 2, n_items + 3, -1])
    mask = allowed & ~np.isin(np.arange(n_items), exclude)
    added = np.r_[boost, np.zeros(5)].astype(np.float32)
    found = model.best(users, 10, filter_seen=True, allowed=allowed, exclude=exclude, boost=boost)
    for (rows, scores), (expected, line) in zip(
        found, slow_lists(model, users, 10, seen=False, mask=mask, boost=added), strict=True
    ):
        assert line[rows] == pytest.approx(line[expected], abs=1e-5)
        assert scores == pytest.approx(line[rows], abs=1e-5)
        assert mask[rows].all()
    short = np.zeros(7, dtype=bool)
    short[[3, 5]] = True
    assert all(set(rows.tolist()) == {3, 5} for rows, _ in model.best(users, 10, filter_seen=False, allowed=short))
    assert set(model.most_popular(10, allowed=short)[0].tolist()) == {3, 5}


@pytest.mark.parametrize(
    "wrong", [{"allowed": np.zeros(3)}, {"boost": np.array([np.nan])}, {"boost": np.zeros((2, 2))}]
)
def test_limits_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(wrong))):
        list(model_of("bpr", events=50).best(np.array([0]), 3, filter_seen=True, **wrong))


def test_two_stages_find_what_was_just_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model, users = model_of("blend", lists="two_stage"), np.arange(USERS)
    exact = copy.deepcopy(model)
    exact.updater.recommender.settings = exact.updater.recommender.settings.model_copy(update={"lists": "exact"})
    for name, number in (("FROM", 0), ("CANDIDATES", 40), ("OFFERED", 100)):
        monkeypatch.setattr(catalogue, name, number)
    limits = {"allowed": np.arange(ITEMS + 60) % 3 > 0, "exclude": np.arange(9)}
    for round_ in range(3):
        for each in (model, exact):  # items that nobody knew, too
            learn(each, 50, seed=round_)
            each.learn_events([1, 2], [ITEMS + round_, ITEMS + round_ + 50])
        for seen in (True, False):
            found = model.best(users, 10, filter_seen=seen, **limits)
            wanted = exact.best(users, 10, filter_seen=seen, **limits)
            shared = [len(set(a.tolist()) & set(b.tolist())) for (a, _), (b, _) in zip(found, wanted, strict=True)]
            assert np.mean(shared) > 9.7


def test_a_list_in_two_stages_does_not_depend_on_when_lists_were_asked_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, number in (("FROM", 0), ("CANDIDATES", 15), ("OFFERED", 15), ("MET", 15)):
        monkeypatch.setattr(catalogue, name, number)
    asked, users = model_of("blend", lists="two_stage"), np.arange(USERS)
    silent = copy.deepcopy(asked)
    for round_ in range(5):
        list(asked.best(users[round_:], 3, filter_seen=True))
        for each in (asked, silent):
            learn(each, 30, seed=round_)
    for before, alone in zip(
        asked.best(users, 10, filter_seen=True), silent.best(users, 10, filter_seen=True), strict=True
    ):
        assert (before[0].tolist(), before[1].tobytes()) == (alone[0].tolist(), alone[1].tobytes())


def test_few_items_are_scored_as_a_whole() -> None:
    """Two stages would cost more; the candidates are few here, and the lists are exact all the same."""
    model, users = model_of("blend", lists="two_stage"), np.arange(USERS)
    made = model.updater.catalogue(model.rows_of("item"), model.last_time)
    assert isinstance(made, catalogue.BlendCatalogue)
    assert made.near is None
    exact = copy.deepcopy(model)
    exact.updater.recommender.settings = exact.updater.recommender.settings.model_copy(update={"lists": "exact"})
    for one, other in zip(
        model.best(users, 10, filter_seen=True), exact.best(users, 10, filter_seen=True), strict=True
    ):
        assert (one[0].tolist(), one[1].tobytes()) == (other[0].tolist(), other[1].tobytes())


@pytest.mark.parametrize("kind", ["blend", "blend with transitions"])
def test_two_stages_score_as_the_model_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "FROM", 0)
    model, users = model_of(kind, lists="two_stage"), np.arange(USERS)
    for seen in (True, False):
        for user, (rows, scores) in enumerate(model.best(users, 12, filter_seen=seen)):
            line = model.updater.score(users[user : user + 1], rows[None, :], model.last_time)[0]
            assert scores == pytest.approx(line, rel=1e-5, abs=1e-5)
            assert scores.tolist() == sorted(scores.tolist(), reverse=True)
