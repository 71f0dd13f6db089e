"""Display names and colours: from the registry's entry, for plug-ins as for ours."""

import pytest

from melon.errors import SettingsError
from melon.evaluation.labels import _OTHERS, Color, base, color, css_variable, label, recommender_label
from melon.registry import Entry, Registry
from melon.strategies.registry import STRATEGIES


def test_strategies_bring_their_label_and_color() -> None:
    assert label("melon") == "MeLON"
    assert label("melon (paper)") == "MeLON (paper)"
    assert label("default") == "default steps (tuned)"
    assert label("default, own pre-training") == "default steps, own pre-training"
    assert (recommender_label("bpr"), recommender_label("blend"), recommender_label("theirs")) == (
        "BPR",
        "blend",
        "theirs",
    )
    assert color("melon (paper)") == color("melon") == Color("#1f7a4d", "#5ecb97")


def test_colors_of_ours_are_all_different() -> None:
    lights = [color(name).light for name in (*STRATEGIES.names(), *_OTHERS)]
    assert len(set(lights)) == len(lights)  # a page finds a method's colour by it


def test_a_plug_in_looks_like_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry("strategy", "melon.nothing", *STRATEGIES)
    registry.add(Entry("tanhstep", "theirs", "json:loads", label="Tanh step", color=("#123456", "#abcdef")))
    registry.add(Entry("plain", "theirs", "json:loads"))
    monkeypatch.setattr("melon.evaluation.labels.STRATEGIES", registry)
    assert label("tanhstep (quick)") == "Tanh step (quick)"
    assert color("tanhstep") == Color("#123456", "#abcdef")
    assert label("plain") == "plain"
    assert color("plain") == color("plain (quick)")


def test_what_nobody_registered_keeps_its_name() -> None:
    assert label("my <b>odd</b> strategy") == "my <b>odd</b> strategy"
    assert base("x (paper)") == "x"
    assert css_variable("x; } </style><script>") == "--c-x-style-script"
    assert css_variable("<>") == "--c-other"


def test_a_color_must_be_one() -> None:
    with pytest.raises(SettingsError, match="must look like '#1f7a4d'"):
        Entry("theirs", "", "json:loads", color=("red", "#abcdef"))
