"""Killed at random moments, cut off from power, out of room: nothing acknowledged is lost or doubled, bytes agree."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from crash_nursery import event
from service_scenes import LOG, clean_replay, learn_all, saved_model, settings, stream, wait_until

from melon.errors import DiskFullError
from melon.learning.deltas import state_digest
from melon.service.config import ServeSettings
from melon.service.learner.loop import Learner
from melon.service.log.base import Appended, Event
from melon.service.log.events import EventLog, LogReader
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
            assert state_digest(copy) == state_digest(learner.replay.model)
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


# Power cuts. A kill leaves the system's cache, and so shows nothing of syncing.


class ForgetfulDisk(apsw.VFS):
    """Keeps apart what was synced and what was only written, so that a power cut can be tried at any moment."""

    def __init__(self) -> None:
        self.synced: dict[str, bytearray] = {}
        self.pending: dict[str, list[tuple[int, bytes | None]]] = {}
        self.lock = threading.Lock()
        super().__init__("forgetful", "")

    def xOpen(self, name: Any, flags: Any) -> "ForgetfulFile":
        return ForgetfulFile(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        with self.lock:
            super().xDelete(name, sync)
            self.synced.pop(name, None)

    def after_a_cut(self, folder: Path, rng: random.Random) -> None:
        """The disk as it may be found: all that was synced, and any part of what was written since."""
        with self.lock:
            for path, content in self.synced.items():
                image = bytearray(content)
                for offset, written in self.pending[path]:
                    if rng.random() < 0.5:
                        continue
                    if written is None:
                        del image[offset:]
                    else:
                        image.extend(bytes(max(offset - len(image), 0)))
                        image[offset : offset + len(written)] = written
                (folder / Path(path).name).write_bytes(image)


class ForgetfulFile(apsw.VFSFile):
    def __init__(self, disk: ForgetfulDisk, name: Any, flags: Any) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        with disk.lock:
            disk.synced.setdefault(self._path, bytearray())
            disk.pending.setdefault(self._path, [])

    def xWrite(self, data: bytes, offset: int) -> None:
        with self._disk.lock:
            super().xWrite(data, offset)
            self._disk.pending[self._path].append((offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        with self._disk.lock:
            super().xTruncate(size)
            self._disk.pending[self._path].append((size, None))

    def xSync(self, flags: int) -> None:
        with self._disk.lock:
            super().xSync(flags)
            self._disk.synced[self._path] = bytearray(Path(self._path).read_bytes())
            self._disk.pending[self._path].clear()


def stored_lists(folder: Path) -> list[list[int]]:
    """The numbers of events in a log, by the list in which they were posted; each list is whole."""
    with LogReader(folder) as reader:
        stored = list(reader.events(1, reader.last()[0]))
        assert [one.offset for one in stored] == list(range(1, reader.last()[0] + 1))
    lists: dict[str, list[int]] = {}
    for one in stored:
        lists.setdefault(one.type, []).append(one.time)
    return list(lists.values())


def posted(number: int) -> list[Event]:
    return [Event("u", "i", time, f"list {number}", f"{number}/{time}") for time in range(1 + number % 4)]


def require_whole_lists(folder: Path, acknowledged: int) -> None:
    lists = stored_lists(folder)
    assert len(lists) >= acknowledged
    assert lists == [list(range(1 + number % 4)) for number in range(len(lists))]


def cut_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: int) -> None:
    disk, rng = ForgetfulDisk(), random.Random(5)
    plain = apsw.Connection
    # Without shared memory, which such a file system has none of, a WAL needs the file for itself.
    hook = lambda connection: connection.pragma("locking_mode", "exclusive")  # noqa: E731
    monkeypatch.setattr("apsw.connection_hooks", [hook])
    monkeypatch.setattr("apsw.Connection", lambda name, **more: plain(name, vfs="forgetful", **more))
    log = EventLog(tmp_path / "log", ServeSettings(reserve_bytes=0))
    monkeypatch.undo()
    log._db._connection.wal_autocheckpoint(6)  # so that cuts also hit checkpoints
    futures: list[Future[Appended]] = []
    for cut in range(cuts):
        for _ in range(rng.randrange(1, 5)):
            futures.append(log.submit(posted(len(futures))))
        time.sleep(rng.random() * 0.01)
        acknowledged = sum(future.done() for future in futures)
        image = tmp_path / f"cut{cut}"
        image.mkdir()
        disk.after_a_cut(image, rng)
        if (image / "events.db").stat().st_size or acknowledged:
            EventLog(image, LOG).close()
            require_whole_lists(image, acknowledged)
    assert all(future.result(30).conflicting == 0 for future in futures)
    log.close()
    require_whole_lists(tmp_path / "log", len(futures))


def test_power_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_power(tmp_path, monkeypatch, cuts=25)


@pytest.mark.slow
def test_power_is_cut_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_power(tmp_path, monkeypatch, cuts=1_000)


@pytest.mark.parametrize("stride", [331, pytest.param(1, marks=pytest.mark.slow)])
def test_the_wal_is_cut_at_any_byte_behind_the_last_sync(tmp_path: Path, stride: int) -> None:
    whole, image = tmp_path / "whole", tmp_path / "image"
    with EventLog(whole, LOG) as log:
        for number in range(3):
            log.append(posted(number))
        synced = (whole / "events.db-wal").stat().st_size
        log.append(posted(3))
        base, wal = (whole / "events.db").read_bytes(), (whole / "events.db-wal").read_bytes()
    image.mkdir()
    counts = set()
    for size in [*range(synced, len(wal), stride), len(wal)]:
        (image / "events.db-shm").unlink(missing_ok=True)
        (image / "events.db").write_bytes(base)
        (image / "events.db-wal").write_bytes(wal[:size])
        EventLog(image, LOG).close()
        require_whole_lists(image, 3)
        counts.add(len(stored_lists(image)))
    assert counts == {3, 4}


def test_steps_that_a_power_cut_took_are_cut_anew(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log:
        with Learner(settings(folder, model)) as learner:
            log.append(stream(100))
            learn_all(learner)
            learner.save(wait=True)  # syncs the steps first
            synced = {path: path.read_bytes() for path in folder.glob("batches.db*")}
            log.append(stream(60, seed=9))
            learn_all(learner)
            lost = learner.position
        for path in folder.glob("batches.db*"):
            path.unlink()
        for path, content in synced.items():
            path.write_bytes(content)
        (folder / "batches.db-shm").unlink(missing_ok=True)
        with Learner(settings(folder, model, batch_most=17)) as learner, Replica(folder) as replica:
            assert learner.position.offset == 100
            learn_all(learner)
            assert learner.position.offset == lost.offset
            assert learner.position.digest != lost.digest  # other batches, other bytes
            replica.load()
            replica.follow()
            copy, digest = clean_replay(folder)
            assert digest == learner.position.digest == replica.position.digest
            assert state_digest(copy) == state_digest(learner.replay.model)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_loses_nothing_and_ends_by_itself(tmp_path: Path, small_disk: Path) -> None:
    model, folder, stop = saved_model(tmp_path / "model"), small_disk / "live", threading.Event()
    (small_disk / "filler").write_bytes(bytes(3 << 20))
    events, some = stream(60_000), settings(folder, model, batch_most=256, negatives=0, keep_deltas_bytes=100_000)
    with EventLog(folder, ServeSettings(reserve_bytes=2 << 20)) as log, Learner(some) as learner:
        for file in (learner.feed, learner.book):  # on a disk this small
            file._db._connection.wal_autocheckpoint(50)
        thread = threading.Thread(target=learner.run, args=(stop,))
        thread.start()
        try:
            accepted = 0
            with suppress(DiskFullError):
                for start in range(0, len(events), 200):
                    accepted += log.append(events[start : start + 200]).accepted
            assert 0 < accepted < len(events)
            assert log.events == accepted
            wait_until(lambda: learner.position.offset == accepted)  # there is room for what the learner records
            (small_disk / "filler").unlink()
            wait_until(lambda: log.writable)
            assert log.append(events[-50:]).accepted == 50
            wait_until(lambda: learner.position.offset == log.offset)
        finally:
            stop.set()
            thread.join()
        copy, digest = clean_replay(folder)
        assert digest == learner.position.digest
        assert state_digest(copy) == state_digest(learner.replay.model)
        with LogReader(folder) as reader:
            assert len(list(reader.events(1, log.offset))) == accepted + 50
