"""Killed at random moments, cut off from power, out of room: nothing acknowledged is lost or doubled, bytes agree."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from crash_nursery import event
from service_scenes import LOG, clean_replay, learn_all, saved_model, settings, wait_until

from melon.learning.deltas import state_digest
from melon.service.learner.loop import Learner
from melon.service.log.events import EventLog
from melon.service.log.reader import LogReader
from melon.service.replica import Replica


class Nursery:
    def __init__(self, process: subprocess.Popen[str], folder: Path, model: Path) -> None:
        self._process, self._folder, self._model = process, folder, model
        self._seeds = iter(range(10**6))
        self.pids: dict[str, int] = {}

    def start(self, role: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wanted = {"role": role, "folder": str(self._folder), "model": str(self._model), "seed": next(self._seeds)}
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        self.pids[role] = int(self._process.stdout.readline())

    def kill(self, role: str) -> None:
        pid = self.pids.pop(role)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists())


@contextmanager
def nursery(folder: Path, model: Path) -> Iterator[Nursery]:
    script = Path(__file__).with_name("crash_nursery.py")
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=script.parent
    )
    running = Nursery(process, folder, model)
    try:
        yield running
    finally:
        for pid in running.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def require_everything_acknowledged(folder: Path) -> None:
    """Each acknowledged event is in the log once, as it was posted; ids of people who were forgotten are gone."""
    lines = (folder / "acknowledged").read_text().split()
    with LogReader(folder) as reader:
        stored = list(reader.events(1, reader.last()[0]))
        assert reader.last()[1] == len(stored)
    numbers = [one.time - 10**6 for one in stored]
    assert sorted(numbers) == list(range(len(numbers)))
    assert len(numbers) >= int(lines[-1])
    for one, number in zip(stored, numbers, strict=True):
        posted = event(number)
        assert one.item == posted.item
        assert one.user == posted.user or str(one.user).startswith("forgotten-")


def crash(folder: Path, model: Path, rounds: int, seed: int) -> None:
    """Kill the writer, the learner or both, again and again; then catch up and compare."""
    rng = random.Random(seed)
    folder.mkdir()
    with nursery(folder, model) as running, Replica(folder) as replica:
        running.start("write")
        running.start("learn")
        replica.load()
        for _ in range(rounds):
            time.sleep(rng.uniform(0.02, 0.5))
            replica.follow()
            for victim in rng.choice([("write",), ("learn",), ("learn", "write")]):
                running.kill(victim)
                running.start(victim)
        wait_until((folder / "acknowledged").exists)
        running.kill("write")
        running.kill("learn")
        assert not list(folder.glob("failed-*")), [path.read_text() for path in folder.glob("failed-*")]
        require_everything_acknowledged(folder)
        with EventLog(folder, LOG) as log, Learner(settings(folder, model, frozen=False)) as learner:
            learn_all(learner)
            assert learner.position.offset == log.offset
            assert not learner.book.alarms()
            learner.save(wait=True)
            copy, digest = clean_replay(folder)
            assert digest == learner.position.digest
            assert state_digest(copy) == state_digest(learner.course.model)
            wait_until(lambda: replica.follow() or replica.position == learner.position)
            with replica.reading() as (held, position):
                assert position == learner.position
                assert state_digest(held, answering=True) == state_digest(copy, answering=True)


def test_killed_twice(tmp_path: Path) -> None:
    crash(tmp_path / "live", saved_model(tmp_path / "model"), rounds=2, seed=1)


@pytest.mark.slow
def test_killed_two_hundred_times(tmp_path: Path) -> None:
    for seed in range(10):
        crash(tmp_path / f"live{seed}", saved_model(tmp_path / f"model{seed}"), rounds=20, seed=seed)
