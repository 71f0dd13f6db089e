"""What learning a few events costs through `Melon.partial_fit`, on a model of MovieLens-1M's size.

    python benchmarks/events.py                       # bpr and blend, 1, 16 and 256 events at a time
    python benchmarks/events.py --recommenders bpr --half-life 20000
    python benchmarks/events.py --recommenders blend --settings '{"inputs": [], "transitions": false}'
    python benchmarks/events.py --recommenders blend --auto --items 4999 --events 200000

CPU milliseconds on one thread, medians; nothing is predicted. The log is made by rule: 6,022 users, 3,043 items of a
heavy-tailed popularity, 950 thousand interactions, d = 64. Goals: one event in 0.2 ms on bpr and 1 ms on blend; on
blend 16 events in 2 ms and 256 in 8; with the settings of `auto` 256 in 12. Ranks of 256 events in lists of all items,
both tracks, cost at most ten times what predicting them among 100 and learning them cost.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import json
import time

import numpy as np

import melon
from melon.data.interactions import Interactions
from melon.evaluation.lists import Lister
from melon.fitting.auto import SETTINGS
from melon.kernels.threads import use_threads
from melon.learning.model import LiveModel
from melon.learning.pretrain import live_through
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.models.registry import RECOMMENDERS
from melon.strategies.default import Default
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.types import Ints

USERS, ITEMS, EVENTS = 6_022, 3_043, 950_000
SIZES = {1: 300, 16: 120, 256: 50}


def popular(rng: np.random.Generator, count: int) -> Ints:
    """Items by a heavy-tailed popularity."""
    return np.minimum((rng.pareto(1.2, count) * ITEMS / 20).astype(np.int64), ITEMS - 1)


def lived(recommender: str, half_life: float | None, settings: dict[str, object]) -> tuple[melon.Melon, Interactions]:
    """A model with the whole log behind it, and a head that speaks where there is one."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, USERS, EVENTS), popular(rng, EVENTS)
    users[:USERS], items[:ITEMS] = np.arange(USERS), np.arange(ITEMS)
    log = Interactions(users, items, np.arange(EVENTS), np.arange(USERS), np.arange(ITEMS))
    made, history = RECOMMENDERS[recommender].load()(settings), History()
    made.grow(USERS, np.arange(USERS), ITEMS, np.arange(ITEMS))
    live_through(made, history, log)
    if isinstance(made, Blend):
        generator = np.random.default_rng(0)
        for name in ("head_linear", "head_output"):
            table = made.tables[name]
            table.scatter(np.arange(1), 0.1 * generator.normal(size=(1, table.spec.dim)))
        made.head.centre = np.full_like(made.head.centre, 0.1)
    model = melon.Melon(recommender, "default")
    model._model = LiveModel(Updater(made, Default({"lr": 0.1, "half_life": half_life}), history))
    model._model.adopt(log)
    return model, log


def spent(model: melon.Melon, rng: np.random.Generator, size: int, first: int) -> float:
    """CPU milliseconds to learn so many events."""
    users, items = rng.integers(0, USERS, size).tolist(), popular(rng, size).tolist()
    events = [(user, item, first) for user, item in zip(users, items, strict=True)]
    began = time.process_time()
    model.partial_fit(events)
    return (time.process_time() - began) * 1e3


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recommenders", default="bpr,blend")
    parser.add_argument("--half-life", type=float)
    parser.add_argument("--auto", action="store_true", help="the settings of auto for the blend")
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--settings", type=json.loads, default={}, help="of the recommenders, as JSON")
    asked = parser.parse_args()
    globals().update(ITEMS=asked.items, EVENTS=asked.events)
    settings = {**(SETTINGS if asked.auto else {}), **asked.settings}
    use_threads(1)
    print(f"{USERS:,} users, {ITEMS:,} items, {EVENTS:,} interactions; 1 thread; CPU ms, medians")
    print(f"{'recommender':14}{'events':>8}{'ms':>10}")
    for recommender in asked.recommenders.split(","):
        (model, log), rng = lived(recommender, asked.half_life, settings), np.random.default_rng(1)
        for size, times in SIZES.items():
            taken = [spent(model, rng, size, EVENTS + number) for number in range(times)]
            print(f"{recommender:14}{size:8}{np.median(taken[times // 5 :]):10.3f}", flush=True)
        users, lines, taken = rng.integers(0, USERS, 256), rng.integers(0, ITEMS, (256, 100)), []
        for _ in range(20):
            began = time.process_time()
            model.updater.score(users, lines, EVENTS)
            taken.append((time.process_time() - began) * 1e3)
        print(f"{recommender:14}256 × 100 predicted: {np.median(taken):.2f} ms", flush=True)
        taken = []
        for number in range(5):
            users, items, times = rng.integers(0, USERS, 256), popular(rng, 256), np.full(256, EVENTS)
            batch = Batch(EVENTS + 256 * number, users, items, times, log.user_keys, log.item_keys)
            lister = Lister(log, len(log))
            began = time.process_time()
            lister.rank(model.updater.catalogue, batch, ITEMS, "a benchmark")
            taken.append((time.process_time() - began) * 1e3)
        print(f"{recommender:14}256 ranked in lists of all items: {np.median(taken):.1f} ms", flush=True)


if __name__ == "__main__":
    main()
