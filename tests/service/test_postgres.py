"""A log in PostgreSQL: the same answers, any number of writers, one learner, and a server that dies."""

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import certifi
import psycopg
import pytest
from postgres_server import PostgresServer
from service_scenes import clean_replay, learn_all, saved_model, settings, stream, wait_until

from commands import Run
from conftest import Service, Start
from melon.errors import DataError, HeldError, LogError, SettingsError, StorageError
from melon.learning.deltas import state_digest
from melon.service.config import ServeSettings
from melon.service.importing import Reading, events_of
from melon.service.keys import keys_of
from melon.service.learner.loop import Learner, run_learner
from melon.service.learner.replaying import verify
from melon.service.log.base import Event
from melon.service.log.events import SCHEMA, EventLog, LogReader
from melon.service.log.exchange import copied, imported
from melon.service.log.files import Place, masked, place_of
from melon.service.log.steps import StepReader
from melon.service.replica import Replica

USERS = [f"u{n}" for n in range(60)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def url(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    """A service of the test's own in the server."""
    return server.url(f"t{abs(hash(request.node.name)) % 10**9}")


def host(tmp_path: Path, name: str, url: str) -> Place:
    """A machine: a folder of its own, and the database that all share."""
    return Place(tmp_path / name, url)


def test_learner_replicas_and_replay_are_the_same_bytes(url: str, tmp_path: Path) -> None:
    model, events = saved_model(tmp_path / "model"), stream(600)
    here, there = host(tmp_path, "a", url), host(tmp_path, "b", url)
    of_learner = settings(tmp_path / "learner", model, log=url)
    with EventLog(here) as log, EventLog(there) as other, Replica(there) as replica:
        log.append(events[:200])
        with Learner(of_learner) as learner:
            learn_all(learner)
            replica.load()
            replica.follow()
            other.append(events[200:330])
            log.forget("u2").result()
            other.append(events[330:400])
            learn_all(learner)
            replica.follow()
            learner.save(wait=True)
            log.append(events[400:450])
            learn_all(learner)
        replica.follow()
        with Learner(settings(tmp_path / "another host", model, log=url, batch_most=25)) as learner:
            assert learner.position == replica.position
            other.append(events[450:])
            learn_all(learner)
            replica.follow()
            copy, digest = clean_replay(here)
            assert digest == learner.position.digest == replica.position.digest
            assert state_digest(copy) == state_digest(learner.replay.model)
            with replica.reading() as (held, position):
                assert position.offset == learner.position.offset == 601
                assert state_digest(held, answering=True) == state_digest(copy, answering=True)
            learner.save(wait=True)
        lines = list(verify(there))
    assert lines[0].startswith("events: there (PostgreSQL")
    assert "600 events and 1 controls, offsets 1 to 601 without a gap" in lines[3]
    assert lines[-1].startswith("replayed to step")


def test_many_writers_leave_no_gap_and_store_each_event_once(url: str, tmp_path: Path) -> None:
    """Integers and texts stay apart, too."""
    logs = [EventLog(host(tmp_path, str(n), url)) for n in range(3)]

    def write(log: EventLog, first: int) -> None:
        for start in range(first, first + 60, 5):
            log.append([Event(n % 7, str(n % 5), 1_000 + n, event_id=str(n)) for n in range(start, start + 10)])

    writers = [threading.Thread(target=write, args=(log, 40 * n)) for n, log in enumerate(logs)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with LogReader(host(tmp_path, "reader", url)) as reader:
        stored = list(reader.events(1, 1 << 60))
        assert reader.last() == (len(stored), len(stored))
        assert [event.offset for event in stored] == list(range(1, len(stored) + 1))
        assert sorted(int(event.event_id or 0) for event in stored) == list(range(145))
        assert {type(event.user) for event in stored} == {int}
        assert {type(event.item) for event in stored} == {str}
        assert reader.of_user(3, 2)[0].user == 3
        assert reader.of_user("3", 2) == []  # type: ignore[arg-type]
    assert logs[0].append([Event(0, "0", 1_000, event_id="0")]).duplicates == 1
    for log in logs:
        log.close()


def test_one_learner_at_a_time_and_a_late_one_changes_nothing(url: str, tmp_path: Path) -> None:
    model = saved_model(tmp_path / "model")
    with EventLog(host(tmp_path, "a", url)) as log:
        log.append(stream(50))
        first = Learner(settings(tmp_path / "one", model, log=url))
        first.step()
        with pytest.raises(HeldError, match="has a learner already: process"):
            Learner(settings(tmp_path / "two", model, log=url))
        assert first._lease is not None
        first._lease.close()  # as a machine that hangs loses it
        with Learner(settings(tmp_path / "two", model, log=url)) as second:
            learn_all(second)
            before = second.position
            with pytest.raises(LogError, match=r"another learner of .* has begun"):
                first.step()
            kept = second.checkpoints.numbers()
            with pytest.raises(HeldError, match="has begun"):
                first.checkpoints.prune(set())
            assert second.checkpoints.numbers() == kept
            assert second.book.last() is not None
        first.close()
        with Learner(settings(tmp_path / "three", model, log=url)) as third:
            assert third.position == before


def test_a_server_that_dies_takes_nothing_that_was_acknowledged(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    with EventLog(host(tmp_path, "a", url)) as log:
        log.append(stream(100))
        server.kill()
        with pytest.raises(StorageError):
            log.append(stream(10, seed=5))
        assert not log.writable
        server.start()
        wait_until(lambda: log.writable)
        assert log.append(stream(10, seed=5)).accepted == 10
        with LogReader(host(tmp_path, "b", url)) as reader:
            assert reader.counted() == (110, 0, 110)


@pytest.mark.slow
@pytest.mark.parametrize("between", ["statements", "parts of a message"])
def test_a_machine_that_is_gone_while_its_connection_lives_stops_nobody(
    between: str, server: PostgresServer, url: str, tmp_path: Path
) -> None:
    """As behind a proxy that keeps the server's side open: no keepalive sees it, nor, within a message, a timeout."""
    with EventLog(host(tmp_path, "a", url)) as log, log.place.open("events.db", "FULL") as gone:
        log.append(stream(10))
        lock = psycopg.connect(url.partition("?")[0], application_name="melon process 1 on a machine that is gone")
        with psycopg.connect(url.partition("?")[0], autocommit=True) as look:
            find = "SELECT state FROM pg_stat_activity WHERE application_name LIKE '%% gone'"
            statements = (
                f"SELECT pg_advisory_xact_lock({gone._lock_number})",  # type: ignore[attr-defined]
                f"DELETE FROM {gone.schema}.meta WHERE name = 'nothing'",  # type: ignore[attr-defined]
            )
            if between == "statements":
                for one in statements:
                    lock.execute(one)
            else:
                lock.pgconn.enter_pipeline_mode()
                for one in ("BEGIN", *statements):
                    lock.pgconn.send_query_params(one.encode(), None)
                lock.pgconn.send_flush_request()
                lock.pgconn.flush()
            wanted = "idle in transaction" if between == "statements" else "active"
            wait_until(lambda: look.execute(find).fetchone() == (wanted,))
            appended = log.submit(stream(10, seed=5))
            with EventLog(host(tmp_path, "b", url)) as other:  # makes its tables, which locks them
                assert other.append(stream(10, seed=6)).accepted == 10
            assert appended.result(60).accepted == 10
            assert look.execute(find).fetchone() is None


def test_a_learner_stands_by_and_goes_on_where_the_other_ended(url: str, tmp_path: Path) -> None:
    model, here = saved_model(tmp_path / "model"), host(tmp_path, "a", url)
    stops: dict[str, threading.Event] = {}
    threads: dict[str, threading.Thread] = {}
    with EventLog(here) as log, Replica(here) as replica:
        log.append(stream(100))
        for name in ("one", "two"):
            given = settings(tmp_path / name, model, log=url, batch_every_ms=1.0)
            stops[name] = threading.Event()
            threads[name] = threading.Thread(target=run_learner, args=(given, stops[name]))
            threads[name].start()
            wait_until(lambda: here.exists("batches.db") and here.runs("learner"))
        replica.load()
        replica.start()
        assert replica.wait_for(100, 60)
        stops["one"].set()
        threads["one"].join()
        log.append(stream(50, seed=5))
        assert replica.wait_for(150, 60)
        stops["two"].set()
        threads["two"].join()
        with StepReader(here) as steps:
            assert len(steps.epochs()) == 2
        copy, digest = clean_replay(here)
        assert digest == replica.position.digest
        with replica.reading() as (held, _):
            assert state_digest(held, answering=True) == state_digest(copy, answering=True)


def test_a_service_moves_into_a_database_and_back(url: str, tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), Place(tmp_path / "live")
    with EventLog(folder) as log, Learner(settings(folder.folder, model)) as learner:
        log.append([*stream(120), Event("u1", "i2", 5_000, type="dislike", use="hide")])
        log.put_facts([("i5", {"available": False})]).result()
        log.forget("u3").result()
        learn_all(learner)
        with pytest.raises(HeldError):
            copied(folder, Place(tmp_path / "there", url))
    there, back = Place(tmp_path / "there", url), Place(tmp_path / "back")
    assert copied(folder, there)[0] == copied(there, back)[0] == 121
    with pytest.raises(LogError, match="has a log already"):
        copied(folder, there)
    assert [*verify(folder)][3:6] == [*verify(there)][2:5] == [*verify(back)][2:5]
    with Learner(settings(there.folder, model, log=url)) as moved, Learner(settings(back.folder, model)) as home:
        assert moved.position == home.position == learner.position
    with LogReader(there) as one, LogReader(back) as other, LogReader(folder) as origin:
        for read in (one, other):
            assert list(read.events(1, 999)) == list(origin.events(1, 999))
            assert list(read.facts()) == list(origin.facts())
            assert read.log_id == origin.log_id


def test_a_person_who_is_forgotten_is_in_no_row(url: str, tmp_path: Path) -> None:
    model, here = saved_model(tmp_path / "model"), host(tmp_path, "a", url)

    def rows_with(name: str) -> list[str]:
        """Tables of the service with a row that holds a name, as text or as bytes."""
        with psycopg.connect(url.partition("?")[0]) as look:
            like = f"{url.rpartition('=')[2]}_%"
            found = look.execute("SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE %s", (like,))
            tables = [f"{schema}.{table}" for schema, table in found.fetchall()]
            query = "SELECT 1 FROM {} one WHERE one::text LIKE ANY (%s) LIMIT 1"
            names = [f"%{name}%", f"%{name.encode().hex()}%"]
            return [one.partition("_")[2] for one in tables if look.execute(query.format(one), (names,)).fetchone()]

    with EventLog(here) as log, Learner(settings(tmp_path / "learner", model, log=url, keep_deltas_s=0.1)) as learner:
        log.append([*stream(60), Event("person-4711", "i1", 5_000, event_id="person-4711/1")])
        log.put_profiles("user", {"person-4711": {"Comment": "an X"}}).result()
        learn_all(learner)
        learner.save(wait=True)
        assert {"events.events", "events.profiles"} <= set(rows_with("person-4711"))
        offset = log.forget("person-4711").result()
        learn_all(learner)
        log.append(stream(9, seed=5))
        learn_all(learner)
        learner.save(wait=True)
        with LogReader(here) as reader:
            wait_until(lambda: any(one.offset == offset and one.erased == 2 for one in reader.controls("forget")))
        assert rows_with("person-4711") == []


def test_two_machines_answer_alike_and_lists_go_on_without_the_database(start: Start, server: PostgresServer) -> None:
    url = server.url("two_machines")
    one = start(log=url, gorse=True)
    two = start(log=url)
    seen = one.post([{"user": "u1", "item": "i7"}, {"user": "u2", "item": "i9", "type": "dislike"}])
    lists = [
        service.get(f"/v1/recommendations/u1?k=20&filter_seen=false&after={seen['offset']}&wait_ms=9000")
        for service in (one, two)
    ]
    assert lists[0]["items"] == lists[1]["items"]
    assert one.call("PUT", "/v1/items/i3", {"available": False}).status == 200

    def listed(service: Service, user: str) -> set[str]:
        return {item["item"] for item in service.get(f"/v1/recommendations/{user}?k=150&filter_seen=false")["items"]}

    two.wait(lambda: "i3" not in listed(two, "u5"))
    two.wait(lambda: "i9" not in listed(two, "u2"))
    assert "i9" in listed(two, "u5")
    assert one.call("DELETE", "/api/feedback/u2/i9").status == 200
    two.wait(lambda: "i9" in listed(two, "u2"))
    key, _ = keys_of(two.settings).add(["read", "write", "admin"])
    one.wait(lambda: one.call("GET", "/v1/recommendations/u1").status == 401)
    one.key = two.key = key
    assert one.call("GET", "/v1/recommendations/u1").status == 200
    server.stop("immediate")
    answer = two.call("POST", "/v1/interactions", {"user": "u1", "item": "i8", "event_id": "late"})
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert two.call("GET", "/v1/recommendations/u1").status == 200
    server.start()
    late = {"user": "u1", "item": "i8", "event_id": "late"}
    two.wait(lambda: two.call("POST", "/v1/interactions", late).status == 202)
    offset = two.post(late)["offset"]
    one.wait(lambda: one.get("/v1/status")["lag"] == 0)
    one.wait(lambda: one.get("/v1/status")["model"]["offset"] >= offset)


def test_readers_are_woken_after_a_commit_and_once_for_many(url: str, tmp_path: Path) -> None:
    here = host(tmp_path, "a", url)
    with here.open("events.db", "FULL", SCHEMA) as writing, here.open("events.db") as reading:
        heard = psycopg.connect(url.partition("?")[0], autocommit=True)
        heard.execute(f"LISTEN {writing.schema}")  # type: ignore[attr-defined]
        with writing.transaction():
            writing.note({"n": 0})
            assert list(heard.notifies(timeout=0.2)) == []
        assert len(list(heard.notifies(timeout=10, stop_after=1))) == 1
        while reading.changed():  # from here on nothing is new
            time.sleep(0.01)
        writing._told = time.monotonic() + 60  # type: ignore[attr-defined] # the reader was told a moment ago
        for n in range(20):
            with writing.transaction():
                writing.note({"n": n})
        assert list(heard.notifies(timeout=0.2)) == []
        wait_until(reading.changed)  # it looks by itself, too
        assert reading.meta()["n"] == 19
        heard.close()


def test_a_pooler_is_refused(server: PostgresServer, tmp_path: Path) -> None:
    """A real PgBouncer, in its gentlest mode."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not there (Debian: apt install pgbouncer)")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    file = server.folder / "pgbouncer.ini"
    file.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port} user=melon\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = any\nunix_socket_dir =\npool_mode = session\n"
    )
    pooler = subprocess.Popen([program, "-q", file], user=server.user, cwd="/", stderr=subprocess.DEVNULL)
    url = server.url("pooled").replace(str(server.port), str(port))
    try:

        def answers() -> bool:
            with suppress(psycopg.Error):
                psycopg.connect(url.partition("?")[0]).close()
                return True
            return False

        wait_until(answers)
        with pytest.raises(SettingsError, match="behind a connection pooler"):
            EventLog(host(tmp_path, "a", url))
    finally:
        pooler.kill()
        pooler.wait()


def test_a_connection_by_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not there")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    names = "-keyout", tmp_path / "server.key", "-out", tmp_path / "server.crt"
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    server = PostgresServer()
    try:
        server.stop()
        for name in ("server.key", "server.crt"):
            shutil.copy(tmp_path / name, server.folder / "data" / name)
            shutil.chown(server.folder / "data" / name, server.user)
        (server.folder / "data" / "server.key").chmod(0o600)
        with (server.folder / "data" / "postgresql.conf").open("a") as more:
            more.write("ssl = on\n")
        (server.folder / "data" / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")
        server.start()
        safe = f"{server.url()}&sslmode=verify-full&sslrootcert="
        with EventLog(host(tmp_path, "a", f"{safe}{tmp_path / 'server.crt'}")) as log:
            assert log.append(stream(5)).accepted == 5
            assert log._db.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [(True,)]
        for bad in (f"{server.url()}&sslmode=disable", f"{safe}{certifi.where()}"):
            with pytest.raises(StorageError, match="cannot be reached"):
                EventLog(host(tmp_path, "b", bad))
    finally:
        server.remove()


@pytest.mark.parametrize("setting", ["synchronous_commit", "fsync"])
def test_a_server_that_acknowledges_too_early_is_refused(setting: str, tmp_path: Path) -> None:
    server = PostgresServer(f"{setting} = off")
    try:
        with pytest.raises(SettingsError, match=f"has {setting} = off"):
            EventLog(host(tmp_path, "a", server.url()))
    finally:
        server.remove()


def test_addresses_are_checked_and_passwords_never_shown(tmp_path: Path) -> None:
    url = "postgresql://me:pa55word@127.0.0.1:1/shop"
    given = ServeSettings(data=tmp_path, log=url)
    assert "pa55word" not in given.toml() + repr(given) + given.model_dump_json() + masked(url)
    with pytest.raises(StorageError, match=r"postgresql://127.0.0.1:1/shop cannot be reached") as caught:
        EventLog(place_of(given))
    assert "pa55word" not in str(caught.value)
    for bad, message in (
        (url.replace("postgresql", "mysql"), "not an address of a database"),
        (f"{url}?schema=A b", "schema"),
    ):
        with pytest.raises(SettingsError, match=message):
            EventLog(Place(tmp_path, bad))


def test_retracted_events_aliases_and_profiles(url: str, tmp_path: Path) -> None:
    """What clients of Gorse and Segment ask of a log."""
    here = host(tmp_path, "a", url)
    with EventLog(here) as log:
        log.append([Event("visitor", "i1", 5, "view", "e1"), Event("u1", "i2", 6), Event("u1", "i2", 7, "buy", "e3")])
        assert log.alias("visitor", "u1").result() == log.alias("visitor", "u1").result() == 4
        with LogReader(here) as reader:
            assert [one.item for one in reader.of_user("u1", 9)] == ["i2", "i2", "i1"]
            assert (reader.user_of("visitor"), reader.user_of("u1")) == ("u1", "u1")
            assert log.retract("u1", "i2", "buy").result() == (1, 5)
            assert log.retract("u1", "i2", "buy").result()[0] == 0
            assert log.retract("u1", "i1").result() == (1, 6)  # of the visitor's
            assert [(one.item, one.type) for one in reader.of_user("u1", 9)] == [("i2", "view")]
            assert [one.offset for one in reader.page(0, 9)] == [2]
            assert [control.body["gone"] for control in reader.controls("retract")] == [False, True]
            assert log.append([Event("u1", "i2", 7, "buy", "e3")]).accepted == 1  # its id is free again
            assert log.put_profiles("user", {"u1": {"Comment": "An X"}, "u2": {}}).result() == 2
            assert log.put_profiles("user", {"u1": {}}, replace=False).result() == 0
            assert reader.profiles("user", "", 9, "an x") == [("u1", {"Comment": "An X"})]
            assert [one for one, _ in reader.profiles("user", "u1", 9)] == ["u2"]
            log.forget("u1").result()
            assert {control.body["user"] for control in reader.controls("forget")} == {"u1", "visitor"}
            assert reader.profile("user", "u1") is None
            assert reader.users_of() == {}


def test_a_file_is_imported_into_a_database(
    url: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.csv").write_text("user,item,time\nu1,i1,5\nu2,i2,6\n")
    assert "2 events appended up to offset 2, 0 were known" in run("log", "import", url, "clicks.csv").out
    assert "0 events appended up to offset 2, 2 were known" in run("log", "import", url, "clicks.csv").out


def test_a_query_brings_events_into_a_log(url: str, tmp_path: Path) -> None:
    address = url.partition("?")[0]
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE orders(id uuid PRIMARY KEY, customer text, sku bigint, at timestamptz)")
        row = "md5(n::text)::uuid, 'u' || n % 9, n % 7, timestamptz '2026-01-01 00:00:00+00' + n * interval '1 s'"
        connection.execute(f"INSERT INTO orders SELECT {row} FROM generate_series(1, 60000) n")
    asked = 'SELECT id AS event_id, customer AS "user", sku AS item, at AS time FROM orders'
    reading = Reading("", ServeSettings().uses(), query=asked)
    with EventLog(tmp_path / "live") as log:
        assert imported(log.submit, events_of(address, reading)).accepted == 60_000
        assert imported(log.submit, events_of(address, reading)).duplicates == 60_000
    known = "c4ca4238-a0b9-2382-0dcc-509a6f75849b"  # of the number 1
    with LogReader(tmp_path / "live") as reader:
        first = next(event for event in reader.events(1, 60_000) if event.event_id == known)
        assert (first.user, first.item, first.time) == ("u1", 1, 1_767_225_601)
    for bad, message in (
        ("SELECT * FROM ordres", 'cannot answer the query: relation "ordres" does not exist'),
        ("DELETE FROM orders", "cannot answer the query"),
    ):
        with pytest.raises(DataError, match=message):
            list(events_of(address, replace(reading, query=bad)))
    with pytest.raises(DataError, match=r"postgresql://127.0.0.1:1/x cannot answer") as caught:
        list(events_of("postgresql://me:pa55word@127.0.0.1:1/x", reading))
    assert "pa55word" not in str(caught.value)
