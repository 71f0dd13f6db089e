"""The HTTP API of a running service, route by route."""

import gzip
import http.client
import json
import threading
import time
import urllib.request
from typing import Any

import pytest

from conftest import Service, Start
from melon.service.keys import keys_of

NEW = {"user": "u1", "item": "i1"}


class TestInteractions:
    def test_one_a_list_and_lines_are_the_same(self, service: Service) -> None:
        before = service.get("/v1/status")["log"]["events"]
        one = service.post({**NEW, "event_id": "one"})
        assert one["accepted"] == 1
        many = service.post([{**NEW, "event_id": f"many {n}"} for n in range(5)])
        assert (many["accepted"], many["offset"]) == (5, one["offset"] + 5)
        lines = "\n".join(json.dumps({"user": n, "item": "i2"}) for n in range(3)) + "\n\n"
        told = service.post(lines.encode(), Content_Type="application/x-ndjson")
        assert told["accepted"] == 3
        assert service.get("/v1/status")["log"]["events"] == before + 9

    def test_a_repeat_is_a_duplicate_and_another_content_conflicts(self, service: Service) -> None:
        first = service.post([{**NEW, "event_id": "again"}])
        assert service.post([{**NEW, "event_id": "again"}]) == {**first, "accepted": 0, "duplicates": 1}
        other = service.post([{"user": "u2", "item": "i1", "event_id": "again"}])
        assert (other["accepted"], other["conflicting"]) == (0, 1)

    def test_an_idempotency_key_makes_a_request_repeatable(self, service: Service) -> None:
        first = service.post([NEW, NEW], Idempotency_Key="order 7")
        assert first["accepted"] == 2
        again = service.post([NEW, NEW], Idempotency_Key="order 7")
        assert (again["accepted"], again["duplicates"], again["offset"]) == (0, 2, first["offset"])
        assert service.call("POST", "/v1/interactions", [NEW], Idempotency_Key="x" * 201).status == 400

    def test_one_bad_event_refuses_all_unless_told_otherwise(self, service: Service) -> None:
        events = [NEW, {"user": "", "item": "i1"}, {**NEW, "kind": "view"}, {**NEW, "type": "stare"}, NEW]
        before = service.get("/v1/status")["log"]["offset"]
        answer = service.call("POST", "/v1/interactions", events)
        assert answer.status == 400
        assert answer.content["error"]["index"] == 1
        assert service.get("/v1/status")["log"]["offset"] == before
        told = service.post(events, "/v1/interactions?partial=true")
        assert told["accepted"] == 2
        assert [one["index"] for one in told["refused"]] == [1, 2, 3]
        assert "stare" in told["refused"][2]["message"]

    def test_types_are_learned_hidden_or_stored(self, service: Service) -> None:
        user = "types"
        last = service.post([{"user": user, "item": "i3", "type": kind} for kind in ("view", "impression")])
        hidden = service.post({"user": user, "item": "i4", "type": "dislike"})
        assert hidden["offset"] == last["offset"] + 1
        listed = service.get(
            f"/v1/recommendations/{user}?k=100&filter_seen=false&after={hidden['offset']}&wait_ms=9000"
        )
        assert not listed["stale"]
        items = [one["item"] for one in listed["items"]]
        assert "i3" in items
        assert "i4" not in items
        assert listed["filtered"]["hidden"] == 1
        uses = {one["type"]: one["use"] for one in service.get(f"/v1/users/{user}/history")["events"]}
        assert uses == {"view": "learn", "impression": "store", "dislike": "hide"}

    def test_times_may_be_given(self, service: Service) -> None:
        service.post({"user": "timed", "item": "i1", "time": "2026-01-01T00:00:00Z"})
        assert service.get("/v1/users/timed/history")["events"][0]["time"] == 1_767_225_600

    @pytest.mark.parametrize("body", [b"", b"[", b"null", b"7", b'"x"', b'{"user": NaN}', b"\xff", b"[" * 100_000])
    def test_what_is_no_event_is_refused(self, service: Service, body: bytes) -> None:
        answer = service.call("POST", "/v1/interactions", body)
        assert answer.status == 400
        assert set(answer.content["error"]) >= {"code", "message", "request"}

    @pytest.mark.parametrize(
        "event",
        [
            {}, {"user": "u"}, {**NEW, "x": 1}, {"user": None, "item": "i"}, {"user": True, "item": "i"},
            {"user": 1.5, "item": "i"}, {"user": "", "item": "i"}, {"user": "x" * 10_000, "item": "i"},
            {"user": "a\nb", "item": "i"}, {"user": "\ud800", "item": "i"}, {**NEW, "time": -1},
            {**NEW, "time": "soon"}, {**NEW, "time": 1e300}, {**NEW, "time": 1e10}, {**NEW, "time": "9999-01-01"},
            {**NEW, "type": ""},
            {**NEW, "type": "stare"}, {**NEW, "event_id": ""}, {**NEW, "event_id": "x" * 300}, {**NEW, "event_id": 7},
            {**NEW, "recommendation": []},
        ],
    )  # fmt: skip
    def test_bad_events_are_named(self, service: Service, event: Any) -> None:
        answer = service.call("POST", "/v1/interactions", [NEW, event])
        assert answer.status == 400
        assert answer.content["error"]["code"] == "invalid"
        assert answer.content["error"]["index"] == 1

    def test_sizes_and_types_of_bodies_are_limited(self, service: Service) -> None:
        answer = service.call("POST", "/v1/interactions", [NEW] * 10_001)
        assert (answer.status, answer.content["error"]["code"]) == (413, "batch_too_large")
        answer = service.call("POST", "/v1/interactions", b" " * (4 << 20) + b"[]")
        assert (answer.status, answer.content["error"]["code"]) == (413, "too_large")
        assert service.call("POST", "/v1/interactions", b"user=1", Content_Type="text/plain").status == 415
        assert service.call("POST", "/v1/recommendations", b"{}", Content_Type="text/plain").status == 415
        for path in ("/v1/interactions", "/v1/recommendations"):
            refused = service.call("POST", path, gzip.compress(b"{}"), Content_Encoding="gzip")
            assert refused.status == 415
            assert "not compressed" in refused.content["error"]["message"]


