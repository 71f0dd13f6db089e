"""Blocks of work on as many cores as PyTorch may use; kernels run without the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch

#: Pieces that each thread gets, so that one that started late does not hold up the others.
PIECES = 4

_pools: dict[int, ThreadPoolExecutor] = {}


def spread(blocks: int, work: Callable[[tuple[int, int]], None]) -> None:
    """Call `work` with ranges of blocks until all are done. What a block computes depends on no other."""
    threads = min(torch.get_num_threads(), blocks)
    if threads <= 1:
        work((0, blocks))
        return
    pieces = min(threads * PIECES, blocks)
    edges = [blocks * piece // pieces for piece in range(pieces + 1)]
    for _ in _pool(threads).map(work, pairwise(edges)):
        pass


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="melon-kernel")
    return _pools[threads]


if hasattr(os, "register_at_fork"):  # threads do not come along into a forked process
    os.register_at_fork(after_in_child=_pools.clear)
