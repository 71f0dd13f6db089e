"""The registry: names without imports, presets and search spaces that fit the settings, plugins by entry point."""

from types import SimpleNamespace
from typing import Any

import pytest

from melon.errors import SettingsError
from melon.models.base import Recommender
from melon.models.registry import RECOMMENDERS
from melon.registry import Entry, Registry, Space
from melon.settings import Settings
from melon.strategies.base import Strategy
from melon.strategies.default import Default
from melon.strategies.registry import ALL_STRATEGIES, STRATEGIES, space_of

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
    make = entry.make
    assert "default" in entry.presets
    for name in entry.presets:
        make(entry.preset(name))
    spaces = [(entry.space, {}), *((other.space, {"form": form}) for form, other in entry.forms.items())]
    for space, form in spaces:
        for start in space.starts:
            make({**form, **start})
        for axis, values in space.axes.items():
            assert len(set(values)) == len(values)
            for value in values:
                make({**form, axis: value})


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

    value = "theirs.registry:ENTRY"

    def load(self) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


THEIRS = Entry("theirs", "another package's", "json:dumps")


class TestPlugins:
    def registry(self, monkeypatch: pytest.MonkeyPatch, **gives: Any) -> Registry:
        plugins = [Plugin(name=name, gives=one) for name, one in gives.items()]
        monkeypatch.setattr("melon.registry.entry_points", lambda group: plugins if group == "melon.things" else [])
        return Registry("thing", "melon.things", Entry("own", "ours", "json:loads"))

    def test_are_found_when_a_name_is_not_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        registry = self.registry(monkeypatch, theirs=THEIRS)
        assert registry["own"].summary == "ours"
        assert registry["theirs"] is THEIRS
        assert registry["theirs"].load()([1]) == "[1]"
        assert registry.names() == ["own", "theirs"]

    def test_are_listed_before_they_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.registry(monkeypatch, theirs=THEIRS).names() == ["own", "theirs"]
        assert [entry.name for entry in self.registry(monkeypatch, theirs=THEIRS)] == ["own", "theirs"]

    def test_are_listed_without_being_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        registry = self.registry(monkeypatch, broken=ImportError("torch is missing"), theirs=THEIRS)
        assert registry.names() == ["own", "broken", "theirs"]
        assert registry["theirs"] is THEIRS
        with pytest.raises(ImportError, match="torch is missing"):
            registry["broken"]

    def test_are_among_the_choices_of_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match="Choose one of: own, theirs"):
            self.registry(monkeypatch, theirs=THEIRS)["other"]

    def test_must_be_entries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match=r"'theirs' of 'melon\.things' gives dict, not a melon Entry"):
            self.registry(monkeypatch, theirs={})["theirs"]

    def test_have_the_name_of_their_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match=r"'other' of .* gives an Entry named 'theirs'; give both"):
            self.registry(monkeypatch, other=THEIRS)["other"]

    def test_cannot_take_a_name_that_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        registry = self.registry(monkeypatch, own=THEIRS)
        with pytest.warns(UserWarning, match=r"the thing 'own' of 'theirs.registry:ENTRY' is ignored"):
            assert registry.names() == ["own"]
        assert registry["own"].summary == "ours"


class Searched(Default):
    """A strategy that its author registered nowhere."""

    name = "searched"
    space = Space({"lr": (0.1, 0.2)})


class TestSearchSpaces:
    def test_a_name_has_that_of_its_entry(self) -> None:
        assert space_of("default") is STRATEGIES["default"].space
        assert space_of("eals").axes

    def test_a_class_has_the_one_that_it_declares(self) -> None:
        assert space_of(Searched) is Searched.space

    def test_our_own_class_has_that_of_its_entry(self) -> None:
        assert space_of(Default) is STRATEGIES["default"].space
        assert all(space_of(entry.load()) is entry.space for entry in STRATEGIES)

    def test_an_entry_without_one_has_that_of_its_class(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(STRATEGIES, "_entries", dict(STRATEGIES._entries))
        STRATEGIES.add(Entry("searched", "another one", f"{__name__}:Searched"))
        assert space_of("searched") is Searched.space
        STRATEGIES.add(Entry("wider", "another one", f"{__name__}:Searched", Space({"lr": (0.1, 0.2, 0.3)})))
        assert len(space_of("wider").axes["lr"]) == 3

    def test_some_have_none(self) -> None:
        assert not space_of(type("Bare", (Searched,), {"space": Space()})).axes


def test_all_strategies_are_those_of_the_comparison() -> None:
    assert ALL_STRATEGIES == ("default", "eals", "mwnet", "metasgd", "s2meta", "sml", "melon", "melon_i", "melon_p")


def test_settings_that_are_no_strategy_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="'bare': settings_type is Settings; derive it from"):
        type("Bare", (Default,), {"name": "bare", "settings_type": Settings})()


def test_a_name_can_be_added_once() -> None:
    registry = Registry("thing", "melon.nothing")
    registry.add(Entry("one", "", "json:loads"))
    assert registry.names() == ["one"]
    with pytest.raises(SettingsError, match="choose another name"):
        registry.add(Entry("one", "", "json:loads"))


@pytest.mark.parametrize("name", [entry.name for entry in STRATEGIES if "paper" in entry.presets])
def test_a_published_preset_leaves_nothing_to_a_search(name: str) -> None:
    """What the paper fixes is fixed; time decay is part of none and is searched only where it is asked for."""
    entry = STRATEGIES[name]
    for preset in {"paper", "code"} & set(entry.presets):
        settings = entry.preset(preset)
        assert space_of(name, settings).axes.keys() - {"half_life"} <= settings.keys(), preset
        assert entry.make(settings) is not None
