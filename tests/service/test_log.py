"""The log: acknowledged means synced, once by its id, in one order; a full disk and a second writer are refused."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from service_scenes import LOG, wait_until

from melon.errors import BusyError, DiskFullError, LogError, SettingsError
from melon.service.clock import WallClock
from melon.service.config import ServeSettings
from melon.service.log.base import CONTROLS, ControlRule, Event
from melon.service.log.erasure import left_over
from melon.service.log.events import EventLog, LogReader
from melon.service.log.files import EVENTS, Reserve
from melon.service.log.steps import StepBook

SMALL = ServeSettings(reserve_bytes=0)


def event(number: int, **more: object) -> Event:
    return Event(f"u{number % 3}", f"i{number}", **{"time": 100 + number, "event_id": f"e{number}", **more})  # type: ignore[arg-type]


def log_meta(folder: Path) -> dict[str, object]:
    with LogReader(folder) as reader:
        return reader.meta()


def test_events_and_controls_share_one_order(tmp_path: Path) -> None:
    with EventLog(tmp_path, SMALL) as log:
        assert log.append([event(0), event(1)]).offset == 2
        assert log.control("forget", {"user": "u9"}).result() == 3
        assert log.append([event(2)]).offset == 4
        with LogReader(tmp_path) as reader:
            assert reader.last() == (4, 3)
            assert [one.offset for one in reader.tail(0, 10)] == [1, 2]
            assert [one.offset for one in reader.tail(1, 10)] == [2]
            control = reader.control_after(0)
            assert control is not None
            assert (control.offset, control.kind, control.body) == (3, "forget", {"user": "u9"})
            assert [one.offset for one in reader.tail(3, 10)] == [4]
            assert [one.item for one in reader.of_user("u0", 5)] == ["i0"]


def test_a_known_event_id_is_stored_once(tmp_path: Path) -> None:
    with EventLog(tmp_path, SMALL) as log:
        log.append([event(0), event(1), event(0)])
        again = log.append([event(0), event(1)])
        assert (again.accepted, again.duplicates, again.conflicting, again.offset) == (0, 2, 0, 2)
        other = log.append([event(0, time=999), event(5)])
        assert (other.accepted, other.duplicates, other.conflicting) == (1, 0, 1)
        # A time that the log stamped itself is no content: the retry of a client that sends none is a repeat.
        log.append([event(7, time=None)])
        assert log.append([event(7, time=None)]).duplicates == 1
        assert log.events == 4
    with EventLog(tmp_path, SMALL) as log:
        assert log.append([event(1)]).duplicates == 1
        assert (log.offset, log.events) == (4, 4)


def test_integers_and_texts_stay_what_they_are(tmp_path: Path) -> None:
    with EventLog(tmp_path, SMALL) as log:
        log.append([Event(7, "7", 1), Event("7", 7, 1)])
        with LogReader(tmp_path) as reader:
            assert [(one.user, one.item) for one in reader.tail(0, 9)] == [(7, "7"), ("7", 7)]


def test_many_threads_lose_and_double_nothing(tmp_path: Path) -> None:
    with EventLog(tmp_path, SMALL) as log:
        offsets: list[int] = []

        def post(first: int) -> None:
            for number in range(first, first + 20):
                offsets.append(log.append([event(number), event(number // 2)]).offset)

        threads = [threading.Thread(target=post, args=(first,)) for first in (0, 10, 40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with LogReader(tmp_path) as reader:
            stored = list(reader.events(1, log.offset))
    wanted = {n for first in (0, 10, 40) for n in range(first, first + 20)}
    wanted |= {n // 2 for n in wanted}
    assert sorted(str(one.event_id) for one in stored) == sorted(f"e{n}" for n in wanted)
    assert [one.offset for one in stored] == list(range(1, len(stored) + 1))


def test_a_second_writer_is_refused_and_named(tmp_path: Path) -> None:
    with EventLog(tmp_path, SMALL), pytest.raises(LogError, match=r"has a writer already: process \d+"):
        EventLog(tmp_path, SMALL)
    EventLog(tmp_path, SMALL).close()


def test_too_much_waiting_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EventLog(tmp_path, ServeSettings(queue_events=3, reserve_bytes=0)) as log:
        gate = threading.Event()
        blocked = log._put(gate.wait, 2)
        with pytest.raises(BusyError, match="2 events wait"):
            log.submit([event(1), event(2)])
        gate.set()
        blocked.result(10)
        assert log.append([event(1), event(2)]).accepted == 2


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    with EventLog(tmp_path, ServeSettings(reserve_bytes=1 << 16)) as log:
        log.append([event(number) for number in range(10)])
        pages = log._db._connection.pragma("page_count")
        log._db._connection.pragma("max_page_count", pages)
        accepted = 10
        with suppress(DiskFullError):
            for start in range(10, 100_000, 100):
                accepted += log.append([event(number) for number in range(start, start + 100)]).accepted
        assert log.events == accepted < 100_000
        wait_until(lambda: not log.writable)
        with pytest.raises(DiskFullError, match="make room"):
            log.append([event(999_999)])
        log._db._connection.pragma("max_page_count", 1 << 30)
        wait_until(lambda: log.writable)
        assert log.writable
        assert (tmp_path / "reserve").stat().st_size == 1 << 16
        assert log.append([event(999_999)]).offset == accepted + 1
    with LogReader(tmp_path) as reader:
        assert len(list(reader.events(1, accepted + 1))) == accepted + 1


def tidy(log: EventLog) -> None:
    """Have the log tidied now, by its own thread; the second append waits for what comes after the first."""
    log._next_tidy = 0.0
    for _ in range(2):
        log.append([])


class FakeTime:
    """A wall clock that somebody sets, and one that nobody can."""

    def __init__(self) -> None:
        self.wall, self.run = 1e9, 50.0

    def pass_by(self, seconds: float, jump: float = 0.0) -> None:
        self.wall, self.run = self.wall + seconds + jump, self.run + seconds


def test_a_clock_that_jumps_is_not_followed_until_it_lasts() -> None:
    now = FakeTime()
    clock = WallClock(600.0, lambda: now.wall, lambda: now.run)
    now.pass_by(5, jump=1.0)  # corrected by a little
    assert clock.now() == 1e9 + 6
    assert clock.problem is None
    for seconds, jump in ((1, 40 * 86_400.0), (5, 0.0)):
        now.pass_by(seconds, jump)
        clock.now()
    assert clock.now() == 1e9 + 12
    assert "jumped by +3456000 s" in str(clock.problem)
    now.pass_by(1, -40 * 86_400.0)
    assert clock.now() == 1e9 + 13
    assert clock.problem is None
    now.pass_by(1, -7200.0)
    assert clock.now() == 1e9 + 14
    now.pass_by(601)
    assert clock.now() == now.wall
    assert clock.problem is None


def test_a_clock_ahead_expires_no_id_and_stamps_no_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, ahead = time.time, [0.0]
    monkeypatch.setattr("time.time", lambda: real() + ahead[0])
    with EventLog(tmp_path, ServeSettings(reserve_bytes=0, dedup_days=30)) as log:
        log.append([event(0)])
        ahead[0] = 40 * 86_400.0
        log.append([event(1, time=None)])
        tidy(log)
        assert log.alarms["clock"] is not None
        ahead[0] = 0.0
        assert log.append([event(0), event(1, time=None), event(2, time=None)]).duplicates == 2
        assert log.alarms["clock"] is None
        with LogReader(tmp_path) as reader:
            assert all(one.time <= real() + 1 for one in reader.tail(0, 9))
    ahead[0] = 40 * 86_400.0  # it starts on a machine whose clock is wrong, and is right the next time
    with EventLog(tmp_path, SMALL) as log:
        log.append([event(3, time=None)])
    ahead[0] = 0.0
    with EventLog(tmp_path, SMALL) as log:
        log.append([event(4, time=None)])
        assert log.append([event(0)]).duplicates == 1
    with LogReader(tmp_path) as reader:
        assert reader.tail(4, 1)[0].time <= real() + 1


def test_ids_expire_by_the_age_of_the_log_and_keep_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = [1e4]
    monkeypatch.setattr("melon.service.log.events.steady", lambda: run[0])
    with EventLog(tmp_path, ServeSettings(reserve_bytes=0, dedup_days=1)) as log:
        log.append([event(number) for number in range(6_000)])
        wait_until(lambda: log._aging._noted >= 0)
        run[0] += 86_400 / 2
        log.append([event(7_000)])
        wait_until(lambda: log._aging._noted > 1e4)
        assert log.append([event(5_999)]).duplicates == 1
        run[0] += 86_400 * 0.6
        # More than a thousand in a second: all of them go in one second's tidying.
        wait_until(lambda: int(str(log_meta(tmp_path).get("expired", 0))) == 6_000)
        assert log.append([event(0), event(5_999), event(7_000)]).accepted == 2


def test_a_wish_to_forget_that_is_repeated_is_one_control(tmp_path: Path) -> None:
    with EventLog(tmp_path, SMALL) as log:
        log.append([event(0), Event(7, "i1", 1)])
        assert log.forget("u0").result() == log.forget("u0").result() == 3
        assert log.forget(7).result() == log.forget(7).result() == 4
        assert log.forget("u0", unlearn=True).result() == 5  # wants more
        assert log.forget("u0").result() == 5
        log.append([event(3)])
        assert log.forget("u0").result() == 7  # and has come again


def test_the_writer_survives_what_it_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EventLog(tmp_path, ServeSettings(reserve_bytes=1 << 16)) as log:
        log.append([event(0)])
        with monkeypatch.context() as broken:
            broken.setattr(EventLog, "_append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
            broken.setattr(Reserve, "make", lambda _: (_ for _ in ()).throw(OSError(28, "no inodes")))
            with pytest.raises(DiskFullError):
                log.append([event(1)])
            assert not log.writable
            with pytest.raises(DiskFullError):
                log.append([event(1)])
            time.sleep(1.5)  # two probes fail
            assert log._thread.is_alive()
        wait_until(lambda: log.writable)
        with monkeypatch.context() as broken:
            broken.setattr(EventLog, "tidy", lambda _: 1 / 0)
            time.sleep(1.5)
        assert log.append([event(1)]).accepted == 1


def test_a_log_that_was_moved_takes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with EventLog(folder, SMALL) as log:
        log.append([event(0)])
        folder.rename(tmp_path / "moved")
        wait_until(lambda: not log.writable)
        with pytest.raises(LogError, match="moved or removed"):
            log.append([event(1)])
        (tmp_path / "moved").rename(folder)
        wait_until(lambda: log.writable)
        assert log.append([event(1)]).accepted == 1


def test_files_are_for_the_services_user_only(tmp_path: Path) -> None:
    with EventLog(tmp_path / "live", SMALL) as log:
        log.append([event(0)])
        for path in (tmp_path / "live", *(tmp_path / "live").glob(f"{EVENTS}*")):
            assert path.stat().st_mode & 0o077 == 0, path


def test_no_byte_of_many_forgotten_people_is_left(tmp_path: Path) -> None:
    """Also where SQLite has moved rows about between pages: what is left between rows is rewritten."""
    rng = np.random.default_rng(1)
    people = [f"person-{n:03}-{'x' * int(rng.integers(0, 60))}" for n in range(40)]
    with EventLog(tmp_path, SMALL) as log, StepBook(tmp_path) as book:
        for n in range(60):
            who = rng.integers(0, 40, 50)
            log.append([Event(people[one], f"i{n}", 5, event_id=f"{people[one]}/{n}/{k}") for k, one in enumerate(who)])
        for person in people[::2]:
            book.state(forgotten=log.forget(person).result())
            tidy(log)
            with LogReader(tmp_path) as reader:
                assert reader._rows("SELECT count(*) FROM controls WHERE erased < 2") == [(0,)]
            assert not left_over(tmp_path / EVENTS, [person])
            assert person.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob(f"{EVENTS}*"))


def test_left_over_bytes_are_found(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "some.db"))
    connection.execute("CREATE TABLE t(a); PRAGMA secure_delete = 0")
    connection.executemany("INSERT INTO t VALUES (?)", [(f"some-{n}-secret",) for n in range(100)])
    assert not left_over(tmp_path / "some.db", ["some-7-secret", "some-99-secret", "nobody"])
    connection.execute("DELETE FROM t WHERE rowid = 8")
    assert left_over(tmp_path / "some.db", ["nobody", "some-7-secret"])
    assert not left_over(tmp_path / "some.db", ["some-17-secret"])
    assert left_over(tmp_path / "some.db", ["ab"])  # cannot be told


@pytest.mark.parametrize(("keep", "aged"), [({"keep_events": 500}, False), ({"keep_days": 1.0}, True)])
def test_old_events_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: dict[str, Any], aged: bool
) -> None:
    run = [1e4]
    monkeypatch.setattr("melon.service.log.events.steady", lambda: run[0])
    given = ServeSettings(reserve_bytes=0, dedup_days=0.25, **keep)
    with EventLog(tmp_path, given) as log, StepBook(tmp_path) as book, LogReader(tmp_path) as reader:
        log.append([event(number, use="hide" if number == 3 else "learn") for number in range(2_000)])
        wait_until(lambda: log._aging._noted >= 0)
        if aged:
            run[0] += 86_400 * 1.1
            wait_until(lambda: log._aging._noted > 1e4)
        log.append([event(number) for number in range(2_000, 2_500)])
        tidy(log)
        assert reader.first() == 1  # no checkpoint has been made the beginning yet
        book.state(begin=1_500)
        run[0] += 86_400 * 0.3
        wait_until(lambda: reader.first() == 1_501)
        book.state(begin=2_400)
        wait_until(lambda: reader.first() == 2_001)
        assert [one.offset for one in reader.events(1, 2_001)] == [4, 2_001]  # what hides an item stays
        assert reader.counted() == (500, 0, 2_500)


def test_a_newer_or_damaged_log_is_refused(tmp_path: Path) -> None:
    EventLog(tmp_path, SMALL).close()
    connection = apsw.Connection(str(tmp_path / EVENTS))
    connection.execute("UPDATE meta SET value = 99 WHERE name = 'format'")
    connection.close()
    for opened in (EventLog, LogReader):
        with pytest.raises(LogError, match="format 99"):
            opened(tmp_path)
    (tmp_path / EVENTS).write_bytes(b"nonsense" * 1000)
    with pytest.raises(LogError, match="damaged"):
        EventLog(tmp_path)
    with pytest.raises(LogError, match="there is no"):
        LogReader(tmp_path / "nowhere")


def test_old_ids_are_let_go(tmp_path: Path) -> None:
    with EventLog(tmp_path, ServeSettings(reserve_bytes=0, dedup_days=0)) as log:
        log.append([event(0)])
        wait_until(lambda: "expired" in log_meta(tmp_path))
        assert log.append([event(0)]).accepted == 1


def test_facts_are_versioned(tmp_path: Path) -> None:
    with EventLog(tmp_path, SMALL) as log:
        assert log.put_facts([("a", {"owner": "u1"}), ("b", {})]).result() == 2
        assert log.put_facts([("a", None)]).result() == 3
        with LogReader(tmp_path) as reader:
            assert list(reader.facts()) == [("b", 2, {}), ("a", 3, None)]
            assert list(reader.facts(2)) == [("a", 3, None)]


def test_facts_are_changed_from_what_they_are(tmp_path: Path) -> None:
    with EventLog(tmp_path, SMALL) as log:
        log.put_facts([("a", {"n": 0})]).result()
        add = lambda body: {"n": body["n"] + 1}  # noqa: E731
        done = [log.change_facts("a", add) for _ in range(50)]
        assert [one.result()[0] for one in done] == list(range(2, 52))
        assert done[-1].result()[1] == {"n": 50}
        with pytest.raises(TypeError):
            log.change_facts("nothing", add).result()
        assert log.writable


def test_controls_are_of_known_kinds_and_give_up_ids_of_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTROLS, "greet", ControlRule("somebody was greeted", ("who",)))
    with EventLog(tmp_path, LOG) as log:
        with pytest.raises(SettingsError, match="greet"):
            log.control("gret", {})
        log.append([Event("u1", "i1"), Event("u2", "i1")])
        log.control("greet", {"who": "u1", "how": "u1"}).result()
        log.control("greet", {"who": "u2"}).result()
        wish = log.forget("u1").result()
        with StepBook(tmp_path) as book:
            book.state(forgotten=wish)
        log.tidy()
        with LogReader(tmp_path) as reader:
            first, second = reader.controls("greet")
            assert str(first.body["who"]).startswith("forgotten-")
            assert (first.body["how"], second.body) == ("u1", {"who": "u2"})
