"""How long top-k lists take over a large catalogue: BPR with random rows, some of each user's items filtered out.

python benchmarks/recommend.py --users 200000 --items 100000 --ask 1000 --k 10 --threads 1,2
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from melon import Melon
from melon.data.interactions import Interactions


def random_log(users: int, items: int, each: int, seed: int) -> Interactions:
    """Every user with `each` random items; ids are rows."""
    generator = np.random.default_rng(seed)
    n = users * each
    who, what = np.arange(n) // each, generator.integers(0, items, n)
    what[:items] = np.arange(items)
    return Interactions(who, what, np.arange(n), np.arange(users), np.arange(items))


def timed(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of a repetition by the wall clock and of the processors, after one that does not count."""
    work()
    walls, cores = [], []
    for _ in range(repeats):
        began = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - began[0])
        cores.append(time.process_time() - began[1])
    return statistics.median(walls), statistics.median(cores)


def main() -> None:
    """Print one line for each number of threads and kind of question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=10, help="interactions of each user")
    parser.add_argument("--ask", type=int, default=1_000, help="users asked for at once")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    told = parser.parse_args()

    # No epochs: the rows stay as they were drawn, and everything else is as in a trained model.
    model = Melon("bpr", epochs=0, budget=0, recommender_settings={"dim": told.dim})
    model.fit(random_log(told.users, told.items, told.each, seed=0))
    asked = np.random.default_rng(1).choice(told.users, told.ask, replace=False)
    print(f"{told.users:,} users × {told.items:,} items, d = {told.dim}, top-{told.k}, float32")
    print(f"{'question':<28}{'threads':>8}{'wall s':>10}{'cpu s':>10}")
    for threads in map(int, told.threads.split(",")):
        model.threads = threads
        questions: dict[str, Callable[[], object]] = {
            f"{told.ask:,} users, unseen only": lambda: model.recommend(asked, told.k),
            f"{told.ask:,} users, everything": lambda: model.recommend(asked, told.k, filter_seen=False),
            "one user, unseen only": lambda: model.recommend(asked[:1], told.k),
            f"{told.ask:,} similar items": lambda: model.similar_items(asked % told.items, told.k),
        }
        for name, work in questions.items():
            wall, cpu = timed(work, told.repeats)
            print(f"{name:<28}{threads:>8}{wall:>10.3f}{cpu:>10.3f}")


if __name__ == "__main__":
    main()
