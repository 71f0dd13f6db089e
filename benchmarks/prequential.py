"""How many interactions a second the whole prequential loop takes: candidates, scoring, metrics and update.

python benchmarks/prequential.py
MELON_DATA=… python benchmarks/prequential.py --events 50000 --rounds 5

On a synthetic news stream, and on news_globo.parquet where that is there. One thread; CPU time, so that other work on
the machine does not count, with the wall-clock rate beside it; the median of several rounds over the same events. The
recommender has the rows of the training part and is not trained, which costs and saves nothing here. Goals on one
core: bpr 20,000 interactions a second, ncf 5,000.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.evaluation.prequential import Tally, prequential
from melon.evaluation.ranking import metrics
from melon.kernels.threads import allowed, use_threads
from melon.learning.pretrain import Pretraining, PretrainSettings
from melon.learning.updater import Updater
from melon.models.registry import RECOMMENDERS
from melon.strategies.base import Strategy
from melon.strategies.default import Default
from melon.stream.candidates import Candidates
from melon.stream.history import History
from melon.stream.split import BATCH_SIZE

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).resolve().parents[1] / "../shared/data"))
GOALS = {"bpr": 20_000, "ncf": 5_000}
PARTS = ("candidates", "score", "update", "history", "metrics")


class Watch:
    """CPU seconds by part; a part inside another counts for itself only, and each thread for itself."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inside = threading.local()

    def on(self, owner: Any, method: str, part: str) -> None:
        """Count the time inside one method of one object."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*given: Any, **more: Any) -> Any:
            inside = self._inside
            outside, inside.spent = getattr(inside, "spent", 0.0), 0.0
            began = time.thread_time()
            found = inner(*given, **more)
            whole = time.thread_time() - began
            self.spent[part] += whole - inside.spent
            inside.spent = outside + whole
            return found

        setattr(owner, method, timed)


def one_round(
    log: Interactions, start: int, recommender: str, strategy: Strategy | None = None
) -> tuple[dict[str, float], float, float]:
    """CPU seconds by part, wall-clock seconds, and HR@5 for the record."""
    model = RECOMMENDERS[recommender].load()()
    Pretraining(model, log.head(start), PretrainSettings(), seed=0)  # makes the rows
    history = History()
    history.append(log.users[:start], log.items[:start])
    updater, candidates = Updater(model, strategy or Default(), history), Candidates(log)
    watch, tally = Watch(), Tally()
    watch.on(candidates, "draw", "candidates")
    watch.on(updater, "score", "score")
    watch.on(updater, "learn", "update")
    watch.on(history, "append", "history")
    wall, cpu = time.perf_counter(), time.process_time()
    for point in prequential(updater, log, candidates, start, len(log)):
        tally.add(point)
    found = metrics(tally.rank)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    watch.spent["metrics"] = cpu - sum(watch.spent.values())
    return dict(watch.spent), wall, found["HR@5"]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000, help="how many events at the end are streamed")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    use_threads(1)
    synthetic = synthetic_stream("news", n_users=20_000, n_items=10_000, n_events=20 * BATCH_SIZE + 2 * asked.events)
    streams = {"synthetic news": synthetic}
    if (DATA / "news_globo.parquet").exists():
        streams["news_globo"] = load_stream(DATA / "news_globo.parquet")
    print(f"threads {allowed()}, batches of {BATCH_SIZE}, 99 negatives, default (sgd), d = 64")
    print(f"{'stream':16}{'':6}{'per CPU s':>11}{'per wall s':>12}{'goal':>9}   ms per batch: {', '.join(PARTS)}")
    for name, log in streams.items():
        start = max(len(log) - asked.events, len(log) // 2)
        count = len(log) - start
        for recommender, goal in GOALS.items():
            rounds = [one_round(log, start, recommender) for _ in range(asked.rounds)]
            cpu = float(np.median([sum(spent.values()) for spent, _, _ in rounds]))
            wall = float(np.median([seconds for _, seconds, _ in rounds]))
            per_batch = [
                float(np.median([spent[part] for spent, _, _ in rounds])) / count * BATCH_SIZE for part in PARTS
            ]
            parts = ", ".join(f"{1e3 * seconds:.2f}" for seconds in per_batch)
            print(f"{name:16}{recommender:6}{count / cpu:11,.0f}{count / wall:12,.0f}{goal:9,}   {parts}")


if __name__ == "__main__":
    main()
