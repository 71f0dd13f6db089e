"""The live service under load: lists and events in a second, latency, freshness, and CPU by process.

    python benchmarks/service_load.py --items 100000 --users 200000 --lists 500 --events 1000 --seconds 20

Starts `melon serve` on loopback with a model of that size and loads it with `melon load` (open loop, latency from when
a request was due). The generator runs on the same machine; its CPU is told apart from that of the service.
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

import numpy as np

TICKS = os.sysconf("SC_CLK_TCK")


def build(folder: Path, args: argparse.Namespace) -> None:
    """A model with a row for every user and item."""
    from melon.learning.model import LiveModel
    from melon.learning.updater import Updater
    from melon.recommenders.registry import RECOMMENDERS
    from melon.strategies.registry import STRATEGIES

    draws = np.random.default_rng(0)
    recommender = RECOMMENDERS[args.recommender].load()({"dim": args.dim})
    model = LiveModel(Updater(recommender, STRATEGIES[args.strategy].load()({})))
    count = max(args.users, args.items) * 2
    users = np.concatenate([np.arange(args.users), draws.integers(0, args.users, count)])
    items = np.concatenate([np.arange(args.users) % args.items, draws.integers(0, args.items, count)])
    for first in range(0, len(users), 4096):
        some = slice(first, first + 4096)
        model.learn_events(users[some], items[some], np.arange(len(users))[some])
    model.save(folder, {})


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children(pid: int) -> dict[str, int]:
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=True)
    return {role: int(one) for one, role in re.findall(r"^\s*(\d+) .*supervisor (\w+) ", listed.stdout, re.MULTILINE)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("items", 100_000), ("users", 200_000), ("dim", 64), ("batch", 10), ("connections", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("lists", 500.0), ("events", 1000.0), ("seconds", 20.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--recommender", default="bpr")
    parser.add_argument("--strategy", default="melon")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder) / "model", args)
        command = [str(Path(sys.executable).with_name("melon")), "serve", f"{folder}/model", "--port", "0"]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert service.stdout is not None
        url = next(found[1] for line in service.stdout if (found := re.search(r"serving on (\S+);", line)))
        subprocess.Popen(["cat"], stdin=service.stdout, stdout=subprocess.DEVNULL)
        started = time.monotonic()
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as answer:
                    if answer.status == 200:
                        break
            except OSError:
                time.sleep(0.2)
        ready = time.monotonic() - started
        pids = children(service.pid)
        before = {role: cpu(pid) for role, pid in pids.items()}
        words = [
            "load",
            url,
            "--lists",
            args.lists,
            "--events",
            args.events,
            "--batch",
            args.batch,
            "--seconds",
            args.seconds,
        ]
        words += ["--users", args.users, "--items", args.items, "--user-form", "{}", "--item-form", "{}"]
        words += ["--connections", args.connections, "--json"]
        done = subprocess.run([command[0], *map(str, words)], capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        used = {role: round(cpu(pid) - before[role], 2) for role, pid in pids.items()}
        report |= {
            "cpu_s": used,
            "ready_s": round(ready, 1),
            "load_average": os.getloadavg()[0],
            "cores": os.cpu_count(),
        }
        report["settings"] = vars(args)
        print(json.dumps(report, indent=1))
        service.send_signal(signal.SIGTERM)
        service.wait(120)


if __name__ == "__main__":
    main()
