"""Checkpoints beside serving: the model is copied in memory, and a thread writes the copy."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melon.errors import CheckpointError
from melon.learning.manifest import MANIFEST, read_manifest
from melon.learning.model import LiveModel
from melon.service.log.base import Position

#: So many of the newest are kept, and those from which exact replays begin.
KEPT = 3


@dataclass(frozen=True)
class Saved:
    """A model from a checkpoint, where it stands, the log it belongs to, and what else came with it."""

    model: LiveModel
    position: Position
    log_id: str
    extra: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one service, each in a folder named by its step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoints"

    def numbers(self) -> list[int]:
        """The steps that have a whole checkpoint, in order."""
        names = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(int(path.name) for path in names if path.name.isdigit() and (path / MANIFEST).is_file())

    def path(self, number: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"{number:010d}"

    def position(self, number: int) -> tuple[Position, str]:
        """Where a checkpoint stands and the log it belongs to, without loading it."""
        return _position(self.path(number), read_manifest(self.path(number)).extra)

    def load(self, number: int) -> Saved:
        """The model of a step."""
        model, extra = LiveModel.load(self.path(number))
        return Saved(model, *_position(self.path(number), extra), extra)

    def newest(self, most: int | None = None) -> Saved | None:
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

    def prune(self, bases: set[int], *, before: int = 0) -> None:
        """Remove all but the newest and the bases, and everything before a step."""
        numbers = self.numbers()
        wanted = {*numbers[-KEPT:], *bases}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name.isdigit() and (int(path.name) not in wanted or int(path.name) < before):
                # The manifest goes first, so that nobody takes the rest for a checkpoint.
                (path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)


class Saver:
    """Writes one checkpoint at a time in a thread."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: tuple[Future[None], LiveModel, Position] | None = None

    @property
    def busy(self) -> bool:
        """Whether one is being written, or its result has not been taken."""
        return self._running is not None

    def begin(self, model: LiveModel, position: Position, log_id: str, extra: Mapping[str, Any]) -> None:
        """Copy the model now, and have the copy written."""
        twin = copy.deepcopy(model)
        written = self._pool.submit(self._checkpoints.write, twin, position, log_id, extra)
        self._running = written, twin, position

    def result(self, *, wait: bool = False) -> tuple[LiveModel, Position] | None:
        """The copy that was written, once it is; None before that. A failed write is raised."""
        if self._running is None or not (wait or self._running[0].done()):
            return None
        (future, twin, position), self._running = self._running, None
        future.result()
        return twin, position

    def close(self) -> None:
        """Wait for the thread."""
        self._pool.shutdown()


def _position(path: Path, extra: Mapping[str, Any]) -> tuple[Position, str]:
    about = extra.get("service")
    try:
        digest = bytes.fromhex(about["digest"])  # type: ignore[index]
        place = Position(str(about["version"]), int(about["batch"]), int(about["offset"]), digest)  # type: ignore[index]
        return place, str(about["log_id"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path} does not say where in a log it stands; a service did not write it.") from None
