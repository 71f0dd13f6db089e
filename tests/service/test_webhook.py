"""Webhooks: what arrives can be verified; nothing goes to a private network or follows a redirect."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from service_scenes import wait_until

from conftest import Start
from melon.errors import SettingsError
from melon.service.config import ServeSettings
from melon.service.webhook import Webhooks

SECRET = "a secret that is long enough"


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent; answers with the statuses it was given, then with 204."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, Any, bytes]] = []
        self.answers: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, self.headers, body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 204)
        self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return tmp_path / "secret"


def hooks(receiver: Receiver, secret: Path, **more: Any) -> Webhooks:
    given = {"webhook_private": True, **more}
    return Webhooks(ServeSettings(webhooks=(f"{receiver.url}/in?a=1",), webhook_secret=secret, **given), (0.0, 0.0))


def verified(message: tuple[str, Any, bytes]) -> dict[str, Any]:
    path, headers, body = message
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    right = base64.b64encode(hmac.digest(SECRET.encode(), signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{right}"
    assert path == "/in?a=1"
    content: dict[str, Any] = json.loads(body)
    return content


def test_a_message_is_signed_and_sent_again_after_a_failure(receiver: Receiver, secret: Path) -> None:
    receiver.answers = [500]
    hooks(receiver, secret).send({"alarm": "lag", "state": "raised"})
    assert [verified(one)["alarm"] for one in receiver.got] == ["lag", "lag"]
    assert receiver.got[0][1]["webhook-id"] == receiver.got[1][1]["webhook-id"]


def test_redirects_are_not_followed(receiver: Receiver, secret: Path) -> None:
    receiver.answers = [307, 302]
    hooks(receiver, secret).send({})
    assert [path for path, _, _ in receiver.got] == ["/in?a=1"] * 2


def test_private_networks_are_left_alone(receiver: Receiver, secret: Path, caplog: pytest.LogCaptureFixture) -> None:
    hooks(receiver, secret, webhook_private=False).send({})
    assert receiver.got == []
    assert "not a public address" in caplog.text


@pytest.mark.parametrize("address", ["ftp://a/", "https://user@a/", "a", "https://a/#b", "https://a b/"])
def test_addresses_that_cannot_be_are_refused(secret: Path, address: str) -> None:
    with pytest.raises(ValueError, match="webhook"):
        ServeSettings(webhooks=(address,), webhook_secret=secret)


def test_a_secret_is_needed_and_long(secret: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="webhook_secret"):
        ServeSettings(webhooks=("https://example.org",))
    secret.write_text("short")
    for path in (secret, tmp_path / "none"):
        with pytest.raises(SettingsError):
            Webhooks(ServeSettings(webhooks=("https://example.org",), webhook_secret=path))


def test_a_service_tells_of_its_alarms(start: Start, receiver: Receiver, secret: Path) -> None:
    given = {"webhooks": (f"{receiver.url}/in?a=1",), "webhook_secret": secret, "webhook_private": True}
    service = start(**given, guard=1e-9, stop_after=0)
    for n in range(30):
        offset = service.post([{"user": f"u{n}", "item": f"i{n}"}])["offset"]
        service.get(f"/v1/recommendations/u1?after={offset}&wait_ms=9000")
    wait_until(lambda: bool(receiver.got), 30.0)
    told = verified(receiver.got[0])
    assert (told["alarm"], told["state"]) == ("quarantined", "raised")
    assert told["remedy"]
    assert 'melon_alarm{name="quarantined"} 1.0' in service.get("/metrics")
