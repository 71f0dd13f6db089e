"""`melon serve --demo`: a line says how it goes from the start on."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from melon.service.demo import line

STATUS = {"log": {"events": 30}, "model": None, "alarms": [], "freshness_s": {"p95": None}}


def test_a_line_says_what_is_waited_for() -> None:
    assert line(STATUS, {}).endswith("30 events  stored; the learner starts")
    loading = {**STATUS, "model": {"batch": 0}}
    assert "the learner loads its kernels" in line(loading, {})
    assert "compiles" in line({**loading, "alarms": ["the learner compiles its kernels"]}, {})
    learning = {**STATUS, "model": {"batch": 7}, "freshness_s": {"p95": 0.25}}
    assert line(learning, {"served": {"HR@10": 0.5}, "frozen": {}}).endswith(
        "batch     7  HR@10 of a minute: served 0.500  learned within 0.25 s"
    )


@pytest.mark.slow
def test_a_newcomer_sees_it_learn() -> None:
    command = [Path(sys.executable).with_name("melon"), "serve", "--demo", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    late = threading.Timer(300, process.kill)
    late.start()
    assert process.stdout is not None
    try:
        learned = next((text for text in process.stdout if re.search(r"batch +\d+ .*served 0\.\d", text)), None)
        assert learned is not None
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(120) == 0
    finally:
        late.cancel()
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
