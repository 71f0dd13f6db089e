"""Rates meta-trained through the stream on the selection windows of streams in $MELON_DATA; test parts are not read.

    python research/benchmarks/meta_training.py yelp amazon_book
    python research/benchmarks/meta_training.py yelp --arms melon melon:decay=false melon:inputs=age,idle mwnet mwnet:form=stream
    python research/benchmarks/meta_training.py yelp --recommender ncf --arms default mwnet melon
    STATES=folder HALF_LIVES=1 python research/benchmarks/meta_training.py yelp

Each line is HR@5 + NDCG@10 on what settings are judged by (docs/evaluation.md). An arm is a strategy with its settings
in configs/ and what is given besides; with form=stream (mwnet, metasgd, s2meta, sml) a published
strategy is meta-trained through the stream too, from the tuned plain step.
The first score is that of a recommender from before the window which goes on; where weights are shared there is a
second one, of a recommender that was trained again before the judged part. HALF_LIVES=1 takes research/configs/half_life, where
half-lives are learned. DRAWS=4 gives means over that many draws of online negatives and candidates, the first of which
is the project's. STATES names a folder of pre-trained rows, which are written where they are missing.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from safetensors.numpy import load_file, save_file

from accuracy import DATA
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.fitting.config import CellConfig, parse_assignments, read_config
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, deploy, refit
from melon.fitting.selection import Selection
from melon.learning.updater import Updater
from melon.strategies.melon.rates import DECAY_UNIT, RateParameters
from melon.strategies.stream_trained import StreamTrainedStrategy
from melon.stream.candidates import Candidates
from melon.stream.draws import Draws
from melon.stream.split import DEFAULT_SPLIT, split

CONFIGS = Path(__file__).parents[1] / "configs"
STREAMS = ("amazon_grocery", "amazon_electronics", "yelp", "amazon_book", "news_globo")


def main(stream: str, recommender: str, arms: list[str], seed: int = 0) -> None:
    folder = CONFIGS / "half_life" if os.environ.get("HALF_LIVES") else CONFIGS
    config = read_config(folder / f"{stream}-{recommender}-default.toml")
    log = load_stream(DATA / f"{stream}.parquet")
    parts = split(log, tuple(config.get("split", DEFAULT_SPLIT)))
    plan = Plan(recommender, protocol=EvaluationProtocol(seed))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    name, pretraining = f"{recommender}-{stream}-{seed}", config["pretrain_settings"]
    start = state_of(plan, selection.before_window, pretraining, f"{name}-window.safetensors")
    again = None
    if selection.judges_again:
        again = state_of(plan, selection.before_judged, pretraining, f"{name}-again.safetensors")
    for arm in arms:
        strategy, _, assigned = arm.partition(":")
        given = parse_assignments([one for one in re.split(r",(?=\w+=)", assigned) if one])["strategy"]
        own = folder / f"{stream}-{recommender}-{strategy}.toml"
        if given.get("form") == "stream" or not own.exists():
            tuned = read_config(
                own if strategy.startswith("melon") else folder / f"{stream}-{recommender}-default.toml"
            )
            tuned["settings"] = {k: v for k, v in tuned["settings"].items() if k in ("lr", "most_step", "half_life")}
        else:
            tuned = read_config(own)
        settings = {**CellConfig(**tuned).fixed, **given}
        began = time.process_time()
        updater = selection.at_window(strategy, settings, start)
        stream_trained, meta_training = time.process_time() - began, updater.meta_training()
        draws = [selection.judged(updater)]
        for number in range(1, int(os.environ.get("DRAWS", "1"))):
            live = deploy(plan.make_strategy(settings, strategy), start, selection.before_window, meta_training)
            draws.append(judged_by_another_draw(selection, live, number))
        selection._candidates = None
        scores = [f"{np.mean(draws):.4f}" + (f" ({' '.join(f'{each:.4f}' for each in draws)})" if draws[1:] else "")]
        if again is not None:
            deployed = deploy(plan.make_strategy(settings, strategy), again, selection.before_judged, meta_training)
            scores.append(f"{selection.judged(deployed):.4f}")
        print(f"| {stream}, {arm} | {' | '.join(scores)} | {stream_trained:.0f} |", flush=True)
        if isinstance(updater.strategy, StreamTrainedStrategy):
            print(learned(updater.strategy.rates), flush=True)


def judged_by_another_draw(selection: Selection, updater: Updater, number: int) -> float:
    """The score with other online negatives and other candidates than the project's own."""
    seed = selection.protocol.seed + 500 + number
    updater._steps._offers._negatives = Draws(seed, "training negatives")
    selection._candidates = Candidates(selection.log, seed=seed, count=selection.protocol.negatives)
    return selection.judged(updater)


def learned(rates: RateParameters) -> str:
    """What meta-training made of it: rates of a middling touch by role, what a touch takes away, half-lives, τ."""
    numbers = rates.phi
    shown = {
        "rates": np.exp(numbers["facts"][:, 0]),
        "decay": numbers["decay"] * DECAY_UNIT,
        "half-lives": np.exp(numbers["half_lives"]),
        "τ": np.exp(numbers["temperature"]),
    }
    return "  " + "  ".join(f"{name} {' '.join(f'{each:.3g}' for each in values)}" for name, values in shown.items())


def state_of(plan: Plan, log: Interactions, settings: dict[str, Any], name: str) -> PretrainedState:
    folder = os.environ.get("STATES")
    if folder and (Path(folder) / name).exists():
        tables: dict[str, dict[str, Any]] = {}
        for key, value in load_file(Path(folder) / name).items():
            table, part = key.split("/")
            tables.setdefault(table, {})[part] = value
        return PretrainedState(plan, tables, {})
    state = refit(plan, log, settings, observed={})
    if folder:
        flat = {f"{table}/{part}": value for table, parts in state.tables.items() for part, value in parts.items()}
        save_file(flat, Path(folder) / name)
    return state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="+")
    parser.add_argument("--recommender", default="bpr")
    parser.add_argument("--arms", nargs="+", default=["default", "melon"])
    asked = parser.parse_args()
    print("| stream, arm | going on | (trained again) | CPU s of meta-training |\n|---|---|---|---|", flush=True)
    for each in asked.streams:
        main(each, asked.recommender, asked.arms, int(os.environ.get("SEED", "0")))
