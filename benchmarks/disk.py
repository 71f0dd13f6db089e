"""Bytes that a service keeps of an event, with and without an id of its own, and of a step, at first and later.

python benchmarks/disk.py --events 200000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
import uuid
from pathlib import Path

from melon.learning.deltas import DIGEST_SIZE
from melon.service.log.base import Event, LoggedStep
from melon.service.log.events import EventLog
from melon.service.log.files import BATCHES, EVENTS
from melon.service.log.steps import StepBook

#: What the learner notes of a step, and how long it is, as a service under load has it.
ABOUT, TOTALS = (
    {"events": 16, "loss": 0.6931, "moved": 0.0123, "ms": 9.5},
    {f"counter {n}": n * 1001 for n in range(90)},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=5_000)
    given = parser.parse_args()
    draws, report = random.Random(1), dict[str, float]()
    with tempfile.TemporaryDirectory() as name:
        for kind in ("no id", "UUID"):
            folder = Path(name) / kind
            with EventLog(folder) as log:
                for first in range(0, given.events, 10_000):
                    numbers = range(first, min(first + 10_000, given.events))
                    ids = [None if kind == "no id" else str(uuid.UUID(int=draws.getrandbits(128))) for _ in numbers]
                    users, items = ([int(draws.random() ** 2 * most) for _ in numbers] for most in (200_000, 100_000))
                    rows = zip(numbers, users, items, ids, strict=True)
                    log.append([Event(f"u{u}", f"i{i}", 1_790_000_000 + n // 10, "view", one) for n, u, i, one in rows])
            report[f"bytes an event, {kind}"] = round((folder / EVENTS).stat().st_size / given.events, 1)
        with StepBook(Path(name)) as book:
            epoch, now = book.begin_epoch({}), time.time()
            for n in range(1, given.steps + 1):
                step = LoggedStep(n, "events", n, n, epoch, "planned", planned=now - 7_200, done=now - 7_200 + n / 50)
                book.plan(step)
                book.finish(step, "learned", os.urandom(DIGEST_SIZE), ABOUT, TOTALS)
            for when in ("at first", "later"):
                if when == "later":
                    book.thin(now)
                book._db.scrub(rewrite=True)
                report[f"bytes a step, {when}"] = round((Path(name) / BATCHES).stat().st_size / given.steps, 1)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