class TestLists:
    def test_a_list_says_where_it_comes_from(self, service: Service) -> None:
        listed = service.get("/v1/recommendations/u3?k=5")
        assert listed["source"] == "model"
        assert len(listed["items"]) == 5
        assert listed["model"]["recommender"] == "bpr"
        assert listed["model"]["strategy"] == "default"
        assert all(one["why"] == "model" for one in listed["items"])
        scores = [one["score"] for one in listed["items"]]
        assert scores == sorted(scores, reverse=True)
        stranger = service.get("/v1/recommendations/somebody%20new%2F7?k=5")
        assert (stranger["source"], stranger["user"]) == ("model", "somebody new/7")

    def test_a_write_can_be_read(self, service: Service) -> None:
        for n in range(5):
            user = f"reader {n}"
            offset = service.post([{"user": user, "item": f"i{m}"} for m in range(3)])["offset"]
            listed = service.get(f"/v1/recommendations/reader%20{n}?k=60&after={offset}&wait_ms=9000")
            assert (listed["stale"], listed["source"]) == (False, "model")
            assert listed["model"]["offset"] >= offset
            assert not {"i0", "i1", "i2"} & {one["item"] for one in listed["items"]}
            assert listed["filtered"]["seen"] == 3
        future = service.get(f"/v1/recommendations/u1?after={offset + 1_000_000}&wait_ms=50")
        assert future["stale"] is True

    def test_many_users_have_the_lists_they_would_have_alone(self, service: Service) -> None:
        users = [f"u{n}" for n in range(30)] + ["stranger"]
        together = service.post({"users": users, "k": 7}, "/v1/recommendations")
        batches = {one["batch"] for one in together["results"]}
        alone = [service.get(f"/v1/recommendations/{user}?k=7") for user in users]
        if batches == {one["model"]["batch"] for one in alone}:
            assert [one["items"] for one in together["results"]] == [one["items"] for one in alone]
        assert [one["user"] for one in together["results"]] == users

    def test_rules_candidates_and_history(self, service: Service) -> None:
        service.post(
            [{"item": f"i{n}", "categories": ["even" if n % 2 == 0 else "odd"], "owner": "u5"} for n in range(20)],
            "/v1/items",
        )
        body: dict[str, Any] = {
            "users": ["u5"],
            "k": 10,
            "filter_seen": False,
            "candidates": [f"i{n}" for n in range(20)],
        }
        (ranked,) = service.post({**body, "rules": {"filter": {"category": ["even"]}}}, "/v1/recommendations")[
            "results"
        ]
        assert sorted(int(one["item"][1:]) for one in ranked["items"]) == list(range(0, 20, 2))
        assert ranked["filtered"] == {"rules": 10}
        rules = {"exclude_own": True}
        (ranked,) = service.post({**body, "rules": rules}, "/v1/recommendations")["results"]
        assert ranked["items"] == []
        assert ranked["filtered"] == {"own": 20}
        rules = {"boost": [{"category": "odd", "by": 100}], "pin": [{"item": "i50", "at": 2}], "exclude": ["i3"]}
        (ranked,) = service.post({**body, "rules": rules}, "/v1/recommendations")["results"]
        assert ranked["items"][1] == {"item": "i50", "score": None, "why": "pinned"}
        assert [one["why"] for one in ranked["items"]].count("boosted") == 9
        (visit,) = service.post({"history": ["i1", "i2"], "k": 3}, "/v1/recommendations")["results"]
        assert (visit["source"], visit["user"], visit["recommendation"]) == ("history", None, None)
        assert {"rules", "category"} & set(service.get("/v1/popular?category=even&k=50")["filtered"]) == {"rules"}

    def test_similar_and_popular(self, service: Service) -> None:
        alike = service.get("/v1/similar/i7?k=4")
        assert alike["source"] == "similar"
        assert "i7" not in {one["item"] for one in alike["items"]}
        assert service.call("GET", "/v1/similar/unheard-of").status == 404
        counts = [one["score"] for one in service.get("/v1/popular?k=9")["items"]]
        assert counts == sorted(counts, reverse=True)

    def test_explain(self, service: Service) -> None:
        told = service.get("/v1/explain/u3/i7")
        assert abs(sum(told["parts"].values()) - told["score"]) < 1e-5
        assert 1 <= told["rank"] <= told["items"]
        assert service.call("GET", "/v1/explain/u3/nothing").status == 404

    @pytest.mark.parametrize(
        "query",
        ["k=0", "k=1000000", "k=x", "k=1.5", "k=1&k=2", "after=-1", "wait_ms=99999", "filter_seen=perhaps", "colour=1",
         "exclude=", "category=" + "x" * 300, "k=NaN"],
    )  # fmt: skip
    def test_bad_parameters_are_named(self, service: Service, query: str) -> None:
        answer = service.call("GET", f"/v1/recommendations/u1?{query}")
        assert answer.status == 400
        assert answer.content["error"]["message"].startswith((query.partition("=")[0], f"'{query.partition('=')[0]}'"))

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({}, 400), ({"users": []}, 400), ({"users": ["u"] * 501}, 400), ({"users": [""]}, 400),
            ({"users": ["u"], "k": 0}, 400), ({"users": ["u"], "k": True}, 400), ({"users": ["u"], "z": 1}, 400),
            ({"users": ["u"], "history": ["i"]}, 400), ({"users": ["u"], "candidates": []}, 400),
            ({"users": ["u"], "rules": {"boosts": []}}, 422), ({"users": ["u"], "rules": {"filter": {"a": 1}}}, 400),
            ({"users": ["u"], "rules": {"diversity": 2}}, 400), ({"users": ["u"], "rules": {"at_most": {"x": 1}}}, 400),
            ({"users": ["u"], "rules": {"pin": [{"item": "i", "at": 0}]}}, 400),
            ({"users": ["u"], "rules": {"boost": [{"by": 1}]}}, 400), ([], 400),
            ({"users": ["u"], "candidates": ["i"] * 10_001}, 400),
        ],
    )  # fmt: skip
    def test_bad_requests_for_lists_are_refused(self, service: Service, body: Any, status: int) -> None:
        answer = service.call("POST", "/v1/recommendations", body)
        assert answer.status == status, answer
        assert answer.content["error"]["message"]

    def test_bad_paths(self, service: Service) -> None:
        assert service.call("GET", f"/v1/recommendations/{'x' * 10_000}").status == 400
        assert service.call("GET", "/v1/recommendations/%FF").status == 400
        assert service.call("GET", "/v1/recommendations/a%00b").status == 400
        assert service.call("GET", "/v1/nothing").content["error"]["code"] == "not_found"
        wrong = service.call("DELETE", "/v1/status")
        assert (wrong.status, wrong.headers["Allow"]) == (405, "GET")


