"""Three API processes and two learners on one PostgreSQL, killed again and again: nothing is lost or doubled."""

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
from postgres_server import PostgresServer
from service_scenes import saved_model, wait_until

from melon.service.learner.replaying import verify
from melon.service.log.events import LogReader
from melon.service.log.files import Place
from melon.service.log.steps import StepReader

ROUNDS = int(os.environ.get("MELON_FLEET_ROUNDS", "20"))


class Host:
    """One process with a folder of its own, which is started again when it was killed."""

    def __init__(self, folder: Path, role: str, model: Path, url: str) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.role, self.url = role, f"http://127.0.0.1:{self.port}"
        self._words = [
            sys.executable, "-m", "melon", "serve", str(model), "--data", str(folder), "--role", role, "--port",
            str(self.port), "--set", "checkpoint_s=2", "--set", "negatives=0",
        ]  # fmt: skip
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
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._output.close()


class Poster(threading.Thread):
    """Posts events with ids of their own to any API process until each is acknowledged, one list at a time."""

    def __init__(self, hosts: list[Host]) -> None:
        super().__init__()
        self._hosts, self.done, self.acknowledged, self.refused = hosts, threading.Event(), 0, 0

    def run(self) -> None:
        draws = random.Random(7)
        with httpx.Client(timeout=10) as client:
            while not self.done.is_set():
                events = [
                    {"user": f"u{draws.randrange(60)}", "item": f"i{draws.randrange(120)}", "event_id": f"e{number}"}
                    for number in range(self.acknowledged, self.acknowledged + 10)
                ]
                while True:
                    try:
                        answer = client.post(f"{draws.choice(self._hosts).url}/v1/interactions", json=events)
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


def answered(host: Host, path: str) -> Any:
    try:
        answer = httpx.get(host.url + path, timeout=10)
    except httpx.HTTPError:
        return None
    return answer.json() if answer.status_code == 200 else None


@pytest.mark.slow
def test_kills_lose_double_and_change_nothing(server: PostgresServer, tmp_path: Path) -> None:
    model, url, draws = saved_model(tmp_path / "model"), server.url("fleet"), random.Random(3)
    apis = [Host(tmp_path / f"api{n}", "api", model, url) for n in range(3)]
    learners = [Host(tmp_path / f"learner{n}", "learner", model, url) for n in range(2)]
    place, poster = Place(tmp_path / "look", url), Poster(apis)
    try:
        for host in apis:
            wait_until(lambda host=host: answered(host, "/health/ready") is not None, 120)  # type: ignore[misc]
        poster.start()
        for number in range(ROUNDS):
            before = poster.acknowledged
            kind = ("api", "learner", "backends", "server", "pause")[number % 5]
            if kind in ("api", "learner"):
                victim = draws.choice(apis if kind == "api" else learners)
                victim.kill()
                victim.start()
            elif kind == "backends":
                with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'melon'"
                    )
            elif kind == "server":
                server.stop("immediate")
                time.sleep(draws.random())
                server.start()
            else:
                victim = draws.choice(learners)
                victim.process.send_signal(signal.SIGSTOP)
                time.sleep(6)
                victim.process.send_signal(signal.SIGCONT)
            wait_until(lambda before=before: poster.acknowledged > before, 120)  # type: ignore[misc]
            time.sleep(draws.random())
            for host in (*apis, *learners):
                host.revive()
        poster.done.set()
        poster.join()
        with LogReader(place) as log:
            stored = [event.event_id for event in log.events(1, 1 << 60)]
            assert len(stored) == len(set(stored)) == poster.acknowledged
            last = log.last()[0]
        for host in apis:
            wait_until(lambda host=host: (answered(host, "/v1/status") or {}).get("lag") == 0, 120)  # type: ignore[misc]
            wait_until(
                lambda host=host: (answered(host, "/v1/status") or {}).get("model", {}).get("offset") == last, 120
            )  # type: ignore[misc]
        for user in ("u1", "u7", "new"):
            lists = [answered(host, f"/v1/recommendations/{user}?k=20")["items"] for host in apis]
            assert lists[0] == lists[1] == lists[2]
    finally:
        poster.done.set()
        for host in (*apis, *learners):
            host.process.send_signal(signal.SIGCONT)
            host.stop()
    assert list(verify(place))[-1].endswith("the bytes are those that were recorded")
    with StepReader(place) as steps:
        figures = f"{poster.acknowledged} events, {poster.refused} refusals, {len(steps.epochs())} epochs"
    (tmp_path / "figures").write_text(f"{ROUNDS} rounds, {figures}\n")
