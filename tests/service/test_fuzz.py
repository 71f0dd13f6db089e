"""Valid bodies with parts exchanged, repeated, removed and made extreme: never a 5xx, never a second of CPU."""

import json
import os
import random
import time
from typing import Any

import pytest

from conftest import Service, Start

BODIES: dict[str, tuple[str, Any]] = {
    "events": (
        "/v1/interactions",
        [{"user": "u1", "item": "i1", "time": 1_700_000_000, "type": "view", "event_id": "e"}],
    ),
    "event": ("/v1/interactions", {"user": "u1", "item": "i1", "recommendation": "r-1"}),
    "lists": (
        "/v1/recommendations",
        {
            "users": ["u1", "u2"], "k": 10, "filter_seen": True, "after": 0, "wait_ms": 0,
            "rules": {
                "filter": {"all": [{"category": ["a"]}, {"not": {"field": "price", "lt": 20}}]}, "exclude": ["i5"],
                "boost": [{"category": "a", "by": 0.5}], "pin": [{"item": "i3", "at": 1}], "at_most": {"category": 3},
                "diversity": 0.2, "rotate_s": 60.0, "exclude_own": True,
            },
        },
    ),
    "candidates": ("/v1/recommendations", {"users": ["u1"], "candidates": ["i1", "i2"], "k": 2}),
    "visitor": ("/v1/recommendations", {"history": ["i1", "i2"], "k": 5}),
    "facts": (
        "/v1/items",
        [{"item": "i1", "categories": ["a"], "owner": "u3", "expires": 2e9, "attributes": {"price": 9.5, "t": ["x"]}}],
    ),
}  # fmt: skip
EXTREMES: list[Any] = [
    None, True, 0, -1, 1 << 63, -(1 << 63), 10**400, 1e308, -0.0, "", "u1", "\x00", "\ud800", "é" * 300,
    "a" * 70_000,
    [], {}, [[]], [{}], {"": {}}, ["a"] * 2_000, {f"k{n}": n for n in range(500)},
    [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]],
    {"all": [{"any": [{"category": "a"}] * 20}] * 20}, "2026-11-16T18:05:02Z", "9" * 5_000,
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inside for place in places(one, (*path, key)))]


def mutated(body: Any, rng: random.Random) -> Any:
    """The body with one to four parts replaced, removed, renamed, doubled or wrapped."""
    for _ in range(rng.randrange(1, 5)):
        body = json.loads(json.dumps(body))
        path = rng.choice(places(body))
        if not path:
            body = rng.choice([rng.choice(EXTREMES), [body] * rng.randrange(1, 200), {"x": body}])
            continue
        parent = body
        for key in path[:-1]:
            parent = parent[key]
        key, kind = path[-1], rng.randrange(4)
        if kind == 0:
            parent[key] = rng.choice(EXTREMES)
        elif kind == 1:
            del parent[key]
        elif kind == 2 and isinstance(parent, dict):
            parent[rng.choice([f"{key} ", "rules", "users", "item", "all"])] = parent.pop(key)
        else:
            parent[key] = [parent[key]] * rng.randrange(300)
    return body


def fuzz(service: Service, seconds: float, least: int) -> None:
    rng, end, count = random.Random(int(os.environ.get("MELON_FUZZ_SEED", "0"))), time.monotonic() + seconds, 0
    while count < least or time.monotonic() < end:
        path, body = BODIES[rng.choice(list(BODIES))]
        content = json.dumps(mutated(body, rng)).encode()
        if rng.random() < 0.1 and content:
            place = rng.randrange(len(content))
            content = (
                content[:place] + rng.choice([b'"', b"\\", b"[" * 50, b"\xff", b"1e999", b""]) + content[place + 1 :]
            )
        if len(content) > service.settings.body_most:
            continue  # refused before it is parsed, and perhaps before it is sent
        before = time.process_time()  # the service is in this process
        answer = service.call("POST", path, content)
        spent = time.process_time() - before
        assert 0 < answer.status < 500 or answer.status in (503, 507), (answer, content[:500])
        assert answer.status != 503 or "Retry-After" in answer.headers, (answer, content[:500])
        assert seconds == 0 or spent < 1.0, (spent, path, content[:500])
        count += 1
    assert service.call("GET", "/v1/recommendations/u1").status == 200


def test_bodies_that_are_nearly_valid(service: Service) -> None:
    fuzz(service, 0, 300)


@pytest.mark.slow
def test_bodies_that_are_nearly_valid_for_ten_minutes(start: Start) -> None:
    fuzz(start(), float(os.environ.get("MELON_FUZZ_S", "600")), 300)
