"""The registry: names without imports, presets and search spaces that fit the settings, plugins by entry point."""

from types import SimpleNamespace
from typing import Any

import pytest

from melon.errors import SettingsError
from melon.recommenders.base import Recommender
from melon.recommenders.registry import RECOMMENDERS
from melon.registry import Entry, Registry, Space
from melon.strategies.base import Strategy
from melon.strategies.registry import STRATEGIES

OURS = [(registry, entry) for registry in (RECOMMENDERS, STRATEGIES) for entry in registry]
EACH = pytest.mark.parametrize(("registry", "entry"), OURS, ids=[entry.name for _, entry in OURS])


@EACH
def test_an_entry_leads_to_a_class_of_its_name(registry: Registry, entry: Entry) -> None:
    loaded = entry.load()
    assert issubclass(loaded, {"recommender": Recommender, "strategy": Strategy}[registry.kind])
    assert loaded.name == entry.name
    assert registry[entry.name] is entry
    assert entry.summary


@EACH
def test_presets_and_every_point_of_the_space_are_valid_settings(registry: Registry, entry: Entry) -> None:
    settings = entry.load().settings_type
    assert "default" in entry.presets
    for name in entry.presets:
        settings.parse(entry.preset(name), entry.name)
    for start in entry.space.starts:
        settings.parse(start, entry.name)
    for axis, values in entry.space.axes.items():
        assert len(set(values)) == len(values)
        for value in values:
            settings.parse({axis: value}, entry.name)


def test_the_first_two_of_each_are_there() -> None:
    assert RECOMMENDERS.names()[:2] == ["bpr", "ncf"]
    assert STRATEGIES.names()[:2] == ["default", "eals"]


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(SettingsError, match=r"unknown strategy 'defualt'. Did you mean 'default'\? Choose one of: "):
        STRATEGIES["defualt"]
    with pytest.raises(SettingsError, match="unknown preset of bpr 'nope'"):
        RECOMMENDERS["bpr"].preset("nope")


def test_a_search_starts_on_its_axes() -> None:
    Space({"lr": (0.1, 0.2)}, ({"lr": 0.1}, {}))
    with pytest.raises(SettingsError, match=r"starts at lr = 0.3"):
        Space({"lr": (0.1, 0.2)}, ({"lr": 0.3},))
    with pytest.raises(SettingsError, match="starts at rate"):
        Space({"lr": (0.1,)}, ({"rate": 0.1},))


class Plugin(SimpleNamespace):
    """An entry point of another package."""

    def load(self) -> Any:
        return self.gives


class TestPlugins:
    def registry(self, monkeypatch: pytest.MonkeyPatch, *gives: Any) -> Registry:
        plugins = [Plugin(name=f"plugin {number}", gives=one) for number, one in enumerate(gives)]
        monkeypatch.setattr("melon.registry.entry_points", lambda group: plugins if group == "melon.things" else [])
        return Registry("thing", "melon.things", Entry("own", "ours", "json:loads"))

    def test_are_found_when_a_name_is_not_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        theirs = Entry("theirs", "another package's", "json:dumps")
        registry = self.registry(monkeypatch, theirs)
        assert registry["own"].summary == "ours"
        assert registry["theirs"] is theirs
        assert registry["theirs"].load()([1]) == "[1]"
        assert registry.names() == ["own", "theirs"]
        assert [entry.name for entry in registry] == ["own", "theirs"]

    def test_are_among_the_choices_of_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match="Choose one of: own, theirs"):
            self.registry(monkeypatch, Entry("theirs", "", "json:dumps"))["other"]

    def test_must_be_entries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match=r"'plugin 0' of 'melon\.things' gives dict, not a melon Entry"):
            self.registry(monkeypatch, {})["theirs"]

    def test_cannot_take_a_name_that_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match="a thing named 'own' already"):
            self.registry(monkeypatch, Entry("own", "", "json:dumps"))["theirs"]


def test_a_name_can_be_added_once() -> None:
    registry = Registry("thing", "melon.nothing")
    registry.add(Entry("one", "", "json:loads"))
    assert registry.names() == ["one"]
    with pytest.raises(SettingsError, match="choose another name"):
        registry.add(Entry("one", "", "json:loads"))
