"""Three API processes and two learners on one PostgreSQL, killed and cut off: nothing is lost or doubled."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from network import CAN_SEPARATE, Machine, Wire
from postgres_server import PostgresServer
from service_scenes import saved_model, wait_until

from melon.service.config import ServeSettings
from melon.service.keys import keys_of
from melon.service.learner.replaying import verify
from melon.service.log.events import EventLog, LogReader
from melon.service.log.files import Place
from melon.service.log.steps import StepReader

ROUNDS = int(os.environ.get("MELON_FLEET_ROUNDS", "20"))


class Host:
    """A process on a machine of its own, which is started again when it was killed; a wire leads to the database."""

    def __init__(self, number: int, folder: Path, role: str, model: Path, server: PostgresServer) -> None:
        self.machine = Machine(number)
        self.wire = Wire(self.machine.gateway, server.port)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self.role, self.url = role, f"http://{self.machine.address}:{port}"
        address = f"{self.machine.gateway}:{self.wire.port}"
        self._words = [
            *self.machine.command, sys.executable, "-m", "melon", "serve", str(model), "--data", str(folder),
            "--role", role, "--host", self.machine.address, "--port", str(port), "--set", "checkpoint_s=2",
            "--set", "negatives=0",
        ]  # fmt: skip
        url = server.url("fleet").replace(f"127.0.0.1:{server.port}", address)
        self._environment = {**os.environ, "MELON_SERVE_LOG": url, "MELON_LOG_LEVEL": "WARNING"}
        self._output = (folder.parent / f"{folder.name}.log").open("ab")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._words, env=self._environment, stdout=self._output, stderr=self._output, start_new_session=True
        )

    def revive(self) -> None:
        """Start it again where it has ended, as a supervisor does: it may have been started without a database."""
        if self.process.poll() is not None:
            self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._output.close()
        self.wire.remove()
        self.machine.remove()


class Poster(threading.Thread):
    """Posts events with ids of their own to any API process until each is acknowledged, one list at a time."""

    def __init__(self, hosts: list[Host], client: httpx.Client) -> None:
        super().__init__()
        self._hosts, self._client = hosts, client
        self.done, self.acknowledged, self.refused = threading.Event(), 0, 0

    def run(self) -> None:
        draws = random.Random(7)
        while not self.done.is_set():
            events = [
                {"user": f"u{draws.randrange(60)}", "item": f"i{draws.randrange(120)}", "event_id": f"e{number}"}
                for number in range(self.acknowledged, self.acknowledged + 10)
            ]
            while True:
                try:
                    answer = self._client.post(f"{draws.choice(self._hosts).url}/v1/interactions", json=events)
                    if answer.status_code == 202:
                        break
                except httpx.HTTPError:
                    pass
                self.refused += 1
                time.sleep(0.05)
            self.acknowledged += 10
            time.sleep(0.02)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


class Fleet:
    """Three API processes and two learners, and what can be done to them."""

    def __init__(self, server: PostgresServer, tmp_path: Path) -> None:
        self.server, self.url, self.draws = server, server.url("fleet"), random.Random(3)
        model, self.place = saved_model(tmp_path / "model"), Place(tmp_path / "look", server.url("fleet"))
        EventLog(self.place).close()
        key = keys_of(ServeSettings(data=tmp_path / "look", log=self.url)).add(["read", "write"])[0]
        self.client = httpx.Client(timeout=10, headers={"Authorization": f"Bearer {key}"})
        names = [*(("api", n) for n in range(3)), *(("learner", n) for n in range(2))]
        self.hosts = [
            Host(place, tmp_path / f"{role}{n}", role, model, server) for place, (role, n) in enumerate(names, 1)
        ]
        self.apis, self.learners = self.hosts[:3], self.hosts[3:]
        #: Seconds from what happened to the learner until another one had begun, by what it was.
        self.failovers: dict[str, list[float]] = {}
        self._database: psycopg.Connection[Any] | None = None

    def ask(self, query: str) -> list[Any]:
        """Ask the database, which may just be away: then nothing comes."""
        try:
            if self._database is None or self._database.closed:
                self._database = psycopg.connect(self.url.partition("?")[0], autocommit=True)
            found = self._database.execute(query)
            return found.fetchall() if found.description else []
        except psycopg.Error:
            self._database = None
            return []

    def epoch(self) -> int:
        rows = self.ask("SELECT coalesce(max(number), 0) FROM fleet_batches.epochs")
        return int(rows[0][0]) if rows else 0

    def leader(self) -> Host:
        """The learner that learns, or any."""
        rows = self.ask("SELECT holder FROM fleet_batches.leases WHERE role = 'learner'")
        named = [host for host in self.learners if rows and rows[0][0].startswith(f"process {host.process.pid} ")]
        return named[0] if named else self.draws.choice(self.learners)

    def answered(self, host: Host, path: str) -> Any:
        try:
            answer = self.client.get(host.url + path)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.status_code == 200 else None

    def trouble(self, kind: str) -> None:
        """Do one thing to the fleet."""
        victim = self.draws.choice(self.apis)
        if kind.startswith("learner"):
            wait_until(self._settled, 60)
            victim = self.leader()
        epoch, began = self.epoch(), time.monotonic()
        match kind.rpartition(" ")[2]:
            case "killed":
                victim.kill()
                self._await_learner(kind, epoch, began)
                victim.start()
            case "stopped":
                victim.process.send_signal(signal.SIGSTOP)
                self._await_learner(kind, epoch, began)
                time.sleep(max(0.0, began + 6 - time.monotonic()))
                victim.process.send_signal(signal.SIGCONT)
            case "backends":
                self.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'melon%'")
            case "server":
                self.server.stop("immediate")
                time.sleep(self.draws.random())
                self.server.start()
            case "delayed":
                victim.wire.delay = self.draws.uniform(0.02, 0.2)
                time.sleep(3)
                victim.wire.delay = 0.0
            case "cut":
                victim.wire.closed = True
                victim.wire.cut()
                self._await_learner(kind, epoch, began)
                victim.wire.closed = False
            case "half":
                victim.wire.closed = True
                victim.wire.cut(half=True)
                self._await_learner(kind, epoch, began)
                victim.wire.closed = False
            case "torn":
                victim.wire.torn = True
                while victim.wire.torn and time.monotonic() < began + 5:
                    time.sleep(0.01)
                began, victim.wire.torn = time.monotonic(), False
                self._await_learner(kind, epoch, began)
                victim.wire.closed = False
            case "held":  # what it sent arrives late, after another has begun
                victim.wire.held = True
                self._await_learner(kind, epoch, began)
                time.sleep(max(0.0, began + 4 - time.monotonic()))
                victim.wire.held = False
            case "unplugged" if CAN_SEPARATE:
                victim.machine.plug(in_place=False)
                self._await_learner(kind, epoch, began)
                time.sleep(max(0.0, began + 7 - time.monotonic()))
                victim.machine.plug(in_place=True)

    def _settled(self) -> bool:
        """Whether one learner learns, and the other one has stood by for some seconds."""
        fresh = "SELECT 1 FROM fleet_batches.leases WHERE beat > extract(epoch FROM clock_timestamp()) - 1"
        since = "SELECT min(backend_start) < clock_timestamp() - interval '5 s' FROM pg_stat_activity"
        old = [self.ask(f"{since} WHERE application_name LIKE '%% {host.process.pid} on %%'") for host in self.learners]
        return bool(self.ask(fresh)) and all(rows and rows[0][0] for rows in old)

    def _await_learner(self, kind: str, epoch: int, began: float) -> None:
        if not kind.startswith("learner"):
            time.sleep(self.draws.random())
            return
        while time.monotonic() < began + 20:
            if self.epoch() > epoch:
                self.failovers.setdefault(kind, []).append(time.monotonic() - began)
                return
            time.sleep(0.01)

    def stop(self) -> None:
        for host in self.hosts:
            host.stop()
        self.client.close()


KINDS = (
    "api killed", "learner killed", "backends", "server", "learner stopped", "learner delayed", "api cut",
    "learner cut", "api half", "learner half", "api delayed", "learner held", "api held", "learner unplugged",
    "api unplugged", "learner torn", "api torn",
)  # fmt: skip


@pytest.mark.slow
def test_kills_and_cuts_lose_double_and_change_nothing(server: PostgresServer, tmp_path: Path) -> None:
    fleet = Fleet(server, tmp_path)
    poster = Poster(fleet.apis, fleet.client)
    try:
        for host in fleet.apis:
            wait_until(lambda host=host: fleet.answered(host, "/health/ready") is not None, 120)  # type: ignore[misc]
        poster.start()
        for number in range(ROUNDS):
            before = poster.acknowledged
            fleet.trouble(KINDS[number % len(KINDS)])
            wait_until(lambda before=before: poster.acknowledged > before, 120)  # type: ignore[misc]
            time.sleep(fleet.draws.random())
            for host in fleet.hosts:
                host.revive()
        poster.done.set()
        poster.join()
        with LogReader(fleet.place) as log:
            stored = [event.event_id for event in log.events(1, 1 << 60)]
            assert len(stored) == len(set(stored)) == poster.acknowledged
            last = log.last()[0]

        def stands(host: Host) -> int:
            return int((fleet.answered(host, "/v1/status") or {}).get("model", {}).get("offset", 0))

        for host in fleet.apis:
            wait_until(lambda host=host: stands(host) == last, 120)  # type: ignore[misc]
        for user in ("u1", "u7", "new"):
            lists = [fleet.answered(host, f"/v1/recommendations/{user}?k=20")["items"] for host in fleet.apis]
            assert lists[0] == lists[1] == lists[2]
    finally:
        poster.done.set()
        fleet.stop()
    assert list(verify(fleet.place))[-1].endswith("the bytes are those that were recorded")
    with StepReader(fleet.place) as steps:
        lines = [
            f"{ROUNDS} rounds, {poster.acknowledged} events, {poster.refused} refusals, {len(steps.epochs())} epochs"
        ]
    lines += [f"{kind}: {', '.join(f'{s:.2f}' for s in sorted(found))} s" for kind, found in fleet.failovers.items()]
    Path(os.environ.get("MELON_FLEET_FIGURES", tmp_path / "figures")).write_text("\n".join(lines) + "\n")
