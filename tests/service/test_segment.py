"""Segment's tracking API: over plain HTTP, and by Segment's and RudderStack's clients as they are published."""

import base64
import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conftest import Service, Start
from melon.learning.deltas import state_digest
from melon.service.doctor import examine
from melon.service.keys import keys_of
from melon.service.learner.replaying import replay


@pytest.fixture(scope="module")
def segment(start: Start) -> Service:
    return start(segment=True, gorse=True, item_users=0)


def track(user: str, item: str, message: str, event: str = "Product Viewed", **more: object) -> dict[str, object]:
    return {
        "type": "track",
        "userId": user,
        "event": event,
        "properties": {"product_id": item},
        "messageId": message,
        **more,
    }


def history(service: Service, user: str) -> list[str]:
    return [one["item"] for one in service.get(f"/v1/users/{user}/history")["events"]][::-1]


def known(service: Service) -> None:
    service.wait(lambda: service.get("/v1/status")["lag"] == 0)


class TestTrack:
    def test_a_message_is_stored_once(self, segment: Service) -> None:
        for _ in range(2):
            assert segment.post(track("t1", "i1", "m1"), "/v1/track") == {"success": True, "ignored": 0}
            batch = {
                "batch": [track("t1", "i1", "m1"), track("t1", "i2", "m2", "view")],
                "sentAt": "2026-01-01T00:00:00Z",
            }
            segment.post(batch, "/v1/batch")
        assert history(segment, "t1") == ["i1", "i2"]

    def test_an_order_is_an_event_for_each_product(self, segment: Service) -> None:
        order = track("t2", "", "m3", "Order Completed")
        order["properties"] = {"products": [{"product_id": "i1"}, {"sku": "i2"}, {"name": "no id"}]}
        segment.post(order, "/v1/track")
        events = segment.get("/v1/users/t2/history")["events"]
        assert [(one["item"], one["type"], one["event_id"]) for one in events] == [
            ("i2", "buy", "m3/1"), ("i1", "buy", "m3/0"),
        ]  # fmt: skip

    def test_a_clock_that_is_off_is_set_right(self, segment: Service) -> None:
        """By `sentAt`: an event that the client had an hour before it sent the batch was an hour ago."""
        told = [datetime.fromtimestamp(moment, UTC).isoformat() for moment in (1_000_000_000, 1_000_003_600)]
        segment.post({"batch": [track("t3", "i1", "m4", timestamp=told[0])], "sentAt": told[1]}, "/v1/batch")
        (event,) = segment.get("/v1/users/t3/history")["events"]
        assert abs(time.time() - 3600 - event["time"]) < 60

    def test_what_is_no_interaction_is_answered_and_left_out(self, segment: Service) -> None:
        calls = [{"type": "page", "userId": "t4"}, track("t4", "i1", "m", "Song Hummed"), {**track("t4", "", "n")}]
        assert segment.post({"batch": calls}, "/v1/batch") == {"success": True, "ignored": 3}
        assert history(segment, "t4") == []

    @pytest.mark.parametrize("body", [[], {}, {"batch": 1}, {"batch": [1]}, {"batch": [{"type": "track"}]}])
    def test_what_is_no_call_is_refused(self, segment: Service, body: object) -> None:
        assert segment.call("POST", "/v1/batch", body).status == 400

    def test_a_body_may_be_compressed(self, segment: Service) -> None:
        body = gzip.compress(json.dumps({"batch": [track("t5", "i1", "m5")]}).encode())
        segment.post(body, "/v1/batch", Content_Encoding="gzip")
        assert history(segment, "t5") == ["i1"]
        assert segment.call("POST", "/v1/batch", b"no gzip", Content_Encoding="gzip").status == 400
        bomb = gzip.compress(b" " * (1 << 25))
        assert segment.call("POST", "/v1/batch", bomb, Content_Encoding="gzip").status == 413

    def test_traits_are_kept_and_added_to(self, segment: Service) -> None:
        for traits in ({"plan": "free", "age": 7}, {"plan": "paid"}):
            segment.post({"userId": "t6", "traits": traits}, "/v1/identify")
        assert segment.get("/api/user/t6")["Labels"] == {"plan": "paid", "age": 7}


def test_the_write_key_is_the_name_of_basic_authentication(start: Start, tmp_path: Path) -> None:
    service = start(segment=True, data=tmp_path / "keyed", ready=False)
    service.wait(lambda: service.call("GET", "/health/ready").status == 200)
    key = keys_of(service.settings).add(["write"])[0]
    time.sleep(1.1)
    for name, status in ((key, 200), ("wrong", 401), ("", 401)):
        told = base64.b64encode(f"{name}:".encode()).decode()
        assert service.call("POST", "/v1/track", track("a", "i1", "m"), Authorization=f"Basic {told}").status == status
    assert service.call("POST", "/v1/track", track("a", "i1", "m"), Authorization="Basic ???").status == 401


