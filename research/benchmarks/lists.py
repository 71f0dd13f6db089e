"""`auto` by lists of the whole catalogue on the test parts of the streams in $MELON_DATA, as docs/methods.md 5.8 allows.

    python research/benchmarks/lists.py --seeds 3
    python research/benchmarks/lists.py --streams yelp,shop_journey --seeds 1 --out runs/lists

It is compared with the single baseline that was best on the selection window and with the mix of all of them: HR@10 and
NDCG@10 of all events and of first-time pairs. Holm's family are the comparisons of one stream. A run that was stopped
goes on where it was. Baselines are lists of seed 0: nothing in them is random.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import polars as pl

from accuracy import DATA, MARGINS, SHARES, STREAMS, show_conclusions
from melon.data.files import load_stream
from melon.evaluation.baselines import SOURCES
from melon.evaluation.cell import Cell
from melon.evaluation.compare import Comparison, compare
from melon.evaluation.lists import TRACKS
from melon.evaluation.ranking import gains, hits
from melon.evaluation.record import read_json, write_result
from melon.fitting.auto import settle_auto
from melon.fitting.config import CellConfig
from melon.progress import Progress
from melon.stream.split import DEFAULT_SPLIT

METRICS = {"HR@10": partial(hits, cut=10), "NDCG@10": gains}
MARGINS["shop_journey"] = 0.005


class AutoAlone(Cell):
    """Makes no lists for baselines, which are the same under every seed."""

    def _stream(self, name: str, *rest: Any) -> Any:
        asked = self.config
        self.config = replace(asked, lists=name in ("strategy", asked.strategy))
        try:
            return super()._stream(name, *rest)
        finally:
            self.config = asked


def run(name: str, seed: int, path: Path) -> None:
    log = load_stream(DATA / f"{name}.parquet")
    config = CellConfig(**settle_auto({"seed": seed}), split=SHARES.get(name, DEFAULT_SPLIT))
    began = time.process_time()
    cell = (AutoAlone if seed else Cell)(log, config, Progress())
    result = cell.run(str(path))
    write_result({**result.record, "cpu_s": time.process_time() - began}, result.ranks, path)


def table(name: str, folder: Path, seeds: int) -> dict[str, Comparison]:
    """Levels as lines of a table, and comparisons of `auto` with the best single baseline and the mix."""
    paths = [folder / f"{name}-{seed}.json" for seed in range(seeds)]
    record, frames = read_json(paths[0]), [pl.read_parquet(path.with_suffix(".ranks.parquet")) for path in paths]
    scores = {each: record["config"]["chosen"][each]["score"] for each in ("recent_popularity", *SOURCES)}
    best, family = max(scores, key=lambda each: scores[each] or 0.0), dict[str, Comparison]()
    for track in TRACKS:
        column = f"list_{track}"
        kept = frames[0][column].is_not_null().to_numpy()
        events = [frame.filter(kept) for frame in frames]
        users, items = (events[0][side].to_numpy() for side in ("user", "item"))
        ours = {metric: [of(frame[column].to_numpy()) for frame in events] for metric, of in METRICS.items()}
        levels = {"auto": ours}
        for baseline in dict.fromkeys((best, "mix", "own_history", "recent_popularity")):
            ranks = events[0][f"{column}_{baseline}"].to_numpy()
            levels[baseline] = {metric: [of(ranks)] * seeds for metric, of in METRICS.items()}
        for label, values in levels.items():
            cells = " / ".join(f"{np.mean(values[metric]):.4f}" for metric in METRICS)
            print(f"| {name} | {track} ({len(users):,}) | {label}{' (best)' if label == best else ''} | {cells} |")
        for baseline in (best, "mix"):
            for metric in METRICS:
                sides = levels["auto"][metric], levels[baseline][metric]
                family[f"{name} | {track} | {baseline} | {metric}"] = compare(*sides, users, items)
    return family


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join((*STREAMS, "shop_journey")))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/lists"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    names = asked.streams.split(",")
    for seed in range(asked.seeds):
        for name in names:
            path = asked.out / f"{name}-{seed}.json"
            if not path.exists():
                run(name, seed, path)
                print(f"{path.name}: {read_json(path)['cpu_s']:.0f} s of CPU", flush=True)
    print("\n| stream | track (events) | method | HR@10 / NDCG@10 |\n|---|---|---|---|")
    families: Mapping[str, Mapping[str, Comparison]] = {name: table(name, asked.out, asked.seeds) for name in names}
    show_conclusions("stream | track | auto against | metric", families)


if __name__ == "__main__":
    main()
