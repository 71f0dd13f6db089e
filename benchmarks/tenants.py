"""Events a second that learners take, by recommender and batch size, for one tenant and for two at once.

    python benchmarks/tenants.py [--users 20000] [--items 20000] [--seconds 3]

Each tenant's learner is a process of its own with a log of its own, as in `melon serve`: a batch is read, ranked
against 99 other items, learned, recorded and published. CPU seconds count, wall time stands beside them.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from melon.kernels.threads import use_threads
from melon.service.config import ServeSettings
from melon.service.learner.loop import Learner
from melon.service.log.base import Event
from melon.service.log.events import EventLog
from service_learner import PAIRINGS, deployed

_WARM = 5


def learn(folder: Path, model: Path, size: int, given: argparse.Namespace) -> None:
    """Learn for some CPU seconds, and print events, CPU seconds and seconds."""
    use_threads(1)
    rng = np.random.default_rng(1)
    settings = ServeSettings(
        data=folder, model=model, batch_most=size, batch_every_ms=0, checkpoint_s=1e9, checkpoint_events=1 << 40,
        fit_after=0,
    )  # fmt: skip
    with EventLog(folder) as log, Learner(settings) as learner:
        learned, cpu, wall = 0, 0.0, 0.0
        while cpu < given.seconds:
            users, items = rng.integers(0, given.users, 4096), rng.zipf(1.3, 4096) % given.items
            log.append([Event(int(user), int(item), 10**6) for user, item in zip(users, items, strict=True)])
            if not learned:
                for _ in range(_WARM):
                    learner.step()
            before, started, at = learner.position.offset, time.perf_counter(), time.process_time()
            while learner.step() and cpu + time.process_time() - at < given.seconds:
                pass
            cpu, wall = cpu + time.process_time() - at, wall + time.perf_counter() - started
            learned += learner.position.offset - before
    print(learned, cpu, wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--learn", nargs=3, metavar=("FOLDER", "MODEL", "SIZE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.learn:
        folder, model, size = given.learn
        learn(Path(folder), Path(model), int(size), given)
        return
    with tempfile.TemporaryDirectory() as home:
        for pairing in PAIRINGS:
            model = Path(home) / pairing
            deployed(model, pairing, given.users, given.items)
            for size in (1, 16, 64, 256):
                told = []
                for tenants in (1, 2):
                    common = [
                        sys.executable,
                        __file__,
                        *(f"--{name}={value}" for name, value in vars(given).items() if value),
                    ]
                    running = [
                        subprocess.Popen(
                            [*common, "--learn", f"{home}/{pairing}-{size}-{tenants}-{n}", str(model), str(size)],
                            stdout=subprocess.PIPE, text=True,
                        )
                        for n in range(tenants)
                    ]  # fmt: skip
                    figures = [[float(one) for one in process.communicate()[0].split()] for process in running]
                    per_cpu = sum(events / cpu for events, cpu, _ in figures)
                    told.append(f"{per_cpu:9,.0f} per CPU s {sum(e / wall for e, _, wall in figures):9,.0f} /s")
                print(f"{pairing:8} batches of {size:4}: 1 tenant {told[0]}; 2 tenants {told[1]}", flush=True)


if __name__ == "__main__":
    main()
