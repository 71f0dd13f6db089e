"""Element-wise ALS on a real stream: CPU time per offline iteration and per online batch, and HR@5 beside frozen.

MELON_DATA=… python benchmarks/als.py yelp --split 0.95,0.005,0.045 --set w_new=4 --set reg=0.1
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from melon.data.interactions import Interactions
from melon.learning.pretrain import pretrain_by_strategy
from melon.learning.updater import Updater
from melon.recommenders.bpr import BPR
from melon.strategies.als.strategy import ALS
from melon.stream.batch import batch_of
from melon.stream.candidates import Candidates
from melon.stream.history import History
from melon.stream.split import BATCH_SIZE, batches, parse_split, split

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).resolve().parents[1] / "../shared/data"))
SPLITS = {"amazon_grocery": "0.8,0.02,0.18", "amazon_electronics": "0.9,0.01,0.09"}


def prequential(log: Interactions, updater: Updater, start: int, *, learn: bool = True) -> tuple[float, float]:
    """HR@5 on events from `start` on (1 + 99 candidates, mid-rank ties), and the median CPU ms of an update."""
    candidates = Candidates(log, seed=0)
    hits, spent = [], []
    for first, stop in batches(start, len(log)):
        drawn = candidates.draw(first, stop)
        scores = updater.score(log.users[first:stop], drawn.items, int(log.times[first]))
        above = (scores[:, 1:] > scores[:, :1]).sum(1) + 0.5 * (scores[:, 1:] == scores[:, :1]).sum(1)
        hits.append((above < 5)[drawn.usable])
        if learn:
            began = time.process_time()
            updater.learn(batch_of(log, first, stop))
            spent.append(time.process_time() - began)
    return float(np.concatenate(hits).mean()), 1e3 * float(np.median(spent)) if spent else 0.0


def trained(log: Interactions, settings: dict[str, Any], dim: int) -> tuple[Updater, float]:
    """A recommender that ALS has trained on the log from the start, ready to stream, and the CPU seconds that took."""
    recommender, strategy = BPR({"dim": dim}), ALS(settings)
    began = time.process_time()
    pretrain_by_strategy(strategy, recommender, log)
    spent = time.process_time() - began
    history = History()
    history.append(log.users, log.items)
    return Updater(recommender, strategy, history), spent


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", nargs="?", default="yelp")
    parser.add_argument("--split")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validation", action="store_true", help="stop before the test part: for choosing settings")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    settings = {key: float(value) for key, value in (one.split("=") for one in asked.set)}
    frame = pl.read_parquet(DATA / f"{asked.stream}.parquet")
    log = Interactions.from_ids(*(frame[name].to_numpy() for name in ("user", "item", "ts")))
    parts = split(log, parse_split(asked.split or SPLITS.get(asked.stream, "0.95,0.005,0.045")))
    train_stop, start = parts.train_stop, parts.validation_stop
    if asked.validation:
        log, train_stop, start = log.head(parts.validation_stop), parts.judged_from, parts.judged_from

    updater, offline = trained(log.head(train_stop), settings, asked.dim)
    iterations = updater.strategy.settings.iterations
    print(f"{asked.stream}: {train_stop:,} interactions, {log.n_users:,} users, {log.n_items:,} items, d = {asked.dim}")
    print(f"settings: {updater.strategy.settings.plain()}")
    print(f"offline: {offline:.1f} s of CPU, {offline / max(iterations, 1):.3f} s per iteration")
    frozen, _ = prequential(log, updater, start, learn=False)
    for first, stop in batches(train_stop, start):
        updater.learn(batch_of(log, first, stop))
    online, update_ms = prequential(log, updater, start)
    print(f"online: {update_ms:.1f} ms of CPU per batch of {BATCH_SIZE}")
    print(f"HR@5 on {len(log) - start:,} events: frozen {frozen:.4f}, als {online:.4f}")


if __name__ == "__main__":
    main()
