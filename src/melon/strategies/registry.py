"""The update strategies that can be chosen by name, with their presets and search spaces."""

from melon.registry import Entry, Registry, Space
from melon.strategies.rates.presets import RATE_PRESETS

#: Half-lives of idle items in interactions, from none at all; searched only where fading is asked for.
FADING = (None, 100_000.0, 30_000.0, 10_000.0, 3_000.0, 1_000.0, 300.0)
_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# With SGD, `mean` is `sum` with a rate n times larger, so one axis of rates serves both; a search that stands at `sum`
# reaches `mean` by its own step.
_STEP_AXES = {"lr": _RATES, "fading": FADING, "optimizer": ("sgd", "adam_lazy"), "reduction": ("sum", "mean")}
_STEP_STARTS = ({"optimizer": "sgd", "lr": 0.3}, {"optimizer": "adam_lazy", "lr": 0.01})
_PAPER_STEP = {"optimizer": "adam_dense", "reduction": "mean", "lr": 0.001, "weight_decay": 0.001}

# `most_rate` bounds what a learned rate can become and is to a learned strategy what `lr` is to a plain one: rates
# start at half of it, so a search begins where plain steps of a usual size would.
_RATE_SPACE = Space(
    {
        "most_rate": (0.06, 0.2, 0.6, 2.0, 6.0),
        "fading": FADING,
        "meta_lr": (0.0003, 0.001, 0.003, 0.01),
        "aggregation": ("sum", "sqrt"),
        "passes": (10, 20),
    },
    ({"most_rate": 0.6, "meta_lr": 0.003}, {"most_rate": 2.0, "meta_lr": 0.003}),
)

STRATEGIES = Registry(
    "strategy",
    "melon.strategies",
    Entry(
        "default",
        "fine-tuning: one gradient step on each incoming batch",
        "melon.strategies.default:Default",
        Space(_STEP_AXES, _STEP_STARTS),
        {"default": {}, "paper": _PAPER_STEP},
    ),
    Entry(
        "eals",
        "re-weighting: fresh interactions count several times as much",
        "melon.strategies.eals:EALS",
        Space(
            {
                **_STEP_AXES,
                "w_new": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
                "neg": ("uniform", "pop"),
                "replay": (0, 64, 256),
            },
            ({"optimizer": "sgd", "lr": 0.1, "w_new": 4.0}, {"optimizer": "adam_lazy", "lr": 0.01, "w_new": 4.0}),
        ),
        {"default": {}, "paper": {**_PAPER_STEP, "w_new": 4.0}},
    ),
    Entry(
        "als",
        "the genuine element-wise ALS solver on matrix-factorisation tables",
        "melon.strategies.als:ALS",
        Space(
            {
                "reg": (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
                "c0": (8.0, 32.0, 128.0, 512.0, 2048.0, 8192.0),
                "w_new": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
                "alpha": (0.0, 0.2, 0.4, 0.6, 0.8),
            },
            (
                {"reg": 3.0, "c0": 128.0, "w_new": 4.0, "alpha": 0.4},
                {"reg": 0.01, "c0": 512.0, "w_new": 1.0, "alpha": 0.4},  # the published driver's
            ),
        ),
    ),
    Entry(
        "melon",
        "a learned rate for every (interaction, parameter) pair",
        "melon.strategies.melon:MeLON",
        _RATE_SPACE,
        RATE_PRESETS,
    ),
    Entry(
        "melon_i",
        "MeLON's ablation with one learned rate per interaction",
        "melon.strategies.melon_i:MeLONI",
        _RATE_SPACE,
        RATE_PRESETS,
    ),
    Entry(
        "melon_p",
        "MeLON's ablation with one learned rate per parameter",
        "melon.strategies.melon_p:MeLONP",
        _RATE_SPACE,
        RATE_PRESETS,
    ),
)

#: What `--strategies all` means.
ALL_STRATEGIES = ("default", "eals", "mwnet", "metasgd", "s2meta", "sml", "melon", "melon_i", "melon_p")
