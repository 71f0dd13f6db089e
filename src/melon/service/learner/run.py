"""The learner as a process."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from melon.errors import LogError
from melon.service.learner.loop import Learner
from melon.service.learner.settings import LearnerSettings
from melon.service.log.files import EVENTS, Reader

logger = logging.getLogger("melon.service")
_PR_SET_PDEATHSIG = 1


def run_learner(settings: LearnerSettings, stop: threading.Event | None = None) -> None:
    """Learn until `stop` is set or the process is asked to end (SIGTERM, SIGINT): then learn what waits and save.

    Waits for the process that writes the log to make it. Called by the main thread it dies with its parent.
    """
    from melon.fitting.fit import threads

    stop = stop or threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    _await(settings.folder, stop)
    if stop.is_set():
        return
    with threads(settings.threads), Learner(settings) as learner:
        logger.info("learning from batch %d, offset %d", learner.position.batch, learner.position.offset)
        learner.run(stop)


def die_with_parent() -> None:
    """Have the system end this process when the one that started it ends; where it can."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before it was asked
        os.kill(os.getpid(), signal.SIGTERM)


def _await(folder: Path, stop: threading.Event) -> None:
    """Wait until there is a log: the process that takes events makes it."""
    warn = time.monotonic() + 5.0
    while not stop.is_set():
        try:
            with Reader(folder / EVENTS) as reader:
                if reader.has("meta"):
                    return
        except LogError:
            if time.monotonic() > warn:
                logger.info("waiting for a log in %s; the process that takes events makes it", folder)
                warn += 60.0
        stop.wait(0.05)
