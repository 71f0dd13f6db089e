"""Blocks of work on several threads: all of them, once each, whoever takes them, and errors reach the caller."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from melon.kernels import threads
from melon.kernels.threads import kernels_first, spread, use_threads, using_threads


@pytest.fixture
def allowed() -> Iterator[Any]:
    with using_threads(1):
        yield use_threads


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("blocks", [0, 1, 2, 7, 16, 100])
def test_every_block_is_done_once(blocks: int, count: int, allowed: Any) -> None:
    allowed(count)
    done: list[int] = []
    spread(blocks, lambda some: done.extend(range(*some)))
    assert sorted(done) == list(range(blocks))


def test_one_thread_takes_all_in_one_go(allowed: Any) -> None:
    allowed(1)
    ranges: list[tuple[int, int]] = []
    spread(50, ranges.append)
    assert ranges == [(0, 50)]


def test_the_caller_and_a_helper_work_side_by_side(allowed: Any) -> None:
    """Two blocks that wait for each other can only end if both are worked on at once."""
    allowed(2)
    meeting = threading.Barrier(2, timeout=60)
    workers: set[int] = set()

    def meet(some: tuple[int, int]) -> None:
        workers.add(threading.get_ident())
        meeting.wait()

    spread(2, meet)
    assert len(workers) == 2
    assert threading.get_ident() in workers


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_reaches_the_caller_and_the_next_call_works(count: int, allowed: Any) -> None:
    allowed(count)

    def fails(some: tuple[int, int]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spread(4, fails)
    done: list[int] = []
    spread(4, lambda some: done.extend(range(*some)))
    assert sorted(done) == [0, 1, 2, 3]


def test_an_error_of_a_helper_alone_reaches_the_caller(allowed: Any) -> None:
    allowed(2)
    meeting, caller = threading.Barrier(2, timeout=60), threading.get_ident()

    def fails(some: tuple[int, int]) -> None:
        meeting.wait()
        if threading.get_ident() != caller:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spread(2, fails)


def test_nobody_waits_for_a_helper_that_has_not_begun(allowed: Any) -> None:
    allowed(2)
    released = threading.Event()
    pool = threads._pool(1)
    busy = pool.submit(released.wait, 60)
    done: list[int] = []
    spread(4, lambda some: done.extend(range(*some)))  # would hang until the helper is free
    assert sorted(done) == [0, 1, 2, 3]
    assert not busy.done()
    released.set()
    busy.result()


def test_kernels_get_the_threads_and_pytorch_one(allowed: Any) -> None:
    allowed(3)
    with kernels_first():
        assert torch.get_num_threads() == 1
        assert threads.allowed() == 3
        with kernels_first():
            assert threads.allowed() == 3
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads.allowed() == 3


def test_threads_are_given_back_after_an_error(allowed: Any) -> None:
    allowed(2)
    with pytest.raises(ZeroDivisionError), kernels_first():
        raise ZeroDivisionError
    assert torch.get_num_threads() == threads.allowed() == 2


def test_one_thread_is_nothing_to_lend(allowed: Any) -> None:
    allowed(1)
    with kernels_first():
        assert torch.get_num_threads() == threads.allowed() == 1


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
