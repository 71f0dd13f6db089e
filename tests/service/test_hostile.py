"""Bytes that no friend sends: malformed, huge, slow and half-closed requests leave the service serving."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Service, Start

HEAD = b"POST /v1/interactions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/recommendations/u1 HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def sized(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


SHAPES = {
    "nothing": b"",
    "no http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "only line ends": b"\r\n" * 500,
    "bad method": b"G\x00T / HTTP/1.1\r\n\r\n",
    "bad version": b"GET / HTTP/9.9\r\n\r\n",
    "no path": b"GET HTTP/1.1\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
    "bare line feeds": b"GET /health/live HTTP/1.1\nHost: 127.0.0.1\n\n",
    "huge header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 30_000 + b"\r\n",
    "huge path": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "half a request": HEAD[:40],
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "length and chunks": HEAD
    + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "enormous length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
    "length of words": HEAD + b"Content-Length: ten\r\n\r\n",
    "short body": HEAD + b"Content-Length: 100\r\n\r\n{}",
    "bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "huge chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "obsolete folding": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n folded\r\n\r\n",
    "upgrade": GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
    "http/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "bad utf-8": sized(b'{"user": "\xff\xfe", "item": "i"}'),
    "utf-16": sized('{"user": "u", "item": "i"}'.encode("utf-16")),
    "infinity": sized(b'{"user": "u", "item": "i", "time": 1e400}'),
    "long number": sized(b'{"user": "u", "item": "i", "time": ' + b"9" * 100_000 + b"}"),
    "a time of 400 digits": sized(b'{"user": "u", "item": "i", "time": ' + b"9" * 400 + b"}"),
    "a filter of 400 digits": sized(
        b'{"users": ["u1"], "rules": {"filter": {"field": "price", "lt": ' + b"9" * 400 + b"}}}"
    ).replace(b"/v1/interactions", b"/v1/recommendations"),
    "a filter of 100 digits": sized(
        b'{"users": ["u1"], "rules": {"filter": {"field": "price", "lt": ' + b"9" * 100 + b"}}}"
    ).replace(b"/v1/interactions", b"/v1/recommendations"),
    "deep arrays": sized(b"[" * 1_000_000),
    "deep objects": sized(b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
    "a name twice": sized(b'{"user": "u", "user": "v", "item": "i"}'),
    "an open string": sized(b'{"user": "' + b"\\" * 99_999),
    "path up": b"GET /v1/../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "absolute path": b"GET http://elsewhere/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "two hosts": b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n",
    "pipelined": (GET + b"\r\n") * 5,
}


def statuses(received: bytes) -> list[int]:
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def still_serves(service: Service) -> None:
    assert len(service.get("/v1/recommendations/u1?k=3")["items"]) == 3


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(service: Service, name: str) -> None:
    received = service.raw(SHAPES[name], wait=2.0)
    codes = statuses(received)
    assert all(200 <= code < 500 for code in codes), received[:300]
    if name in ("two lengths", "negative length", "bad chunk", "deep arrays", "a name twice", "infinity", "bad utf-8"):
        assert codes == [400]
        assert b'"error"' in received
    if name == "pipelined":
        assert codes == [200] * 5
    still_serves(service)


_PARSED = """
import sys
from melon.errors import ServiceError
from melon.service.http.strict import parse
for body in (b"[" * 20 + b'"' + b'\\\\"' * 2_000_000, b"[" * 20 + b'"' + b"\\\\" * 4_000_001, b'["' * 2_000_000):
    try:
        parse(body)
    except ServiceError as problem:
        print(problem.code)
