"""`melon.Melon` among other tools: parameters, clones, pickles, notebooks, and numbers of numpy."""

from __future__ import annotations

import copy
import pickle
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import melon
from melon.errors import DataError, SettingsError
from melon.estimator import Melon
from melon.models.bpr import BPR
from melon.strategies.default import Default

LOG = [(f"u{n % 17}", f"i{n * n % 31}", n) for n in range(400)]
QUICK: dict[str, Any] = {
    "epochs": 2,
    "budget": 0,
    "batch_size": 32,
    "recommender_settings": {"dim": 6},
    "progress": False,
}


class OwnRecommender(BPR):
    name = "mine"


class OwnStrategy(Default):
    name = "my way"


def saved(model: Melon, folder: Path) -> dict[str, bytes]:
    model.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cloned(model: Melon) -> Melon:
    """As `sklearn.base.clone` does it."""
    parameters = {name: copy.deepcopy(value) for name, value in model.get_params(deep=False).items()}
    twin = type(model)(**parameters)
    for name, value in twin.get_params(deep=False).items():
        assert value is parameters[name], f"the constructor changes {name}"
    return twin


class TestParameters:
    def test_every_argument_is_a_parameter(self) -> None:
        import inspect

        names = set(inspect.signature(Melon).parameters)
        assert set(Melon().get_params()) == names
        assert {name: Melon().get_params()[name] for name in ("recommender", "strategy", "half_life", "settings")} == {
            "recommender": "auto",
            "strategy": "auto",
            "half_life": None,
            "settings": None,
        }

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"recommender": "bpr", "strategy": "melon", "half_life": 500.0, "settings": {"passes": 1}},
            {"recommender": OwnRecommender, "strategy": OwnStrategy},
            {"seed": np.int64(3), "settings": {"lr": np.float32(0.1)}},
        ],
    )
    def test_a_clone_is_the_same_and_has_learned_nothing(self, given: dict[str, Any], tmp_path: Path) -> None:
        model = Melon(**QUICK | given).fit(LOG)
        twin = cloned(model)
        assert twin.get_params() == model.get_params()
        assert "learned nothing yet" in repr(twin)
        assert saved(twin.fit(LOG), tmp_path / "a") == saved(model, tmp_path / "b")

    def test_parameters_can_be_set(self) -> None:
        model = Melon(**QUICK).fit(LOG)
        assert model.set_params(recommender="bpr", strategy="eals", seed=np.int32(4)) is model
        assert (model.recommender, model.strategy, model.seed) == ("bpr", "eals", 4)
        assert model.n_interactions == 400
        assert model.fit(LOG).updater.strategy.name == "eals"
        with pytest.raises(SettingsError, match=r"unknown parameter of Melon 'sed'. Did you mean 'seed'"):
            model.set_params(sed=1)
        with pytest.raises(SettingsError, match="batch_size = 0"):
            model.set_params(batch_size=0, seed=9)
        assert model.seed == 4


class TestCopies:
    @pytest.mark.parametrize("given", [{}, {"recommender": "bpr"}, {"recommender": OwnRecommender}])
    def test_a_pickle_learns_on_as_if_it_had_never_been_one(self, given: dict[str, Any], tmp_path: Path) -> None:
        model = Melon(**QUICK | given).fit(LOG[:300])
        twin = pickle.loads(pickle.dumps(model))
        assert twin.get_params() == model.get_params()
        assert twin.choices_ == model.choices_
        for one in (model, twin):
            one.partial_fit(LOG[300:])
        assert saved(model, tmp_path / "a") == saved(twin, tmp_path / "b")

    def test_a_model_that_has_learned_nothing(self) -> None:
        assert pickle.loads(pickle.dumps(Melon(seed=5))).seed == 5

    def test_a_deep_copy_goes_its_own_way(self, tmp_path: Path) -> None:
        model = Melon(**QUICK, report=lambda _: None).fit(LOG[:300])
        before = saved(model, tmp_path / "a")
        twin = copy.deepcopy(model).partial_fit(LOG[300:])
        assert saved(model, tmp_path / "a") == before != saved(twin, tmp_path / "b")