class TestQuickWay:
    """Lists of one user and posts of events have a way of their own; in another form, they go the general way."""

    @pytest.mark.parametrize(
        "query", ["", "?k=3", "?k=1000&filter_seen=false", "?after=1&wait_ms=0", "?after=99999999"]
    )
    @pytest.mark.parametrize("user", ["u1", "nobody:7", "u0"])
    def test_lists_are_the_same_both_ways(self, service: Service, user: str, query: str) -> None:
        general = f"%{ord(user[0]):02x}{user[1:]}"
        answers = [service.call("GET", f"/v1/recommendations/{one}{query}") for one in (user, general)]
        assert _comparable(answers[0]) == _comparable(answers[1])
        assert answers[0].status == 200

    @pytest.mark.parametrize("query", ["?k=0", "?k=1001", "?k=05", "?k=x", "?k=1&k=2", "?wait_ms=10001", "?kk=1", "?k"])
    def test_what_is_not_plain_goes_the_general_way(self, service: Service, query: str) -> None:
        quick = service.app.gate._quick
        scope = {"method": "GET", "raw_path": b"/v1/recommendations/u1", "query_string": query[1:].encode()}
        assert quick.take({**scope, "query_string": b"k=9"}, {}, None) is not None
        assert quick.take(scope, {}, None) is None
        assert quick.take({**scope, "query_string": b"k=9"}, {b"content-length": b"2"}, None) is None
        assert service.call("GET", f"/v1/recommendations/u1{query}").status == (200 if query == "?k=05" else 400)

    @pytest.mark.parametrize(
        ("body", "headers"),
        [
            (b'{"user": "u1", "item": "i1", "event_id": "both ways"}', {}),
            (b'[{"user": "u1", "item": "i1", "event_id": "both ways"}]', {"Idempotency_Key": "x"}),
            (b"[]", {}),
            (b"", {}),
            (b'{"user": "u1"}', {}),
            (b'{"user": "u1", "item": "i1", "item": "i2"}', {}),
            (b'[{"user": "u1", "item": ""}]', {}),
            (b'[{"user": "u1", "item": "i1", "type": "stare"}]', {}),
            (b'{"user": NaN}', {}),
            (b"\xff", {}),
            (b"{}", {"Content_Type": "text/plain"}),
            (b"{}", {"Idempotency_Key": "x" * 201}),
            (b"{}", {"Host": "elsewhere.example"}),
        ],
    )
    def test_posts_are_the_same_both_ways(self, service: Service, body: bytes, headers: dict[str, str]) -> None:
        service.post({"user": "u1", "item": "i1", "event_id": "both ways"})
        answers = [
            service.call("POST", path, body, **headers)
            for path in ("/v1/interactions", "/v1/interactions?partial=false")
        ]
        assert _comparable(answers[0]) == _comparable(answers[1])


