"""What open consoles cost: latency of lists with and without them, in turns, on a running service.

    melon serve --demo &
    python benchmarks/consoles.py http://127.0.0.1:8000 --consoles 200

Each console asks as the page does: the overview every 4 seconds, learning and trends every 15. Bound: 200 consoles
raise the lists' p99 by at most half.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import time
from statistics import median

import httpx

from load import Load, run_load

ASKED = (("/v1/overview?window=15m&points=90&part=all", 4.0), ("/v1/learning", 15.0), ("/v1/trends", 15.0))
BOUND = 1.5


def consoles(url: str, count: int) -> None:
    """Open consoles, until the process is ended."""

    async def one(client: httpx.AsyncClient, path: str, every: float) -> None:
        await asyncio.sleep(every * random.random())
        while True:
            (await client.get(path)).raise_for_status()
            await asyncio.sleep(every)

    async def everyone() -> None:
        limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30.0) as client:
            await asyncio.gather(*(one(client, path, every) for _ in range(count) for path, every in ASKED))

    asyncio.run(everyone())


def turn(load: Load, count: int) -> float:
    """p99 of lists in milliseconds."""
    process = multiprocessing.Process(target=consoles, args=(load.url, count), daemon=True)
    if count:
        process.start()
        time.sleep(6.0)
    p99 = float(run_load(load)["lists"]["ms"]["p99"])
    if count:
        assert process.is_alive(), "the consoles got an answer that is no 200"
        process.terminate()
        process.join()
    return p99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--consoles", type=int, default=200)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    load = Load(given.url, lists=100.0, events=0.0, seconds=given.seconds, users=500)
    without, beside = list[float](), list[float]()
    for number in range(given.turns):
        without.append(turn(load, 0))
        beside.append(turn(load, given.consoles))
        print(f"turn {number}: p99 {without[-1]} ms, with {given.consoles} consoles {beside[-1]} ms", flush=True)
    ratio = median(beside) / median(without)
    print(f"p99 with {given.consoles} consoles: {ratio:.2f} x (bound {BOUND} x, medians of {given.turns} turns)")


if __name__ == "__main__":
    main()