class TestAlias:
    """A visitor turns out to be a user; and the model after it is what a replay of the log gives."""

    @pytest.fixture
    def service(self, start: Start) -> Service:
        return start(segment=True, gorse=True, item_users=0)

    def test_the_past_moves_and_replays_are_exact(self, service: Service) -> None:
        visits = [track("anon", f"i{n}", f"a{n}") for n in range(3)]
        service.post({"batch": [*visits, track("u1", "i9", "b1"), track("new anon", "i5", "c1")]}, "/v1/batch")
        known(service)
        alias = {"userId": "u1", "previousId": "anon", "messageId": "alias"}
        for _ in range(2):  # a repeat is no second control
            service.post(alias, "/v1/alias")
            service.post({"userId": "newcomer", "previousId": "new anon"}, "/v1/alias")
        assert history(service, "u1")[-4:] == ["i0", "i1", "i2", "i9"]
        assert service.get("/v1/status")["log"]["offset"] == 7
        # What the visitor does from now on is the user's.
        service.post({"batch": [track("anon", "i7", "a7")]}, "/v1/batch")
        assert history(service, "u1")[-1] == "i7"
        known(service)
        listed = {one["item"] for one in service.get("/v1/recommendations/u1?k=500")["items"]}
        assert not {"i0", "i1", "i2", "i7", "i9"} & listed
        assert "i5" not in {one["item"] for one in service.get("/v1/recommendations/newcomer?k=500")["items"]}
        service.call("DELETE", "/api/feedback/u1/i1")  # of the visitor's past
        known(service)
        assert "i1" in {one["item"] for one in service.get("/v1/recommendations/u1?k=500")["items"]}
        with service.app.state.backend.replica.reading() as (model, position):
            answers = state_digest(model, answering=True)
        service.stop()
        again = replay(service.settings.folder)
        assert (again.exact, again.position.offset) == (True, position.offset)
        assert state_digest(again.model, answering=True) == answers

    def test_who_is_forgotten_is_forgotten_as_a_visitor_too(self, service: Service) -> None:
        service.post({"batch": [track("visitor-4711", "i1", "v1"), track("person-4711", "i2", "v2")]}, "/v1/batch")
        service.post({"userId": "person-4711", "traits": {"mail": "x"}}, "/v1/identify")
        service.post({"userId": "person-4711", "previousId": "visitor-4711"}, "/v1/alias")
        service.call("DELETE", "/api/feedback/person-4711/i2")
        job = service.call("DELETE", "/v1/users/person-4711").content["job"]
        service.wait(lambda: service.get(f"/v1/jobs/{job}")["done"])
        service.stop()
        for name in ("person-4711", "visitor-4711"):
            assert all(one.ok for one in examine(service.settings, name)), examine(service.settings, name)


# Clients as they are published.


@pytest.mark.slow
def test_segment_analytics_python_unchanged(segment: Service) -> None:
    if importlib.util.find_spec("segment") is None:
        pytest.skip("needs pip install segment-analytics-python")
    from segment.analytics import Client  # type: ignore[import-not-found]

    for compressed in (False, True):
        name, problems = f"sdk{compressed}", []
        client = Client("any", host=segment.url, gzip=compressed, on_error=lambda *one: problems.append(one))  # noqa: B023
        client.identify(name, {"plan": "free"})
        client.track(name, "Product Viewed", {"product_id": "i1"}, anonymous_id="ignored")
        client.track(None, "Product Viewed", {"product_id": "i2"}, anonymous_id=f"{name}-before")
        client.alias(f"{name}-before", name)
        client.shutdown()
        assert problems == []
        assert sorted(history(segment, name)) == ["i1", "i2"]
        assert segment.get(f"/api/user/{name}")["Labels"] == {"plan": "free"}


@pytest.mark.slow
def test_rudder_sdk_python_unchanged(segment: Service) -> None:
    if importlib.util.find_spec("rudderstack") is None:
        pytest.skip("needs pip install rudder-sdk-python")
    from rudderstack.analytics.client import Client  # type: ignore[import-not-found]

    problems: list[object] = []
    client = Client("any", host=segment.url, on_error=lambda *one: problems.append(one))
    client.track("rudder", "Product Viewed", {"product_id": "i1"})
    client.track("rudder", "Order Completed", {"products": [{"product_id": "i2"}]})
    client.shutdown()
    assert problems == []
    assert history(segment, "rudder") == ["i1", "i2"]


NODE = """
const {Analytics} = require('@segment/analytics-node');
const analytics = new Analytics({writeKey: 'any', host: process.argv[2]});
analytics.on('error', problem => { console.error(problem); process.exitCode = 1; });
analytics.track({anonymousId: 'node-before', event: 'Product Viewed', properties: {product_id: 'i2'}});
analytics.identify({userId: 'node', traits: {plan: 'free'}});
analytics.alias({previousId: 'node-before', userId: 'node'});
analytics.track({userId: 'node', event: 'Product Clicked', properties: {product_id: 'i1'}});
analytics.closeAndFlush();
"""


@pytest.mark.slow
def test_segment_analytics_node_unchanged(segment: Service, tmp_path: Path) -> None:
    folder = os.environ.get("MELON_NODE_MODULES")
    if shutil.which("node") is None or not folder or not (Path(folder) / "@segment" / "analytics-node").is_dir():
        pytest.skip("needs node, and MELON_NODE_MODULES=…/node_modules after npm install @segment/analytics-node")
    script = tmp_path / "client.js"
    script.write_text(NODE)
    done = subprocess.run(
        ["node", str(script), segment.url], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "NODE_PATH": folder},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert history(segment, "node") == ["i2", "i1"]
    assert segment.get("/api/user/node")["Labels"] == {"plan": "free"}
