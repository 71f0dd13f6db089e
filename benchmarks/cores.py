"""MeLON's step on NCF with one and with two threads, in turns in one run: wall-clock seconds and how many times faster.

    python benchmarks/cores.py

Needs as many free cores as threads. Goal with two free cores: 1.6.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ["OMP_WAIT_POLICY"] = "passive"

import numpy as np
import torch

from step import WARM_UP, Sized


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    sized = Sized("ncf", "melon", {}, users=60_000, items=75_000)
    for _ in range(WARM_UP // 3):
        sized.learn()
    times = np.array([[seconds(sized, threads) for threads in (1, asked.threads)] for _ in range(asked.rounds)])
    one, several = np.median(times, axis=0)
    print(f"1 thread {one:.3f} s, {asked.threads} threads {several:.3f} s: {one / several:.2f} times faster")


def seconds(sized: Sized, threads: int) -> float:
    """Wall-clock seconds of one batch."""
    torch.set_num_threads(threads)
    began = time.perf_counter()
    sized.learn()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
