"""Everything on one machine at a size: prepare, pre-train, learn, recommend, save and load, with time and memory.

    python benchmarks/scale.py                       # 10 million interactions, 500,000 users, 100,000 items
    python benchmarks/scale.py --interactions 100_000_000 --users 5_000_000 --items 1_000_000 --folder /tmp

The log is made by rule, in pieces: items have a heavy-tailed popularity that drifts, users have a taste. Each line is a
process of its own, whose peak memory it is; CPU seconds and seconds by the wall clock, one thread. A process ends
itself where it would leave less than --leave-gb of the machine's memory. The folder's files are removed at the end.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import melon
from melon.data.files import load_stream
from melon.data.prepare import prepare

PIECE = 1_000_000


def write_log(path: Path, interactions: int, users: int, items: int) -> None:
    """User, item and second of each interaction, a million at a time."""
    import polars as pl

    with TemporaryDirectory(dir=path.parent) as pieces:
        for first in range(0, interactions, PIECE):
            n, rng = min(PIECE, interactions - first), np.random.default_rng(first)
            who = (users * rng.random(n) ** 1.5).astype(np.int64)
            drift = first * items // (4 * interactions)
            spread = np.minimum(rng.pareto(0.9, n) * items / 100, items).astype(np.int64)
            what = (spread + drift + (who % 64) * (items // 64)) % items
            piece = pl.DataFrame({"user": who, "item": what, "time": 1_700_000_000 + first + np.arange(n)})
            piece.write_parquet(Path(pieces) / f"{first:012}.parquet")
        pl.scan_parquet(pieces).sink_parquet(path)


def leave(gigabytes: float) -> None:
    """End this process once less than this is available on the machine."""
    while True:
        (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        if int(line.split()[1]) < gigabytes * 1024**2:
            print(f"stopped: less than {gigabytes:g} GB of memory were left", file=sys.stderr, flush=True)
            os._exit(1)
        time.sleep(0.2)


class Clock:
    """Seconds of named parts, and the process's peak memory by the end of each."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, name: str, work: Callable[[], Any], count: int = 1) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        line = {"what": name, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "count": count}
        self.lines.append(line | {"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2})
        return result


def phase_prepare(clock: Clock, folder: Path, _: str, size: tuple[int, int, int]) -> None:
    """The log, made and prepared."""
    clock("prepare", lambda: prepare([folder / "raw.parquet"], out=folder / "log.parquet", min_interactions=1), size[0])


def phase_fit(clock: Clock, folder: Path, kind: str, size: tuple[int, int, int]) -> None:
    """One epoch of pre-training, and everything behind it."""
    log = clock("read the stream", lambda: load_stream(folder / "log.parquet"), size[0])
    names = ("auto", "auto") if kind == "auto" else (kind, "default")
    settings = {"optimizer": "sgd", "lr": 0.3, "half_life": 1_000_000.0}
    model = melon.Melon(*names, budget=0, epochs=1, settings=None if kind == "auto" else settings, progress=False)
    clock("fit, one epoch", lambda: model.fit(log), size[0])
    clock("save", lambda: model.save(folder / kind))


def phase_use(clock: Clock, folder: Path, kind: str, _: tuple[int, int, int]) -> None:
    """A saved model: loaded, asked, taught."""
    model = clock("load", lambda: melon.load(folder / kind))
    rng = np.random.default_rng(1)
    asked = [int(user) for user in rng.choice(model.live.users.ids(np.arange(1_000)), 20)]
    clock("recommend, first list", lambda: model.recommend(asked[:1]))
    clock("recommend, 20 users one by one", lambda: [model.recommend([user]) for user in asked], 20)
    for batch in (256, 1):
        n = 100 * batch
        users, items = (book.ids(rng.integers(0, len(book), n)) for book in (model.live.users, model.live.items))
        learn = partial(model.live.learn_events, users, items, batch_size=batch)
        clock(f"partial_fit, batches of {batch}", learn, n)
    clock("recommend after that, first list", lambda: model.recommend(asked[:1]))  # now a head has learned, too
    clock("recommend after that, 20 users one by one", lambda: [model.recommend([user]) for user in asked], 20)
    clock("save", lambda: model.save(folder / kind))


PHASES = {"prepare": phase_prepare, "fit": phase_fit, "use": phase_use}


def main() -> None:
    """Run every phase in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in (("interactions", 10_000_000), ("users", 500_000), ("items", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--models", default="bpr,auto")
    parser.add_argument("--leave-gb", type=float, default=2.0)
    parser.add_argument("--folder", default=None, help="where files may lie while this runs")
    parser.add_argument("--phase", nargs=3, metavar=("PHASE", "FOLDER", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = (options.interactions, options.users, options.items)
    if options.phase:
        phase, folder, kind = options.phase
        threading.Thread(target=leave, args=[options.leave_gb], daemon=True).start()
        clock = Clock()
        PHASES[phase](clock, Path(folder), kind, size)
        print(json.dumps(clock.lines))
        return
    print(f"{size[0]:,} interactions, {size[1]:,} users, {size[2]:,} items")
    print("| model | what | wall s | CPU s | µs each | peak GB |\n|---|---|---|---|---|---|")
    with TemporaryDirectory(prefix="melon-scale-", dir=options.folder) as folder:
        write_log(Path(folder) / "raw.parquet", *size)
        kinds = options.recommenders.split(",")
        jobs = [("prepare", "–"), *((phase, kind) for kind in kinds for phase in ("fit", "use"))]
        for phase, kind in jobs:
            command = [sys.executable, __file__, "--phase", phase, folder, kind, f"--leave-gb={options.leave_gb}"]
            command += [f"--{name}={n}" for name, n in zip(("interactions", "users", "items"), size, strict=True)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"| {kind} | {phase} failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]} | | | | |")
                continue
            for line in json.loads(done.stdout.splitlines()[-1]):
                each = f"{line['cpu'] / line['count'] * 1e6:,.1f}" if line["count"] > 1 else ""
                figures = f"{line['wall']:.1f} | {line['cpu']:.1f} | {each} | {line['peak_gb']:.2f}"
                print(f"| {kind} | {line['what']} | {figures} |", flush=True)
            files = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            print(f"| {kind} | files after {phase}: {files / 1e9:.2f} GB | | | | |", flush=True)


if __name__ == "__main__":
    main()
