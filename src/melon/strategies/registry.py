"""The update strategies that can be chosen by name, with their presets and search spaces."""

from melon.registry import Entry, Registry, Space

_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# With SGD, `mean` is `sum` with a rate n times larger, so one axis of rates serves both; a search that stands at `sum`
# reaches `mean` by its own step.
_STEP_AXES = {"lr": _RATES, "optimizer": ("sgd", "adam_lazy"), "reduction": ("sum", "mean")}
_STEP_STARTS = ({"optimizer": "sgd", "lr": 0.3}, {"optimizer": "adam_lazy", "lr": 0.01})
_PAPER_STEP = {"optimizer": "adam_dense", "reduction": "mean", "lr": 0.001, "weight_decay": 0.001}

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
                "reg": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
                "c0": (32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0),
                "w_new": (1.0, 2.0, 4.0, 8.0, 16.0),
                "alpha": (0.0, 0.2, 0.4, 0.6, 0.8),
            },
            ({"reg": 0.01, "c0": 512.0, "w_new": 1.0, "alpha": 0.4},),
        ),
    ),
)

#: What `--strategies all` means.
ALL_STRATEGIES = ("default", "eals", "mwnet", "metasgd", "s2meta", "sml", "melon", "melon_i", "melon_p")
