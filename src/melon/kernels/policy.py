"""Decides which loops compute: those that numba compiles, or numpy and PyTorch (the variable MELON_KERNEL).

The choice depends on MELON_KERNEL, on the numbers (float32 on the CPU is compiled) and on whether numba works on this
machine; never on time. Loops whose results differ from PyTorch's in the last digits are waited for, also while a
background thread compiles them. The loops of a stream give the same integers as numpy, so numpy serves until they are
ready. A run that is repeated or taken up again on one machine therefore has the same bits.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import defaultdict
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING

from melon.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE, CHOICES = "MELON_KERNEL", ("auto", "torch", "numba")
_CHOSEN = {"": "auto", **{choice: choice for choice in CHOICES}}
#: Requests after which a process counts as streaming, so that loading numba (half a second) pays; a batch has a dozen.
PATIENCE = 100

#: A suite of loops by its name, or by its name and width.
SuiteName = str | tuple[str, int]
#: Compiled loops, each an attribute.
Loops = SimpleNamespace
logger = logging.getLogger("melon")

_SAME_AS_NUMPY = frozenset({"stream"})

_ready: dict[tuple[str, int], Loops] = {}
_failed: dict[tuple[str, int], str] = {}
_reported: set[str] = set()
_locks: defaultdict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)
_coming: set[tuple[str, int]] = set()
_requests = 0


def load(name: str, width: int = 0, *, like: Tensor | None = None) -> Loops | None:
    """The loops of a suite, compiled now unless they are ready; None where numpy or PyTorch compute instead.

    They serve numbers `like` float32 on the CPU.
    """
    choice = _CHOSEN.get(os.environ.get(VARIABLE, "")) or _choice()
    if choice == "torch" or not (like is None or (like.device.type == "cpu" and str(like.dtype) == "torch.float32")):
        return None
    key = name, width
    loops = _ready.get(key)
    if loops is None:
        if name in _SAME_AS_NUMPY and (_coming or not _streaming()):
            return None
        loops = _prepared(key)
    return loops


def warm_up(*suites: SuiteName, in_background: bool = False) -> threading.Thread | None:
    """Have suites ready before they are needed: now, or by a background thread, which is returned."""
    keys = [each if isinstance(each, tuple) else (each, 0) for each in suites]
    if _choice() == "torch":
        return None
    if not in_background:
        _prepare(keys)
        return None
    _coming.update(keys)
    thread = threading.Thread(target=_prepare_quietly, args=(keys,), name="melon-kernel-warm-up", daemon=True)
    thread.start()
    return thread


def _choice() -> str:
    choice = os.environ.get(VARIABLE, "") or "auto"
    if choice not in CHOICES:
        raise SettingsError(f"{VARIABLE}={choice!r} is unknown; choose one of: {', '.join(CHOICES)}.")
    return choice


def _streaming() -> bool:
    global _requests  # noqa: PLW0603
    _requests += 1
    return _requests >= PATIENCE or "numba" in sys.modules or _choice() == "numba"


def _prepare(keys: list[tuple[str, int]]) -> None:
    try:
        for key in keys:
            _prepared(key)
    finally:
        _coming.difference_update(keys)


def _prepare_quietly(keys: list[tuple[str, int]]) -> None:
    """In a background thread: the call that needs the loops reports a failure."""
    with suppress(SettingsError):
        _prepare(keys)


def _prepared(key: tuple[str, int]) -> Loops | None:
    """Loops that are compiled or read from disk once for each process; None, with one line, where that fails."""
    with _locks[key]:
        if key not in _ready and key not in _failed:
            try:
                from melon.kernels import build

                _ready[key] = build.compiled(*key)
            except Exception as problem:  # whatever ails the compiler, the stream goes on
                _failed[key] = f"{type(problem).__name__}: {problem}"
    if key in _ready:
        return _ready[key]
    reason = _failed[key]
    if _choice() == "numba":
        raise SettingsError(
            f"{VARIABLE}=numba, but {key[0]!r} cannot be compiled here ({reason}); choose auto or torch."
        )
    if reason not in _reported:
        _reported.add(reason)
        logger.warning(
            "numba cannot compile here (%s); numpy and PyTorch compute instead, several times slower", reason
        )
    return None


def _forget_threads() -> None:
    """A forked process does not inherit the thread that compiles."""
    _locks.clear()
    _coming.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
