"""The guard: a batch that moves rows far more than batches do is not published; and what operators should know."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from statistics import median

from melon.service.log.base import Step

logger = logging.getLogger("melon.service")

#: The median is that of so many batches, once there are enough of them.
REMEMBERED, ENOUGH = 101, 20


class Guard:
    """Compares how far a batch moved rows with the running median."""

    def __init__(self, times: float, moved: Iterable[float] = ()) -> None:
        self._times = times
        self._moved: deque[float] = deque(moved, maxlen=REMEMBERED)

    def judge(self, moved: float | None) -> str | None:
        """Why a batch should be set aside; None, and it is remembered, where nothing speaks against it."""
        if moved is None:
            return None
        if self._times and len(self._moved) >= ENOUGH and moved > self._times * (usual := median(self._moved)) > 0:
            return f"it moved rows by {moved:.4g}, more than {self._times:g} times the usual {usual:.4g}"
        self._moved.append(moved)
        return None


class Alarms:
    """What operators should know now, by name; `write` is given the texts whenever they change."""

    def __init__(self, write: Callable[[list[str]], None]) -> None:
        self._write = write
        self._texts: dict[str, str] = {}

    def __call__(self, name: str, text: str | None) -> None:
        """Say something, or that it is over."""
        if self._texts.get(name) == text:
            return
        self._texts.pop(name, None)
        if text is not None:
            self._texts[name] = text
            logger.warning("%s", text)
        self._write(list(self._texts.values()))


def set_aside_in_a_row(newest: list[Step]) -> list[int]:
    """Where the batches end that were set aside since the last one that was learned, from the newest steps."""
    batches = [step for step in newest if step.kind == "events"]
    return [step.last for step in itertools.takewhile(lambda step: step.status == "set_aside", batches)][::-1]
