"""Likeness to a user's last items against its definition, and what it must not tell."""

import math

import numpy as np
import pytest

from melon.checks.toys import toy_batches, toy_log
from melon.kernels import policy
from melon.learning.updater import Updater
from melon.recommenders.blend.recommender import Blend
from melon.recommenders.streaming.likeness import likeness
from melon.strategies.default import Default
from melon.stream.history import History
from melon.types import Ints

USERS, ITEMS, LAST = 5, 30, 20
KERNELS = [("torch", np.float64, 1e-9), ("auto", np.float32, 2e-5)]


def past_of(events: int = 150) -> tuple[History, Ints, Ints]:
    random, past = np.random.default_rng(2), History()
    users, items = random.integers(0, USERS, events), random.integers(0, ITEMS, events)
    past.append(users, items)
    return past, users, items


@pytest.mark.parametrize(("kernel", "dtype", "near"), KERNELS)
@pytest.mark.parametrize("known", [ITEMS, ITEMS - 9, 0])
def test_it_is_what_it_says(kernel: str, dtype: type, near: float, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(policy.VARIABLE, kernel)
    past, users, items = past_of()
    rows = np.random.default_rng(3).normal(size=(ITEMS, 6)).astype(dtype)
    everyone, candidates = np.arange(USERS + 1), np.tile(np.arange(ITEMS + 2), (USERS + 1, 1))
    out = np.full((*candidates.shape, 3), 9.0, dtype=dtype)
    likeness(everyone, candidates, past, rows, known, 1, out)
    assert (out[..., [0, 2]] == 9).all()
    for user in everyone:
        lasts = [int(i) for u, i in zip(users, items, strict=True) if u == user][::-1][:LAST]
        for item in candidates[0]:
            total = 0.0
            for last in lasts:
                if last != item and last < known and item < known:
                    one, other = rows[last].astype(float), rows[item].astype(float)
                    total += math.exp(6 * (one @ other) / math.sqrt((one @ one) * (other @ other)))
            assert out[user, item, 1] == pytest.approx(math.log1p(total), abs=10 * near)


def test_having_had_an_item_again_tells_nothing() -> None:
    rows = np.random.default_rng(4).normal(size=(ITEMS, 6)).astype(np.float32)
    given = []
    for taken in ([3, 4], [3, 7, 4, 7]):
        past, out = History(), np.empty((1, 1, 1), dtype=np.float32)
        past.append(np.zeros(len(taken), dtype=np.int64), np.array(taken))
        likeness(np.array([0]), np.array([[7]]), past, rows, ITEMS, 0, out)
        given.append(out.item())
    assert given[0] == given[1] > 0


GROUPS = [
    "likeness",
    "own_profiles",
    "profiles likeness",
    "likeness leanings",
    "profiles own_profiles likeness leanings",
]


@pytest.mark.parametrize("groups", GROUPS)
def test_lists_lessons_and_scores_agree(groups: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"dim": 6, "head_units": 4, "head_negatives": 3, "head_rest": 20, "slots": 16, "inputs": groups.split()}
    blend = Blend(settings)
    assert not {"likeness", "own_takers"}.isdisjoint(blend.inputs)
    updater, batches = Updater(blend, Default({"fading": 100.0})), toy_batches(toy_log())
    for batch in batches[:-1]:
        updater.learn(batch)
    users, time = batches[-1].users, int(batches[-1].times[0])
    n_items = blend.rows_of("item") + 2
    lines, lessons, lists = np.tile(np.arange(n_items), (len(users), 1)), [], []
    for kernel in ("auto", "torch"):
        monkeypatch.setenv(policy.VARIABLE, kernel)
        lesson = updater.lesson(batches[-1])
        assert lesson is not None
        lessons.append(lesson.inputs.numpy())
        lists += [updater.score(users, lines, time), updater.score_catalogue(users, n_items, time)]
    assert lessons[0] == pytest.approx(lessons[1], abs=2e-4)
    for scores in lists[1:]:
        assert scores == pytest.approx(lists[0], abs=2e-4)
