"""The lessons run as they are printed, in order and in one folder, as a newcomer would go through them."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

LESSONS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("[1-5]-*.md"))


def blocks(page: Path) -> list[tuple[str, str]]:
    """The programs of a page in order: ("sh" or "python", text)."""
    return re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


class Newcomer:
    """A folder in which blocks are run; a service that a block starts is stopped at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.service = folder, None
        self.environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def run(self, kind: str, text: str) -> str:
        text = text.replace("8000", str(self.port)) if "127.0.0.1:8000" in text or "--port 8000" in text else text
        if text.startswith("melon serve"):
            return self.serve(text)
        words = ["sh", "-ec", text] if kind == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=500
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def serve(self, text: str) -> str:
        self.service = subprocess.Popen(
            ["sh", "-c", f"exec {text.strip()}"], cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL
        )
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=5) as answer:
                    return str(answer.status)
            except OSError:
                time.sleep(0.2)
        raise AssertionError("the service did not become ready")

    def leave(self) -> None:
        if self.service is not None:
            self.service.terminate()
            self.service.wait(60)


@pytest.mark.slow
def test_the_lessons_run_in_order(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    said: dict[str, str] = {}
    try:
        for page in LESSONS:
            said[page.stem[0]] = "".join(newcomer.run(kind, text) for kind, text in blocks(page))
    finally:
        newcomer.leave()
    assert "8,000 interactions of 400 users and 988 items" in said["1"]
    assert said["1"].count("Regal 2/") >= 6  # lists, similar items and the list from Python are of the customer's shelf
    assert "auto has NDCG@10" in said["2"]
    assert "1 new user, 1 new item" in said["3"]
    assert '"offset"' in said["4"]
    assert "MeLON" in said["5"]
    assert (tmp_path / "runs" / "orders" / "report" / "report.html").exists()
