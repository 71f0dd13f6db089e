"""What a cell can be told: by options, by `--set`, by a file; and what it says to nonsense."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from melon.errors import SettingsError
from melon.fitting.config import CellConfig, parse_assignments, read_config


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"recommender": "bqr"}, "unknown recommender 'bqr'. Did you mean 'bpr'. Choose one of: blend, bpr, ials, ncf"),
        (
            {"strategy": "defualt"},
            "unknown strategy 'defualt'. Did you mean 'default'. Choose one of: default, eals",
        ),
        (
            {"preset": "papper"},
            "unknown preset of default 'papper'. Did you mean 'paper'. Choose one of: default, paper",
        ),
        (
            {"candidates": "knwon"},
            "unknown candidate set 'knwon'. Did you mean 'known'. Choose one of: catalogue, full-log, known",
        ),
        ({"pretrain": "ours"}, "unknown way to pre-train 'ours'.*Choose one of: own, shared"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"negatives": 0}, "negatives = 0"),
        ({"budget": -1}, "budget = -1"),
        ({"threads": 0}, "threads = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"epochs": 0}, "epochs = 0"),
    ],
)
def test_nonsense_is_refused_with_the_choices(more: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        CellConfig(**more)


def test_settings_win_over_the_preset() -> None:
    config = CellConfig(preset="paper", settings={"lr": 0.5})
    paper = {"optimizer": "adam_dense", "reduction": "mean", "lr": 0.5, "weight_decay": 0.001}
    assert config.fixed == {"half_life": None, **paper}


def test_half_life_is_off_unless_asked_for() -> None:
    assert CellConfig().fixed == {"half_life": None}
    assert CellConfig(half_life="auto").fixed == {}
    assert CellConfig(half_life=500.0).fixed == {"half_life": 500.0}
    assert CellConfig(half_life=500.0, settings={"half_life": 9.0}).fixed == {"half_life": 9.0}
    with pytest.raises(SettingsError, match="off, auto, or a half-life"):
        CellConfig(half_life="sometimes")


def test_assignments_go_to_their_sections() -> None:
    assert parse_assignments(
        ["lr=0.1", "optimizer=sgd", "recommender.dim=32", "pretrain.l2=0", "x=[1, 2]", "y=a=b"]
    ) == {
        "strategy": {"lr": 0.1, "optimizer": "sgd", "x": [1, 2], "y": "a=b"},
        "recommender": {"dim": 32},
        "pretrain": {"l2": 0},
    }


@pytest.mark.parametrize("text", ["lr", "=3", "recommender.=3", "nonsense.dim=3", "", "a.b.c=1"])
def test_assignments_must_look_like_it(text: str) -> None:
    with pytest.raises(SettingsError, match="must look like key=value"):
        parse_assignments([text])


def test_a_results_own_config_can_be_read_back(tmp_path: Path) -> None:
    config = CellConfig(strategy="eals", split=(0.8, 0.1, 0.1), settings={"lr": 0.1}, epochs=3)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config.plain()))
    assert CellConfig(**read_config(path)) == config


def test_toml_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('strategy = "eals"\nsplit = [0.8, 0.1, 0.1]\nnegatives = 9\n[settings]\nw_new = 2.0\n')
    assert CellConfig(**read_config(path)) == CellConfig(
        strategy="eals", split=(0.8, 0.1, 0.1), negatives=9, settings={"w_new": 2.0}
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.json", "{", "is not valid json"),
        ("c.toml", "a =", "is not valid toml"),
        ("c.json", "[1]", "must hold a table"),
        ("c.json", '{"sedd": 1}', "unknown key in .*c.json 'sedd'. Did you mean 'seed'"),
        ("c.json", '{"seed": "x"}', "seed = 'x' cannot be used"),
        ("c.json", '{"split": 5}', "split = 5 cannot be used"),
        ("c.json", '{"split": [0.5, 0.5]}', "split = .* cannot be used"),
        ("c.json", '{"settings": 3}', "c.json: settings = 3 must be a dict"),
        ("c.json", '{"budget": null}', "budget = None cannot be used"),
        ("c.json", '{"pretrain": "x"}', "pretrain = 'x' cannot be used"),
        ("c.json", "[" * 100_000, "is not valid json"),
    ],
)
def test_files_with_nonsense_are_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_config(tmp_path / name)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "c.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="is not valid json"):
        read_config(tmp_path / "c.json")


def test_a_config_can_be_written_down() -> None:
    plain = CellConfig().plain()
    assert plain.keys() == {each.name for each in fields(CellConfig)} - {"retrain_every", "minutes", "auto"}
    assert CellConfig(minutes=2.5).plain()["minutes"] == 2.5
    assert CellConfig(retrain_every=500).plain().keys() == plain.keys() | {"retrain_every"}
    assert json.loads(json.dumps(plain)) == plain
