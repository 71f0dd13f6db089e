"""Simple baselines: columns against plain loops, the grid's best, and a reference that is trained anew."""

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.evaluation.predictors import (
    HALF_LIVES,
    SIMPLE_BASELINES,
    WEIGHTS,
    BaselineColumns,
    Frozen,
    Retrained,
    make_baseline,
)
from melon.fitting.baselines import choose_baselines
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import deploy, refit
from melon.fitting.selection import Selection
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.strategies.default import Default
from melon.stream.batch import batch_of
from melon.stream.split import Parts, split
from melon.types import Ints


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("news", n_events=3_000, seed=5)


@pytest.fixture(scope="module")
def parts(log: Interactions) -> Parts:
    return split(log, (0.8, 0.05, 0.15))


def columns_of(log: Interactions, kind: str) -> BaselineColumns:
    return BaselineColumns(log, (kind,))


def popular(items: Ints, item: int, half_life: float) -> float:
    return float(np.log1p(sum(0.5 ** ((len(items) - at) / half_life) for at in np.flatnonzero(items == item))))


def test_transitions_are_those_of_plain_loops(log: Interactions) -> None:
    past = log.head(400)
    baseline = make_baseline(
        "transitions_popularity", {"kind": "transitions", "half_life": 300, "weight": 0.5}, past, None
    )
    followed: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    for user, item in zip(past.users.tolist(), past.items.tolist(), strict=True):
        if user in last and last[user] != item:
            followed[last[user], item] = followed.get((last[user], item), 0) + 1
        last[user] = item
    users, items = np.arange(5), np.arange(30)
    found = baseline.score(users, np.broadcast_to(items, (5, 30)), 0)
    for user in users.tolist():
        for item in items.tolist():
            wanted = np.log1p(10 * followed.get((last[user], item), 0)) + 0.5 * popular(past.items, item, 300)
            assert found[user, item] == pytest.approx(wanted, rel=1e-6)
    assert baseline.score_catalogue(users, 30, 0) == pytest.approx(found)


def test_frozen_is_the_recommender_and_popularity(log: Interactions) -> None:
    past = log.head(300)
    model = Frozen(Updater(BPR({"dim": 4}, seed=1), Default()))
    baseline = make_baseline("frozen_popularity", {"half_life": 100, "weight": 2.0}, past, model)
    users, items = np.arange(3), np.arange(12).reshape(3, 4)
    wanted = [[2 * popular(past.items, item, 100) for item in line] for line in items.tolist()]
    assert baseline.score(users, items, 0) == pytest.approx(np.array(wanted), rel=1e-6)


@pytest.mark.parametrize("name", SIMPLE_BASELINES)
def test_batch_by_batch_is_as_if_all_had_been_the_past(log: Interactions, name: str) -> None:
    model = Frozen(Updater(BPR({"dim": 4}, seed=1), Default()))
    streamed, whole = make_baseline(name, {}, log.head(500), model), make_baseline(name, {}, log.head(700), model)
    for start in (500, 600):
        streamed.learn(batch_of(log, start, start + 100))
    lines = np.broadcast_to(np.arange(40), (6, 40))
    assert streamed.score(np.arange(6), lines, 0) == pytest.approx(whole.score(np.arange(6), lines, 0), rel=1e-9)
    assert streamed.moved == 0


def test_the_best_of_the_grid_is_what_a_stream_through_the_window_gives(log: Interactions, parts: Parts) -> None:
    plan = Plan("bpr", recommender_settings={"dim": 6}, protocol=EvaluationProtocol(batch_size=64, negatives=30))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    start = refit(plan, selection.before_window, {"epochs": 1})
    found = choose_baselines(selection, start)
    assert found.keys() == SIMPLE_BASELINES.keys()
    for name, choice in found.items():
        frozen = Frozen(deploy(Default(), start, selection.before_window))
        baseline = make_baseline(name, choice.settings, selection.before_window, frozen)
        assert selection.judged(baseline) == pytest.approx(choice.score, abs=1e-9)
        assert choice.settings["kind"] in SIMPLE_BASELINES[name]
        assert choice.settings["half_life"] in HALF_LIVES
        assert choice.settings["weight"] in WEIGHTS
        assert choice.score == max(trial.score or 0 for trial in choice.trials)
        assert set(choice.at_edge) <= {"half_life", "weight"}


def test_retraining_is_from_scratch_on_everything_so_far_and_frozen_in_between(log: Interactions) -> None:
    trained: list[int] = []

    def train(stop: int) -> Updater:
        trained.append(stop)
        return Updater(BPR({"dim": 4}, seed=stop), Default())

    model = Retrained(train, 100, every=150)
    for start in range(100, 500, 100):
        model.score(np.array([0]), np.array([[0, 1]]), 0)
        model.learn(batch_of(log, start, start + 100))
    assert trained == [100, 300, 500]
    assert model.score_catalogue(np.array([0]), 5, 0).shape == (1, 5)
    assert model.moved == 0
