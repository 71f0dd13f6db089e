"""How long `Melon().fit` takes, everything default: CPU seconds of all its processes, and wall clock.

    python benchmarks/fit.py [--sizes 100k] [--budget 0] [--cores 1]

Made-up logs of the sizes of MovieLens-100k (943 users, 1,682 items, 100 thousand interactions) and MovieLens-1M (6,022,
3,043, 950 thousand). Kernels are taken from the cache of the machine; the first fit on a machine compiles them.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import polars as pl

from melon import Melon, estimator
from pretrain import skewed_log

SIZES = {"100k": (943, 1_682, 100_000), "1m": (6_022, 3_043, 950_000)}


def cpu() -> float:
    """CPU seconds of this process and of those it has started, once they have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--cores", type=int, default=estimator.cores())
    given = parser.parse_args()
    estimator.cores = lambda: given.cores  # type: ignore[attr-defined]
    warm = Melon(budget=0, epochs=1, progress=False).fit([(n % 50, n % 7, n) for n in range(500)])
    warm.recommend([1])  # now all compiled kernels are loaded
    for size in given.sizes:
        log = skewed_log(*SIZES[size])
        frame = pl.DataFrame({"user": log.users, "item": log.items, "time": log.times})
        began, wall, stages = cpu(), time.perf_counter(), []

        def report(line: str, began: float = began, stages: list[str] = stages) -> None:
            if not line.startswith("epoch"):
                stages.append(f"  {cpu() - began:6.1f} CPU s  {line}")

        Melon(budget=given.budget, progress=False, report=report).fit(frame)
        print(
            f"{size}, budget {given.budget}, {given.cores} core(s): {cpu() - began:.1f} CPU s, "
            f"{time.perf_counter() - wall:.1f} s of wall clock"
        )
        print("\n".join(stages), flush=True)


if __name__ == "__main__":
    main()
