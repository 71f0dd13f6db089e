"""The live service under load: lists and events in a second, latency, freshness, and CPU by process.

    python benchmarks/service_load.py --items 100000 --users 200000 --lists 500 --events 1000 --seconds 20

    python benchmarks/service_load.py --recommender blend --strategy default --two-stage --lists 200 300
    python benchmarks/service_load.py --recommender auto --two-stage --lists 300

Starts `melon serve` on loopback with a model of that size, waits until it has learned an event, and loads it with
`benchmarks/load.py` (open loop, latency from when a request was due), one rate after another. It runs on the same
machine; its CPU is told apart from that of the service. A rate may be named several times. `learned` counts the events
that the served model knows when the last answer has come. `list_cpu_ms` is measured beforehand in one process: lists
under the service's rules, each 1, 8 or 16 made together, also right after an update. `disk` is what the service left
behind, as it is after an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from melon.service.log.events import EventLog
from melon.service.log.files import BATCHES, EVENTS
from melon.service.log.steps import StepBook

TICKS = os.sysconf("SC_CLK_TCK")


def build(folder: Path, args: argparse.Namespace) -> None:
    """A model with a row for every user and item."""
    from melon.fitting import auto
    from melon.learning.model import LiveModel
    from melon.learning.updater import Updater
    from melon.models.registry import RECOMMENDERS
    from melon.strategies.registry import STRATEGIES

    draws = np.random.default_rng(0)
    settings: dict[str, Any] = {"dim": args.dim}
    if args.two_stage:
        settings["lists"] = "two_stage"
    names = args.recommender, args.strategy
    if args.recommender == auto.AUTO:
        settings |= auto.SETTINGS
        names = auto.RECOMMENDER, auto.STRATEGY
    recommender = RECOMMENDERS[names[0]].load()(settings)
    model = LiveModel(Updater(recommender, STRATEGIES[names[1]].load()({"half_life": args.half_life})))
    count = max(args.users, args.items) * 2
    users = np.concatenate([np.arange(args.users), draws.integers(0, args.users, count)])
    items = np.concatenate([np.arange(args.users) % args.items, draws.integers(0, args.items, count)])
    for first in range(0, len(users), 4096):
        some = slice(first, first + 4096)
        model.learn_events(users[some], items[some], np.arange(len(users))[some])
    model.save(folder, {})


def list_cpu(folder: Path, users: int) -> dict[str, float]:
    """CPU milliseconds of one list when some are made together, also right after an update; medians."""
    from melon.learning.model import LiveModel
    from melon.service.answers import ListMaker, Query
    from melon.service.log.base import Position
    from melon.service.rules.items import ItemFacts
    from melon.service.served import Served

    model, _ = LiveModel.load(folder)
    model.warm_up()
    maker, draws = ListMaker(ItemFacts(), Served(1000), lambda _: ()), np.random.default_rng(1)
    position, moment = Position("", 0, 0, b""), model.last_time

    def each(together: int, *, updated: bool = False) -> float:
        spent = []
        for _ in range(25):
            queries = [Query(user=int(user)) for user in draws.integers(0, users, together)]
            if updated:
                model.learn_events([int(draws.integers(users))], [0], [moment])
            started = time.process_time()
            maker.make(model, position, queries, 0.0)
            spent.append((time.process_time() - started) / together)
        return round(1e3 * float(np.median(spent)), 2)

    each(1)
    together = {str(count): each(count) for count in (1, 8, 16)}
    return together | {f"{count} after an update": each(count, updated=True) for count in (1, 8, 16)}


def call(url: str, body: object = None) -> Any:
    """The answer of the service."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> int:
    """Megabytes of memory that a process holds now."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def children(pid: int) -> dict[str, int]:
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=True
    )
    return {role: int(one) for one, role in re.findall(r"^\s*(\d+) .*supervisor (\w+) ", listed.stdout, re.MULTILINE)}


def measured(url: str, pids: dict[str, int], lists: float, args: argparse.Namespace) -> dict[str, Any]:
    """One load, with what each process used for it."""
    first = call(f"{url}/v1/status")["log"]["offset"]
    before = {role: cpu(pid) for role, pid in pids.items()}
    given = {"lists": lists, "user-form": "{}", "item-form": "{}"}
    given |= {name: getattr(args, name) for name in ("events", "batch", "seconds", "users", "items", "connections")}
    words = [str(word) for name, value in given.items() for word in (f"--{name}", value)]
    load = [sys.executable, Path(__file__).with_name("load.py"), url, *words]
    done = subprocess.run(load, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    report["learned"] = report["model"]["offset"] - first
    report["cpu_s"] = {role: round(cpu(pid) - before[role], 2) for role, pid in pids.items()}
    report["memory_mb"] = {role: memory(pid) for role, pid in pids.items()}
    report["load_average"] = os.getloadavg()[0]
    return report


def disk(live: Path) -> dict[str, int]:
    """Events and steps of a service that has ended, and the bytes of both files as they are after an hour."""
    with EventLog(live) as log, StepBook(live) as book:
        book.thin(time.time())
        for part in (log, book):
            part._db.scrub(rewrite=True)
        last = book.last()
        sizes = {name: (live / name).stat().st_size for name in (EVENTS, BATCHES)}
        return {"events": log.events, "steps": 0 if last is None else last.number, **sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("items", 100_000), ("users", 200_000), ("dim", 64), ("batch", 10), ("connections", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lists", type=float, nargs="+", default=[500.0])
    for name, default in (("events", 1000.0), ("seconds", 20.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--recommender", default="bpr", help="bpr, blend, …; auto is the blend with auto's inputs")
    parser.add_argument("--half-life", type=float, help="the half-life of idle rows, in interactions")
    parser.add_argument("--strategy", default="melon")
    parser.add_argument("--two-stage", action="store_true", help="the blend's lists in two stages")
    parser.add_argument("--model", type=Path, help="a folder for the model, which is made there once")
    args = parser.parse_args()
    melon = str(Path(sys.executable).with_name("melon"))
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or Path(folder) / "model"
        if not model.exists():
            build(model, args)
        report: dict[str, Any] = {"list_cpu_ms": list_cpu(model, args.users)}
        command = [melon, "serve", str(model), "--data", f"{folder}/live", "--port", "0"]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert service.stdout is not None
        url = next(found[1] for line in service.stdout if (found := re.search(r"serving on (\S+);", line)))
        subprocess.Popen(["cat"], stdin=service.stdout, stdout=subprocess.DEVNULL)
        started = time.monotonic()
        while True:
            try:
                call(f"{url}/health/ready")
                break
            except OSError:
                time.sleep(0.2)
        report["ready_s"] = round(time.monotonic() - started, 1)
        first = call(f"{url}/v1/interactions", {"user": 0, "item": 0})["offset"]
        while call(f"{url}/v1/status")["model"]["offset"] < first:
            time.sleep(0.1)
        report["learns_s"] = round(time.monotonic() - started, 1)
        pids = children(service.pid)
        report["loads"] = [{"asked": lists, **measured(url, pids, lists, args)} for lists in args.lists]
        report |= {"cores": os.cpu_count(), "settings": {name: str(value) for name, value in vars(args).items()}}
        service.send_signal(signal.SIGTERM)
        service.wait(120)
        report["disk"] = disk(Path(folder, "live"))
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
