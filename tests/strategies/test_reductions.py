"""The setting `reduction`: one vocabulary for all strategies, and its former names."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from learned_scenes import past_and_batch
from melon_scenes import strategy_of, updater_of

from melon.checks.pairing import state_of
from melon.checks.toys import same
from melon.errors import SettingsError
from melon.learning import checkpoint
from melon.strategies.base import Reduction, StrategySettings
from melon.strategies.registry import STRATEGIES

RENAMED = ("metasgd", "s2meta", "sml", "melon", "melon_i", "melon_p")


def test_every_strategy_takes_its_values_from_one_list() -> None:
    for entry in STRATEGIES:
        fields = entry.load().settings_type.model_fields
        assert not [name for name in fields if "aggregat" in name], entry.name
        for name in ("reduction", "shared_reduction"):
            if name in fields:
                assert set(get_args(fields[name].annotation)) <= set(get_args(Reduction)), (entry.name, name)


@pytest.mark.parametrize("name", RENAMED)
@pytest.mark.parametrize(
    ("former", "message"),
    [
        ({"aggregation": "batch"}, "aggregation = 'batch' is now called reduction = 'mean'"),
        ({"aggregation": "row_mean"}, "aggregation = 'row_mean' is now called reduction = 'row_mean'"),
        ({"shared_aggregation": "sum"}, "shared_aggregation = 'sum' is now called shared_reduction = 'sum'"),
        ({"reduction": "batch"}, "reduction = 'batch' is now called reduction = 'mean'"),
    ],
)
def test_a_former_name_is_refused_with_the_present_one(name: str, former: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=f"strategy '{name}': {message}"):
        STRATEGIES[name].load()({**STRATEGIES[name].presets.get("network", {}), **former})


def test_a_strategy_of_another_package_may_use_the_former_names_as_its_own() -> None:
    class Theirs(StrategySettings):
        aggregation: str = "batch"
        reduction: float = 1.0

    given: dict[str, Any] = {"aggregation": "batch", "reduction": 2.0}
    assert Theirs.parse(given, "theirs").plain() == {**StrategySettings().plain(), **given}
    assert Theirs.renamed(given) == given


def test_a_saved_model_with_the_former_names_learns_on_as_before(tmp_path: Path) -> None:
    past, batch = past_and_batch()
    updater = updater_of("bpr", strategy_of("melon", reduction="mean", shared_reduction="sqrt"), past)
    checkpoint.save(tmp_path, updater)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    settings = manifest["strategy"]["settings"]
    assert settings.pop("reduction") == "mean"
    assert settings.pop("shared_reduction") == "sqrt"
    settings |= {"aggregation": "batch", "shared_aggregation": "sqrt"}
    path.write_text(json.dumps(manifest | {"version": 2, "digest": None}))
    loaded = checkpoint.load(tmp_path).updater
    assert loaded.strategy.settings == updater.strategy.settings
    for one in (updater, loaded):
        one.learn(batch)
    same(state_of(updater), state_of(loaded), "the loaded model differs")
