"""Kernels that are compiled once and then in stock, and whether compiled ones are wanted at all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from melon.kernels import policy as stream_kernels
from melon.kernels.policy import asked_kernel, numba_installed
from melon.recommenders import factor_kernel
from melon.recommenders.blend import quick
from melon.recommenders.streaming import kernels as slot_kernels

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")

logger = logging.getLogger("melon")

_told: set[str] = set()


def wanted(like: Tensor | None = None) -> bool:
    """Whether MELON_KERNEL and what is installed ask for compiled kernels (on numbers like these)."""
    if asked_kernel() == "torch":
        return False
    if like is not None and (like.dtype != torch.float32 or like.device.type != "cpu"):
        return False
    return _available()


class Stock(Generic[Key, Made]):
    """Compiled kernels by what distinguishes them. One that failed to compile is not tried again."""

    def __init__(self, title: str, make: Callable[[Key], Made]) -> None:
        self._title, self._maker = title, make
        self._made: dict[Key, Made | None] = {}
        self._coming: set[Key] = set()
        self._lock = threading.Lock()

    def of(self, key: Key) -> Made | None:
        """The kernel, compiled now if nobody is at it; None while it is being compiled in the background."""
        if key not in self._made and key not in self._coming:
            self._make(key)
        return self._made.get(key)

    def prepare(self, key: Key, *, in_background: bool) -> None:
        """Have a kernel ready: now, or as soon as a thread is through with it."""
        if key in self._made or key in self._coming:
            return
        if in_background:
            self._coming.add(key)
            stream_kernels.compiles_in_background()
            threading.Thread(target=self._make_all, args=(key,), name="melon-kernel-warm-up", daemon=True).start()
        else:
            self._make_all(key)

    def _make_all(self, key: Key) -> None:
        """The kernel, and the loops of streams and recommenders before it."""
        try:
            stream_kernels.warm_up()
            factor_kernel.warm_up()
            slot_kernels.warm_up()
            quick.warm_up()
        finally:
            self._make(key)
            stream_kernels.compiled()

    def _make(self, key: Key) -> None:
        with self._lock:
            if key in self._made:
                return
            made: Made | None = None
            try:
                made = self._maker(key)
            except Exception as error:  # whatever ails the compiler, learning goes on
                logger.warning("%s cannot be compiled here (%s); PyTorch computes it instead", self._title, error)
            self._made[key] = made
            self._coming.discard(key)


def _available() -> bool:
    if numba_installed():
        return True
    if "numba" not in _told:
        _told.add("numba")
        logger.warning(
            "melon runs on PyTorch alone; MeLON and S2Meta are several times faster with: "
            "pip install 'melon-recommender[fast]'"
        )
    return False
