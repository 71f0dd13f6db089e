"""One request, connection, listener or page must not stop the service for others."""

import asyncio
import json
import socket
import threading
import time
import tracemalloc
import urllib.request
from typing import Any

import numpy as np
import pytest

from conftest import Service, Start
from melon.errors import SettingsError
from melon.service.backend import MOST_LISTENERS
from melon.service.coalesce import Coalescer
from melon.service.config import MOST_WORK
from melon.service.http.recommendations import work_of
from melon.service.http.shapes import ListsIn
from melon.service.keys import Bucket, keys_of
from melon.service.rules.filters import check_filter
from melon.service.rules.items import Facts, ItemFacts


class TestWork:
    def test_what_lists_cost(self) -> None:
        plain = {"users": [f"u{n}" for n in range(500)]}
        assert work_of(ListsIn.model_validate(plain)) == 5_000
        assert work_of(ListsIn.model_validate({**plain, "k": 100})) == MOST_WORK
        costly = {**plain, "k": 1_000, "rules": {"diversity": 0.5}}
        assert work_of(ListsIn.model_validate(costly)) > 100 * MOST_WORK
        capped = {**plain, "rules": {"at_most": {"category": 2}}}
        assert work_of(ListsIn.model_validate(capped)) == 30_000
        named = {**plain, "candidates": [f"i{n}" for n in range(10_000)]}
        assert work_of(ListsIn.model_validate(named)) > 10 * MOST_WORK
        assert work_of(ListsIn.model_validate({**named, "users": ["u1"]})) < MOST_WORK

    def test_a_request_that_costs_too_much_is_refused(self, service: Service) -> None:
        body = {"users": [f"u{n}" for n in range(500)], "k": 1_000, "rules": {"diversity": 0.5}}
        refused = service.call("POST", "/v1/recommendations", body)
        assert (refused.status, refused.content["error"]["code"]) == (400, "too_much_work")
        body = {**body, "k": 100}
        refused = service.call("POST", "/v1/recommendations", body)
        assert (refused.status, refused.content["error"]["code"]) == (400, "too_much_work")
        assert str(MOST_WORK) in refused.content["error"]["message"]
        assert service.call("POST", "/v1/recommendations", {**body, "k": 10}).status == 200

    def test_conditions_are_counted_over_all_rules(self, service: Service) -> None:
        one = {"filter": {"any": [{"category": "a"}] * 50}, "by": 1.0}
        assert service.call("POST", "/v1/recommendations", {"users": ["u1"], "rules": {"boost": [one]}}).status == 200
        refused = service.call("POST", "/v1/recommendations", {"users": ["u1"], "rules": {"boost": [one, one]}})
        assert refused.status == 400
        assert "conditions" in refused.content["error"]["message"]

    @pytest.mark.parametrize(
        "content",
        [{"category": ["a"] * 1_001}, {"field": "f", "in": [1] * 1_001}, {"all": [{"available": True}] * 100}],
    )
    def test_a_filter_looks_at_few_things(self, content: dict[str, Any]) -> None:
        with pytest.raises(SettingsError, match="more than 100 conditions"):
            check_filter(content)

    def test_a_body_has_few_values(self, service: Service) -> None:
        """Each is made an object while nobody else is answered."""
        for body in (b"[%s0]" % (b"0," * 100_001), b"{%s}" % b",".join(b'"%d":0' % n for n in range(100_002))):
            refused = service.call("POST", "/v1/interactions", body)
            assert (refused.status, refused.content["error"]["code"]) == (413, "too_many_values")

    def test_a_request_that_waits_for_an_offset_is_woken_by_that_one(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Hundreds that wait must not look at each batch."""
        backend, looked = service.app.state.backend, 0
        plain = type(backend.replica).position.fget

        class Counted(type(backend.replica)):  # type: ignore[misc]
            @property
            def position(self) -> Any:
                nonlocal looked
                looked += threading.current_thread() is loop_thread
                return plain(self)

        async def wait() -> list[bool]:
            nonlocal loop_thread
            loop_thread = threading.current_thread()
            monkeypatch.setattr(backend.replica, "__class__", Counted)
            return await asyncio.gather(*(backend.wait_for(1 << 40, 0.9) for _ in range(100)))

        loop_thread = None
        waiting = asyncio.run_coroutine_threadsafe(wait(), backend._loop)
        for n in range(10):
            offset = service.post({"user": "u1", "item": f"i{n}"})["offset"]
            service.wait(lambda offset=offset: plain(backend.replica).offset >= offset)
        assert waiting.result() == [False] * 100
        assert looked < 600  # not 100 for each batch
        assert not backend._waiting

    def test_work_is_charged_to_its_key(self) -> None:
        bucket = Bucket(rate=10.0, burst=20)
        assert not bucket.wait_s("a", 0.0)
        bucket.charge("a", 100.0)
        assert bucket.wait_s("a", 1.0) == pytest.approx(7.2)
        assert not bucket.wait_s("b", 1.0)
        bucket.charge("unbounded", 5.0)

    def test_work_ends_when_the_client_has_gone(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[int] = []
        work = Coalescer._work

        def slowly(self: Coalescer, turns: Any) -> None:
            time.sleep(0.02)
            made.append(sum(len(part) for _, part in turns))
            work(self, turns)

        monkeypatch.setattr(Coalescer, "_work", slowly)
        body = json.dumps({"users": [f"u{n % 30}" for n in range(500)], "k": 100}).encode()
        head = b"POST /v1/recommendations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            service.wait(lambda: len(made) >= 3)
        coalescer = service.app.state.backend.coalescer
        service.wait(lambda: coalescer.waiting == 0)
        assert sum(made) < 400

    def test_requests_for_many_keep_out_only_each_other(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate, work = threading.Event(), Coalescer._work

        def held(self: Coalescer, turns: Any) -> None:
            gate.wait(20)
            work(self, turns)

        monkeypatch.setattr(Coalescer, "_work", held)
        many = {"users": [f"u{n % 30}" for n in range(500)], "k": 10}
        codes: list[int] = []
        threads = [
            threading.Thread(target=lambda: codes.append(service.call("POST", "/v1/recommendations", many).status))
            for _ in range(3)
        ]
        singles: list[int] = []
        threads += [
            threading.Thread(target=lambda: singles.append(service.call("GET", "/v1/recommendations/u1").status))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        service.wait(lambda: codes.count(503) == 2)
        gate.set()
        for thread in threads:
            thread.join()
        assert sorted(codes) == [200, 503, 503]
        assert singles == [200] * 20


class TestConnections:
    def test_idle_connections_make_room(self, start: Start) -> None:
        service = start(connections=20)
        idle = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(60)]
        for connection in idle[:10]:
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for _ in range(5):
            assert service.call("GET", "/health/live").status == 200
        for connection in idle:
            connection.close()

    def test_busy_connections_do_not(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        service = start(connections=4)
        gate, work = threading.Event(), Coalescer._work

        def held(self: Coalescer, turns: Any) -> None:
            gate.wait(20)
            work(self, turns)

        monkeypatch.setattr(Coalescer, "_work", held)
        busy = []
        for _ in range(4):
            busy.append(socket.create_connection(("127.0.0.1", service.port)))
            busy[-1].sendall(b"GET /v1/recommendations/u1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        service.wait(lambda: service.app.state.backend.coalescer.waiting >= 3)
        refused = service.raw(b"", close=False)
        assert b"503" in refused.split(b"\r\n")[0]
        assert b"retry-after: 1" in refused
        gate.set()
        assert all(b"200 OK" in connection.recv(65_536) for connection in busy)
        for connection in busy:
            connection.close()

    def test_listeners_are_few_and_messages_go_together(self, service: Service) -> None:
        open_ones = []
        for _ in range(MOST_LISTENERS):
            open_ones.append(urllib.request.urlopen(f"{service.url}/v1/stream", timeout=30))
        refused = service.call("GET", "/v1/stream")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "30")
        assert service.call("GET", "/v1/recommendations/u1").status == 200
        for one in open_ones:
            one.close()
        service.wait(lambda: service.call("GET", "/v1/stream?most=1").status == 200)


class TestPagesAndPaths:
    def test_a_page_of_another_origin_is_refused_without_keys(self, service: Service) -> None:
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://127.0.0.1:{service.port + 1}"},
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
        ):
            assert service.call("POST", "/v1/resume", **headers).status == 403, headers
        own = {"Origin": f"http://127.0.0.1:{service.port}", "Sec_Fetch_Site": "same-origin"}
        assert service.call("GET", "/v1/status", **own).status == 200

    def test_metrics_need_a_key_where_there_are_keys(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("melon.service.keys._CHECK_EVERY_S", 0.0)
        service = start()
        assert service.call("GET", "/metrics", Host="evil.example").status == 403
        read, _ = keys_of(service.settings).add(["read"])
        assert service.call("GET", "/metrics").status == 401
        assert service.call("GET", "/metrics", Authorization=f"Bearer {read}").status == 200
        assert service.call("GET", "/health/ready").status == 200

    def test_a_key_is_never_a_request_id(self, service: Service) -> None:
        secret = "mk_0a0a0a0a_" + "b" * 64
        answer = service.call("GET", "/v1/popular", X_Request_Id=secret)
        assert answer.headers["X-Request-Id"] != secret
        assert service.call("GET", "/v1/popular", X_Request_Id="mine").headers["X-Request-Id"] == "mine"

    def test_a_control_character_is_no_slash(self, service: Service) -> None:
        assert service.call("PUT", "/v1/items/a%2Fb", {}).status == 200
        assert service.call("GET", "/v1/items/a%2Fb").status == 200
        assert service.call("GET", "/v1/items/a%1Fb").status == 400


def test_facts_change_in_one_order(service: Service) -> None:
    """Changes at once are all there at the end, in the log and in memory."""
    service.call("PUT", "/v1/items/shared", {"attributes": {}})

    def change(number: int) -> None:
        answer = service.call("PATCH", "/v1/items/shared", {"attributes": {f"a{number}": number}})
        assert answer.status == 200

    threads = [threading.Thread(target=change, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert service.get("/v1/items/shared")["attributes"] == {f"a{number}": number for number in range(16)}
    assert service.call("PATCH", "/v1/items/unheard-of", {}).status == 404


def test_facts_are_bounded(service: Service) -> None:
    """An item's attributes do not grow by changes; one that few items have costs no memory for the others."""
    for n in range(2):
        given = {"attributes": {f"{n} {m}": m for m in range(60)}}
        answer = service.call("PATCH" if n else "PUT", "/v1/items/grows", given)
    assert answer.status == 400
    assert "120 attributes; 100 are allowed" in answer.content["error"]["message"]
    facts = ItemFacts()
    tracemalloc.start()
    facts.put({f"i{n}": Facts(attributes={f"{n} {m}": m for m in range(100)}) for n in range(100)})
    assert tracemalloc.get_traced_memory()[1] < 30 << 20
    tracemalloc.stop()
    assert np.flatnonzero(facts.numbers("7 3") == 3).tolist() == [7]
    facts.put({f"i{n}": None for n in range(100)})
    assert not facts._columns


def test_an_item_of_one_user_is_not_shown_to_others(service: Service) -> None:
    def listed(user: str = "u3") -> tuple[set[str], dict[str, int]]:
        content = service.get(f"/v1/recommendations/{user}?k=1000&filter_seen={str(user == 'u3').lower()}")
        return {one["item"] for one in content["items"]}, content["filtered"]

    def post(user: str, item: str) -> None:
        offset = service.post([{"user": user, "item": item}])["offset"]
        service.wait(lambda: not service.get(f"/v1/recommendations/u3?after={offset}&wait_ms=5000")["stale"])

    before = listed()[1].get("untried", 0)
    post("u1", "invented")
    assert "invented" not in listed()[0]
    assert listed()[1]["untried"] == before + 1
    assert "invented" in listed("u1")[0]  # it is this user's own
    assert "invented" not in listed("u2")[0]
    assert "invented" not in {one["item"] for one in service.get("/v1/popular?k=1000")["items"]}
    chosen = service.post({"users": ["u3"], "candidates": ["invented", "i1"]}, "/v1/recommendations")
    assert "invented" in {one["item"] for one in chosen["results"][0]["items"]}  # asked for by name
    post("u2", "invented")
    assert "invented" in listed()[0]
    post("u1", "described")
    assert "described" not in listed()[0]
    service.call("PUT", "/v1/items/described", {"categories": ["new"]})
    assert "described" in listed()[0]


def test_events_and_popular_lists_while_kernels_compile(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from melon.learning.model import LiveModel

    gate, warm_up = threading.Event(), LiveModel.warm_up

    def slow(self: LiveModel) -> None:
        gate.wait(60)
        warm_up(self)

    monkeypatch.setattr(LiveModel, "warm_up", slow)
    service = start(ready=False)
    try:
        service.wait(lambda: service.call("GET", "/health/ready").status == 200)
        assert service.get("/health/ready")["lists"] == "popular"
        assert service.post([{"user": "u1", "item": "i1"}])["accepted"] == 1
        content = service.get("/v1/recommendations/u1")
        assert (content["source"], len(content["items"])) == ("popular", 10)
        assert any("kernels" in alarm for alarm in service.get("/v1/status")["alarms"])
    finally:
        gate.set()
    service.wait(lambda: service.get("/health/ready")["lists"] == "model")
    service.wait(lambda: service.get("/v1/recommendations/u1")["source"] == "model")
    service.wait(lambda: service.get("/v1/status")["lag"] == 0)


def test_readiness_tells_of_writes_that_fail(start: Start) -> None:
    service = start()
    folder = service.settings.folder
    folder.rename(folder.with_name("elsewhere"))
    service.wait(lambda: service.call("GET", "/health/ready").status == 503)
    assert "moved" in service.call("GET", "/health/ready").content["why"]
    assert service.call("POST", "/v1/interactions", [{"user": "u1", "item": "i1"}]).status == 503
    assert any("moved" in alarm for alarm in service.app.state.backend.alarms().values())
    folder.with_name("elsewhere").rename(folder)
    service.wait(lambda: service.call("GET", "/health/ready").status == 200)
    assert service.post([{"user": "u1", "item": "i1"}])["accepted"] == 1
