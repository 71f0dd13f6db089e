"""Rates practised through the stream on the selection windows of streams in $MELON_DATA; test parts are not read.

    python benchmarks/practice.py yelp amazon_book
    STATES=folder FADING=1 python benchmarks/practice.py yelp

Each line is HR@5 + NDCG@10 on what settings are judged by (docs/evaluation.md), before practice (the plain step) and
after it. Pre-training and rates are the tuned ones of configs/*-bpr-default.toml; FADING=1 starts from the best plain
step with fading instead and learns half-lives. STATES names a folder of pre-trained rows, which are written where
they are missing (STREAM-SEED-window.safetensors). GRADIENT=held leaves out how rates depend on rows through the loss.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from accuracy import DATA
from melon.data.files import load_stream
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, refit
from melon.fitting.selection import Selection
from melon.kernels import policy
from melon.strategies.melon.linear import MeLON
from melon.strategies.melon.rates import DECAY_UNIT, LinearRates
from melon.stream.split import DEFAULT_SPLIT, split

CONFIGS = Path(__file__).parents[1] / "configs"
#: The best of 42 plain steps with fading on each window: rate and half-life.
FADES = {
    "amazon_grocery": (0.5, 300.0),
    "amazon_electronics": (0.5, 3_000.0),
    "yelp": (0.3, 30_000.0),
    "amazon_book": (0.3, 10_000.0),
    "news_globo": (0.7, 10_000.0),
}


def main(stream: str, seed: int = 0) -> None:
    torch.set_num_threads(1)
    config = tomllib.loads((CONFIGS / f"{stream}-bpr-default.toml").read_text(encoding="utf-8"))
    log = load_stream(DATA / f"{stream}.parquet")
    parts = split(log, tuple(config.get("split", DEFAULT_SPLIT)))
    plan = Plan("bpr", protocol=EvaluationProtocol(seed))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    start = state_of(plan, selection, config["pretrain_settings"], f"{stream}-{seed}-window.safetensors")
    settings: dict[str, Any] = {"lr": config["settings"]["lr"]}
    if os.environ.get("FADING"):
        settings = dict(zip(("lr", "fading"), FADES[stream], strict=True))
    before = selection.judged(selection.at_window(MeLON, {**settings, "passes": 0}, start))
    began = time.process_time()
    updater = selection.at_window(MeLON, settings, start)
    practised = time.process_time() - began
    after, rates = selection.judged(updater), updater.strategy.rates
    print(f"| {stream} {settings} | {before:.4f} | **{after:.4f}** | {practised:.0f} |", flush=True)
    print(learned(rates), flush=True)


def learned(rates: LinearRates) -> str:
    """What practice made of it: rates of a middling touch by role, what a touch takes away, half-lives, τ."""
    numbers = {name: value.numpy() for name, value in rates.phi.items()}
    shown = {
        "rates": np.exp(numbers["rates"][:, 0]),
        "decay": numbers["decay"] * DECAY_UNIT,
        "half-lives": np.exp(numbers["half_lives"]),
        "τ": np.exp(numbers["temperature"]),
    }
    return "  " + "  ".join(f"{name} {' '.join(f'{each:.3g}' for each in values)}" for name, values in shown.items())


def state_of(plan: Plan, selection: Selection, settings: dict[str, Any], name: str) -> PretrainedState:
    folder = os.environ.get("STATES")
    if folder and (Path(folder) / name).exists():
        tables: dict[str, dict[str, torch.Tensor]] = {}
        for key, value in load_file(Path(folder) / name).items():
            table, part = key.split("/")
            tables.setdefault(table, {})[part] = value
        return PretrainedState(plan, tables, {})
    state = refit(plan, selection.before_window, settings, observed={})
    if folder:
        flat = {
            f"{table}/{part}": value.contiguous()
            for table, parts in state.tables.items()
            for part, value in parts.items()
        }
        save_file(flat, Path(folder) / name)
    return state


def held(loops: SimpleNamespace) -> SimpleNamespace:
    """The loops, with rates that do not follow the loss on the way back."""

    def backward(course: Any, rows: Any, rates: Any, *rest: Any) -> None:
        loops.backward(course, rows, rates._replace(slopes=np.zeros_like(rates.slopes)), *rest)

    return SimpleNamespace(forward=loops.forward, backward=backward)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if os.environ.get("GRADIENT") == "held":
        load = policy.load
        policy.load = lambda name, *rest, **more: held(load(name)) if name == "practice" else load(name, *rest, **more)
    print("| stream | plain step | practised | CPU s |\n|---|---|---|---|", flush=True)
    for each in sys.argv[1:]:
        main(each, int(os.environ.get("SEED", "0")))
