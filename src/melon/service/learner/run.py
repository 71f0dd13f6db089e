"""The learner as a process."""

from __future__ import annotations

import threading

from melon.service.learner.settings import LearnerSettings


def run_learner(settings: LearnerSettings, stop: threading.Event | None = None) -> None:
    """Learn until `stop` is set or the process is asked to end (SIGTERM, SIGINT): then learn what waits and save.

    The process dies with its parent where the system allows it.
    """
    raise NotImplementedError
