"""MeLON's step on NCF with one and with two threads, in turns in one run: wall-clock seconds and how many times faster.

    python benchmarks/cores.py
    python benchmarks/cores.py --counted

Needs as many free cores as threads, and says how much CPU time others took meanwhile. Goal with two free cores: 1.6.

`--counted` is for a machine whose cores are not free. It runs on one thread, cuts the work into the pieces that several
threads would take one by one, times each of them and all that lies between them (CPU time), and adds up what free cores
would make of it. That is a bound: threads that wake up late and caches that are shared are not in it.
"""

from __future__ import annotations

import argparse
import heapq
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_WAIT_POLICY"] = "passive"

import numpy as np

from melon.kernels.melon import functions
from melon.kernels.threads import pieces_of, use_threads
from step import WARM_UP, Sized


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--counted", action="store_true", help="from CPU time on one thread, where cores are not free")
    asked = parser.parse_args()
    sized = Sized("ncf", "melon", {}, users=60_000, items=75_000)
    for _ in range(WARM_UP // 3):
        sized.learn()
    if asked.counted:
        one, several, between = np.median([counted(sized, asked.threads) for _ in range(asked.rounds)], axis=0)
        print(
            f"CPU time: 1 thread {one:.3f} s, of which {between:.3f} s between the pieces; "
            f"{asked.threads} free cores {several:.3f} s at best: {one / several:.2f} times faster"
        )
        return
    began, before, own = time.perf_counter(), busy(), time.process_time()
    times = np.array([[seconds(sized, threads) for threads in (1, asked.threads)] for _ in range(asked.rounds)])
    lasted, others = time.perf_counter() - began, busy() - before - (time.process_time() - own)
    one, several = np.median(times, axis=0)
    print(f"1 thread {one:.3f} s, {asked.threads} threads {several:.3f} s: {one / several:.2f} times faster")
    print(f"others took {max(others, 0.0) / lasted:.2f} of {os.cpu_count()} cores meanwhile")


def seconds(sized: Sized, threads: int) -> float:
    """Wall-clock seconds of one batch."""
    use_threads(threads)
    began = time.perf_counter()
    sized.learn()
    return time.perf_counter() - began


def counted(sized: Sized, threads: int) -> tuple[float, float, float]:
    """CPU seconds of a batch on one thread, what free cores would make of them, and what lies between the pieces."""
    use_threads(1)
    calls: list[list[float]] = []

    def one_by_one(blocks: int, work: Callable[[tuple[int, int]], None]) -> None:
        calls.append([])
        for piece in pieces_of(blocks, min(threads, blocks)) if blocks else ():
            began = time.thread_time()
            work(piece)
            calls[-1].append(time.thread_time() - began)

    spread, functions.spread = functions.spread, one_by_one
    try:
        began = time.thread_time()
        sized.learn()
        whole = time.thread_time() - began
    finally:
        functions.spread = spread
    between = whole - sum(map(sum, calls))
    return whole, between + sum(longest(pieces, threads) for pieces in calls), between


def longest(pieces: list[float], threads: int) -> float:
    """When the last thread is through, if whoever is free takes the next piece."""
    through = [0.0] * threads
    for piece in pieces:
        heapq.heapreplace(through, through[0] + piece)
    return max(through)


def busy() -> float:
    """CPU seconds that the machine has worked so far; 0 where that is not told."""
    told = Path("/proc/stat")
    if not told.exists():
        return 0.0
    user, nice, system = (int(number) for number in told.read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
