"""`melon.Client` and `melon.AsyncClient` against a running service, and against one that fails for a while."""

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import melon
from conftest import Service
from melon.client import Item, Listed, Recorded
from melon.errors import MissingExtraError, ServiceError


def test_the_way_of_the_documentation(service: Service) -> None:
    with melon.Client(service.url, key=service.app.state.token) as client:
        seen = client.record("u17", "i23")
        assert isinstance(seen, Recorded)
        assert seen.accepted == 1
        listed = client.recommend("u17", k=10, after=seen.offset, wait_ms=9000, exclude=["i4"], category=())
        assert isinstance(listed, Listed)
        assert (len(listed), listed.stale, listed.source) == (10, False, "model")
        assert all(isinstance(one, Item) for one in listed)
        assert "i23" not in [one.item for one in listed]
        taken = client.record("u17", listed[0].item, type="click", recommendation=listed.recommendation)
        assert taken.offset > seen.offset
        with client.buffer(every=0.05, size=20) as events:
            for n in range(50):
                events.record("u17", f"i{n}", type="view")
        assert events.sent == 50
        many = client.recommend_many(["u1", "u2"], k=3, rules={"diversity": 0.5})
        assert [one.user for one in many] == ["u1", "u2"]
        assert client.recommend_many(history=["i1"], k=2)[0].source == "history"
        assert len(client.similar("i1", k=3)) == 3
        assert len(client.popular(k=3, user="u1")) == 3
        assert client.put_item("a/b ?", categories=["x"])["stored"] == 1
        assert client.item("a/b ?")["categories"] == ["x"]
        assert client.put_items([{"item": "c"}])["stored"] == 1
        assert client.explain("u1", "i1")["item"] == "i1"
        assert client.history("u17", limit=2)["events"]
        assert client.status()["log"]["events"] >= 52
        assert "models" in client.quality("5m")
        assert client.forget("u17")["job"].startswith("forget-")
        with pytest.raises(ServiceError) as refused:
            client.recommend("u1", k=0)
        assert (refused.value.status, refused.value.code) == (400, "invalid")
        with pytest.raises(ServiceError) as refused:
            client.record_many([{"user": "u", "item": "i"}, {"user": "u"}])
        assert refused.value.index == 1


def test_the_same_awaited(service: Service) -> None:
    async def talk() -> None:
        async with melon.AsyncClient(service.url) as client:
            seen = await client.record("u3", "i3")
            lists = await asyncio.gather(*(client.recommend(f"u{n}", after=seen.offset) for n in range(20)))
            assert [one.user for one in lists] == [f"u{n}" for n in range(20)]
            with pytest.raises(ServiceError, match="no such"):
                await client.recommend_many(["u"], rules={"x": 1})

    asyncio.run(talk())


class Flaky(http.server.BaseHTTPRequestHandler):
    """Answers with prepared statuses, then with success."""

    plan: ClassVar[list[int | None]] = []
    bodies: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(json.loads(body))
        status = self.plan.pop(0) if self.plan else 202
        if status is None:
            self.connection.close()
            return
        content = {"accepted": 1, "duplicates": 0, "conflicting": 0, "offset": 9}
        if status != 202:
            content = {"error": {"code": "busy", "message": "Not now.", "hint": "Wait."}}  # type: ignore[dict-item]
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def flaky() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Flaky.plan, Flaky.bodies = [], []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_what_fails_for_a_moment_is_sent_again_with_the_same_id(flaky: str) -> None:
    Flaky.plan = [503, None, 429, 507]
    with melon.Client(flaky) as client:
        assert client.record("u", "i").offset == 9
    assert len(Flaky.bodies) == 5
    (event_id,) = {body[0]["event_id"] for body in Flaky.bodies}
    assert event_id


def test_what_stays_wrong_is_raised(flaky: str) -> None:
    Flaky.plan = [400]
    with melon.Client(flaky) as client, pytest.raises(ServiceError, match=r"Not now\. Wait\."):
        client.record("u", "i")
    assert len(Flaky.bodies) == 1
    Flaky.plan = [503] * 100
    started = time.monotonic()
    with melon.Client(flaky, deadline=0.3) as client, pytest.raises(ServiceError) as refused:
        client.record("u", "i")
    assert refused.value.status == 503
    assert time.monotonic() - started < 20
    with melon.Client(flaky, deadline=0.1) as client:
        events = client.buffer(every=0.01)
        events.record("u", "i")
        with pytest.raises(ServiceError), events:
            events.record("u", "j")


def test_nobody_there() -> None:
    with melon.Client("http://127.0.0.1:9", deadline=0.1) as client, pytest.raises(ServiceError) as refused:
        client.status()
    assert (refused.value.status, refused.value.code) == (0, "unreachable")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(MissingExtraError, match="client"):
        melon.Client("http://127.0.0.1:9")


def test_a_buffer_is_bounded_while_the_service_is_away() -> None:
    with melon.Client("http://127.0.0.1:9", deadline=1.0) as client:
        events = client.buffer(every=0.01, most=10)

        def record() -> None:
            for number in range(600):  # those under way are not among them
                events.record("u1", f"i{number}")

        with pytest.raises(ServiceError, match="10 events wait"):
            record()
        with pytest.raises(ServiceError, match="cannot be reached"):
            events.__exit__(None, None, None)
