"""Names, descriptions, presets and search spaces of what can be chosen, known without importing the implementations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from melon.errors import SettingsError, unknown_name

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Space:
    """A declared search space: ordered values for each setting, and the points from which a search starts.

    Neighbouring values of an axis are neighbouring trials, so an axis of learning rates is a log grid.
    """

    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    starts: tuple[Point, ...] = ({},)

    def __post_init__(self) -> None:
        for start in self.starts:
            for name, value in start.items():
                if value not in self.axes.get(name, ()):
                    raise SettingsError(f"a search starts at {name} = {value!r}, which is not on its axis {self.axes}.")


@dataclass(frozen=True)
class Entry:
    """One thing that can be chosen by name."""

    name: str
    summary: str
    target: str
    space: Space = field(default_factory=Space)
    presets: Mapping[str, Point] = field(default_factory=lambda: MappingProxyType({"default": {}}))
    #: How tables and figures call it; without one they use its name.
    label: str = ""
    #: Its colour in figures as hexadecimal RGB, on a light and on a dark page; without one it gets a spare colour.
    color: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        for value in self.color or ():
            if not re.fullmatch("#[0-9a-f]{6}", value):
                raise SettingsError(f"color {value!r} of {self.name!r} must look like '#1f7a4d'.")

    def load(self) -> Any:
        """The class itself."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)

    def preset(self, name: str) -> Point:
        """The settings of a preset."""
        if name not in self.presets:
            raise unknown_name(f"preset of {self.name}", name, self.presets)
        return self.presets[name]


class Registry:
    """Entries by name; other packages add theirs through an entry-point group that yields `Entry` objects."""

    def __init__(self, kind: str, group: str, *entries: Entry) -> None:
        self.kind, self._group = kind, group
        self._entries = {entry.name: entry for entry in entries}
        self._plugins_read = False

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def names(self) -> list[str]:
        """All names, ours first."""
        return list(self._entries)

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries and not self._plugins_read:
            self._read_plugins()
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def add(self, entry: Entry) -> None:
        """Register one more; a name can be taken once."""
        if entry.name in self._entries:
            raise SettingsError(f"there is a {self.kind} named {entry.name!r} already; choose another name.")
        self._entries[entry.name] = entry

    def _read_plugins(self) -> None:
        self._plugins_read = True
        for plugin in entry_points(group=self._group):
            entry = plugin.load()
            if not isinstance(entry, Entry):
                raise SettingsError(
                    f"entry point {plugin.name!r} of {self._group!r} gives {type(entry).__name__}, not a melon Entry."
                )
            self.add(entry)
