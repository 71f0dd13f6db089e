"""How many threads kernels and PyTorch may use."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from melon.kernels import threads
from melon.kernels.threads import use_threads, using_threads


@pytest.fixture
def allowed() -> Iterator[Any]:
    with using_threads(1):
        yield use_threads


FORK = """
import os, signal, torch
from melon.kernels.threads import use_threads
use_threads(2)
torch.ones(2_000_000).exp().sum()
child = os.fork()
if not child:
    signal.alarm(60)
    use_threads(2)
    torch.ones(2_000_000).exp().sum()
    os._exit(torch.get_num_threads())
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), torch.get_num_threads())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="OpenMP after a fork is a matter of Linux")
def test_a_forked_process_computes_with_one_thread() -> None:
    """With two it would wait for ever: OpenMP's threads are those of the parent."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "2"]


def test_each_thread_has_its_own_number(allowed: Any) -> None:
    """Two models that learn in threads of one process do not change each other's."""
    allowed(3)
    seen: list[int] = []

    def other() -> None:
        with using_threads(2):
            seen.append(threads.allowed())

    worker = threading.Thread(target=other)
    with using_threads(1):
        worker.start()
        worker.join()
        assert (threads.allowed(), seen) == (1, [2])
    assert threads.allowed() == 3
