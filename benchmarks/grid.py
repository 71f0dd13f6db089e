"""A grid of 40 small cells on one local process and on two: wall-clock seconds of each, and their ratio.

    python benchmarks/grid.py
    python benchmarks/grid.py --turns 3 --events 4000

Four synthetic streams, two strategies and five seeds through `melon bench`'s own executor, starting of processes
included, in turns with each other; a cell takes about a second. The records must be the same but for their timings.
Goal: two processes take at most 0.6 of the time of one, on two cores that have nothing else to do; the load of the
machine is printed so that a busy one is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from melon.demo import write_synthetic
from melon.fitting.config import CellConfig
from melon.lab.bench import CellOutcome, LocalExecutor, run_grid, tasks_of
from melon.progress import Progress

GOAL = 0.6
SPLIT = (0.8, 0.05, 0.15)
BASE = CellConfig(split=SPLIT, budget=4, epochs=10, negatives=30, batch_size=64)
STREAMS = {"flip-a": ("flip", 0), "flip-b": ("flip", 1), "news-a": ("news", 0), "news-b": ("news", 1)}
STRATEGIES, SEEDS = ["eals"], 5
#: What a clock or the machine decides.
TIMINGS = ("update_ms", "score_ms", "pretrain_s", "peak_rss_mb")


def run(streams: dict[str, Path], jobs: int, folder: Path) -> tuple[float, dict[str, str]]:
    """Seconds of the whole grid, and every record as text, without its timings."""
    tasks = tasks_of(dict.fromkeys(streams, SPLIT), ["bpr"], STRATEGIES, SEEDS, BASE)
    began = time.perf_counter()
    executor: LocalExecutor = LocalExecutor(streams, folder, jobs=jobs, threads=1)
    try:
        outcomes = list(run_grid(tasks, {}, executor, lambda _: None, Progress()))
    finally:
        executor.stop()
    taken = time.perf_counter() - began
    return taken, {outcome.task.key: told(outcome) for outcome in outcomes}


def told(outcome: CellOutcome) -> str:
    """A record without what the clock decides."""
    if outcome.record is None:
        raise SystemExit(f"{outcome.task.key} failed: {outcome.problem or outcome.not_applicable}")
    record: dict[str, Any] = {name: value for name, value in outcome.record.items() if name not in TIMINGS}
    record["batches"] = [{k: v for k, v in batch.items() if k != "update_ms"} for batch in record["batches"]]
    record["ranks"] = outcome.ranks["rank"].tolist()
    return json.dumps(record, sort_keys=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--events", type=int, default=4_000, help="interactions of each stream")
    asked = parser.parse_args()
    seconds: dict[int, list[float]] = {1: [], 2: []}
    records = []
    with tempfile.TemporaryDirectory(prefix="melon-grid-") as scratch:
        streams = {
            name: write_synthetic(kind, Path(scratch) / f"{name}.parquet", asked.events, seed)
            for name, (kind, seed) in STREAMS.items()
        }
        for turn in range(asked.turns):
            for jobs, taken_by in seconds.items():
                taken, found = run(streams, jobs, Path(scratch) / f"work-{turn}-{jobs}")
                taken_by.append(taken)
                records.append(found)
                print(f"turn {turn + 1}, {jobs} process{'es' if jobs > 1 else ''}: {taken:6.1f} s", flush=True)
    one, two = (float(np.median(seconds[jobs])) for jobs in (1, 2))
    alike = all(found == records[0] for found in records)
    load = os.getloadavg()[0]
    print(
        f"{len(records[0])} cells of {asked.events:,} interactions, {os.cpu_count()} cores, load {load:.1f} at the end"
    )
    print(f"records {'the same' if alike else 'DIFFER'} in all {len(records)} runs")
    print(f"one process {one:.1f} s, two {two:.1f} s: ratio {two / one:.2f} (goal: at most {GOAL})")
    if not alike:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
