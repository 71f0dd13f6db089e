"""Settings: frozen, plain, and with errors that name the owner, the key and the choices."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, ValidationError

from melon import evaluate
from melon.data import synthetic
from melon.errors import GONE, MelonError, SettingsError
from melon.fitting.config import read_config
from melon.settings import Settings


class Oven(Settings):
    heat: float = Field(180.0, gt=0)
    mode: Literal["fan", "grill"] = "fan"
    trays: tuple[int, ...] = (1, 2)


def test_values_are_read_with_their_defaults() -> None:
    oven = Oven.parse({"heat": 200}, "oven")
    assert (oven.heat, oven.mode, oven.trays) == (200.0, "fan", (1, 2))
    assert Oven.parse({}, "oven") == Oven()
    assert Oven.parse({"trays": [3]}, "oven").trays == (3,)


def test_an_unknown_key_is_named_with_the_nearest_and_all_others() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting of my oven 'heet'. Did you mean 'heat'\?") as caught:
        Oven.parse({"heet": 1}, "my oven")
    assert "heat, mode, trays" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "new"),
    [
        ("settings", {"fading": 5000}, "half_life"),
        ("settings", {"form": "linear"}, "stream"),
        ("preset", "practised", "stream"),
        ("candidates", "born", "known"),
    ],
)
def test_a_name_of_an_earlier_version_is_refused_with_the_new_one(field: str, value: object, new: str) -> None:
    strategy = "melon" if field == "settings" else "mwnet"
    with pytest.raises(SettingsError, match=f"is now called '{new}'"):
        evaluate(synthetic.synthetic_stream("flip", n_events=2000), "bpr", strategy, **{field: value}, progress=False)


@pytest.mark.parametrize("name", GONE)
def test_a_setting_that_is_gone_is_refused_with_the_way_out_unless_it_changes_nothing(name: str) -> None:
    usual, instead = GONE[name]
    assert Oven.parse({name: usual}, "oven") == Oven()
    with pytest.raises(SettingsError, match=f"{name} = 'other' is no longer there: {instead}"):
        Oven.parse({name: "other"}, "oven")


def test_a_config_file_with_an_old_key_names_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text('fading = "auto"\n')
    with pytest.raises(SettingsError, match=r"old.toml 'fading' is now called 'half_life'"):
        read_config(tmp_path / "old.toml")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"heat": 0}, ["my oven: heat = 0", "greater than 0"]),
        ({"heat": "hot"}, ["my oven: heat = 'hot'", "number"]),
        ({"heat": float("nan")}, ["my oven: heat = nan"]),
        ({"mode": "steam"}, ["my oven: mode = 'steam'", "'fan' or 'grill'"]),
        ({"trays": [1, "x"]}, ["my oven: trays.1 = 'x'"]),
    ],
)
def test_a_value_out_of_range_is_quoted(values: dict, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        Oven.parse(values, "my oven")
    assert all(word in str(caught.value) for word in words)
    assert isinstance(caught.value, MelonError)


def test_settings_do_not_change() -> None:
    oven = Oven()
    with pytest.raises(ValidationError):
        oven.heat = 3  # type: ignore[misc]


def test_plain_values_come_back() -> None:
    oven = Oven(heat=150, mode="grill", trays=(4,))
    assert oven.plain() == {"heat": 150.0, "mode": "grill", "trays": [4]}
    assert Oven.parse(oven.plain(), "oven") == oven
