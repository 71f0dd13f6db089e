"""The log: acknowledged means synced, once by its id, in one order; a full disk and a second writer are refused."""

import threading
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from service_scenes import wait_until

from melon.errors import BusyError, DiskFullError, LogError
from melon.service.config import ServeSettings
from melon.service.log.base import Event
from melon.service.log.events import EventLog, LogReader
from melon.service.log.files import EVENTS

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
        pages = log._connection.pragma("page_count")
        log._connection.pragma("max_page_count", pages)
        accepted = 10
        with suppress(DiskFullError):
            for start in range(10, 100_000, 100):
                accepted += log.append([event(number) for number in range(start, start + 100)]).accepted
        assert log.events == accepted < 100_000
        wait_until(lambda: not log.writable)
        with pytest.raises(DiskFullError, match="make room"):
            log.append([event(999_999)])
        log._connection.pragma("max_page_count", 1 << 30)
        wait_until(lambda: log.writable)
        assert log.writable
        assert (tmp_path / "reserve").stat().st_size == 1 << 16
        assert log.append([event(999_999)]).offset == accepted + 1
    with LogReader(tmp_path) as reader:
        assert len(list(reader.events(1, accepted + 1))) == accepted + 1


def test_a_clock_that_jumps_back_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    with EventLog(tmp_path, SMALL) as log:
        monkeypatch.setattr("melon.service.log.events.time.time", lambda: clock[0])
        for number, clock[0] in enumerate([1e9, 5e8, 2e9]):
            log.append([event(number, time=None)])
        with LogReader(tmp_path) as reader:
            assert [one.time for one in reader.tail(0, 9)] == [10**9, 10**9, 2 * 10**9]


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
