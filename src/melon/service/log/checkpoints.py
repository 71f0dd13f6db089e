"""Checkpoints beside serving: a thread writes a copy of the model, and learning goes on."""

from __future__ import annotations

import copy
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melon.errors import CheckpointError
from melon.learning.manifest import MANIFEST, read_manifest
from melon.learning.model import LiveModel
from melon.service.log.base import Position
from melon.service.log.files import Place

#: How many of the newest are kept, beside those from which exact replays begin.
KEPT = 3


@dataclass(frozen=True)
class SavedModel:
    """A model from a checkpoint, where it stands, the log it belongs to, and what else came with it."""

    model: LiveModel
    position: Position
    log_id: str
    extra: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one service, each in a folder named by its step.

    Where a database holds them, the folder has copies of those that were written or loaded here.
    """

    def __init__(self, place: Place | Path) -> None:
        place = Place.of(place)
        self.folder = place.folder / "checkpoints"
        self._shared = place.shared()

    def numbers(self) -> list[int]:
        """The steps that have a whole checkpoint, in order."""
        if self._shared is not None:
            return self._shared.numbers()
        names = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(int(path.name) for path in names if path.name.isdigit() and (path / MANIFEST).is_file())

    def path(self, number: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"{number:010d}"

    def position(self, number: int) -> tuple[Position, str]:
        """Where a checkpoint stands and the log it belongs to, without loading it."""
        self._fetch(number)
        return _position(self.path(number), read_manifest(self.path(number)).extra)

    def load(self, number: int) -> SavedModel:
        """The model of a step."""
        self._fetch(number)
        model, extra = LiveModel.load(self.path(number))
        return SavedModel(model, *_position(self.path(number), extra), extra)

    def newest(self, most: int | None = None) -> SavedModel | None:
        """The newest model that can be read, of a step up to `most`; None where there is none.

        Where all are damaged, the error of the newest one.
        """
        first: CheckpointError | None = None
        for number in reversed([n for n in self.numbers() if most is None or n <= most]):
            try:
                return self.load(number)
            except CheckpointError as error:
                first = first or error
        if first is not None:
            raise first
        return None

    def write(self, model: LiveModel, position: Position, log_id: str, extra: Mapping[str, Any]) -> None:
        """Write a model; whole when its manifest is there."""
        about = {
            "log_id": log_id,
            "version": position.version,
            "batch": position.batch,
            "offset": position.offset,
            "digest": position.digest.hex(),
        }
        model.save(self.path(position.batch), {**extra, "service": about})
        if self._shared is not None:
            self._shared.put(position.batch, self.path(position.batch))

    def _fetch(self, number: int) -> None:
        """Have a copy of what is shared, and none of what is shared no more."""
        if self._shared is not None:
            self._shared.get(number, self.path(number), MANIFEST)
            held = self._shared.numbers()
            self._remove(lambda number: number not in held and number < held[-1])

    def _remove(self, unwanted: Callable[[int], bool]) -> None:
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name.isdigit() and unwanted(int(path.name)):
                # The manifest goes first, so that nobody takes the rest for a checkpoint.
                (path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)

    def belong_to(self, epoch: int) -> None:
        """Have what is shared refuse this writer once a learner of a later epoch has begun."""
        if self._shared is not None:
            self._shared.epoch = epoch

    def prune(self, bases: set[int], *, before: int = 0) -> None:
        """Remove all but the newest and the bases, and everything before a step."""
        numbers = self.numbers()
        wanted = {number for number in (*numbers[-KEPT:], *bases) if number >= before}
        if self._shared is not None:
            self._shared.keep(wanted)
        # What is behind the newest one may just be written, by the learner for a model that was served until now.
        newest = max(numbers, default=before)
        self._remove(lambda number: number not in wanted and number <= newest)


class Saver:
    """Writes one checkpoint at a time beside learning: learning pauses for a copy of the model, a thread writes it.

    Nothing is forked: a process with threads must not be. The copy is let go when it is written.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=_give_way)
        self._written: Future[Position] | None = None

    @property
    def busy(self) -> bool:
        """Whether one is being written, or its result has not been taken."""
        return self._written is not None

    @property
    def ready(self) -> bool:
        """Whether a result can be taken without waiting."""
        return self._written is not None and self._written.done()

    def begin(
        self, model: LiveModel, position: Position, log_id: str, extra: Mapping[str, Any], *, wait: bool = False
    ) -> None:
        """Have the model as it is now written; a caller who waits for it needs no copy."""

        def write(model: LiveModel) -> Position:
            self._checkpoints.write(model, position, log_id, extra)
            return position

        try:
            twin = model if wait else copy.deepcopy(model)
        except MemoryError:
            twin, wait = model, True
        self._written = self._pool.submit(write, twin)
        if wait:
            futures.wait([self._written])

    def result(self, *, wait: bool = False) -> Position | None:
        """Where the checkpoint stands that was written, once it is; None before that. A failed write is raised."""
        if self._written is None or not (wait or self._written.done()):
            return None
        written, self._written = self._written, None
        try:
            return written.result()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"the checkpoint could not be written: {error!r}.") from error

    def close(self) -> None:
        """Wait for what is being written."""
        self._pool.shutdown(wait=True)


def _give_way() -> None:
    """Let learning and serving go first; on Linux a thread has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + 5)


def _position(path: Path, extra: Mapping[str, Any]) -> tuple[Position, str]:
    about = extra.get("service")
    try:
        digest = bytes.fromhex(about["digest"])  # type: ignore[index]
        place = Position(str(about["version"]), int(about["batch"]), int(about["offset"]), digest)  # type: ignore[index]
        return place, str(about["log_id"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path} has no position in a log; a service did not write it.") from None
