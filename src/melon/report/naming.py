"""How methods are called and coloured, in every table and figure alike."""

from __future__ import annotations

from dataclasses import dataclass

from melon.terminal.tables import LABELS

NAMES = {
    **LABELS,
    "default": "Default (tuned)",
    "eals": "eALS",
    "als": "ALS",
    "mwnet": "MWNet",
    "metasgd": "MetaSGD",
    "s2meta": "S2Meta",
    "sml": "SML",
    "melon": "MeLON",
    "melon_i": "MeLON_I",
    "melon_p": "MeLON_P",
}


@dataclass(frozen=True)
class Colour:
    """A colour on white, and its like on a dark page."""

    light: str
    dark: str


INK, SOFT, LINE = Colour("#1c2430", "#e8ecf1"), Colour("#667085", "#9aa4b2"), Colour("#e4e7ec", "#2c3440")

#: Baselines in earth and grey, re-weighting warm, meta-optimisation cool, MeLON green.
COLOURS = {
    "frozen": Colour("#98a2b3", "#7d8899"),
    "popularity": Colour("#b8a287", "#9c8a70"),
    "recent_popularity": Colour("#8a6a42", "#cfa974"),
    "transitions_popularity": Colour("#a58f3d", "#d8c26a"),
    "knn_popularity": Colour("#6d5a3a", "#bfa67c"),
    "frozen_popularity": Colour("#7d7263", "#b3a796"),
    "retrained": Colour("#566179", "#aab6cc"),
    "default": Colour("#344054", "#d3dae4"),
    "eals": Colour("#d9622b", "#ff9d6b"),
    "als": Colour("#a3341c", "#f07f66"),
    "mwnet": Colour("#c58a14", "#f0c256"),
    "metasgd": Colour("#2e6fdb", "#7eb0ff"),
    "s2meta": Colour("#7a4fd0", "#b79bff"),
    "sml": Colour("#c0399f", "#f08ad6"),
    "melon": Colour("#1f7a4d", "#5ecb97"),
    "melon_i": Colour("#8a9a00", "#c8d84e"),
    "melon_p": Colour("#0e9384", "#3fd6c4"),
    "": Colour("#5d6b98", "#9db0e3"),
}


def base(method: str) -> str:
    """The strategy behind a method's name, without preset or manner of pre-training."""
    plain = method.partition(" (")[0].partition(",")[0]
    return plain if plain in NAMES else ""


def colour(method: str) -> Colour:
    """The same method has the same colour everywhere; one that we do not know has the last."""
    return COLOURS[base(method)]


def css_name(method: str) -> str:
    """The colour's name in a style sheet."""
    return f"--c-{base(method).replace('_', '-') or 'other'}"


def label(method: str, recommender: str = "") -> str:
    """A method as readers know it. The paper has no SML on NCF: that one is ours."""
    plain = base(method)
    if not plain:
        return method
    if plain == "sml" and recommender == "ncf":
        return "SML-NCF (ours)" + method.removeprefix(plain)
    if method == plain:
        return NAMES[plain]
    return NAMES[plain].removesuffix(" (tuned)") + method.removeprefix(plain)


def recommender_label(name: str) -> str:
    """BPR and NCF in capitals; others as they are called."""
    return name.upper() if name in ("bpr", "ncf") else name
