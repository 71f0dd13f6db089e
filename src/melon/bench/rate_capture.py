"""The learning rates of one batch of a stream: read just before it is learned, and kept in a file."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from melon.atomic import replacing
from melon.errors import DataError
from melon.evaluation.prequential import Point
from melon.explain.matrix import BatchRates, RateCells, batch_rates
from melon.learning.updater import Updater
from melon.stream.batch import Batch
from melon.types import Ints, Scores

RATES_SUFFIX = ".rates.safetensors"


class Watched:
    """An updater that shows its learning rates for the batch that starts at an event, after it has scored it.

    What is scored and learned is the same as without it.
    """

    def __init__(self, updater: Updater, start: int) -> None:
        self._updater, self._start, self._spent = updater, start, 0.0
        self.found: BatchRates | None = None

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        return self._updater.score(users, items, time)

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        return self._updater.score_catalogue(users, n_items, time)

    def learn(self, batch: Batch) -> float:
        self._spent = 0.0
        if int(batch.events[0]) == self._start and self._updater.strategy.explains_rates:
            began = time.perf_counter()
            self.found = batch_rates(self._updater, batch, self._start, "the last full batch of the test part")
            self._spent = (time.perf_counter() - began) * 1e3
        return self._updater.learn(batch)

    @property
    def moved(self) -> float:
        return self._updater.moved

    def timed(self, point: Point) -> Point:
        """The point of the batch that was learned last, without the time that reading its rates took."""
        return replace(point, update_ms=point.update_ms - self._spent)


class RatesKeeper:
    """Rates, gradients and losses of a batch: safetensors in single precision, names and sizes in its header."""

    suffix = RATES_SUFFIX

    def write(self, rates: BatchRates, path: Path) -> None:
        arrays, header = {}, {"about": json.dumps(dict(rates.about))}
        for name, cells in rates.parts().items():
            for what in ("rates", "gradients", "losses"):
                arrays[f"{name}/{what}"] = np.ascontiguousarray(getattr(cells, what), dtype=np.float32)
            header[name] = json.dumps({"groups": cells.groups, "precision": cells.precision})
        with replacing(path) as unfinished:
            save_file(arrays, unfinished, metadata=header)

    def read(self, path: Path) -> BatchRates:
        try:
            with safe_open(path, framework="numpy") as file:
                header = file.metadata()
                arrays = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}  # noqa: SIM118
            parts = {}
            for name in ("rows", "shared"):
                if name in header:
                    about = json.loads(header[name])
                    groups = tuple((str(group), int(size)) for group, size in about["groups"])
                    cells = {what: arrays[f"{name}/{what}"] for what in ("rates", "gradients", "losses")}
                    precision = max(float(about["precision"]), float(np.finfo(np.float32).eps))
                    parts[name] = RateCells(**cells, groups=groups, precision=precision)
            return BatchRates(json.loads(header["about"]), parts["rows"], parts.get("shared"))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as problem:
            raise DataError(f"{path} is no file of learning rates: {problem}.") from problem
