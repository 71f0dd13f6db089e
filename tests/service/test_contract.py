"""The OpenAPI as a contract: whatever it allows gets an answer that it describes, and never a 5xx."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Service, Start
from melon.service.keys import keys_of

pytest.importorskip("schemathesis")

HOOKS = """
import schemathesis

@schemathesis.serializer("application/x-ndjson")
def lines(ctx, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
"""
# Some values are of the right shape and still refused (an event type that the service does not know), and a list that
# is too long is a 413. With `partial=true` bad events are listed in a 202.
SETTINGS = """
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 431]

[[operations]]
include-name = "POST /v1/interactions"
checks.negative_data_rejection.expected-statuses = [202, 400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 431]
"""


@pytest.fixture(scope="module")
def guarded(start: Start) -> Service:
    """A service with a key, so that routes are also tried without one."""
    service = start()
    service.key, _ = keys_of(service.settings).add(["read", "write", "admin"])
    service.wait(lambda: service.call("GET", "/v1/status", Authorization="none").status == 401)
    return service


def run(service: Service, folder: Path, phases: str, examples: int, seed: int) -> None:
    (folder / "hooks.py").write_text(HOOKS)
    (folder / "settings.toml").write_text(SETTINGS)
    tool = Path(sys.executable).with_name("schemathesis")
    words = [
        tool, "--config-file", "settings.toml", "run", f"{service.url}/openapi.json", "--exclude-path", "/v1/stream",
        "-H", f"Authorization: Bearer {service.key}", "--phases", phases, "--max-examples", str(examples),
        "--seed", str(seed), "--generation-database", "none", "--suppress-health-check", "all", "--no-color",
    ]  # fmt: skip
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(folder)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert len(service.get("/v1/recommendations/u1?k=3")["items"]) == 3


def test_answers_keep_the_contract(guarded: Service, tmp_path: Path) -> None:
    run(guarded, tmp_path, "examples,fuzzing", examples=2, seed=1)


@pytest.mark.slow
def test_answers_keep_the_contract_at_length(guarded: Service, tmp_path: Path) -> None:
    """All phases; MELON_EXAMPLES says how many examples of each route."""
    examples = int(os.environ.get("MELON_EXAMPLES", "400"))
    run(guarded, tmp_path, "examples,coverage,fuzzing,stateful", examples=examples, seed=2)
