"""Peak memory and CPU seconds of a MeLON step on NCF, where every interaction meets every shared weight.

    python benchmarks/memory.py

Tables of 60 thousand users and 75 thousand items, batches of 256, one thread; the peak is that of the whole process.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import resource
import time

import numpy as np

from melon.kernels.threads import use_threads
from melon.learning.updater import Updater
from melon.models.ncf import NCF
from melon.strategies.melon.published import PublishedMeLON
from melon.stream.batch import Batch
from melon.stream.history import History

USERS, ITEMS, PAST, BATCH, STEPS = 60_000, 75_000, 400_000, 256, 3


def main() -> None:
    use_threads(1)
    rng = np.random.default_rng(0)
    recommender, history = NCF(), History()
    recommender.grow(USERS, np.arange(USERS), ITEMS, np.arange(ITEMS))
    history.append(rng.integers(0, USERS, PAST), rng.integers(0, ITEMS, PAST))
    updater = Updater(recommender, PublishedMeLON(), history)
    for _ in range(STEPS):
        users, items = rng.integers(0, USERS, BATCH), rng.integers(0, ITEMS, BATCH)
        batch = Batch(history.events, users, items, np.full(BATCH, history.events), users, items)
        began = time.process_time()
        updater.learn(batch)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"ncf with melon: {time.process_time() - began:.2f} CPU s, peak of the process {peak} MB", flush=True)


if __name__ == "__main__":
    main()
