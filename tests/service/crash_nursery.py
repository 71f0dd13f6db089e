"""Starts processes that are to be killed, quickly: everything is imported once, and each of them is a fork."""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from service_scenes import LOG

from melon.service.config import ServeSettings
from melon.service.learner.loop import run_learner
from melon.service.log.base import Event
from melon.service.log.events import EventLog


def event(number: int) -> Event:
    """Event `number`, known by its time."""
    rng = random.Random(number)
    reach = 8 + number // 40
    return Event(f"u{rng.randrange(reach)}", f"i{rng.randrange(2 * reach)}", 10**6 + number, event_id=f"e{number}")


def learn(folder: Path, model: Path, seed: int) -> None:
    run_learner(
        ServeSettings(
            data=folder, model=model, batch_most=30, batch_every_ms=0, checkpoint_events=200, negatives=9, fit_after=0,
            keep_deltas_bytes=300_000, frozen=False,
        )
    )  # fmt: skip


def write(folder: Path, model: Path, seed: int) -> None:
    """Post events in lists, those in doubt again, and note what was acknowledged where a kill cannot take it."""
    rng, acknowledged = random.Random(seed), folder / "acknowledged"
    descriptor = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    lines = acknowledged.read_text().split()
    number = max(0, (int(lines[-1]) if lines else 0) - 25)
    with EventLog(folder, LOG) as log:
        while True:
            count = rng.randrange(1, 25)
            log.append([event(n) for n in range(number, number + count)])
            number += count
            os.write(descriptor, f"{number}\n".encode())
            if rng.random() < 0.01:
                log.forget(f"u{rng.randrange(12)}").result()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        wanted: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if not pid:
            try:
                {"learn": learn, "write": write}[wanted["role"]](
                    Path(wanted["folder"]), Path(wanted["model"]), wanted["seed"]
                )
            except BaseException as error:
                (Path(wanted["folder"]) / f"failed-{wanted['role']}-{os.getpid()}").write_text(repr(error))
                os._exit(1)
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
