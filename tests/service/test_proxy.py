"""A real nginx in front, with the configuration that the docs show."""

import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from conftest import Service, Start
from melon.service.keys import keys_of

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
DOCS = Path(__file__).parents[2] / "docs" / "operating.md"


def configuration(service: Service, folder: Path, port: int) -> str:
    """The example of the docs, with plain HTTP on another port, in a folder of the test."""
    example = re.search(r"```nginx\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    text = re.sub(r" +ssl_.*\n", "", example[1]).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")
    places = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"daemon off; pid {folder}/pid; events {{}} http {{ access_log off; {places} {text} }}"


def ask(url: str, key: str | None = None, method: str = "GET", **headers: str) -> int:
    sent = {**headers, **({} if key is None else {"Authorization": f"Bearer {key}"})}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=sent, method=method), timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: apt install nginx-light)")
def test_nginx_in_front(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melon.service.keys._CHECK_EVERY_S", 0.0)
    service = start()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]  # free again in a moment
    file = tmp_path / "nginx.conf"
    file.write_text(configuration(service, tmp_path, port))
    url = f"http://127.0.0.1:{port}"
    proxy = subprocess.Popen([str(NGINX), "-e", tmp_path / "errors", "-c", file])
    try:
        service.wait(lambda: ask(f"{url}/health/ready") == 200)
        # Without keys the proxy's clients are nobody, also where they name a loopback host.
        assert ask(f"{url}/v1/status") == 403
        assert ask(f"{url}/v1/status", Host="127.0.0.1") == 403
        assert ask(f"{url}/v1/resume", method="POST") == 403
        key, _ = keys_of(service.settings).add(["read", "write", "admin"])
        assert ask(f"{url}/v1/status") == 401
        assert ask(f"{url}/v1/status", key) == 200
        assert ask(f"{url}/v1/recommendations/u%2F1", key) == 200  # a slash inside an id survives
        for path in ("users/u1/history", "export", "batches", "jobs/forget-1"):
            assert ask(f"{url}/v1/{path}", key) == 403  # administration stays on this machine
            assert ask(f"{service.url}/v1/{path}", key) in (200, 404)
        seen: list[bytes] = []

        def listen() -> None:
            request = urllib.request.Request(f"{url}/v1/stream?most=2", headers={"Authorization": f"Bearer {key}"})
            with urllib.request.urlopen(request, timeout=30) as response:
                seen.extend(line for line in response if line.startswith(b"event"))

        reader = threading.Thread(target=listen)
        reader.start()
        service.key = key
        while reader.is_alive():
            service.post([{"user": "u1", "item": "i1"}])
            time.sleep(0.1)
        assert seen == [b"event: status\n", b"event: batch\n"]
    finally:
        proxy.terminate()
        proxy.wait(10)
