"""What the documentation shows works: the quick start and the examples."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Service, Start

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def empty(start: Start) -> Service:
    """A service that starts cold."""
    return start(model=None)


@pytest.mark.parametrize("program", [["sh", "curl.sh"], [sys.executable, "client.py"]], ids=["curl", "python"])
def test_examples_run(empty: Service, program: list[str]) -> None:
    done = subprocess.run(
        program, cwd=ROOT / "examples" / "service", capture_output=True, text=True, check=False,
        env={**os.environ, "MELON_URL": empty.url, "MELON_KEY": empty.app.state.token},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ann" in done.stdout


@pytest.mark.slow
def test_the_quick_start_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    block = re.search(r"## Quick start\n\n```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    commands = block[1].strip().splitlines()
    assert len(commands) == 5
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = "\n".join(["set -e", *commands, "kill $!", "wait $! || true"]).replace("8000", str(port))
    script = script.replace("melon serve model &", f"melon serve model --port {port} &")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PATH": path}, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=240)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    assert '"accepted":1' in said
    assert '"source":' in said
