"""A service on loopback for tests: a real log, learner and HTTP server, in threads of the test's process."""

import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest


class Answer(NamedTuple):
    """What came back."""

    status: int
    content: Any
    headers: Any


class Service:
    """A service that runs, and a plain way to talk to it."""

    def __init__(self, settings: Any, *, ready: bool = True) -> None:
        from melon.service.http.app import make_server
        from melon.service.learner.loop import run_learner
        from melon.service.supervisor import listen, url_of

        self.settings = settings
        self.key: str | None = None
        listening = listen(settings)
        self.url = url_of(settings, listening)
        self.port = int(listening.getsockname()[1])
        self.server = make_server(settings)
        self.app.state.backend.log.announce(self.url)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}),
            threading.Thread(target=run_learner, args=(settings, self._stop)),
        ]
        for thread in self._threads:
            thread.start()
        if ready:
            self.wait(lambda: (self.call("GET", "/health/ready").content or {}).get("lists") == "model")

    @property
    def app(self) -> Any:
        return self.server.config.app

    def wait(self, done: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.02)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        state = self.app.state
        key = self.key or (None if state.keys.required else state.token)
        if key is not None:
            sent.setdefault("Authorization", f"Bearer {key}")
        request = urllib.request.Request(self.url + path, content, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return Answer(response.status, _read(response), response.headers)
        except urllib.error.HTTPError as error:
            return Answer(error.code, _read(error), error.headers)
        except OSError:
            return Answer(0, None, {})

    def get(self, path: str, **headers: str) -> Any:
        answer = self.call("GET", path, **headers)
        assert answer.status == 200, answer
        return answer.content

    def post(self, events: Any, path: str = "/v1/interactions", **headers: str) -> Any:
        answer = self.call("POST", path, events, **headers)
        assert answer.status in (200, 202), answer
        return answer.content

    def raw(self, data: bytes, *, wait: float = 5.0, close: bool = True) -> bytes:
        """Send bytes, read until the other side is done or silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            received = b""
            try:
                connection.sendall(data)
                if close:
                    connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(65_536):
                    received += part
            except OSError:
                pass
            return received

    def stop(self) -> None:
        self.server.should_exit = True
        self._threads[0].join(30)
        self._stop.set()
        self._threads[1].join(30)
        assert not any(thread.is_alive() for thread in self._threads)


def _read(response: Any) -> Any:
    content = response.read()
    if response.headers.get_content_type() == "application/json":
        return json.loads(content)
    return content.decode()


Start = Callable[..., Service]


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on disk: users u0 to u29, items i0 to i149."""
    from melon.estimator import Melon

    folder = tmp_path_factory.mktemp("shop") / "model"
    draws = np.random.default_rng(5)
    log = [(f"u{draws.integers(30)}", f"i{draws.integers(150)}", n) for n in range(900)]
    Melon("bpr", "default", recommender_settings={"dim": 8}, batch_size=32).partial_fit(log).save(folder)
    return folder


@pytest.fixture(scope="module")
def start(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start services with settings of their own; all are stopped at the end."""
    from melon.service.config import ServeSettings

    running: list[Service] = []
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)

    def begin(*, ready: bool = True, **settings: Any) -> Service:
        given = {"model": shop, "data": tmp_path_factory.mktemp("live"), "port": 0, "fit_after": 0}
        running.append(Service(ServeSettings(**{**given, **settings}), ready=ready))
        return running[-1]

    yield begin
    for service in running:
        service.stop()


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    """One service without keys, shared by the tests of a module."""
    return start()