"""


def test_a_body_of_quotes_is_refused_in_linear_time() -> None:
    """4 MB that an expression with a failing end would scan anew from each quote: hours, not seconds."""
    done = subprocess.run([sys.executable, "-c", _PARSED], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["invalid_json"] * 3


def noise(seed: int) -> Iterator[bytes]:
    """Valid requests with bytes changed, cut, doubled or put in."""
    draws = random.Random(seed)
    event = json.dumps([{"user": "u1", "item": "i1", "time": 5, "event_id": "x"}]).encode()
    facts = b'{"categories": ["a"], "attributes": {"price": 1}}'
    item = sized(facts).replace(b"POST /v1/interactions", b"PUT /v1/items/i1")
    seeds = [sized(event), GET + b"\r\n", item, GET.replace(b"u1", b"%F0%9F%8D%88?k=7") + b"\r\n"]
    while True:
        data = bytearray(draws.choice(seeds))
        for _ in range(draws.randint(1, 4)):
            place = draws.randrange(len(data))
            kind = draws.randrange(4)
            if kind == 0:
                data[place] = draws.randrange(256)
            elif kind == 1:
                del data[place : place + draws.randint(1, 20)]
            elif kind == 2:
                data[place:place] = bytes(draws.randrange(256) for _ in range(draws.randint(1, 9)))
            else:
                data[place:place] = data[place : place + draws.randint(1, 60)]
            if not data:
                data = bytearray(b"\x00")
        yield bytes(data)


def run_noise(service: Service, count: int, seed: int) -> None:
    for number, data in zip(range(count), noise(seed), strict=False):
        received = service.raw(data, wait=0.5)
        assert all(code < 500 for code in statuses(received)), (number, data, received[:500])
    still_serves(service)


def test_noise(service: Service) -> None:
    run_noise(service, 150, seed=1)


@pytest.mark.slow
def test_hostile_requests_leave_memory_flat(service: Service) -> None:
    """Changed bytes at length; MELON_HOSTILE says how many requests."""
    count = int(os.environ.get("MELON_HOSTILE", "100000"))

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    run_noise(service, count // 5, seed=2)
    before = pages()
    run_noise(service, count - count // 5, seed=3)
    assert pages() < before * 1.2 + 10_000


def test_slow_clients_are_ended(start: Start) -> None:
    service = start(header_s=0.5, body_rate=1000.0)

    def ended_after(data: bytes, *, drip: bytes = b"") -> float:
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            started = time.monotonic()
            connection.sendall(data)
            try:
                while True:
                    if drip:
                        connection.sendall(drip)
                    connection.settimeout(0.1 if drip else 10)
                    try:
                        if not connection.recv(100):
                            break
                    except TimeoutError:
                        assert drip
                        assert time.monotonic() - started < 10
            except ConnectionError:
                pass
            return time.monotonic() - started

    assert ended_after(b"") < 5
    assert ended_after(HEAD, drip=b"X: y\r\n") < 5
    assert ended_after(HEAD + b"Content-Length: 100000\r\n\r\n", drip=b" ") < 8
    # A body that comes fast enough is read to its end, however long it takes.
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        body = json.dumps([{"user": "u1", "item": "i1"}] * 400).encode()
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
        step = len(body) // 8
        for first in range(0, len(body), step):
            connection.sendall(body[first : first + step])
            time.sleep(0.15)
        assert connection.recv(100).startswith(b"HTTP/1.1 202")
    still_serves(service)


def test_headers_are_few_and_trailers_are_not_kept(service: Service) -> None:
    """Nobody's request holds memory: neither headers that come at once, nor headers behind a body that never end."""
    flood = b"".join(b"X-%d: 1\r\n" % n for n in range(12_000))
    for head in (flood + b"\r\n", b"X: " + b"y" * 70_000):
        # A client that still sends when it is refused may see the end of its connection instead of the answer.
        assert statuses(service.raw(GET + head, wait=30.0)) in ([431], [])
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n")
        for _ in range(5):
            connection.sendall(flood)
        time.sleep(0.5)
        held = [len(one.headers) for one in service.server.server_state.connections]
        assert held
        assert max(held) < 10
    still_serves(service)


def test_connections_are_limited(start: Start) -> None:
    service = start(connections=5)
    held = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(4)]
    time.sleep(0.3)
    received = [service.raw(GET + b"Connection: close\r\n\r\n", wait=2.0) for _ in range(1)]
    assert statuses(received[0]) == [200]
    held += [socket.create_connection(("127.0.0.1", service.port)) for _ in range(4)]
    time.sleep(0.3)
    assert statuses(service.raw(GET + b"\r\n", wait=2.0)) == [200]  # those that say nothing make room
    for connection in held:
        connection.close()
    service.wait(lambda: service.call("GET", "/health/live").status == 200)
    still_serves(service)
