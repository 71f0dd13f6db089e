"""The guard: a batch that moves rows far more than batches do is not published; and alarms for operators."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor

from melon.learning.updater import Updater
from melon.service.log.base import LoggedStep

logger = logging.getLogger("melon.service")

#: The median is that of the last batches, this many, once there are enough of them.
REMEMBERED, ENOUGH = 101, 20
#: What is compared, by its name in a step's `about`.
MEASURED = {
    "moved": "the distance by which it moved rows",
    "head": "the norm of the shared parameters after it",
    "memory": "the norm of the meta-parameters after it",
}


class Guard:
    """Compares how far a batch moved rows, and the size of head and meta-parameters after it, with running medians."""

    def __init__(self, times: float, past: Iterable[Mapping[str, Any]] = ()) -> None:
        self._times = times
        self._usual: dict[str, deque[float]] = {name: deque(maxlen=REMEMBERED) for name in MEASURED}
        for about in past:
            self._remember(about)

    def judge(self, about: Mapping[str, Any]) -> str | None:
        """Why a batch should be set aside; None, and it is remembered, where nothing speaks against it."""
        for name, what in MEASURED.items():
            value, known = about.get(name), self._usual[name]
            if value is None or not self._times or len(known) < ENOUGH or not (usual := median(known)) > 0:
                continue
            if not value <= self._times * usual:
                return f"{what} is {value:.4g}, more than {self._times:g} times the usual {usual:.4g}"
        self._remember(about)
        return None

    def _remember(self, about: Mapping[str, Any]) -> None:
        for name, known in self._usual.items():
            if about.get(name) is not None:
                known.append(about[name])


def norms(updater: Updater) -> dict[str, float | None]:
    """How large the recommender's shared parameters and the strategy's meta-parameters are."""
    tables = updater.recommender.tables.values()
    shared = [table.everything() for table in tables if table.spec.role == "shared"]
    memory = [one for one in updater.strategy.memory().values() if one.is_floating_point()]
    return {"head": _norm(shared), "memory": _norm(memory)}


def _norm(tensors: list[Tensor]) -> float | None:
    return float(torch.stack([one.float().norm() for one in tensors]).norm()) if tensors else None


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


def set_aside_in_a_row(newest: list[LoggedStep]) -> list[int]:
    """Where the batches end that were set aside since the last one that was learned, from the newest steps."""
    batches = [step for step in newest if step.kind == "events"]
    return [step.last for step in itertools.takewhile(lambda step: step.status == "set_aside", batches)][::-1]
