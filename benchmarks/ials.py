"""Cost of streaming implicit ALS: ten sweeps over a log, and following batches of 256, 16 and 1 interactions.

    python benchmarks/ials.py

CPU milliseconds, medians of 60 batches, one thread; made-up interactions with popular and rare items. A batch must not
cost more on a stream with ten times the users and items.
"""

from __future__ import annotations

import time

import numpy as np

from melon.kernels import policy
from melon.models.streaming.ials import ImplicitALS
from melon.stream.history import History
from melon.types import Ints

BATCHES, SIZES = 60, (256, 16, 1)


def interactions(random: np.random.Generator, users: int, items: int, events: int) -> tuple[Ints, Ints]:
    popular = np.minimum((random.pareto(0.8, events) * items / 50).astype(np.int64), items - 1)
    return random.integers(0, users, events), popular


def main() -> None:
    policy.warm_up("stream", "ials")
    for users, items, events in ((8_000, 5_000, 130_000), (80_000, 50_000, 1_300_000)):
        random = np.random.default_rng(0)
        log = interactions(random, users, items, events)
        model, past = ImplicitALS(), History()
        began = time.process_time()
        model.fit(*log)
        print(f"{users:,} users, {items:,} items, {events:,} interactions: {time.process_time() - began:.1f} s to fit")
        past.append(*log)
        for size in SIZES:
            taken = []
            for _ in range(BATCHES):
                batch = interactions(random, users, items, size)
                began = time.process_time()
                model.observe(*batch, past)
                taken.append(time.process_time() - began)
                past.append(*batch)
            print(f"  {size:>4} interactions: {1e3 * float(np.median(taken)):.2f} ms")


if __name__ == "__main__":
    main()
