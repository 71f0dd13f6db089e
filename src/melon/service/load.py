"""An open-loop load generator: requests start when they are due, and latency counts from then, answered or not."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable
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
    if not 0 < load.seconds <= 3600 or load.lists < 0 or load.events < 0 or load.batch < 1:
        raise SettingsError("a load has rates from 0 on, batches from 1 on, and at most 3600 seconds.")
    return asyncio.run(_run(load))


async def _run(load: Load) -> dict[str, Any]:
    random_numbers = random.Random(load.seed)
    pool = _Pool(load)
    try:
        await pool.request("GET", "/health/ready", b"")
    except OSError as problem:
        raise ServiceError(0, "unreachable", f"{load.url} cannot be reached: {problem}.") from None
    kinds = {"lists": Measured(), "posts": Measured()}
    started = time.perf_counter()
    due = [
        _schedule(load.lists, load.seconds, lambda: _list_request(load, random_numbers), kinds["lists"], pool, started),
        _schedule(
            load.events / load.batch, load.seconds, lambda: _post(load, random_numbers), kinds["posts"], pool, started
        ),
    ]
    await asyncio.gather(*due)
    wall = time.perf_counter() - started
    _, status = await pool.request("GET", "/v1/status", b"")
    pool.close()
    report: dict[str, Any] = {name: measured.table(wall) for name, measured in kinds.items()}
    report["events_per_second"] = round(kinds["posts"].codes["202"] * load.batch / wall, 1)
    report |= {"seconds": round(wall, 2), "batch": load.batch, "connections": load.connections}
    try:
        content = json.loads(status)
        report |= {"freshness_s": content["freshness_s"], "lag": content["lag"], "model": content["model"]}
    except (ValueError, KeyError):
        report["status"] = "no status"
    return report


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


async def _schedule(
    rate: float,
    seconds: float,
    make: Callable[[], tuple[str, str, bytes]],
    measured: Measured,
    pool: _Pool,
    started: float,
) -> None:
    """Start a request at each due time, whether or not earlier ones are answered."""
    tasks = set()
    for number in itertools.count() if rate else ():
        due = started + number / rate
        if due >= started + seconds:
            break
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(_measure(make(), due, measured, pool))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def _measure(request: tuple[str, str, bytes], due: float, measured: Measured, pool: _Pool) -> None:
    try:
        code, _ = await pool.request(*request)
        measured.codes[str(code)] += 1
    except (OSError, ValueError, asyncio.IncompleteReadError) as problem:
        measured.codes[type(problem).__name__] += 1
    measured.seconds.append(time.perf_counter() - due)


class _Pool:
    """Persistent connections; a request waits for a free one. Small on purpose: the generator shares the machine."""

    def __init__(self, load: Load) -> None:
        parts = urlsplit(load.url)
        if parts.scheme != "http" or not parts.hostname:
            raise SettingsError(f"url {load.url!r} is not valid; give http://HOST:PORT.")
        self._host, self._port = parts.hostname, parts.port or 80
        self._head = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\n"
        if load.key is not None:
            self._head += f"Authorization: Bearer {load.key}\r\n"
        self._free: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()
        self._slots = asyncio.Semaphore(load.connections)

    async def request(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        async with self._slots:
            reader, writer = self._free.pop() if self._free else await self._open()
            try:
                head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                headers = await reader.readuntil(b"\r\n\r\n")
                code = int(headers[9:12])
                length = int(headers.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                content = await reader.readexactly(length)
            except BaseException:
                writer.close()
                raise
            self._free.append((reader, writer))
            return code, content

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()