def _comparable(answer: Any) -> Any:
    """An answer without what differs between two equal requests."""
    content = {name: held for name, held in answer.content.items() if name not in ("ms", "recommendation", "model")}
    if "error" in content:
        content["error"] = {name: held for name, held in content["error"].items() if name != "request"}
    names = sorted(name.lower() for name in answer.headers)
    return answer.status, content, names, answer.headers["content-type"]


class TestItems:
    def test_facts_are_put_changed_read_and_removed(self, service: Service) -> None:
        path = "/v1/items/caf%C3%A9%2F1"
        facts = {"categories": ["a"], "published": "2026-01-01", "attributes": {"price": 9.5, "tags": ["x", "y"]}}
        assert service.call("PUT", path, facts).content["stored"] == 1
        assert service.get(path)["published"] == 1_767_225_600
        service.call(
            "PATCH", path, {"available": False, "categories": None, "attributes": {"price": None, "lang": "de"}}
        )
        told = service.get(path)
        assert (told["item"], told["available"], told["categories"]) == ("café/1", False, [])
        assert told["attributes"] == {"tags": ["x", "y"], "lang": "de"}
        assert service.call("DELETE", path).status == 200
        assert service.call("GET", path).status == 404
        assert service.call("PATCH", path, {}).status == 404

    def test_what_cannot_be_had_is_in_no_list(self, service: Service) -> None:
        everything = service.get("/v1/recommendations/u9?k=1000&filter_seen=false")
        first, second = (one["item"] for one in everything["items"][:2])
        service.call("PUT", f"/v1/items/{first}", {"available": False})
        service.call("PUT", f"/v1/items/{second}", {"expires": time.time() - 5})
        left = service.get("/v1/recommendations/u9?k=1000&filter_seen=false")
        assert {first, second} & {one["item"] for one in left["items"]} == set()
        assert (left["filtered"]["unavailable"], left["filtered"]["expired"]) == (1, 1)
        for item in (first, second):
            service.call("DELETE", f"/v1/items/{item}")

    @pytest.mark.parametrize(
        "facts",
        [
            {"categories": "a"}, {"categories": [""]}, {"available": 1}, {"expires": "soon"}, {"expires": -1},
            {"colour": 1}, {"attributes": {"a": {"b": 1}}}, {"attributes": {"a": 1 << 60}}, {"owner": ""}, [],
            {"attributes": {"expires": 1}},
        ],
    )  # fmt: skip
    def test_bad_facts_are_refused(self, service: Service, facts: Any) -> None:
        assert service.call("PUT", "/v1/items/i1", facts).status == 400
        if isinstance(facts, dict):
            answer = service.call("POST", "/v1/items", [{"item": "i1"}, {"item": "i2", **facts}])
            assert (answer.status, answer.content["error"]["index"]) == (400, 1)


