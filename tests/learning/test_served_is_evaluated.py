"""What is served is what was evaluated: ranks by lists against the lists of `recommend`, for every kind of user."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.evaluation.lists import DEPTH, LENGTH, TRACKS, Lister
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.models.blend import catalogue
from melon.models.registry import RECOMMENDERS
from melon.strategies.default import Default
from melon.stream.batch import batch_of

OWN = {"inputs": ("profiles", "preferences", "own"), "head_own_share": 0.2, "head_popular_share": 0.2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "blend": ("blend", {"dim": 6, "slots": 16, "transitions": True, "head_lr": 0.05, **OWN}),
    "two_stage": ("blend", {"dim": 6, "slots": 16, "lists": "two_stage", "head_lr": 0.05, **OWN}),
    "bpr": ("bpr", {"dim": 6}),
    "ials": ("ials", {"dim": 6}),
}
START, STOP, SIZE = 1_200, 1_600, 80


@pytest.fixture(scope="module")
def log() -> Interactions:
    """Half of the users of the last part are new, some return, and items come in, too."""
    old = synthetic_stream("flip", n_users=60, n_items=90, n_events=STOP, seed=4)
    users = old.users.copy()
    late = np.arange(STOP) >= START
    users[late & (old.users % 2 == 0)] += 1_000 + np.arange(STOP)[late & (old.users % 2 == 0)] // 6
    return Interactions.from_ids(users, old.items, old.times)


def live(log: Interactions, name: str) -> LiveModel:
    recommender, settings = MODELS[name]
    model = LiveModel(Updater(RECOMMENDERS[recommender].load()(settings, seed=2), Default({"lr": 0.1})))
    for _ in model.learn(log.head(START), SIZE):
        pass
    return model


@pytest.mark.parametrize("name", MODELS)
def test_lists_that_are_served_have_the_ranks_that_are_evaluated(
    log: Interactions, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "FROM", 50)
    model, lister = live(log, name), Lister(log, START, item_users=0)
    kinds = set[str]()
    for start in range(START, STOP, SIZE):
        batch, known = batch_of(log, start, start + SIZE), int(log.known_items[start])
        assert known == model.rows_of("item")
        # `recommend` has no other clock than the last event that was learned.
        moment = replace(batch, times=np.full(SIZE, model.last_time))
        lists = lister.rank(model.updater.catalogue, moment, known, "a test")
        ids = log.user_ids[batch.users].tolist()
        for track, filtered in zip(TRACKS, (False, True), strict=True):
            served = model.recommend(ids, DEPTH, filter_seen=filtered)
            for line, found in enumerate(served):
                rank = lists.tracks[track].rank[line]
                if np.isnan(rank):
                    continue
                rows = model.items.rows([one.item for one in found]).tolist()
                if found.source == "popular":
                    assert name == "ials"  # it has nothing to say of a newcomer, and all items share one rank
                    continue
                kinds.add("known" if batch.users[line] < model.rows_of("user") else "unknown")
                assert lists.tracks[track].listed[line].tolist() == (rows[:LENGTH] + [-1] * LENGTH)[:LENGTH]
                own = [one.score for one, row in zip(found, rows, strict=True) if row == batch.items[line]]
                scores = np.array([one.score for one in found])
                if own:
                    ties = int((scores == own[0]).sum()) - 1
                    assert rank == 1 + (scores > own[0]).sum() + ties / 2 or ties
                else:
                    assert rank > DEPTH or (scores[-1:] == scores).any()
        model.learn_events(ids, log.item_ids[batch.items].tolist(), batch.times)
    assert kinds >= {"known", "unknown"} if name != "ials" else {"known"}


@pytest.mark.parametrize("name", MODELS)
def test_scores_of_a_list_are_those_of_score(log: Interactions, name: str) -> None:
    model = live(log, name)
    for user in (log.user_ids[3], 10**9):
        for filtered in (True, False):
            (listed,) = model.recommend([user], 8, filter_seen=filtered)
            scores = model.score([user], [one.item for one in listed])
            if listed.source == "model":
                assert [one.score for one in listed] == pytest.approx(scores.tolist(), rel=1e-4, abs=1e-5)
    assert model.recommend([10**9], 8)[0].source == ("popular" if name == "ials" else "model")


def test_a_visitor_has_the_list_of_a_newcomer_with_that_past(log: Interactions) -> None:
    """The history of a visitor counts as the past, and nothing of it stays."""
    model = live(log, "blend")
    before = {name: array.tobytes() for name, array in model.updater.history.state().items()}
    items = np.array([3, 8, 5])
    visitor = model.best_after(items, 10)
    plain = next(model.best(np.array([model.rows_of("user")]), 10, filter_seen=False))
    assert visitor[0].tolist() != plain[0].tolist()
    assert {name: array.tobytes() for name, array in model.updater.history.state().items()} == before
    again = next(model.best(np.array([model.rows_of("user")]), 10, filter_seen=False))
    assert again[0].tolist() == plain[0].tolist()
    with model.updater.visited(items) as row:
        assert row == model.rows_of("user") - 1
        scores = model.updater.score(np.full(10, row), visitor[0][:, None], model.last_time)[:, 0]
    assert visitor[1] == pytest.approx(scores, rel=1e-4, abs=1e-5)
