"""The strategies by name: descriptions, search spaces, presets, labels and colours, without importing any of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from melon.registry import Entry, Form, Registry, Space

if TYPE_CHECKING:
    from melon.strategies.base import Strategy

#: Of MeLON and its ablations: the rate model meta-trained through the stream; the paper; and its published code. The
#: last two leave nothing to a search: what the paper does not say, its code does, and `passes`, which neither has, is
#: our default. Time decay is part of none: where it is asked for, each learns its half-lives.
MELON_PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    "paper": {"form": "paper", "cold": "current"},
    "code": {"form": "code", "keep_prelim": True, "cold": "current"},
}

#: Of the other learned strategies: they start at the plain step and are meta-trained through the stream as MeLON is.
#: Rates of MWNet and MetaSGD are then restrictions of MeLON's; S2Meta and SML keep their networks.
STREAM_TRAINED: dict[str, object] = {"form": "stream"}

#: What works best, and the cell as published, with one step for each batch.
S2META_PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    "paper": {
        "width": 16,
        "reduction": "mean",
        "shared_reduction": "mean",
        "shared_scale": 1.0,
        "most_rate": 1.0,
        "rate_bias": 0.0,
        "forgetting": True,
        "shared_forgetting": True,
        "forget_bias": 5.0,
        "clamp": 1.0,
        "passes": 10,
        "gate_init": "xavier",
        "meta_lr": 1e-4,
        "meta_weight_decay": 1e-5,
        "meta_clip": 0.25,
        "meta_clip_entries": True,
        "cold": "current",
    },
    "stream": STREAM_TRAINED,
}


#: Half-lives of idle items in interactions, from none at all; searched only where time decay is asked for.
HALF_LIVES = (None, 100_000.0, 30_000.0, 10_000.0, 3_000.0, 1_000.0, 300.0)
# Finer where plain steps work: between 0.3 and 1 lies the best of them on most streams.
_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 3.0, 10.0)
# With SGD, `mean` is `sum` with a rate n times larger, so one axis of rates serves both; a search that stands at `sum`
# reaches `mean` by its own step.
_STEP_AXES = {"lr": _RATES, "half_life": HALF_LIVES, "optimizer": ("sgd", "adam_lazy"), "reduction": ("sum", "mean")}
_STEP_STARTS = ({"optimizer": "sgd", "lr": 0.3}, {"optimizer": "adam_lazy", "lr": 0.01})
_PAPER_STEP = {"optimizer": "adam_dense", "reduction": "mean", "lr": 0.001, "weight_decay": 0.001}

# The plain step from which meta-training starts; the rest is learned.
_LINEAR_SPACE = Space(
    {"lr": (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 3.0), "half_life": HALF_LIVES}, ({"lr": 0.3}, {"lr": 0.7})
)


def _published(name: str) -> dict[str, Form]:
    """Both published forms of MeLON or an ablation; only time decay is open in them."""
    form = Form(f"melon.strategies.melon.published:{name}", Space({"half_life": HALF_LIVES}, ({},)))
    return {"paper": form, "code": form}


_PAPER_SML = {
    "residual": False,
    "width": 512,
    "optimizer": "adam_lazy",
    "lr": 0.01,
    "weight_decay": 1e-6,
    "reduction": "mean",
    "shared_reduction": "mean",
    "meta_lr": 1e-3,
    "meta_weight_decay": 1e-4,
    "cold": "current",
}

_ENTRIES = (
    Entry(
        "default",
        "fine-tuning: one gradient step on each incoming batch",
        "melon.strategies.default:Default",
        Space(_STEP_AXES, _STEP_STARTS),
        {"default": {}, "paper": _PAPER_STEP},
        in_comparison=True,
        label="default steps (tuned)",
        color=("#344054", "#d3dae4"),
    ),
    Entry(
        "eals",
        "re-weighting: fresh interactions count several times as much",
        "melon.strategies.eals:EALS",
        Space(
            {
                **_STEP_AXES,
                "w_new": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
            },
            ({"optimizer": "sgd", "lr": 0.1, "w_new": 4.0}, {"optimizer": "adam_lazy", "lr": 0.01, "w_new": 4.0}),
        ),
        {"default": {}, "paper": {**_PAPER_STEP, "w_new": 4.0}},
        in_comparison=True,
        label="eALS",
        color=("#d9622b", "#ff9d6b"),
    ),
    Entry(
        "mwnet",
        "a learned weight for every interaction, from its loss",
        "melon.strategies.mwnet:MWNet",
        Space(
            {
                "lr": _RATES,
                "half_life": HALF_LIVES,
                "normalise": (False, True),
                "virtual_lr": (None, 0.6, 1.0, 3.0),
                "meta_lr": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
                "optimizer": ("sgd", "adam_lazy"),
            },
            ({"lr": 0.3, "meta_lr": 0.003}, {"lr": 0.3, "meta_lr": 0.01, "normalise": True, "virtual_lr": 0.6}),
        ),
        {
            "default": {},
            "paper": {
                **_PAPER_STEP,
                "most_weight": 1.0,
                "normalise": False,
                "init": "drawn",
                "virtual_lr": 0.001,
                "virtual_reduction": "mean",
                "meta_lr": 0.001,
                "meta_weight_decay": 0.0001,
                "cold": "current",
            },
            "stream": STREAM_TRAINED,
        },
        forms={"stream": Form("melon.strategies.stream_trained:StreamTrainedMWNet", _LINEAR_SPACE)},
        in_comparison=True,
        label="MWNet",
        color=("#c58a14", "#f0c256"),
    ),
    Entry(
        "metasgd",
        "a learned rate for every parameter, kept row by row",
        "melon.strategies.metasgd:MetaSGD",
        Space(
            {
                "alpha_init": _RATES,
                "half_life": HALF_LIVES,
                "meta_lr": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
                "share": ("scalar", "dim"),
                "reduction": ("sum", "row_mean"),
            },
            ({"alpha_init": 0.3, "meta_lr": 0.01}, {"alpha_init": 0.3, "meta_lr": 0.003, "share": "dim"}),
        ),
        {
            "default": {},
            "paper": {
                "share": "scalar",
                "alpha_init": 0.05,
                "alpha_param": "raw",
                "reduction": "mean",
                "shared_reduction": "mean",
                "meta_lr": 0.001,
                "cold": "current",
            },
            "stream": STREAM_TRAINED,
        },
        forms={"stream": Form("melon.strategies.stream_trained:StreamTrainedMetaSGD", _LINEAR_SPACE)},
        in_comparison=True,
        label="MetaSGD",
        color=("#2e6fdb", "#7eb0ff"),
    ),
    Entry(
        "s2meta",
        "learned gates for every parameter, from a small LSTM",
        "melon.strategies.s2meta:S2Meta",
        Space(
            {
                "most_rate": (0.06, 0.2, 0.6, 2.0, 6.0),
                "half_life": HALF_LIVES,
                "meta_lr": (0.0003, 0.001, 0.003, 0.01, 0.03),
                "clamp": (None, 1.0),
                "passes": (10, 20),
            },
            ({"most_rate": 0.6, "meta_lr": 0.003}, {"most_rate": 2.0, "meta_lr": 0.003}),
        ),
        S2META_PRESETS,
        forms={"stream": Form("melon.strategies.s2meta:StreamTrainedS2Meta", _LINEAR_SPACE)},
        in_comparison=True,
        label="S2Meta",
        color=("#7a4fd0", "#b79bff"),
    ),
    Entry(
        "sml",
        "fine-tuning, and a learned transfer that merges each row before and after",
        "melon.strategies.sml:SML",
        Space(
            {
                "lr": _RATES,
                "half_life": HALF_LIVES,
                "meta_lr": (0.0001, 0.0003, 0.001, 0.003, 0.01),
                "optimizer": ("sgd", "adam_lazy"),
            },
            ({"lr": 0.3, "meta_lr": 0.001}, {"lr": 1.0, "meta_lr": 0.001}),
        ),
        {"default": {}, "paper": _PAPER_SML, "stream": STREAM_TRAINED},
        forms={"stream": Form("melon.strategies.sml:StreamTrainedSML", _LINEAR_SPACE)},
        in_comparison=True,
        label="SML",
        color=("#c0399f", "#f08ad6"),
    ),
    Entry(
        "melon",
        "a learned rate for every (interaction, parameter) pair",
        "melon.strategies.melon.stream:MeLON",
        _LINEAR_SPACE,
        MELON_PRESETS,
        forms=_published("PublishedMeLON"),
        in_comparison=True,
        label="MeLON",
        color=("#1f7a4d", "#5ecb97"),
    ),
    Entry(
        "melon_i",
        "MeLON's ablation with one learned rate per interaction",
        "melon.strategies.melon.stream:MeLONI",
        _LINEAR_SPACE,
        MELON_PRESETS,
        forms=_published("PublishedMeLONI"),
        in_comparison=True,
        label="MeLON_I",
        color=("#8a9a00", "#c8d84e"),
    ),
    Entry(
        "melon_p",
        "MeLON's ablation with one learned rate per parameter",
        "melon.strategies.melon.stream:MeLONP",
        _LINEAR_SPACE,
        MELON_PRESETS,
        forms=_published("PublishedMeLONP"),
        in_comparison=True,
        label="MeLON_P",
        color=("#0e9384", "#3fd6c4"),
    ),
)

STRATEGIES = Registry("strategy", "melon.strategies", *_ENTRIES)

#: What `--strategies all` means.
ALL_STRATEGIES = tuple(entry.name for entry in _ENTRIES if entry.in_comparison)


def space_of(strategy: str | type[Strategy], fixed: Mapping[str, Any] = MappingProxyType({})) -> Space:
    """The search space of a strategy with some settings fixed: its entry's, or else the one that its class declares.

    A space without axes means that there is nothing to search, and that the strategy is compared as it is.
    """
    if isinstance(strategy, str):
        entry = STRATEGIES[strategy]
        space = entry.forms.get(str(fixed.get("form")), entry).space
        return space if space.axes else space_of(entry.load(), fixed)
    if strategy.space.axes:
        return strategy.space
    target = f"{strategy.__module__}:{strategy.__qualname__}"
    name = next((entry.name for entry in _ENTRIES if entry.target == target), None)
    return Space() if name is None else space_of(name, fixed)
