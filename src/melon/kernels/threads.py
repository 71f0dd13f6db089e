"""Blocks of work on as many cores as PyTorch may use; kernels run without the interpreter's lock.

Around kernels, a step is many small operations that PyTorch is slower at with several threads than with one. So a
strategy that has kernels works with `kernels_first`: they get the threads, and PyTorch gets one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import torch

#: Pieces that each thread gets at most. A thread that is done takes the next one, so that few wait at the end.
PIECES = 8

_pools: dict[int, ThreadPoolExecutor] = {}
_lent = 0
_several = False  # whether PyTorch was ever allowed more than one thread here
_forked = False  # whether it may not be any more
_Value = TypeVar("_Value")
_Output = TypeVar("_Output")


def use_threads(count: int) -> None:
    """Let PyTorch use this many threads; one in a forked process, where OpenMP would wait for threads of the parent."""
    global _several  # noqa: PLW0603
    _several |= count > 1
    torch.set_num_threads(1 if _forked else count)


@contextmanager
def kernels_first() -> Iterator[None]:
    """Lend the kernels all threads but one of PyTorch's, for as long as this lasts."""
    global _lent  # noqa: PLW0603
    threads = torch.get_num_threads()
    if threads == 1:  # nothing to lend, or lent already
        yield
        return
    _lent = threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        use_threads(threads)
        _lent = 0


def allowed() -> int:
    """How many threads a kernel may use."""
    return max(_lent, torch.get_num_threads())


def spread(blocks: int, work: Callable[[tuple[int, int]], None]) -> None:
    """Call `work` with ranges of blocks until all are done. What a block computes depends on no other.

    The caller works too: little work is done before another thread has woken up, and then nobody waits for it.
    """
    threads = min(allowed(), blocks)
    if threads <= 1:
        work((0, blocks))
        return
    left = pieces_of(blocks, threads)  # its `next` holds the interpreter's lock

    def take() -> None:
        for piece in left:
            work(piece)

    helpers = [_pool(threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()  # raises what it met


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


def pieces_of(blocks: int, threads: int) -> Iterator[tuple[int, int]]:
    """The ranges of blocks that threads take one by one."""
    pieces = min(threads * PIECES, blocks)
    return pairwise([blocks * piece // pieces for piece in range(pieces + 1)])


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
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
