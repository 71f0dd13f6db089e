"""An open-loop load generator for the service: requests start when they are due, and latency counts from then.

    python benchmarks/load.py http://127.0.0.1:8000 --lists 300 --events 1000 --seconds 30

A service that stands still is seen as such (no coordinated omission). Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import heapq
import itertools
import json
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from melon.errors import ServiceError, SettingsError

_PERCENTILES = (50, 90, 99, 99.9)


@dataclass(frozen=True)
class Load:
    """What is sent: lists and events in a second, for how long, for whom.

    Users and items are numbers below `users` and `items`, written through `user_form` and `item_form`; popular ones are
    drawn more often (the square of a uniform draw).
    """

    url: str
    lists: float = 50.0
    events: float = 100.0
    batch: int = 10
    seconds: float = 10.0
    users: int = 1_000
    items: int = 1_000
    user_form: str = "u{}"
    item_form: str = "i{}"
    k: int = 10
    connections: int = 32
    key: str | None = None
    seed: int = 0


@dataclass
class Measured:
    """Requests of one kind: seconds from due to answered, and how they ended."""

    seconds: list[float] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)

    def table(self, wall: float) -> dict[str, Any]:
        times = np.array(self.seconds) * 1000
        quantiles = {f"p{p:g}": round(float(np.percentile(times, p)), 2) for p in _PERCENTILES} if len(times) else {}
        return {
            "requests": len(times),
            "per_second": round(len(times) / wall, 1),
            "ms": {**quantiles, "max": round(float(times.max()), 2) if len(times) else None},
            "codes": dict(self.codes),
        }


def run_load(load: Load) -> dict[str, Any]:
    """Send the load and return what was measured, as JSON-ready values."""
    if not 0 < load.seconds <= 3600 or load.lists < 0 or load.events < 0 or load.batch < 1 or load.connections < 1:
        raise SettingsError("a load has rates from 0 on, batches and connections from 1 on, and at most 3600 seconds.")
    pool = ConnectionPool(load)
    try:
        import uvloop
    except ImportError:  # it comes with melon[serve], which a machine that only sends may not have
        return asyncio.run(_run(load, pool))
    return uvloop.run(_run(load, pool))


async def _run(load: Load, pool: ConnectionPool) -> dict[str, Any]:
    random_numbers = random.Random(load.seed)
    code, _ = await pool.ask("/health/ready")
    if not code.isdigit():
        raise ServiceError(0, "unreachable", f"{load.url} cannot be reached: {code}.")
    kinds = {"lists": Measured(), "posts": Measured()}
    spent, started = time.process_time(), time.perf_counter()
    due = heapq.merge(
        _due(load.lists, load.seconds, kinds["lists"], lambda: _list_request(load, random_numbers)),
        _due(load.events / load.batch, load.seconds, kinds["posts"], lambda: _post(load, random_numbers)),
        key=lambda one: one[0],
    )
    # Each request starts at its time, whether or not earlier ones are answered.
    for seconds, measured, make in due:
        moment = started + seconds
        wait = moment - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        pool.submit(_Sent(make(), moment, measured))
    await pool.all_answered()
    wall, spent = time.perf_counter() - started, time.process_time() - spent
    _, status = await pool.ask("/v1/status")
    pool.close()
    report: dict[str, Any] = {name: measured.table(wall) for name, measured in kinds.items()}
    report["events_per_second"] = round(kinds["posts"].codes["202"] * load.batch / wall, 1)
    report |= {"seconds": round(wall, 2), "batch": load.batch, "connections": load.connections}
    report["generator_cpu_s"] = round(spent, 2)
    try:
        content = json.loads(status)
        report |= {"freshness_s": content["freshness_s"], "lag": content["lag"], "model": content["model"]}
    except (ValueError, KeyError):
        report["status"] = "no status"
    return report


def _due(
    rate: float, seconds: float, measured: Measured, make: Callable[[], tuple[str, str, bytes]]
) -> Iterator[tuple[float, Measured, Callable[[], tuple[str, str, bytes]]]]:
    """When each request of one kind starts, in seconds from the beginning."""
    for number in itertools.count() if rate else ():
        if number / rate >= seconds:
            return
        yield number / rate, measured, make


def _list_request(load: Load, draws: random.Random) -> tuple[str, str, bytes]:
    user = load.user_form.format(int(draws.random() ** 2 * load.users))
    return "GET", f"/v1/recommendations/{user}?k={load.k}", b""


def _post(load: Load, draws: random.Random) -> tuple[str, str, bytes]:
    events = [
        {
            "user": load.user_form.format(int(draws.random() ** 2 * load.users)),
            "item": load.item_form.format(int(draws.random() ** 2 * load.items)),
        }
        for _ in range(load.batch)
    ]
    return "POST", "/v1/interactions", json.dumps(events).encode()


@dataclass
class _Sent:
    """A request, when it was due, and where its outcome is counted: a status code, or the name of an error."""

    request: tuple[str, str, bytes]
    due: float
    measured: Measured
    answered: Callable[[str, bytes], None] | None = None

    def end(self, code: str, content: bytes = b"") -> None:
        self.measured.codes[code] += 1
        self.measured.seconds.append(time.perf_counter() - self.due)
        if self.answered is not None:
            self.answered(code, content)


class ConnectionPool:
    """Persistent connections; a request waits for a free one. Small on purpose: the generator shares the machine."""

    def __init__(self, load: Load) -> None:
        parts = urlsplit(load.url)
        if parts.scheme != "http" or not parts.hostname:
            raise SettingsError(f"url {load.url!r} is not valid; give http://HOST:PORT.")
        self._host, self._port = parts.hostname, parts.port or 80
        self.head = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\n"
        if load.key is not None:
            self.head += f"Authorization: Bearer {load.key}\r\n"
        self._most, self._open = load.connections, 0
        self._free: list[_Connection] = []
        self._waiting: deque[_Sent] = deque()
        self._opening = set[asyncio.Task[None]]()
        self._under_way, self._idle = 0, asyncio.Event()

    async def ask(self, path: str) -> tuple[str, bytes]:
        """One request beside the load: its status code, or what went wrong, and its answer."""
        future: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()
        sent = _Sent(("GET", path, b""), 0.0, Measured(), lambda code, content: future.set_result((code, content)))
        self.submit(sent)
        return await future

    def submit(self, sent: _Sent) -> None:
        self._under_way += 1
        self._send(sent)

    async def all_answered(self) -> None:
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        for connection in list(self._free):
            connection.close()

    def ended(self, sent: _Sent, code: str, content: bytes = b"") -> None:
        sent.end(code, content)
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    def freed(self, connection: _Connection) -> None:
        if self._waiting:
            connection.send(self._waiting.popleft())
        else:
            self._free.append(connection)

    def lost(self, connection: _Connection) -> None:
        self._open -= 1
        if connection in self._free:
            self._free.remove(connection)
        if self._waiting:
            self._send(self._waiting.popleft())

    def _send(self, sent: _Sent) -> None:
        if self._free:
            self._free.pop().send(sent)
        elif self._open < self._most:
            self._open += 1
            task = asyncio.ensure_future(self._connect(sent))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            self._waiting.append(sent)

    async def _connect(self, sent: _Sent) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: _Connection(self), self._host, self._port)
        except OSError as problem:
            self._open -= 1
            self.ended(sent, type(problem).__name__)
            if self._waiting:
                self._send(self._waiting.popleft())
        else:
            connection.send(sent)


class _Connection(asyncio.Protocol):
    """One request at a time: sent, and answered when as many bytes as its header says have come."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool, self._received = pool, b""
        self._sent: _Sent | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, sent: _Sent) -> None:
        self._sent = sent
        method, path, body = sent.request
        head = f"{method} {path} HTTP/1.1\r\n{self._pool.head}Content-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, content = self._received.partition(b"\r\n\r\n")
        if not end or self._sent is None:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        code = head[9:12].decode("latin-1")
        if not code.isdigit() or not length.strip().isdigit():
            self._finish("no HTTP")
            self.close()
        elif len(content) >= int(length):
            self._finish(code, content)
            if b"connection: close" in head.lower():
                self.close()
            else:
                self._pool.freed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sent is not None:
            self._finish(type(exc or ConnectionResetError()).__name__)
        self._pool.lost(self)

    def close(self) -> None:
        self._transport.close()

    def _finish(self, code: str, content: bytes = b"") -> None:
        sent, self._sent, self._received = self._sent, None, b""
        assert sent is not None
        self._pool.ended(sent, code, content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    for one in dataclasses.fields(Load)[1:]:
        parser.add_argument(f"--{one.name.replace('_', '-')}", default=one.default, type=type(one.default or ""))
    sys.stdout.write(json.dumps(run_load(Load(**vars(parser.parse_args())))) + "\n")


if __name__ == "__main__":
    main()
