"""Pre-training speed: interactions per CPU second in compiled kernels.

    python benchmarks/pretrain.py
    python benchmarks/pretrain.py --threads 2

A made-up log of MovieLens-1M's size (6,022 users, 3,043 items, 950 thousand interactions, skewed counts), d = 64,
batches of 256. Each figure is the median of several epochs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from melon.data.interactions import Interactions
from melon.kernels.threads import allowed, use_threads
from melon.learning.pretrain import Pretraining, PretrainSettings
from melon.models.registry import RECOMMENDERS

CASES = (("bpr", 1), ("bpr", 4), ("ncf", 1))


def skewed_log(users: int, items: int, interactions: int, seed: int = 0) -> Interactions:
    """Users and items taken about as unevenly as in MovieLens; a user takes an item once."""
    rng = np.random.default_rng(seed)
    activity, appeal = (1 / (np.arange(n) + 0.02 * n) for n in (users, items))
    drawn = 2 * interactions
    pairs = rng.choice(users, drawn, p=activity / activity.sum()) * items
    pairs += rng.choice(items, drawn, p=appeal / appeal.sum())
    _, first = np.unique(pairs, return_index=True)
    pairs = pairs[np.sort(first)][:interactions]
    return Interactions.from_ids(pairs // items, pairs % items, np.arange(len(pairs)))


def speed(name: str, negatives: int, log: Interactions, epochs: int) -> float:
    """Interactions per second of the process's CPU time (of wall clock with several threads)."""
    recommender = RECOMMENDERS[name].load()({"negatives": negatives, "dim": 64}, seed=0)
    training = Pretraining(recommender, log, PretrainSettings(), seed=0)
    clock = time.process_time if allowed() == 1 else time.perf_counter
    took = []
    for _ in range(epochs + 1):
        began = clock()
        training.epoch()
        took.append(clock() - began)
    return len(log) / statistics.median(took[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    use_threads(given.threads)
    log = skewed_log(6_022, 3_043, 950_000)
    print(f"{log.n_users:,} users, {log.n_items:,} items, {len(log):,} interactions; {given.threads} thread(s)")
    for name, negatives in CASES:
        print(f"{name}, {negatives} negative(s): {speed(name, negatives, log, given.epochs):,.0f} interactions/s")


if __name__ == "__main__":
    main()
