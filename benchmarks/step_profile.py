"""Where the time of a step goes: CPU milliseconds per batch by function, for one pairing.

    python benchmarks/step_profile.py --recommender bpr --strategy melon
    python benchmarks/step_profile.py --recommender ncf --strategy default --set optimizer=adam_lazy --lines 20

The batches are those of benchmarks/step.py at 10 thousand rows, where each touches 256 users and 512 items. The
profiler makes Python itself look slower than it is: compare shares, and take totals from step.py.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from pathlib import Path

import torch

from step import BATCH, WARM_UP, Sized

ROWS = 10_000


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recommender", default="bpr")
    parser.add_argument("--strategy", default="melon")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the strategy")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--lines", type=int, default=30)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    settings: dict[str, object] = dict(one.split("=", 1) for one in asked.set)
    sized = Sized(asked.recommender, asked.strategy, settings, users=ROWS // 2, items=ROWS // 2)
    for _ in range(WARM_UP):
        sized.learn()
    profile = cProfile.Profile(time.process_time)
    plain = sum(sized.learn() for _ in range(asked.batches)) / asked.batches
    profile.enable()
    for _ in range(asked.batches):
        sized.learn()
    profile.disable()
    print(
        f"{asked.recommender} with {asked.strategy}, {asked.batches} batches of {BATCH}: {1e3 * plain:.2f} ms a batch"
    )
    print(f"{'own ms':>8}{'with what it calls':>20}{'calls':>8}  function")
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (path, line, name), (_, calls, own, whole, _) in sorted(found.items(), key=lambda entry: -entry[1][2])[
        : asked.lines
    ]:
        place = f"{Path(path).name}:{line} " if line else ""
        own_ms, whole_ms = (1e3 * seconds / asked.batches for seconds in (own, whole))
        print(f"{own_ms:8.2f}{whole_ms:20.2f}{calls / asked.batches:8.1f}  {place}{name}")


if __name__ == "__main__":
    main()
