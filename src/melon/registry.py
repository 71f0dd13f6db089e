"""Names, descriptions, presets and search spaces of what can be chosen, known without importing the implementations."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from melon.errors import MissingExtraError, SettingsError, require_torch, unknown_name

SearchPoint = Mapping[str, Any]


def exported(package: str, homes: Mapping[str, str], torch: tuple[str, ...] = ()) -> Any:
    """`__getattr__` and `__dir__` of a package whose names are imported when they are first used, from these modules.

    Those of the modules in `torch` need PyTorch.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] in torch:
            require_torch(f"{package}.{name}")
        return getattr(import_module(homes[name]), name)

    return get, lambda: sorted(homes)


@dataclass(frozen=True)
class Space:
    """A declared search space: ordered values for each setting, and the points from which a search starts.

    Neighbouring values of an axis are neighbouring trials, so an axis of learning rates is a log grid.
    """

    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    starts: tuple[SearchPoint, ...] = ({},)

    def __post_init__(self) -> None:
        for start in self.starts:
            for name, value in start.items():
                if value not in self.axes.get(name, ()):
                    raise SettingsError(f"a search starts at {name} = {value!r}, which is not on its axis {self.axes}.")

    def without(self, name: str, value: object) -> Space:
        """The space without one value of an axis."""
        values = tuple(each for each in self.axes[name] if each != value)
        return Space({**self.axes, name: values}, tuple(start for start in self.starts if start.get(name) != value))


@dataclass(frozen=True)
class Form:
    """Another class behind a name, with a search space of its own."""

    target: str
    space: Space = field(default_factory=Space)


@dataclass(frozen=True)
class Entry:
    """One thing that can be chosen by name."""

    name: str
    summary: str
    target: str
    #: An entry without a search space is tuned by the one that its class declares, if any (`space_of`).
    space: Space = field(default_factory=Space)
    presets: Mapping[str, SearchPoint] = field(default_factory=lambda: MappingProxyType({"default": {}}))
    #: Whether `--strategies all` includes it.
    in_comparison: bool = False
    #: Of a recommender: whether it has tables that a strategy updates; otherwise it learns by observing alone.
    driven: bool = True
    #: How tables and figures call it; without one they use its name.
    label: str = ""
    #: Its colour in figures as hexadecimal RGB, on a light and on a dark page; without one it gets a spare colour.
    color: tuple[str, str] | None = None
    #: Its other forms, by the value of the setting `form`.
    forms: Mapping[str, Form] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for value in self.color or ():
            if not re.fullmatch("#[0-9a-f]{6}", value):
                raise SettingsError(f"color {value!r} of {self.name!r} must look like '#1f7a4d'.")

    def load(self, form: object = None) -> Any:
        """The class itself, or that of another form."""
        module, _, attribute = self.forms.get(str(form), self).target.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            without = [f"preset {name}" for name, preset in self.presets.items() if preset.get("form") == "stream"]
            hint = f" ({', '.join(without)} does without)" if without and form is None else ""
            raise MissingExtraError(f"{self.label or self.name} (named {self.name!r}){hint}", "torch") from None

    def make(self, settings: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        """One with these settings; their `form` chooses the class."""
        given = settings or {}
        return self.load(given.get("form"))(given, **arguments)

    def preset(self, name: str) -> SearchPoint:
        """The settings of a preset."""
        if name not in self.presets:
            raise unknown_name(f"preset of {self.name}", name, self.presets)
        return self.presets[name]


class Registry:
    """Entries by name; other packages add theirs through an entry-point group.

    An entry point has the name of its `Entry` and leads to it: `tanhstep = "my_package.registry:TANHSTEP"`. Listing
    names reads the names of entry points only; the entry itself is imported when it is asked for.
    """

    def __init__(self, kind: str, group: str, *entries: Entry) -> None:
        self.kind, self._group = kind, group
        self._entries = {entry.name: entry for entry in entries}
        self._plugins: dict[str, EntryPoint] | None = None

    def __iter__(self) -> Iterator[Entry]:
        for name in self.names():
            yield self[name]

    def names(self) -> list[str]:
        """All names, ours first; plug-ins are not imported."""
        return list(dict.fromkeys([*self._entries, *self._plugin_points()]))

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            plugin = self._plugin_points().get(name)
            if plugin is None:
                raise unknown_name(self.kind, name, self.names())
            self.add(self._loaded(plugin))
        return self._entries[name]

    def add(self, entry: Entry) -> None:
        """Register one more; a name can be taken once."""
        if entry.name in self._entries:
            raise SettingsError(f"a {self.kind} named {entry.name!r} exists already; choose another name.")
        self._entries[entry.name] = entry

    @contextmanager
    def lent(self, entry: Entry) -> Iterator[None]:
        """Know one more entry inside the block."""
        self.add(entry)
        try:
            yield
        finally:
            del self._entries[entry.name]

    def _plugin_points(self) -> dict[str, EntryPoint]:
        """Entry points of other packages by name; a name that melon has already stays melon's, with a warning."""
        if self._plugins is None:
            self._plugins = {}
            for plugin in entry_points(group=self._group):
                if plugin.name in self._entries:
                    warnings.warn(
                        f"the {self.kind} {plugin.name!r} of {plugin.value!r} is ignored: melon has one of this name. "
                        f"Rename the entry point of {self._group!r} and its Entry.",
                        stacklevel=2,
                    )
                else:
                    self._plugins[plugin.name] = plugin
        return self._plugins

    def _loaded(self, plugin: EntryPoint) -> Entry:
        entry = plugin.load()
        place = f"entry point {plugin.name!r} of {self._group!r}"
        if not isinstance(entry, Entry):
            raise SettingsError(f"{place} gives {type(entry).__name__}, not a melon Entry.")
        if entry.name != plugin.name:
            raise SettingsError(f"{place} gives an Entry named {entry.name!r}; give both the same name.")
        return entry
