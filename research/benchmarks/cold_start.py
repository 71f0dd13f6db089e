"""What the head of a blend that was never pre-trained should do: learn at once, rest, or be scaled first.

    MELON_DATA=… python research/benchmarks/cold_start.py
    MELON_DATA=… python research/benchmarks/cold_start.py --events 5000 --seeds 1 --batch 32

A blend with default settings starts with nothing and streams through the first interactions of each stream under plain
steps, as a model does that is only ever given `partial_fit`. HR@5 of 1 + 99 candidates among the items there are
(`known`), predicted before they are learned; the mean over the seeds. Only the first 60 % of a stream are looked at.

`at once`: the head learns from the first batch on, with inputs as they come. `N, then`: it rests for N interactions,
by which its inputs are then scaled, and learns from there on. `rests`: it never learns, and the blend is its personal
score.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
from pathlib import Path

import numpy as np
import polars as pl

from melon.data.frames import interactions_from
from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.evaluation.prequential import prequential
from melon.kernels.threads import use_threads
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.strategies.default import Default
from melon.stream.candidates import Candidates

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).resolve().parents[1] / "../shared/data"))
STREAMS = ("amazon_grocery", "amazon_electronics", "yelp", "amazon_book", "news_globo")
CHOICES = {"at once": 0, "128, then": 128, "256, then": 256, "512, then": 512, "2048, then": 2048, "rests": 1 << 60}
SHARE = 0.6


def streams(events: int) -> dict[str, Interactions]:
    """The beginning of each stream that is there, and of a synthetic one."""
    logs = {}
    for name in STREAMS:
        if (DATA / f"{name}.parquet").exists():
            frame = pl.read_parquet(DATA / f"{name}.parquet")
            frame = frame.head(min(int(len(frame) * SHARE), events))
            logs[name] = interactions_from(frame, user="user", item="item", time="ts")
    synthetic = synthetic_stream("news", n_events=events * 2)
    logs["synthetic news"] = synthetic.head(min(int(len(synthetic) * SHARE), events))
    return logs


def hits(log: Interactions, rest: int, seed: int, batch: int) -> np.ndarray:
    """Whether each interaction was among the first five, with its event number."""
    updater = Updater(Blend({"head_rest": rest}, seed=seed), Default(seed=seed), seed=seed)
    points = prequential(updater, log, Candidates(log, mode="known", seed=seed), 0, len(log), batch_size=batch)
    parts = [np.stack([point.events, point.ranks.rank <= 5]) for point in points]
    return np.concatenate(parts, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    use_threads(1)
    print(f"{options.events} events, seeds 0 to {options.seeds - 1}, batches of {options.batch}, 1 thread")
    print(f"{'':20}" + "".join(f"{name:>14}" for name in CHOICES) + "   (all events; their second half beside it)")
    for name, log in streams(options.events).items():
        line = f"{name:20}"
        for rest in CHOICES.values():
            runs = [hits(log, rest, seed, options.batch) for seed in range(options.seeds)]
            every = np.mean([run[1].mean() for run in runs])
            later = np.mean([run[1][run[0] >= len(log) // 2].mean() for run in runs])
            line += f"{every:8.3f} {later:.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
