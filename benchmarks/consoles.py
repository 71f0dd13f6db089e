"""What others cost: latency of lists beside open consoles, or beside the costliest requests, in turns with none.

    melon serve --demo &
    python benchmarks/consoles.py http://127.0.0.1:8000 --consoles 200
    python benchmarks/consoles.py http://127.0.0.1:8000 --worst

Each console asks as the page does: the overview every 4 seconds, learning and trends every 15. Bound: 200 consoles
raise the lists' p99 by at most half. `--worst` has one client ask without a pause for what a request may cost at most,
in each of four ways, or post 10,000 events (which are stored only) at a time; bound: five times the p99.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import httpx
import uvloop

from load import ConnectionPool, Load, run_load

ASKED = (("/v1/overview?window=15m&points=90&part=all", 4.0), ("/v1/learning", 15.0), ("/v1/trends", 15.0))
#: What a browser sends, about as long.
HEADERS = (
    "User-Agent: "
    + "Mozilla/5.0 " * 9
    + "\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n"
    + (
        'sec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24"\r\nsec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: "Linux"\r\n'
        "Accept-Language: en;q=0.9\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n"
    )
)
BOUND, WORST_BOUND = 1.5, 5.0
#: Requests that cost the 50,000 units which are allowed: long lists, diverse ones, caps, and candidates by name.
WORST: dict[str, tuple[int, dict[str, Any]]] = {
    "long": (50, {"k": 1000}),
    "diverse": (166, {"k": 100, "rules": {"diversity": 0.5}}),
    "capped": (33, {"k": 250, "rules": {"at_most": {"category": 250}}}),
    "candidates": (49, {"k": 10, "candidates": [f"i{n}" for n in range(10_000)]}),
}
POSTS = "posts"


def worst(url: str, kind: str, users: int, form: str) -> None:
    """Ask for one of these again and again, until the process is ended."""
    count, body = WORST.get(kind, (0, {}))
    if form == "{}":
        body = {**body, **({"candidates": list(range(10_000))} if "candidates" in body else {})}
    events = [{"user": form.format(n % users), "item": form.format(n), "type": "impression"} for n in range(10_000)]
    posted = json.dumps(events).encode()
    with httpx.Client(base_url=url, timeout=120.0) as client:
        while kind == POSTS:
            answer = client.post("/v1/interactions", content=posted, headers={"Content-Type": "application/json"})
            assert answer.status_code in (202, 429), answer.text
        while True:
            people = [form.format(random.randrange(users)) for _ in range(count)]
            answer = client.post("/v1/recommendations", json={"users": people, **body})
            assert answer.status_code in (200, 503), answer.text


def consoles(url: str, count: int) -> None:
    """Open consoles, until the process is ended."""

    async def one(connections: ConnectionPool, path: str, every: float) -> None:
        await asyncio.sleep(every * random.random())
        while True:
            code, _ = await connections.ask(path)
            assert code == "200", code
            await asyncio.sleep(every)

    async def everyone() -> None:
        opened = [ConnectionPool(Load(url, connections=2)) for _ in range(count)]
        for connections in opened:
            connections.head += HEADERS
        await asyncio.gather(*(one(connections, *asked) for connections in opened for asked in ASKED))

    uvloop.run(everyone())


def turn(load: Load, work: Callable[..., None] | None, *args: Any) -> float:
    """p99 of lists in milliseconds, beside a process that does some work."""
    process = multiprocessing.Process(target=work, args=(load.url, *args), daemon=True)
    if work is not None:
        process.start()
        time.sleep(6.0)
    p99 = float(run_load(load)["lists"]["ms"]["p99"])
    if work is not None:
        assert process.is_alive(), "somebody got an answer that is no 200"
        process.terminate()
        process.join()
    return p99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--consoles", type=int, default=200)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--lists", type=float, default=100.0, help="lists a second")
    parser.add_argument("--users", type=int, default=500)
    parser.add_argument("--form", default="u{}", help="how ids of users are written")
    parser.add_argument("--worst", action="store_true")
    given = parser.parse_args()
    load = Load(
        given.url, lists=given.lists, events=0.0, seconds=given.seconds, users=given.users, user_form=given.form
    )
    ways: dict[str, tuple[Any, ...]] = {f"{given.consoles} consoles": (consoles, given.consoles)}
    if given.worst:
        ways = {kind: (worst, kind, given.users, given.form) for kind in (*WORST, POSTS)}
    found: dict[str, list[float]] = {name: [] for name in ("alone", *ways)}
    for number in range(given.turns):
        for name, way in {"alone": (None,), **ways}.items():
            found[name].append(turn(load, *way))
            print(f"turn {number}: p99 {found[name][-1]} ms, {name}", flush=True)
    bound = WORST_BOUND if given.worst else BOUND
    for name in ways:
        ratio, least = (kind(found[name]) / kind(found["alone"]) for kind in (median, min))
        print(
            f"p99 beside {name}: {ratio:.2f} x (bound {bound} x, medians of {given.turns} turns; of the best turns "
            f"{least:.2f} x: what else runs on the machine can only make a turn worse)"
        )


if __name__ == "__main__":
    main()
