"""Lists, events and freshness of one API process on SQLite and of 1, 2 and 3 on PostgreSQL in one run; and a failover.

    python benchmarks/fleet.py postgresql://melon@127.0.0.1/postgres --seconds 8

Each arm is a new service: one learner, some API processes, the same load on each process (`load.py`, open loop). The
last line is what the database alone inserts: rows of the same size, one commit for each list of events. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from load import Load, run_load
from melon import Melon

USERS, ITEMS = 2_000, 5_000


def model(folder: Path) -> Path:
    """A small bpr model on disk."""
    draws = np.random.default_rng(0)
    events = [(f"u{draws.integers(USERS)}", f"i{draws.integers(ITEMS)}", n) for n in range(40_000)]
    Melon("bpr", "default", recommender_settings={"dim": 32}, progress=False).partial_fit(events).save(folder)
    return folder


def started(role: str, folder: Path, given: Path, url: str | None) -> tuple[subprocess.Popen[bytes], str]:
    """A process of the service, and its address."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = ["serve", str(given), "--data", str(folder), "--role", role, "--port", str(port), "--set", "negatives=0"]
    more = {"MELON_LOG_LEVEL": "ERROR"} | ({} if url is None else {"MELON_SERVE_LOG": url})
    process = subprocess.Popen([sys.executable, "-m", "melon", *words], env=os.environ | more)
    return process, f"http://127.0.0.1:{port}"


def asked(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return None


def arm(given: Path, folder: Path, url: str | None, processes: int, args: argparse.Namespace) -> dict[str, Any]:
    """One service under load: requests answered in a second over all processes, latency, freshness."""
    data = [folder / str(n) for n in range(processes)]
    apis = [started("api", one, given, url) for one in data]
    learner, _ = started("learner", data[0] if url is None else folder / "learner", given, url)
    try:
        while any((asked(f"{address}/health/ready") or {}).get("lists") != "model" for _, address in apis):
            time.sleep(0.1)
        loads = [
            Load(address, args.lists, args.events, batch=50, seconds=args.seconds, users=USERS, items=ITEMS, seed=n)
            for n, (_, address) in enumerate(apis)
        ]
        with ThreadPoolExecutor(processes) as pool:
            tables = list(pool.map(run_load, loads))
        fresh = [asked(f"{address}/v1/status")["freshness_s"] for _, address in apis]
    finally:
        for process in (learner, *(process for process, _ in apis)):
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    def latency(kind: str) -> list[float]:
        return [round(float(np.median([one[kind]["ms"][p] for one in tables])), 1) for p in ("p50", "p99")]

    return {
        "lists/s": round(sum(one["lists"]["per_second"] for one in tables)),
        "events/s": round(sum(one["events_per_second"] for one in tables)),
        "lists p50, p99 ms": latency("lists"),
        "posts p50, p99 ms": latency("posts"),
        "freshness p50, p95 s": [max(one[p] or 0.0 for one in fresh) for p in ("p50", "p95")],
    }


def failover(given: Path, folder: Path, url: str, rounds: int) -> dict[str, Any]:
    """Seconds from killing the learner until an event posted right after it is in the lists, each time."""
    api, address = started("api", folder / "api", given, url)
    learners = [started("learner", folder / str(n), given, url)[0] for n in range(2)]
    schema = url.partition("schema=")[2]
    taken: list[float] = []
    try:
        while (asked(f"{address}/health/ready") or {}).get("lists") != "model":
            time.sleep(0.1)
        for _ in range(rounds):
            time.sleep(5)  # the one that waits has caught up
            with psycopg.connect(url.partition("?")[0]) as connection:
                row = connection.execute(f"SELECT holder FROM {schema}_batches.leases").fetchone()
            number = next(n for n, one in enumerate(learners) if row is not None and f"process {one.pid} " in row[0])
            learners[number].kill()
            learners[number].wait()
            killed, body = time.monotonic(), json.dumps({"user": "u1", "item": f"i{len(taken)}"}).encode()
            request = urllib.request.Request(f"{address}/v1/interactions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                offset = json.load(answer)["offset"]
            while ((asked(f"{address}/v1/status") or {}).get("model") or {}).get("offset", 0) < offset:
                time.sleep(0.01)
            taken.append(round(time.monotonic() - killed, 2))
            learners[number] = started("learner", folder / str(number), given, url)[0]
    finally:
        for process in (api, *learners):
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return {"seconds": taken}


def engine(url: str, seconds: float) -> dict[str, Any]:
    """What the database alone inserts: lists of 50 rows, each list one commit."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS melon_fleet(number BIGSERIAL PRIMARY KEY, body TEXT)")
        end, rows = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany("INSERT INTO melon_fleet(body) VALUES (%s)", [("x" * 120,)] * 50)
            rows += 50
        connection.execute("DROP TABLE melon_fleet")
    return {"events/s": round(rows / seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="a database that may be filled: postgresql://USER@HOST/DATABASE")
    parser.add_argument("--lists", type=float, default=100, help="lists in a second, for each API process")
    parser.add_argument("--events", type=float, default=500, help="events in a second, for each API process")
    parser.add_argument("--seconds", type=float, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        given, mark = model(Path(name) / "model"), f"fleet{int(time.time())}"
        arms: dict[str, Any] = {"SQLite, 1 API process": arm(given, Path(name) / "sqlite", None, 1, args)}
        for count in (1, 2, 3):
            address = f"{args.url}?schema={mark}_{count}"
            arms[f"PostgreSQL, {count}"] = arm(given, Path(name) / str(count), address, count, args)
        arms["learner killed"] = failover(given, Path(name) / "failover", f"{args.url}?schema={mark}_f", 5)
        arms["PostgreSQL alone"] = engine(args.url, args.seconds)
    sys.stdout.write(json.dumps(arms, indent=1) + "\n")


if __name__ == "__main__":
    main()
