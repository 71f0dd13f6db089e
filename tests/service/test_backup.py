"""Files that belong together: what does not fit is refused with the way out; backups, and what is restored of them."""

import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from service_scenes import LOG, clean_replay, learn_all, saved_model, settings, stream, wait_until

from commands import Run
from melon.errors import LogError
from melon.service.config import ServeSettings
from melon.service.keys import keys_of
from melon.service.learner.loop import Learner, run_learner
from melon.service.learner.replaying import verify
from melon.service.log.backup import back_up, restore
from melon.service.log.base import Event
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.events import EventLog, LogReader
from melon.service.log.files import BATCHES, DELTAS, EVENTS
from melon.service.log.steps import StepReader


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved_model(tmp_path / "model")


def served(folder: Path, model: Path, first: int, count: int) -> None:
    """A service runs for some events, and stops in order."""
    with EventLog(folder, LOG) as log, Learner(settings(folder, model)) as learner:
        log.append(stream(count, start=first))
        learn_all(learner)
        learner.save(wait=True)


class TestFilesThatDoNotFit:
    def test_a_log_older_than_what_was_learned(self, tmp_path: Path, model: Path) -> None:
        live, old = tmp_path / "live", tmp_path / "old"
        served(live, model, 0, 100)
        shutil.copytree(live, old)
        served(live, model, 100, 100)
        shutil.copy(old / EVENTS, live / EVENTS)
        with (
            EventLog(live, LOG),
            pytest.raises(LogError, match=r"ends at offset 100.*learned up to 200.*melon restore"),
        ):
            Learner(settings(live, model))
        with pytest.raises(LogError, match="ends at offset 100"):
            list(verify(live))
        # The way out that the message names: the log alone, learned again.
        for name in (BATCHES, DELTAS):
            (live / name).unlink()
        with EventLog(live, LOG), pytest.raises(LogError, match="knows 200"):
            Learner(settings(live, model))
        shutil.rmtree(live / "checkpoints")
        served(live, model, 300, 20)
        assert "recorded" in list(verify(live))[-1]

    def test_steps_that_were_moved_away_alone(self, tmp_path: Path, model: Path) -> None:
        live = tmp_path / "live"
        served(live, model, 0, 100)
        (live / BATCHES).rename(tmp_path / BATCHES)
        with EventLog(live, LOG), pytest.raises(LogError, match=r"batches.db is new.*checkpoints and deltas.db away"):
            Learner(settings(live, model))
        with pytest.raises(LogError, match="is new"):
            list(verify(live))

    def test_damaged_steps_name_the_way_out(self, tmp_path: Path, model: Path) -> None:
        live = tmp_path / "live"
        served(live, model, 0, 100)
        blank(live / BATCHES, 2)
        with EventLog(live, LOG), pytest.raises(LogError, match=r"damaged.*move batches.db, deltas.db and checkpoints"):
            Learner(settings(live, model))

    def test_a_replica_follows_a_learner_that_began_anew(self, tmp_path: Path, model: Path) -> None:
        from melon.service.replica import Replica

        live = tmp_path / "live"
        served(live, model, 0, 400)
        with Replica(live) as replica:
            replica.load()
            before = replica.position.batch
            for name in (BATCHES, DELTAS):
                (live / name).unlink()
            shutil.rmtree(live / "checkpoints")
            with EventLog(live, LOG), Learner(settings(live, model)) as learner:
                learner.step()
                assert learner.position.batch < before
                wait_until(lambda: replica.follow() or replica.position == learner.position)
                replica.follow()
                assert replica.position == learner.position


def blank(path: Path, page: int) -> None:
    """Zero a page of a database."""
    with path.open("r+b") as file:
        file.seek(4096 * page)
        file.write(bytes(4096))


def unused_pages(content: bytes | bytearray) -> set[int]:
    """Pages of a SQLite file that hold nothing: those of its freelist, numbered from 0."""
    unused, trunk = set[int](), int.from_bytes(content[32:36])
    while trunk:
        page = content[(trunk - 1) * 4096 : trunk * 4096]
        numbers = [int.from_bytes(page[at : at + 4]) for at in range(0, 8 + 4 * int.from_bytes(page[4:8]), 4)]
        unused |= {trunk - 1, *(number - 1 for number in numbers[2:])}
        trunk = numbers[0]
    return unused