class TestNotebooks:
    def test_a_table(self) -> None:
        shown = Melon("bpr", "default", **QUICK).fit(LOG)._repr_html_()
        assert shown.startswith("<table>")
        for text in ("bpr with default", "interactions learned", "400", "chosen for default", "lr="):
            assert text in shown
        assert "<script>" not in Melon("bpr", type("<script>", (Default,), {"name": "<script>"}))._repr_html_()

    def test_auto_is_called_so(self) -> None:
        assert repr(Melon()) == "<Melon blend with default (auto): 0 users, 0 items, learned nothing yet>"
        assert "(auto)" not in repr(Melon("blend", "default"))


def test_numbers_of_numpy_can_be_saved_and_loaded(tmp_path: Path) -> None:
    given: dict[str, Any] = {"seed": np.int64(3), "epochs": np.int64(1), "batch_size": np.int32(16)}
    given |= {"budget": np.uint8(0), "minutes": np.float32(2), "half_life": np.float64(100)}
    given |= {"settings": {"lr": np.float32(0.1)}, "pretrain_settings": {"l2": np.float64(0.1)}}
    small = {"dim": np.int64(4)}
    model = Melon("bpr", "default", **QUICK | given | {"recommender_settings": small}).fit(LOG)
    model.save(tmp_path)
    loaded = melon.load(tmp_path)
    assert model.recommender_settings == small
    for name, value in given.items():
        stored = getattr(model, name)
        assert not isinstance(stored, np.generic)
        assert stored == value
        assert getattr(loaded, name) == stored


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minutes": "5"}, "minutes = '5' must be a number"),
        ({"minutes": float("inf")}, "minutes = inf must be a finite number"),
        ({"recommender": 5}, "recommender = 5 must be a name"),
        ({"recommender": "bqr"}, "Did you mean 'bpr'"),
        ({"settings": [1]}, r"settings = \[1\] must be a dict"),
        ({"settings": {"lr": object()}}, r"settings\['lr'\] = .* is not a plain value"),
        ({"settings": {"speed": 1}}, "speed"),
        ({"recommender_settings": {"dim": 0}}, "dim = 0"),
        ({"pretrain_settings": {"l3": 1}}, "l3"),
        ({"dtype": "float16"}, "dtype = 'float16' must be one of: float32, float64"),
        ({"threads": 10**5}, "threads = 100000 must be between 1 and 1,024"),
        ({"seed": 1.5}, "seed = 1.5 must be a whole number"),
        ({"batch_size": True}, "batch_size = True"),
        ({"half_life": "fast"}, "half_life = 'fast' must be off, auto, or a half-life"),
        ({"half_life": [1]}, "half_life = .* must be a number"),
    ],
)
def test_wrong_values_are_refused_at_the_door(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Melon(**given)


def test_a_stopped_fit_leaves_the_model_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    model = Melon("bpr", "default", **QUICK, report=lines.append).fit(LOG)
    before = repr(model), dict(model.choices_)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("melon.fitting.fit.deploy", stop)
    with pytest.raises(KeyboardInterrupt):
        model.set_params(settings={"lr": 0.5}).fit(LOG[:300])
    assert (repr(model), model.choices_) == before
    assert lines[-1] == "stopped: nothing of this fit was kept"


class TestFewEvents:
    """A few plain tuples go straight into the model; anything else through a log."""

    @pytest.mark.parametrize(
        "ids", [lambda name: name, lambda name: int(name[1:]), lambda name: uuid.UUID(int=int(name[1:]))]
    )
    def test_both_ways_give_the_same_model(self, ids: Any, tmp_path: Path) -> None:
        rows = [(ids(user), ids(item), time) for user, item, time in LOG]
        new = [rows[-1], *rows[300:-1]]  # out of order
        quick, slow = (Melon(**QUICK).fit(rows[:300]) for _ in range(2))
        for place in (0, 1, 7):
            quick.partial_fit(new[place : place + 60])
            slow.partial_fit([list(event) for event in new[place : place + 60]])
        assert saved(quick, tmp_path / "a") == saved(slow, tmp_path / "b")

    @pytest.mark.parametrize("wrong", [(5, "i1", 1_000), ("u1", 2.5, 1_000), ("u1", "i1", -1)])
    def test_what_cannot_be_learned_changes_nothing(self, wrong: Any, tmp_path: Path) -> None:
        model = Melon(**QUICK).fit(LOG)
        before = saved(model, tmp_path)
        with pytest.raises(DataError):
            model.partial_fit([("u1", "i1", 999), wrong])
        assert saved(model, tmp_path) == before
