"""Lists from a rival of the served model, where the learner has found it better (`fallback = true`)."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from pathlib import Path

import numpy as np

from melon.errors import CheckpointError
from melon.learning.model import LiveModel
from melon.service.log.base import Position
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.steps import StepReader
from melon.types import Floats, Ints

_LOG = logging.getLogger("melon.service")


class Fallback:
    """Which rival lists come from at a step, and its scores; called by the thread that makes lists.

    The model as it was deployed is held besides, so that no list has to wait for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._checkpoints = folder, Checkpoints(folder)
        self._steps: StepReader | None = None
        self._read = self._base = -1  # the step for which decisions were read; the step of the deployed model
        self._decisions: list[tuple[int, str | None]] = []
        self._loading: threading.Thread | None = None
        self._frozen: LiveModel | None = None

    def at(self, position: Position) -> str | None:
        """The rival that lists come from at a step; None: from the served model."""
        if position.batch != self._read:
            if self._steps is None:
                self._steps = StepReader(self._folder)
            self._decisions, self._read = self._steps.fallbacks(), position.batch
            base = self._steps.bases()[-1]
            if base != self._base:
                self._base, self._frozen = base, None
                self._loading = threading.Thread(target=self._load, args=(base,), name="deployed", daemon=True)
                self._loading.start()
        place = bisect_right(self._decisions, position.batch, key=lambda decision: decision[0])
        return self._decisions[place - 1][1] if place else None

    def scores(self, rival: str, model: LiveModel, user: int, rows: Ints) -> tuple[Ints, Floats]:
        """Those of some rows of items that the rival knows, and their scores for a row of users."""
        if rival == "frozen" and self._loading is not None:
            self._loading.join()
            frozen = self._frozen
            if frozen is not None and user < frozen.rows_of("user"):
                rows = rows[rows < frozen.rows_of("item")]
                line = frozen.updater.score(np.array([user]), rows[None, :], model.last_time)[0] if len(rows) else rows
                return rows, line.astype(np.float64)
        return rows, model.popular.read(rows)[:, 0].astype(np.float64)

    def _load(self, base: int) -> None:
        try:
            self._frozen = self._checkpoints.load(base).model
        except (CheckpointError, OSError) as problem:
            _LOG.warning("the model as it was deployed cannot be loaded: %s", problem)
