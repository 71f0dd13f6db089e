"""Trials side by side: each piece of work runs in a forked process, which shares the memory of this one.

What a piece gives depends on nothing but its input, so neither does a choice on how many run at a time. Where processes
cannot be forked (macOS, Windows), or one is enough, a piece runs here when its result is wanted.
"""

from __future__ import annotations

import multiprocessing as mp
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from melon.errors import MelonError

_Result = TypeVar("_Result")
_GONE = 1.0  # seconds that a process may take to end


class Pending(Generic[_Result]):
    """Work that is under way in another process, or that waits until its result is wanted."""

    def __init__(self, work: Callable[[], _Result], *, elsewhere: bool, first: Callable[[], None]) -> None:
        self._work, self._process = work, None
        if not elsewhere:
            return
        self._pipe, theirs = mp.Pipe(duplex=False)
        self._process = mp.get_context("fork").Process(
            target=_run, args=(theirs, work, first), daemon=True, name="melon trial"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child needs none of their locks
            self._process.start()
        theirs.close()

    def result(self) -> _Result:
        """What the work gives, or the error that it raised, or that its process was ended from outside."""
        if self._process is None:
            return self._work()
        try:
            outcome, error = self._pipe.recv()
        except (EOFError, OSError):
            raise MelonError(
                f"a process that tried settings was ended from outside{_by(self._process)}, most likely because memory "
                "ran out. With --threads 2 (threads=2 in Python) settings are tried one at a time."
            ) from None
        finally:
            self.cancel()
        if error is not None:
            raise error
        result: _Result = outcome
        return result

    def cancel(self) -> None:
        """End it; its result is no longer needed."""
        if self._process is None:
            return
        self._pipe.close()
        self._process.kill()
        self._process.join(_GONE)
        self._process = None


class Workers:
    """How many pieces of work run at a time; another process calls `first` before it begins."""

    def __init__(self, count: int = 1, first: Callable[[], None] = lambda: None) -> None:
        self._first = first
        self.count = count if sys.platform == "linux" and not mp.current_process().daemon else 1

    def begin(self, work: Callable[[], _Result]) -> Pending[_Result]:
        """Start a piece of work; the caller begins no more than `count` of them."""
        return Pending(work, elsewhere=self.count > 1, first=self._first)


def _by(process: mp.process.BaseProcess) -> str:
    process.join(_GONE)
    code = process.exitcode
    return f" (signal {-code})" if code is not None and code < 0 else ""


def _run(pipe: Connection, work: Callable[[], Any], first: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    first()
    outcome: tuple[Any, Exception | None]
    try:
        outcome = work(), None
    except Exception as error:
        outcome = None, error
    with suppress(BrokenPipeError, ConnectionResetError):  # the parent no longer waits for it
        pipe.send(outcome)
