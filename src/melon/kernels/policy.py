"""Which implementation runs through a stream's numbers: loops compiled by numba where they are worth loading.

Both give the same integers, so they may take turns within a process. numba takes half a second to load, so the loops
come in once a process has asked often enough to be streaming, or at once where `MELON_KERNEL=numba` says so or another
kernel has loaded numba already.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
from functools import cache
from types import ModuleType
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from melon.errors import MissingExtraError, SettingsError
from melon.types import Flags, Ints

VARIABLE, CHOICES = "MELON_KERNEL", ("auto", "torch", "numba")
#: Questions after which a process counts as streaming; a batch asks a dozen times.
PATIENCE = 100

Ring = npt.NDArray[np.int32]
logger = logging.getLogger("melon")

_asked = 0
_compiling = threading.Event()


class StreamKernel(Protocol):
    """The functions of `compiled`."""

    def remember(self, ring: Ring, met: Ints, rows: Ints, partners: Ints) -> np.int64: ...

    def sample(
        self, ring: Ring, met: Ints, known: int, rows: Ints, root: np.uint64, moment: int, partners: Ints, counts: Ints
    ) -> None: ...

    def find(self, slots: Ints, bits: int, keys: Ints, places: Ints) -> None: ...

    def place(self, slots: Ints, bits: int, keys: Ints) -> int: ...

    def negatives(
        self, slots: Ints, bits: int, root: np.uint64, pool: int, tries: int, users: Ints, items: Ints, keys: Ints,
        first: int, chosen: Ints,
    ) -> int: ...  # fmt: skip

    def candidates(
        self, slots: Ints, bits: int, since: Ints, ever: bool, root: np.uint64, pool: int, tries: int, lines: Ints,
        events: Ints, users: Ints, items: Ints, negatives: Ints, short: Flags,
    ) -> None: ...  # fmt: skip


def asked_kernel() -> str:
    """What MELON_KERNEL says: `auto`, `torch` (nothing is compiled) or `numba`, which then has to be there."""
    asked = os.environ.get(VARIABLE, "") or "auto"
    if asked not in CHOICES:
        raise SettingsError(f"{VARIABLE}={asked!r} is unknown; choose one of {', '.join(CHOICES)}.")
    if asked == "numba" and not numba_installed():
        raise MissingExtraError(f"{VARIABLE}=numba", "fast")
    return asked


@cache
def numba_installed() -> bool:
    """Whether compiled kernels can be had at all."""
    return importlib.util.find_spec("numba") is not None


def may_compile() -> bool:
    """Whether compiled loops are wanted and can be had without waiting for a thread that compiles."""
    return asked_kernel() != "torch" and numba_installed() and not _compiling.is_set()


def compiles_in_background() -> None:
    """Say that a thread is about to compile: until `compiled` is called, numpy and PyTorch serve everybody else."""
    _compiling.set()


def compiled() -> None:
    """Say that it is through."""
    _compiling.clear()


def stream_kernel() -> StreamKernel | None:
    """The compiled loops, or None where numpy works."""
    global _asked  # noqa: PLW0603
    if not may_compile():
        return None
    asked = asked_kernel()
    _asked += 1
    if asked == "auto" and _asked < PATIENCE and "numba" not in sys.modules:
        return None
    return _loops()


def warm_up() -> None:
    """Have every loop compiled, by asking each of them for next to nothing."""
    loops, root, numbers = _loops(), np.uint64(0), np.zeros(1, dtype=np.int64)
    if loops is None:
        return
    slots, ring, out = np.full(8, -1), np.zeros((1, 2), dtype=np.int32), np.zeros((1, 1), dtype=np.int64)
    loops.remember(ring, numbers.copy(), numbers, numbers)
    loops.sample(ring, numbers, 1, numbers, root, 0, out, numbers.copy())
    loops.place(slots, 3, numbers)
    loops.find(slots, 3, numbers, numbers.copy())
    loops.negatives(slots, 3, root, 2, 1, numbers, numbers, numbers, 0, numbers.copy())
    short = np.zeros(1, dtype=bool)
    loops.candidates(slots, 3, slots, False, root, 2, 1, numbers, numbers, numbers, numbers, out, short)


@cache
def loaded(name: str) -> ModuleType | None:
    """A module of compiled loops; None, with one line, where numba cannot work (nowhere to keep what it compiles)."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever ails the compiler, the stream goes on
        logger.warning("the loops of %s cannot be compiled here (%s); numpy and PyTorch work instead", name, error)
        return None


def _loops() -> StreamKernel | None:
    return cast("StreamKernel | None", loaded("melon.kernels.stream"))
