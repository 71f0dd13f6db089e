"""Checkpoints beside serving: a forked process writes the model as it was, and learning goes on."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from melon.errors import CheckpointError
from melon.learning.manifest import MANIFEST, read_manifest
from melon.learning.model import LiveModel
from melon.service.log.base import Position

#: How many of the newest are kept, beside those from which exact replays begin.
KEPT = 3
#: A process that writes a checkpoint for longer is ended, and another one tries.
_LONGEST_SECONDS = 600.0
#: What that process says when it is done.
_WRITTEN = b"written"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class SavedModel:
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

    def load(self, number: int) -> SavedModel:
        """The model of a step."""
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
    """Writes one checkpoint at a time beside learning, in a forked process.

    The child shares this process's memory until either writes to it, so learning pauses only while page tables are
    copied. Systems other than Linux write the checkpoint at once, and learning waits.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._child, self._pipe, self._began = 0, -1, 0.0
        self._position: Position | None = None
        self._ended = False

    @property
    def busy(self) -> bool:
        """Whether one is being written, or its result has not been taken."""
        return self._position is not None

    @property
    def ready(self) -> bool:
        """Whether a result can be taken without waiting."""
        if self.busy and not self._ended:
            try:
                self._ended = os.waitpid(self._child, os.WNOHANG)[0] != 0
            except ChildProcessError:  # the system took it: SIGCHLD is ignored here, as the parent had it
                self._ended = True
            if not self._ended and time.monotonic() > self._began + _LONGEST_SECONDS:
                os.kill(self._child, signal.SIGKILL)
        return self._ended

    def begin(self, model: LiveModel, position: Position, log_id: str, extra: Mapping[str, Any]) -> None:
        """Have the model as it is now written."""
        self._position, self._began = position, time.monotonic()
        if sys.platform != "linux":
            self._checkpoints.write(model, position, log_id, extra)
            self._ended = True
            return
        self._pipe, out = os.pipe()
        parent = os.getpid()
        self._child = os.fork()
        if self._child:
            os.close(out)
            return
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.closerange(3, out)
            os.closerange(out + 1, 1 << 16)  # locks and files of the learner are not this process's
            os.nice(5)
            torch.set_num_threads(1)  # threads of the parent's pool are not here
            self._checkpoints.write(model, position, log_id, extra)
            os.write(out, _WRITTEN)
        except BaseException as error:
            os.write(out, str(error).encode()[:4000])
            os._exit(1)
        os._exit(0)

    def result(self, *, wait: bool = False) -> Position | None:
        """Where the checkpoint stands that was written, once it is; None before that. A failed write is raised."""
        while wait and self.busy and not self.ready:
            time.sleep(0.005)
        if not self.ready:
            return None
        position, message = self._position, _WRITTEN
        if self._pipe >= 0:
            message = os.read(self._pipe, 4000)
            os.close(self._pipe)
        self._position, self._ended, self._pipe = None, False, -1
        if message != _WRITTEN:
            raise CheckpointError(
                message.decode(errors="replace") or "the process that saved was ended before the end."
            )
        return position

    def close(self) -> None:
        """Wait for the child."""
        with suppress(CheckpointError):
            self.result(wait=True)


def _position(path: Path, extra: Mapping[str, Any]) -> tuple[Position, str]:
    about = extra.get("service")
    try:
        digest = bytes.fromhex(about["digest"])  # type: ignore[index]
        place = Position(str(about["version"]), int(about["batch"]), int(about["offset"]), digest)  # type: ignore[index]
        return place, str(about["log_id"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path} does not say where in a log it stands; a service did not write it.") from None