def test_verify_reads_every_byte_and_ends_in_words(tmp_path: Path, model: Path, run: Run) -> None:
    live = tmp_path / "live"
    served(live, model, 0, 300)
    for database in live.glob("*.db"):  # so that what is damaged below does not stand in the write-ahead log too
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    good = tmp_path / "good"
    shutil.copytree(live, good)
    assert run("log", "verify", live).code == 0
    rng = random.Random(4)
    files = [path for path in sorted(good.rglob("*")) if path.is_file() and path.name not in ("salt", "reserve")]
    for path in files:
        if path.suffix in (".lock", ".db-shm", ".db-wal") or not path.stat().st_size:
            continue
        damaged = live / path.relative_to(good)
        content = bytearray(path.read_bytes())
        if path.suffix == ".db":
            place = rng.choice(sorted(set(range(1, len(content) // 4096)) - unused_pages(content))) * 4096
            content[place : place + 4096] = bytes(4096)
        else:
            content[rng.randrange(len(content))] ^= 0x40
        damaged.write_bytes(content)
        found = run("log", "verify", live)
        assert found.code == 1, path
        assert found.err.startswith("melon: "), (path, found.err)
        assert "Traceback" not in found.err
        shutil.copy(path, damaged)
    assert run("log", "verify", live).code == 0


class TestBackup:
    def test_round_trip_by_command(self, tmp_path: Path, model: Path, run: Run) -> None:
        live, out = tmp_path / "live", tmp_path / "backup"
        served(live, model, 0, 200)
        text, _ = keys_of(ServeSettings(data=live)).add(["admin"])
        made = run("backup", live, out)
        assert made.code == 0, made.err
        assert "200 events up to offset 200" in made.out
        assert not any(text.split("_")[2].encode() in path.read_bytes() for path in out.rglob("*") if path.is_file())
        assert not (out / "keys.json").exists()
        assert out.stat().st_mode & 0o077 == 0
        assert "not empty" in run("backup", live, out).err
        assert "not empty" in run("restore", out, live).err
        brought = run("restore", out, tmp_path / "new")
        assert brought.code == 0, brought.err
        assert "cannot be known" in brought.out
        assert "melon keys add" in brought.out  # it fails closed
        assert keys_of(ServeSettings(data=tmp_path / "new")).required
        assert "recorded" in list(verify(tmp_path / "new"))[-1]
        served(tmp_path / "new", model, 200, 50)
        path = max(Checkpoints(out).folder.rglob("*.safetensors"), default=out / EVENTS)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        assert "has changed since" in run("restore", out, tmp_path / "other").err

    def test_a_service_that_has_not_learned_yet(self, tmp_path: Path) -> None:
        with EventLog(tmp_path / "live", LOG) as log:
            log.append(stream(9))
            assert back_up(tmp_path / "live", tmp_path / "backup").checkpoint is None
        restore(tmp_path / "backup", tmp_path / "new")
        with LogReader(tmp_path / "new") as reader:
            assert reader.last() == (9, 9)

    def test_who_was_forgotten_since_is_forgotten_again(self, tmp_path: Path, model: Path) -> None:
        live = tmp_path / "live"
        people = ["done-with-4711", "waiting-4712", "later-4713", "stays-4714"]
        with EventLog(live, LOG) as log, Learner(settings(live, model)) as learner:
            log.append([*stream(100), *[Event(one, "i1", 5_000, event_id=one) for one in people if "later" not in one]])
            learn_all(learner)
            learner.save(wait=True)
            back_up(live, tmp_path / "backup")
            log.append([Event("later-4713", "i1", 5_000)])
            for person in ("done-with-4711", "later-4713"):
                log.forget(person).result()
            learn_all(learner)
            learner.save(wait=True)
            wait_until(lambda: log._db._connection.execute("SELECT min(erased) FROM controls").get == 2)
            log.forget("waiting-4712").result()
            with pytest.raises(LogError, match="already"):
                restore(tmp_path / "backup", live, replace=True)
        done = restore(tmp_path / "backup", live, replace=True)
        assert (done.forgotten, done.unknown) == (2, 1)
        assert done.before is not None
        shutil.rmtree(done.before)
        with EventLog(live, LOG) as log, Learner(settings(live, model)) as learner:
            learn_all(learner)
            learner.save(wait=True)
            wait_until(lambda: log._db._connection.execute("SELECT min(erased) FROM controls").get == 2)
            known = learner.replay.model.users.rows(people)
            assert (known >= 0).tolist() == [False, False, False, True]
        content = b"".join(path.read_bytes() for path in live.rglob("*") if path.is_file())
        assert [one.encode() in content for one in people] == [False, False, False, True]


@contextmanager
def under_load(folder: Path, model: Path) -> Iterator[list[int]]:
    """A writer and a learner that run beside the block; the list grows by the last id of each acknowledged post."""
    stop, acknowledged = threading.Event(), [0]
    some = ServeSettings(
        data=folder, model=model, batch_most=30, batch_every_ms=0, checkpoint_events=60, negatives=0, fit_after=0
    )

    def write() -> None:
        rng = random.Random(1)
        with EventLog(folder, LOG) as log:
            while not stop.is_set():
                first, count = acknowledged[-1], rng.randrange(1, 20)
                events = [
                    Event(f"u{n % 37}", f"i{n % 91}", 10**6 + n, event_id=f"e{n}") for n in range(first, first + count)
                ]
                log.append(events)
                acknowledged.append(first + count)
                if rng.random() < 0.02:
                    log.forget(f"u{rng.randrange(37)}").result()
                time.sleep(0.002)

    threads = [threading.Thread(target=write), threading.Thread(target=run_learner, args=(some, stop))]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(Checkpoints(folder).numbers()) > 1, 120)
    try:
        yield acknowledged
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def restores_under_load(tmp_path: Path, model: Path, rounds: int) -> None:
    with under_load(tmp_path / "live", model) as acknowledged:
        for number in range(rounds):
            least, out, new = acknowledged[-1], tmp_path / f"backup-{number}", tmp_path / f"new-{number}"
            back_up(tmp_path / "live", out)
            restore(out, new)
            with LogReader(new) as log:
                stored = {one.time - 10**6 for one in log.events(1, log.last()[0])}
            assert stored == set(range(len(stored)))
            assert len(stored) >= least
            with EventLog(new, LOG), Learner(settings(new, model, negatives=0)) as learner:
                learn_all(learner)
                assert clean_replay(new)[1] == learner.position.digest
            with StepReader(new) as steps:
                assert not steps.quarantined()
            for folder in (out, new):
                shutil.rmtree(folder)
            time.sleep(0.05)


def test_restores_under_load(tmp_path: Path, model: Path) -> None:
    restores_under_load(tmp_path, model, 3)


@pytest.mark.slow
def test_many_restores_under_load(tmp_path: Path, model: Path) -> None:
    restores_under_load(tmp_path, model, 50)
