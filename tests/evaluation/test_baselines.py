"""Simple baselines: columns against plain loops, the grid's best, and a reference that is trained anew."""

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.evaluation.baselines import BASELINES, HALF_LIVES, SOURCES, WEIGHTS, Baseline, Sources, make_baseline
from melon.evaluation.lists import Lister, chosen_events
from melon.evaluation.predictors import Popularity, Retrained
from melon.evaluation.ranking import gains
from melon.fitting.baselines import choose_baselines
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.selection import Selection
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.strategies.default import Default
from melon.stream.batch import batch_of
from melon.stream.split import Parts, split
from melon.types import Floats, Ints

USERS, ITEMS = np.arange(6), np.arange(30)
KINDS = [kind for kinds in SOURCES.values() for kind in kinds]


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("news", n_events=3_000, seed=5)


@pytest.fixture(scope="module")
def parts(log: Interactions) -> Parts:
    return split(log, (0.8, 0.05, 0.15))


def popular(items: Ints, item: int, half_life: float) -> float:
    return float(np.log1p(sum(0.5 ** ((len(items) - at) / half_life) for at in np.flatnonzero(items == item))))


def column(past: Interactions, kind: str) -> Floats:
    """What a kind says of the first users and items, as a dense table."""
    sources, dense = Sources(past, (kind,)), np.zeros((len(USERS), past.n_items))
    starts, items, values = sources.column(kind, USERS)
    for line in range(len(USERS)):
        dense[line, items[starts[line] : starts[line + 1]]] = values[starts[line] : starts[line + 1]]
    return dense[:, ITEMS]


def test_popularity_and_a_column_are_added_up(log: Interactions) -> None:
    past = log.head(400)
    baseline = make_baseline("markov", {"kind": "transitions", "half_life": 300, "weight": 0.5}, past)
    found = baseline.score(USERS, np.broadcast_to(ITEMS, (6, 30)), 0)
    recent = [popular(past.items, item, 300) for item in ITEMS.tolist()]
    assert found == pytest.approx(0.5 * column(past, "transitions") + np.array(recent), rel=1e-5)


def test_transitions_are_those_of_plain_loops(log: Interactions) -> None:
    past = log.head(400)
    followed: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    for user, item in zip(past.users.tolist(), past.items.tolist(), strict=True):
        if user in last and last[user] != item:
            followed[last[user], item] = followed.get((last[user], item), 0) + 1
        last[user] = item
    wanted = [[followed.get((last[user], item), 0) for item in ITEMS.tolist()] for user in USERS.tolist()]
    assert column(past, "transitions") == pytest.approx(np.log1p(10 * np.array(wanted)), rel=1e-5)


def test_rules_are_those_of_plain_loops(log: Interactions) -> None:
    past, own = log.head(400), dict[int, list[int]]()
    met: dict[tuple[int, int], int] = {}
    for user, item in zip(past.users.tolist(), past.items.tolist(), strict=True):
        for earlier in own.get(user, [])[-10:]:
            if earlier != item:
                met[earlier, item] = met.get((earlier, item), 0) + 1
        own.setdefault(user, []).append(item)
    wanted = np.zeros((6, 30))
    for user in USERS.tolist():
        for place, earlier in enumerate(reversed(own[user][-10:])):
            wanted[user] += [met.get((earlier, item), 0) / (place + 1) for item in ITEMS.tolist()]
    assert column(past, "rules") == pytest.approx(np.log1p(10 * wanted), rel=1e-5)


@pytest.mark.parametrize(("kind", "half_life"), [("own", np.inf), ("own_recent", 50.0)])
def test_own_counts_are_those_of_plain_loops(kind: str, half_life: float) -> None:
    past = synthetic_stream("flip", n_users=30, n_items=40, n_events=900, seed=1)
    wanted = np.zeros((6, past.n_items))
    for user in USERS.tolist():
        for age, item in enumerate(past.items[past.users == user][::-1].tolist()):
            wanted[user, item] += 0.5 ** (age / half_life)
    assert wanted.max() > 1
    assert column(past, kind) == pytest.approx(np.log1p(wanted[:, ITEMS]), rel=1e-5)