class TestAdmin:
    def test_status_has_what_is_promised(self, service: Service) -> None:
        service.post({"user": "u1", "item": "i1"})
        service.wait(lambda: service.get("/v1/status")["lag"] == 0)
        told = service.get("/v1/status")
        assert set(told["log"]) >= {"events", "offset"}
        assert set(told["model"]) == {"version", "batch", "offset", "recommender", "strategy"}
        assert set(told["quality"]) == {"HR@10"}
        assert set(told["freshness_s"]) == {"p50", "p95"}
        assert told["quarantined"] == 0
        assert told["batch_size"]["tuned"] == 32
        assert told["model"]["offset"] == told["log"]["offset"]
        quality = service.get("/v1/quality?window=15m")
        assert {"served", "popular"} <= set(quality["models"])
        assert service.call("GET", "/v1/quality?window=long").status == 400

    def test_a_person_is_forgotten(self, service: Service) -> None:
        service.post([{"user": "leaver", "item": f"i{n}"} for n in range(4)])
        service.call("PUT", "/v1/items/i59", {"owner": "leaver"})
        answer = service.call("DELETE", "/v1/users/leaver")
        assert answer.status == 202
        job = answer.content
        service.wait(lambda: service.get(f"/v1/jobs/{job['job']}")["done"])
        listed = service.get(f"/v1/recommendations/leaver?after={job['offset']}")
        assert listed["source"] == "model"
        assert "seen" not in listed["filtered"]
        assert service.get("/v1/items/i59")["owner"] is None
        assert service.call("GET", "/v1/jobs/forget-999999").status == 404

    def test_history_pages_and_export(self, service: Service) -> None:
        service.post([{"user": "pager", "item": f"i{n}", "event_id": f"page {n}"} for n in range(5)])
        first = service.get("/v1/users/pager/history?limit=3")
        second = service.get(f"/v1/users/pager/history?limit=3&before={first['next']}")
        assert [one["item"] for one in first["events"] + second["events"]] == ["i4", "i3", "i2", "i1", "i0"]
        assert second["next"] is None
        start = second["events"][-1]["offset"]
        lines = [json.loads(line) for line in service.get(f"/v1/export?from={start}&to={start + 4}").splitlines()]
        assert [(line["user"], line["item"], line["event_id"]) for line in lines] == [
            ("pager", f"i{n}", f"page {n}") for n in range(5)
        ]

    def test_batches_quarantined(self, service: Service) -> None:
        assert service.get("/v1/batches?status=quarantined") == {"batches": []}
        assert service.call("POST", "/v1/batches/987654/retry").status == 404
        assert service.call("POST", "/v1/batches/1/retry").status == 409

    def test_bad_batches_are_quarantined_and_answers_go_on(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        from melon.errors import LearningError

        service = start()
        with monkeypatch.context() as broken:

            def fail(*_: object) -> float:
                raise LearningError("the loss is not finite")

            broken.setattr("melon.learning.updater.Updater.learn", fail)
            for n in range(10):
                service.post({"user": "u1", "item": f"i{n}"})
                service.wait(lambda n=n: service.get("/v1/status")["quarantined"] > n)  # type: ignore[misc]
                assert len(service.get("/v1/recommendations/u2?k=3")["items"]) == 3
            service.post({"user": "u1", "item": "i11"})
            service.wait(lambda: any("learning waits" in one for one in service.get("/v1/status")["alarms"]))
        assert service.get("/v1/status")["lag"] == 1
        batch = service.get("/v1/batches")["batches"][0]
        assert "not finite" in batch["reason"]
        resumed = service.call("POST", "/v1/resume")
        assert resumed.status == 202
        retried = service.call("POST", f"/v1/batches/{batch['batch']}/retry").content["job"]
        for job in (resumed.content["job"], retried):
            service.wait(lambda job=job: service.get(f"/v1/jobs/{job}")["done"])  # type: ignore[misc]
        told = service.get("/v1/status")
        assert (told["quarantined"], told["lag"]) == (9, 0)

    def test_the_stream_tells_of_batches(self, service: Service) -> None:
        seen: list[str] = []

        def read() -> None:
            with urllib.request.urlopen(f"{service.url}/v1/stream?most=3", timeout=30) as response:
                seen.extend(line.decode().strip() for line in response if line.startswith(b"event"))

        reader = threading.Thread(target=read)
        reader.start()
        while reader.is_alive():
            service.post(NEW)
            reader.join(0.2)
        assert seen == ["event: status", "event: batch", "event: batch"]

    def test_metrics_follow_the_conventions(self, service: Service) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        service.get("/v1/recommendations/u1")
        service.wait(lambda: service.get("/v1/status")["lag"] == 0)
        families = {family.name: family for family in text_string_to_metric_families(service.get("/metrics"))}
        wanted = {
            "melon_events", "melon_lag_events", "melon_freshness_seconds", "melon_commit_seconds", "melon_source",
            "melon_request_seconds", "melon_ranked", "melon_quality", "melon_served", "melon_taken", "melon_rows",
            "melon_disk_free_bytes", "process_resident_memory_bytes",
        }  # fmt: skip
        assert wanted <= set(families)
        assert all(family.documentation for family in families.values())
        text = service.get("/metrics")
        assert "u17" not in text
        assert "somebody" not in text

    def test_health_and_headers(self, service: Service) -> None:
        answer = service.call("GET", "/health/live", X_Request_Id="mine-1")
        assert (answer.status, answer.headers["X-Request-Id"]) == (200, "mine-1")
        odd = service.call("GET", "/health/ready", X_Request_Id="bad id")
        assert odd.headers["X-Request-Id"] not in ("bad id", None)
        assert odd.headers["Server"] is None

    def test_connections_are_kept(self, service: Service) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
        for _ in range(3):
            connection.request("GET", "/health/live")
            assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()


class TestKeysAndLimits:
    def test_keys_open_what_their_scopes_say(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("melon.service.keys._CHECK_EVERY_S", 0.0)
        service = start(rate=5.0, burst=8)
        keys = keys_of(service.settings)
        read, _ = keys.add(["read"])
        write, entry = keys.add(["write"])
        admin, _ = keys.add(["admin", "read"], days=1)
        assert service.call("GET", "/v1/status").status == 401
        assert service.call("GET", "/v1/status", Authorization="Bearer mk_0_0").status == 401
        assert service.call("GET", "/v1/status", X_Api_Key=read).status == 200
        assert service.call("POST", "/v1/interactions", NEW, Authorization=f"Bearer {read}").status == 403
        assert service.call("POST", "/v1/interactions", NEW, Authorization=f"Bearer {write}").status == 202
        assert service.call("GET", "/v1/users/u1/history", Authorization=f"Bearer {write}").status == 403
        assert service.call("GET", "/v1/users/u1/history", Authorization=f"Bearer {admin}").status == 200
        assert service.call("GET", "/health/live").status == 200
        keys.revoke(entry.id)
        assert service.call("POST", "/v1/interactions", NEW, Authorization=f"Bearer {write}").status == 401
        codes = [service.call("GET", "/v1/popular", Authorization=f"Bearer {read}") for _ in range(20)]
        refused = [one for one in codes if one.status == 429]
        assert refused
        assert int(refused[0].headers["Retry-After"]) >= 1

    def test_keys_fail_closed(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once there was a key, nobody is answered without one: not after the last is gone, nor without the file."""
        monkeypatch.setattr("melon.service.keys._CHECK_EVERY_S", 0.0)
        service = start()
        assert service.call("GET", "/v1/status").status == 200
        keys = keys_of(service.settings)
        text, key = keys.add(["read", "write", "admin"])
        for scheme, status in (("Bearer", 200), ("bearer", 200), ("Basic xBearer", 401)):
            assert service.call("GET", "/v1/status", Authorization=f"{scheme} {text}").status == status
        requests = [("GET", "/v1/status", None), ("POST", "/v1/interactions", NEW), ("POST", "/v1/resume", None)]

        def statuses() -> set[int]:
            return {service.call(*request).status for request in requests}

        keys.revoke(key.id)
        assert statuses() == {401}
        for content in (b"", b"{"):
            keys.path.write_bytes(content)
            assert statuses() == {503}
            assert b"keys.json" not in json.dumps(service.call("GET", "/v1/status").content).encode()
            assert service.call("GET", "/health/ready").status == 503
        keys.path.unlink()
        assert statuses() == {401}
        assert service.call("GET", "/health/ready").status == 200
        later = start(model=service.settings.model, data=service.settings.folder / "copy")
        (later.settings.folder / "keys.required").touch()  # as a service finds it that starts after the file was lost
        assert later.call("GET", "/v1/status").status == 401

    def test_without_keys_administration_needs_the_token_of_the_services_user(self, service: Service) -> None:
        folder = service.settings.folder
        token = (folder / "admin.token").read_text().strip()
        assert (folder / "admin.token").stat().st_mode & 0o077 == 0
        assert service.call("GET", "/v1/status", Authorization="").status == 200
        routes = [
            ("GET", "/v1/users/u1/history"),
            ("GET", "/v1/export"),
            ("POST", "/v1/rollback"),
            ("GET", "/v1/batches"),
        ]
        for method, path in routes:
            for wrong in ("", "Bearer mk_local_0", f"Basic {token}"):
                answer = service.call(method, path, Authorization=wrong)
                assert (answer.status, answer.content["error"]["code"]) == (403, "token_needed"), path
            assert service.call(method, path, Authorization=f"Bearer {token}").status in (200, 404)

    def test_without_keys_a_proxy_is_refused(self, service: Service) -> None:
        for header in ("X_Forwarded_For", "Forwarded", "Via", "X_Real_Ip"):
            assert service.call("GET", "/v1/status", **{header: "10.0.0.7"}).status == 403

    def test_pairs_are_bounded(self, start: Start) -> None:
        service = start(max_pairs=400)
        with service.app.state.backend.replica.reading() as (model, _):
            assert model.updater.history.max_pairs == 400
            assert len(model.updater.history.seen) <= 400
        assert len(service.get("/v1/recommendations/u1?k=5")["items"]) == 5

    def test_without_keys_other_hosts_are_refused(self, service: Service) -> None:
        assert service.call("GET", "/v1/status", Host="evil.example").status == 403

    def test_other_addresses_need_keys(self, start: Start, shop: Any) -> None:
        from melon.errors import SettingsError
        from melon.service.config import ServeSettings
        from melon.service.supervisor import check_reachable

        with pytest.raises(SettingsError, match="melon keys add"):
            check_reachable(ServeSettings(model=shop, host="0.0.0.0"))
