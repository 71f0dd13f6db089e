"""Cost of a step at 10 thousand and at 1 million rows, side by side in one run.

    python benchmarks/step.py
    python benchmarks/step.py --recommenders ncf --strategies default,melon --batches 10

Both sizes touch the same number of distinct rows: 256 users and 512 items in each batch. `step` is the step alone on
given negatives; `learn` also draws the negatives and appends to the history. CPU time on one thread; sizes take turns
batch by batch, and the ratio is that of medians (goal: at most 1.5). The last column is the cost of learning a batch
beside Default with Adam on touched rows at the same size, in the same run (goal for MeLON on BPR: at most 12).
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import time
from collections.abc import Callable

import numpy as np

from melon.kernels.threads import allowed, use_threads
from melon.learning.step import Offered
from melon.learning.updater import Updater
from melon.models.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES
from melon.stream.batch import Batch
from melon.stream.history import History

SIZES = (10_000, 1_000_000)
SETTINGS = {
    "default": ({"optimizer": "adam_lazy", "lr": 0.01}, {"optimizer": "sgd", "lr": 0.1}),
    "eals": ({"optimizer": "sgd", "lr": 0.05},),
    "melon": ({},),
}
BATCH, WARM_UP = 256, 10
#: Past partners of a row: more than a strategy looks at, so that it has to choose among them.
PARTNERS = 12


class Sized:
    """An updater with given numbers of users and items, each with a past, and batches spread over all of them."""

    def __init__(self, recommender: str, strategy: str, settings: dict[str, object], *, users: int, items: int) -> None:
        self._users, self._items, self._rng = users, items, np.random.default_rng(0)
        self._events = max(users, items)
        made = RECOMMENDERS[recommender].load()()
        made.grow(users, np.arange(users), items, np.arange(items))
        history, past = History(), np.arange(self._events)
        for _ in range(PARTNERS):
            history.append(self._rng.permutation(past) % users, self._rng.permutation(past) % items)
        self._updater = Updater(made, STRATEGIES[strategy].make(settings), history)
        self.learn()  # makes the tables of the optimiser's state

    def step(self) -> float:
        """CPU seconds of a step on given negatives."""
        batch = self._batch()
        offered = Offered(batch.users, self._distinct(2 * BATCH, self._items).reshape(BATCH, 2))
        return spent(lambda: self._updater.step(offered, None, batch))

    def learn(self) -> float:
        """CPU seconds to learn a batch, negatives and history included."""
        batch = self._batch()
        return spent(lambda: self._updater.learn(batch))

    def _batch(self) -> Batch:
        users, items = self._distinct(BATCH, self._users), self._distinct(BATCH, self._items)
        self._events += BATCH
        return Batch(self._events, users, items, np.full(BATCH, self._events), users, items)

    def _distinct(self, count: int, rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Distinct rows, spread over all of them."""
        width = rows // count
        return self._rng.permutation(np.arange(count) * width + self._rng.integers(0, width, count))


def spent(work: Callable[[], object]) -> float:
    """CPU seconds of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--recommenders", default="bpr,ncf")
    parser.add_argument("--strategies", default="default")
    asked = parser.parse_args()
    use_threads(1)
    print(f"threads {allowed()}, {asked.batches} batches of {BATCH}; CPU milliseconds, medians")
    sizes = "".join(f"{f'{size:,} rows':>18}" for size in SIZES)
    print(f"{'recommender':12}{'strategy':20}{'':8}{sizes}{'ratio':>8}{'× lazy Adam':>14}")
    for recommender in asked.recommenders.split(","):
        lazy: dict[str, float] = {}
        for strategy in dict.fromkeys(["default", *asked.strategies.split(",")]):
            for settings in SETTINGS.get(strategy, ({},)):
                compare(recommender, strategy, settings, asked.batches, lazy)


def compare(recommender: str, strategy: str, settings: dict[str, object], batches: int, lazy: dict[str, float]) -> None:
    """One strategy at both sizes; the first one's cost is what the others are compared with."""
    pair = [Sized(recommender, strategy, settings, users=size // 2, items=size // 2) for size in SIZES]
    for what in ("step", "learn") if strategy == "default" else ("learn",):
        times = np.array([[getattr(each, what)() for each in pair] for _ in range(WARM_UP + batches)])
        small, large = np.median(times[WARM_UP:], axis=0) * 1e3
        beside = small / lazy.setdefault(what, small)
        label = f"{strategy} {settings.get('optimizer', settings.get('online', ''))}"
        print(
            f"{recommender:12}{label:20}{what:8}{small:18.2f}{large:18.2f}{large / small:8.2f}{beside:14.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