def test_sessions_are_those_of_plain_loops(log: Interactions) -> None:
    past = log.head(400)
    own = [past.items[past.users == user].tolist() for user in range(past.n_users)]
    wanted = np.zeros((6, past.n_items))
    for user in USERS.tolist():
        alike: dict[int, float] = {}
        for place, item in enumerate(reversed(own[user][-10:])):
            for other in past.users[past.items == item][-50:].tolist():
                alike[other] = alike.get(other, 0) + 1 / (place + 1)
        alike.pop(user, None)
        least = sorted(alike.values())[-100] if len(alike) > 100 else 0
        for other, similarity in alike.items():
            for item in own[other][-50:] if similarity >= least else ():
                wanted[user, item] += similarity
    assert column(past, "sessions") == pytest.approx(np.log1p(wanted[:, ITEMS]), rel=1e-4)


@pytest.mark.parametrize("name", BASELINES)
def test_batch_by_batch_is_as_if_all_had_been_the_past(log: Interactions, name: str) -> None:
    streamed, whole = make_baseline(name, {}, log.head(500)), make_baseline(name, {}, log.head(700))
    for start in (500, 600):
        streamed.learn(batch_of(log, start, start + 100))
    lines = np.broadcast_to(np.arange(40), (6, 40))
    assert streamed.score(USERS, lines, 0) == pytest.approx(whole.score(USERS, lines, 0), rel=1e-5)
    assert streamed.moved == 0


@pytest.mark.parametrize("name", BASELINES)
def test_a_list_has_the_scores_of_candidates_for_known_and_new_users(log: Interactions, name: str) -> None:
    past = log.head(500)
    baseline, users = make_baseline(name, {}, past), np.array([0, 3, past.n_users + 7])
    lines = np.tile(np.arange(past.n_items), (3, 1))
    whole = baseline.catalogue(past.n_items, 0).scores(users)
    assert whole == pytest.approx(baseline.score(users, lines, 0), rel=1e-6)
    assert len(set(map(bytes, whole.astype(np.float32)))) == 3


def test_the_best_of_the_grid_is_what_a_stream_through_the_window_gives(log: Interactions, parts: Parts) -> None:
    """Ranks of many settings at a time are those of each baseline's own lists; what is left out is a miss for all."""
    selection = Selection(
        log.head(parts.validation_stop), parts, Plan("bpr", protocol=EvaluationProtocol(batch_size=64))
    )
    found = choose_baselines(selection)
    assert found.keys() == {"recent_popularity", *BASELINES}
    singles = [found[name].score or 0 for name in SOURCES]
    assert (found["mix"].score or 0) >= max(singles)
    for name, choice in found.items():
        settings = choice.settings
        if name == "recent_popularity":
            baseline: Popularity | Baseline = Popularity(settings["half_life"], selection.before_window.items)
        else:
            baseline = make_baseline(name, settings, selection.before_window)
        assert listed(selection, baseline) == pytest.approx(choice.score, abs=1e-6), name
        assert settings["half_life"] in HALF_LIVES
        assert settings.get("weight", 1.0) in WEIGHTS
        assert set(settings.get("weights", KINDS)) <= set(KINDS)
        assert choice.score == max(trial.score or 0 for trial in choice.trials)


def listed(selection: Selection, baseline: Popularity | Baseline) -> float:
    """The mean NDCG@10 of both tracks, over events on known items."""
    log, judged_from = selection.log, selection.parts.judged_from
    lister, ranks = Lister(log, judged_from, item_users=0), {"all": list[float](), "first_time": list[float]()}
    share = 2_000 / (selection.parts.validation_stop - judged_from)
    for batch in selection.window_batches():
        if batch.first_event >= judged_from:
            known = int(log.known_items[batch.first_event])
            lists = lister.rank(baseline.catalogue, batch, known, "a test")
            for track, each in lists.tracks.items():
                kept = chosen_events(batch.events, share) & (batch.items < known) & ~np.isnan(each.rank)
                ranks[track] += each.rank[kept].tolist()
        baseline.learn(batch)
    return float(np.mean([gains(np.array(each)).mean() for each in ranks.values()]))


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
    assert model.moved == 0
