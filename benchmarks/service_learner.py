"""What the log, the learner and a replica cost: CPU milliseconds, medians, one thread.

    python benchmarks/service_learner.py [--users 200000] [--items 100000] [--pairing melon|default|blend|auto]

A batch of live events is ranked, learned, turned into a delta, recorded, published and applied by a replica, all in
this process; then checkpoints are written beside learning, and the recorded steps are taken again from the start.
"""

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from melon.fitting.auto import SETTINGS
from melon.kernels.threads import use_threads
from melon.learning.deltas import Delta, apply
from melon.learning.model import LiveModel, observe_only
from melon.learning.updater import Updater
from melon.models.registry import RECOMMENDERS
from melon.service.config import ServeSettings
from melon.service.learner.loop import Learner
from melon.service.learner.replaying import replay
from melon.service.log.base import Event
from melon.service.log.events import EventLog
from melon.service.log.steps import DeltaReader
from melon.strategies.registry import STRATEGIES

#: Recommender, its settings, and strategy.
PAIRINGS: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "melon": ("bpr", {}, "melon"),
    "default": ("bpr", {}, "default"),
    "blend": ("blend", {}, "default"),
    "auto": ("blend", SETTINGS, "default"),
}


def deployed(folder: Path, pairing: str, users: int, items: int) -> None:
    """A model that knows so many users and items."""
    recommender, settings, strategy = PAIRINGS[pairing]
    model = LiveModel(Updater(RECOMMENDERS[recommender].load()(settings), STRATEGIES[strategy].make()))
    rng = np.random.default_rng(0)
    count = max(users, items)
    observe_only(
        model,
        np.arange(count) % users,
        np.where(np.arange(count) < items, np.arange(count), rng.integers(0, items, count)),
        np.arange(count),
    )
    model.save(folder, {})


def cpu(work: object) -> float:
    started = time.process_time()
    work()  # type: ignore[operator]
    return 1e3 * (time.process_time() - started)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--users", type=int, default=200_000)
    arguments.add_argument("--items", type=int, default=100_000)
    arguments.add_argument("--pairing", choices=PAIRINGS, default="melon")
    given = arguments.parse_args()
    use_threads(1)
    rng = np.random.default_rng(1)
    number = 0

    def events(count: int) -> list[Event]:
        nonlocal number
        users, items = rng.integers(0, given.users, count), rng.zipf(1.3, count) % given.items
        number += count
        return [
            Event(int(user), int(item), 10**6 + number, event_id=f"{number}/{n}")
            for n, (user, item) in enumerate(zip(users, items, strict=True))
        ]

    with tempfile.TemporaryDirectory() as home:
        model, folder = Path(home) / "model", Path(home) / "live"
        deployed(model, given.pairing, given.users, given.items)
        some = ServeSettings(data=folder, model=model, checkpoint_s=1e9, checkpoint_events=1 << 40, fit_after=0)
        with EventLog(folder) as log, Learner(some) as learner:
            print(f"{given.pairing}, {given.users} users, {given.items} items, one thread")
            for count in (1, 10, 100, 1_000):
                lists = [events(count) for _ in range(15)]
                print(
                    f"append {count:5}: {statistics.median(cpu(lambda one=one: log.append(one)) for one in lists):7.2f}"
                )
            while learner.step():
                pass
            replica = copy.deepcopy(learner.replay.model)
            with DeltaReader(folder) as feed:
                for count in (1, 16, 64, 256):
                    rows = []
                    for _ in range(12):
                        log.append(events(count))
                        step = cpu(learner.step)
                        (published,) = feed.after(learner.position.batch - 1)
                        applied = cpu(lambda content=published.content: apply(replica, Delta.from_bytes(content)))
                        rows.append((step, len(published.content) / 1e3, applied))
                    step, size, applied = (statistics.median(column) for column in zip(*rows[2:], strict=True))
                    print(f"batch {count:6}: step {step:7.2f}   delta {size:6.0f} kB   applied in {applied:6.2f}")
            for attempt in range(3):
                pause, taken = cpu(learner.save), []
                while not learner._saver.ready:
                    log.append(events(64))
                    taken.append(cpu(learner.step))
                learner._saved()
                meanwhile = f"median {statistics.median(taken):.1f}, most {max(taken):.1f}"
                print(f"checkpoint {attempt + 1}: pause {pause:5.1f}; {len(taken)} steps of 64 meanwhile: {meanwhile}")
            for _ in range(8):
                log.append(events(1_000))
            while learner.step():
                pass
            last = learner.position
        started = time.process_time()
        again = replay(folder)
        spent = time.process_time() - started
        assert again.position.digest == last.digest
        print(f"replay: {last.offset / spent:7.0f} events a second, loading included; the digest is the same")


if __name__ == "__main__":
    main()
