"""Lists of bpr by an inverted file (`lists = index`) beside a scan of all rows, while every batch changes rows.

    MELON_DATA=… python benchmarks/index.py [--stream yelp_unfiltered] [--batches 150]
    python benchmarks/index.py --items 1000000 [--batches 20]

On a recorded stream, bpr is pre-trained on the first half with 64 dimensions; then the stream goes on in batches of 256
with fading. With `--items`, rows are made up: they lie in 200 clusters, as trained rows do, and each batch is 256
interactions of 2,000 users. Now and then lists are asked for 50 users: which share of the exact ten they hold, from
cells that were made at the start and from cells that are made anew; and CPU milliseconds of a list right after a batch
(which has to bring the changed rows up to date) and of a further one. One thread; needs `melon-recommender[index]`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from melon import Melon
from melon.data.files import load_stream
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.recommenders import nearest
from melon.recommenders.bpr import BPR
from melon.strategies.registry import STRATEGIES
from melon.types import Ints

K, BATCH, ASKED = 10, 256, 50
SETTINGS = {"optimizer": "sgd", "lr": 0.3, "fading": 50_000.0}


def cpu_ms(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU milliseconds, and what came of it."""
    began = time.process_time()
    result = work()
    return (time.process_time() - began) * 1e3, result


class Asked:
    """Lists of one model, exact and by an inverted file; each kind keeps its scorer."""

    def __init__(self, model: LiveModel) -> None:
        self._model, self._kept = model, dict[str, Any]()

    def best(self, kind: str, users: Ints) -> list[Ints]:
        """Items of each user."""
        updater = self._model.updater
        updater.recommender.settings = updater.recommender.settings.model_copy(update={"lists": kind})
        updater._kept = self._kept.get(kind)
        lists = [rows for rows, _ in self._model.best(users, K, filter_seen=True)]
        self._kept[kind] = updater._kept
        return lists

    def anew(self) -> None:
        """Have cells made from the rows as they are."""
        self._model.updater.recommender.__dict__.pop("_inverted_file", None)
        self._kept.pop("index", None)


def line(batch: int, model: LiveModel, asked: Asked, users: Ints, after: list[float]) -> None:
    """One line of the table; `after` are times of lists right after a batch."""
    asked.best("index", users[:1])
    further = np.median([cpu_ms(lambda user=user: asked.best("index", user))[0] for user in users[:, None]])
    exact = asked.best("exact", users)
    alone = np.median([cpu_ms(lambda user=user: asked.best("exact", user))[0] for user in users[:10, None]])

    def share() -> float:
        lists = asked.best("index", users)
        return float(np.mean([len(np.intersect1d(*both)) / K for both in zip(lists, exact, strict=True)]))

    followed, file = share(), model.updater.recommender._inverted_file
    asked.anew()
    made, fresh = cpu_ms(lambda: asked.best("index", users[:1]))[0], share()
    model.updater.recommender.__dict__["_inverted_file"] = file
    times = f"{np.median(after or [np.nan]):.2f} | {further:.2f} | {alone:.2f} | {made / 1e3:.1f}"
    figures = f"{followed:.3f} | {fresh:.3f} | {times}"
    print(f"| {batch} | {model.rows_of('item'):,} | {figures} |", flush=True)


def made_up(items: int) -> LiveModel:
    """A model whose rows lie in clusters."""
    rng = np.random.default_rng(0)
    model = LiveModel(Updater(BPR({"dim": 64}), STRATEGIES["default"].load()(SETTINGS)))
    model.learn_events(np.resize(np.arange(2_000), items), np.arange(items), batch_size=10_000)
    centres = rng.normal(size=(200, 64)).astype(np.float32)
    for name in ("user_factors", "item_factors"):
        table = model.updater.recommender.tables[name]
        rows = centres[rng.integers(0, 200, table.rows)] + 0.5 * rng.normal(size=(table.rows, 64)).astype(np.float32)
        rows *= 0.3 * rng.lognormal(0, 0.5, (table.rows, 1)).astype(np.float32)
        table.scatter(torch.arange(table.rows), torch.from_numpy(rows))
    return model


def main() -> None:
    """Learn, ask, learn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", default="yelp_unfiltered")
    parser.add_argument("--items", type=int, default=0, help="made-up rows instead of a stream")
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--every", type=int, default=50)
    options = parser.parse_args()
    nearest.FROM, rng = 0, np.random.default_rng(1)
    if options.items:
        model, name = made_up(options.items), "made up"
        users = rng.integers(0, 2_000, options.batches * BATCH).tolist()
        items = (options.items * rng.random(options.batches * BATCH) ** 2).astype(np.int64).tolist()
        events: Any = users, items, None
    else:
        log, name = load_stream(Path(os.environ.get("MELON_DATA", ".")) / f"{options.stream}.parquet"), options.stream
        half = len(log) // 2
        model = Melon("bpr", "default", budget=0, epochs=5, settings=SETTINGS, progress=False).fit(log.head(half)).live
        some = slice(half, half + options.batches * BATCH)
        events = log.user_ids[log.users[some]], log.item_ids[log.items[some]], log.times[some]
    asked = Asked(model)
    print(f"{name}: {model.updater.history.events:,} interactions before")
    print("| batches | items | kept | kept by new cells | a list after a batch, ms | a further one, ms | exact, ms "
          "| new cells, s |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    after: list[float] = []
    for batch in range(options.batches + 1):
        if batch % options.every == 0:
            line(batch, model, asked, rng.choice(min(model.rows_of("user"), 100_000), ASKED), after)
            after.clear()
        part = slice(batch * BATCH, (batch + 1) * BATCH)
        model.learn_events(*(None if column is None else column[part] for column in events), batch_size=BATCH)
        after.append(cpu_ms(lambda: asked.best("index", rng.choice(1_000, 1)))[0])


if __name__ == "__main__":
    main()
