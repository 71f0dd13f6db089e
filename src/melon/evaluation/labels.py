"""How methods are called and coloured, the same in every table and figure.

Strategies and recommenders bring label and colour in their registry entry, so that a plug-in looks like one of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from zlib import crc32

from melon.errors import SettingsError
from melon.models.registry import RECOMMENDERS
from melon.registry import Entry, Registry
from melon.strategies.registry import STRATEGIES

AUTO = "auto"


@dataclass(frozen=True)
class Color:
    """A colour on a light page, and its counterpart on a dark one."""

    light: str
    dark: str


INK, SOFT, LINE = Color("#1c2430", "#e8ecf1"), Color("#667085", "#9aa4b2"), Color("#e4e7ec", "#2c3440")

#: What every result is compared with, and `auto`: these are in no registry.
_OTHERS = {
    "frozen": ("frozen (no update)", Color("#7b8698", "#8d99ab")),
    "popularity": ("popularity", Color("#cba765", "#dcc08c")),
    "recent_popularity": ("recent popularity", Color("#8a6a42", "#cfa974")),
    "own_history": ("own history + popularity", Color("#98a2b3", "#c3cad5")),
    "markov": ("Markov + popularity", Color("#b42318", "#f97066")),
    "sequential_rules": ("sequential rules + popularity", Color("#c4622d", "#f0a27a")),
    "session_knn": ("session kNN + popularity", Color("#2f6f5e", "#86c9b5")),
    "item_knn": ("item-kNN + popularity", Color("#6b2b5e", "#cf9bc6")),
    "mix": ("mix of all simple methods", Color("#44403c", "#d6d3d1")),
    "retrained": ("retrained from scratch", Color("#566179", "#aab6cc")),
    AUTO: (AUTO, Color("#1849a9", "#84adff")),
}
#: For strategies that bring no colour: the same name gets the same one in every report.
_SPARE = (
    Color("#5d6b98", "#9db0e3"),
    Color("#9c4d7f", "#e0a3c9"),
    Color("#3f7f93", "#8fcbdd"),
    Color("#7f6a2b", "#d9c27c"),
    Color("#6b4f9e", "#c1aeea"),
    Color("#4d7f3f", "#a5d698"),
)


def label(method: str) -> str:
    """A method's display name: `melon (paper)` is MeLON (paper); names that are not registered stay as they are."""
    name = base(method)
    entry = _entry(STRATEGIES, name)
    shown = _OTHERS[name][0] if name in _OTHERS else (entry.label if entry else "") or name
    return shown if method == name else shown.removesuffix(" (tuned)") + method.removeprefix(name)


def recommender_label(name: str) -> str:
    """A recommender's display name."""
    entry = _entry(RECOMMENDERS, name)
    return (entry.label if entry else "") or name


def color(method: str) -> Color:
    """A method's colour: its own, or a spare one picked by its name."""
    name = base(method)
    if name in _OTHERS:
        return _OTHERS[name][1]
    entry = _entry(STRATEGIES, name)
    return Color(*entry.color) if entry and entry.color else _SPARE[crc32(name.encode()) % len(_SPARE)]


def css_variable(method: str) -> str:
    """The name of a method's colour in a style sheet."""
    return f"--c-{re.sub('[^a-z0-9]+', '-', base(method).lower()).strip('-') or 'other'}"


def base(method: str) -> str:
    """The strategy in a method's name, without preset or way of pre-training."""
    return method.partition(" (")[0].partition(",")[0]


def _entry(registry: Registry, name: str) -> Entry | None:
    try:
        return registry[name]
    except SettingsError:
        return None
