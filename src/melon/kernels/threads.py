"""Blocks of work on as many cores as kernels may use; they run without the interpreter's lock.

The number is melon's own, and each thread that calls kernels has its own. PyTorch follows it where it is loaded.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_count: ContextVar[int | None] = ContextVar("threads of kernels", default=None)
_pools: dict[int, ThreadPoolExecutor] = {}
_several = False  # whether PyTorch was ever allowed more than one thread here
_forked = False  # whether it may not be any more
_Value = TypeVar("_Value")
_Output = TypeVar("_Output")


def use_threads(count: int | None) -> None:
    """Let kernels use this many threads; None for all cores, or as many as OMP_NUM_THREADS says."""
    _count.set(count)
    if "torch" in sys.modules:
        torch_follows()


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """The same, inside the block."""
    before = _count.get()
    if before == count:
        yield
        return
    use_threads(count)
    try:
        yield
    finally:
        use_threads(before)


def torch_follows() -> None:
    """Let PyTorch use as many threads; one in a forked process, where OpenMP would wait for threads of the parent."""
    import torch

    global _several  # noqa: PLW0603
    count = 1 if _forked else allowed()
    _several |= count > 1
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def allowed() -> int:
    """How many threads a kernel may use."""
    return _count.get() or _all()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _all() -> int:
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) > 0 else cores()


def ahead(work: Callable[[_Value], _Output], inputs: Iterable[_Value], helpers: int | None = None) -> Iterator[_Output]:
    """What `work` gives for each input, in order; threads beside the caller's work on the next ones meanwhile.

    There are as many `helpers`, or else as many as kernels may use beside the caller.
    """
    coming = deque[Future[_Output]]()
    helpers = max(allowed() - 1, helpers or 0)
    if not helpers:
        yield from map(work, inputs)
        return
    try:
        for one in inputs:
            coming.append(_pool(helpers).submit(work, one))
            if len(coming) > helpers:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        for late in coming:
            late.cancel()
        wait(coming)


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="melon-kernel")
    return _pools[threads]


def _after_fork() -> None:
    """A forked process does not inherit threads: neither those of the pools nor those of OpenMP."""
    global _forked  # noqa: PLW0603
    _pools.clear()
    if _several:
        _forked = True
        torch_follows()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
