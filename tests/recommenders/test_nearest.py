"""Lists by an inverted file: nearly those of a scan, while rows change, fade and are added."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melon.errors import SettingsError
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.recommenders import bpr, nearest
from melon.recommenders.bpr import BPR
from melon.strategies.registry import STRATEGIES

pytest.importorskip("faiss")
USERS, ITEMS, GROUPS = 60, 1_200, 6


@pytest.fixture(autouse=True)
def _few_items_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "FROM", 100)
    monkeypatch.setattr(nearest, "_SHARE", 4)


def model_of(lists: str = "index", *, fading: Any = 5_000.0, events: int = 12_000) -> LiveModel:
    """Users take items of their own group."""
    strategy = STRATEGIES["default"].load()({"fading": fading, "lr": 0.3, "optimizer": "sgd"})
    model = LiveModel(Updater(BPR({"dim": 12, "lists": lists}), strategy))
    learn(model, events)
    return model


def learn(model: LiveModel, events: int, seed: int = 0, beyond: int = 0) -> None:
    rng = np.random.default_rng(seed)
    users = rng.integers(0, USERS, events)
    items = rng.integers(0, ITEMS // GROUPS, events) * GROUPS + users % GROUPS + beyond
    model.learn_events(users.tolist(), items.tolist(), batch_size=100)


def exact_twin(model: LiveModel) -> LiveModel:
    twin = copy.deepcopy(model)
    recommender = twin.updater.recommender
    recommender.settings = recommender.settings.model_copy(update={"lists": "exact"})
    return twin


def kept(model: LiveModel, users: Any, **limits: Any) -> float:
    """Which share of the exact ten the model lists; scores of what both list are the same."""
    options = {"filter_seen": True, **limits}
    shares = []
    for (rows, scores), (wanted, exact) in zip(
        model.best(users, 10, **options), exact_twin(model).best(users, 10, **options), strict=True
    ):
        said = dict(zip(wanted.tolist(), exact.tolist(), strict=True))
        both = [(said[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True) if row in said]
        assert [one for one, _ in both] == pytest.approx([other for _, other in both], rel=1e-5, abs=1e-5)
        assert (np.diff(scores) <= 0).all()
        shares.append(len(both) / len(wanted))
    return float(np.mean(shares))


@pytest.mark.parametrize("fading", [None, 5_000.0])
def test_it_keeps_nearly_all_of_the_exact_ten_while_rows_change(fading: float | None) -> None:
    model, users = model_of(fading=fading), np.arange(USERS)
    assert kept(model, users) > 0.95
    made = model.updater.recommender._inverted_file._index
    for seed in range(1, 4):
        learn(model, 1_000, seed)
        assert kept(model, users) > 0.95
    assert model.updater.recommender._inverted_file._index is made  # followed, and not made anew


def test_it_follows_a_row_that_changed() -> None:
    model, user = model_of(), np.array([3])
    list(model.best(user, 10, filter_seen=True))
    tables = model.updater.recommender.tables
    best, unseen = tables["user_factors"].gather(tables["item_bias"]._touched.new_tensor([3])), ITEMS - 1
    assert unseen not in [row for rows, _ in model.best(user, 10, filter_seen=False) for row in rows.tolist()]
    tables["item_factors"].scatter(tables["item_bias"]._touched.new_tensor([unseen]), 50 * best)
    (rows, _), *_ = model.best(user, 10, filter_seen=False)
    assert rows[0] == unseen


def test_new_items_are_added_and_very_many_make_it_anew() -> None:
    model, users = model_of(), np.arange(USERS)
    list(model.best(users, 10, filter_seen=True))
    index = model.updater.recommender._inverted_file
    made, before = index._index, len(index)
    learn(model, 300, seed=5, beyond=ITEMS)
    assert kept(model, users) > 0.95
    assert index._index is made
    assert len(index) == model.rows_of("item") > before
    learn(model, 4_000, seed=6, beyond=2 * ITEMS)
    assert kept(model, users) > 0.95
    assert index._index is not made


def test_limits_and_users_who_have_had_nearly_everything_are_served_by_the_scan() -> None:
    model, users = model_of(), np.arange(4)
    allowed = np.zeros(model.rows_of("item"), dtype=bool)
    allowed[[3, 5, 8]] = True
    for rows, _ in model.best(users, 10, filter_seen=False, allowed=allowed):
        assert set(rows.tolist()) == {3, 5, 8}
    model.learn_events([0] * (ITEMS - 30), list(range(ITEMS - 30)))
    assert kept(model, users[:1]) == 1
    assert kept(model, users, boost=np.linspace(0, 1, ITEMS)) == 1


def test_a_model_that_is_saved_loaded_or_copied_lists_the_same_items(tmp_path: Path) -> None:
    model, users = model_of(), np.arange(USERS)
    wanted = [rows.tolist() for rows, _ in model.best(users, 10, filter_seen=True)]
    model.save(tmp_path / "model", {})
    for other in (LiveModel.load(tmp_path / "model")[0], copy.deepcopy(model)):
        found = [rows.tolist() for rows, _ in other.best(users, 10, filter_seen=True)]
        shared = [len(set(one) & set(two)) / 10 for one, two in zip(found, wanted, strict=True)]
        assert np.mean(shared) > 0.95


def test_few_items_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "FROM", 10**6)
    model = model_of(events=2_000)
    assert kept(model, np.arange(USERS)) == 1
    assert not len(model.updater.recommender._inverted_file)


def test_without_the_package_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpr, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"melon-recommender\[index\]"):
        BPR({"lists": "index"})
