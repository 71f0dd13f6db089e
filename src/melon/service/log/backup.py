"""Backups of a service's folder while it runs, and restoring one: log, steps and checkpoints that fit each other."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from melon import __version__
from melon.atomic import write_text
from melon.errors import CheckpointError, LogError
from melon.service.log.base import LogId
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.events import EventLog, LogReader
from melon.service.log.files import BATCHES, EVENTS, MARKER, TOKEN, Held, Reader, Sqlite
from melon.service.log.steps import StepReader

FORMAT = 1
#: What a backup says about itself, and the digest of each of its files.
ABOUT = "backup.json"
#: Files of an installation that are in no backup: they stay with the folder.
_OWN = ("keys.json", MARKER, TOKEN, "salt")
_TRIES = 20


@dataclass(frozen=True)
class BackedUp:
    """What a backup holds: the log up to an offset, the steps up to a number, and the model after one of them."""

    log_id: str
    offset: int
    events: int
    step: int
    checkpoint: int | None
    made: float
    keyed: bool
    melon: str = __version__
    format: int = FORMAT
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Restored:
    """What was restored, whom the log that was there had forgotten since, and of how many that cannot be known."""

    backup: BackedUp
    forgotten: int
    unknown: int
    before: Path | None


def back_up(folder: Path, out: Path) -> BackedUp:
    """Copy a service's folder to a new one while it runs, at one offset; everything acknowledged before is in it.

    Checkpoints are copied first, then the steps, then the log, so that no model is ahead of its log. Keys are not
    copied: whoever has a backup must not be able to call the service.
    """
    if out.exists() and any(out.iterdir()):
        raise LogError(f"{out} is not empty; give a new folder for the backup.")
    with LogReader(folder):  # a folder that is none of a service is refused before anything is made
        pass
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        part.mkdir(mode=0o700, parents=True)
        checkpoint = _copied_together(folder, part)
        with LogReader(part) as log:
            offset, events = log.last()
            step = 0
            if checkpoint is not None:
                with StepReader(part) as steps:
                    last = steps.last()
                step = last.number if last else 0
            about = BackedUp(
                log.log_id, offset, events, step, checkpoint, time.time(), (folder / MARKER).exists(),
                files={str(path.relative_to(part)): _digest(path) for path in _files(part)},
            )  # fmt: skip
        write_text(part / ABOUT, json.dumps(vars(about), indent=1), mode=0o600)
        with suppress(OSError):
            out.rmdir()
        part.rename(out)
        _sync(out.parent)
    except OSError as problem:
        raise LogError(f"the backup {out} cannot be written: {problem}.") from problem
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return about


def _copied_together(folder: Path, part: Path) -> int | None:
    """Copy the newest checkpoint, the one from which replays begin, the steps and the log; the number of the newest.

    The service goes on meanwhile. Where it removes a checkpoint, or erases ids that the copied steps still need, all of
    it is tried again.
    """
    if not (folder / BATCHES).exists():
        _copied(folder / EVENTS, part / EVENTS)
        return None
    source, target = Checkpoints(folder), Checkpoints(part)
    for again in range(_TRIES):
        shutil.rmtree(target.folder, ignore_errors=True)
        for name in (BATCHES, EVENTS):
            (part / name).unlink(missing_ok=True)
        with suppress(OSError, CheckpointError, shutil.Error):
            with StepReader(folder) as steps:
                bases = steps.bases()
            numbers = source.numbers()
            if numbers:
                for number in {numbers[-1], *(base for base in bases[-1:] if base in numbers)}:
                    shutil.copytree(source.path(number), target.path(number))
                _copied(folder / BATCHES, part / BATCHES)
                _copied(folder / EVENTS, part / EVENTS)
                with StepReader(part) as steps, LogReader(part) as log:
                    step, at = steps.step(numbers[-1]), target.position(numbers[-1])[0]
                    whole = steps.bases()[-1] in target.numbers() and log.erased() <= steps.forgotten()
                    whole = whole and log.first() <= steps.begin() + 1
                if whole and (not numbers[-1] or (step is not None and step.digest == at.digest)):
                    return numbers[-1]
        time.sleep(0.05 * again)
    raise LogError(f"{folder / 'checkpoints'} changed {_TRIES} times while it was copied; try the backup again.")


def _copied(source: Path, target: Path) -> None:
    """Copy a database that others write, as of one commit (SQLite's online backup), synced."""
    with Sqlite(source) as reading:
        reading.copy_to(target)
    target.chmod(0o600)
    _sync(target)


def read_backup(source: Path) -> BackedUp:
    """What a backup says of itself, every byte of it read and compared with its digest."""
    try:
        values = json.loads((source / ABOUT).read_bytes())
        if values["format"] != FORMAT:
            raise LogError(f"{source} has the backup format {values['format']!r}, and this melon reads {FORMAT}.")
        about = BackedUp(**values)
        damaged = [name for name, digest in about.files.items() if _digest(source / name) != digest]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise LogError(f"{source} is not a complete backup: {problem}; take another one.") from None
    if damaged:
        raise LogError(f"{source / damaged[0]} has changed since the backup was made; take another backup.")
    return about


def restore(source: Path, folder: Path, *, replace: bool = False) -> Restored:
    """Make a service's folder from a backup. What was there is moved beside it, where `replace` allows that.

    People whom the log that was there has forgotten since the backup are forgotten again: by the control where it still
    names them, otherwise by the offsets of their events, which the backup still has under their ids.
    """
    about, before = read_backup(source), None
    if folder.exists() and any(folder.iterdir()):
        if not replace:
            raise LogError(f"{folder} is not empty; give --replace to move its content aside, or another folder.")
        for role in ("writer", "learner"):
            Held(folder, role).close()  # refused while a service runs there
        before = folder.with_name(f"{folder.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(mode=0o700, parents=True)
        for name in about.files:
            (part / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy2(source / name, part / name)
            _sync(part / name)
        for name in _OWN if before else ():
            if (folder / name).exists():
                shutil.copy2(folder / name, part / name)
        if about.keyed and not (part / MARKER).exists():
            write_text(part / MARKER, "This service has keys: it answers nobody without one.\n")
        people, unknown = _forgotten_since(folder, source, about) if before else (set[LogId](), 0)
        with EventLog(part) as log:
            for user in people:
                log.forget(user).result()
        if before:
            folder.rename(before)
        elif folder.exists():
            folder.rmdir()
        part.rename(folder)
        _sync(folder.parent)
    except OSError as problem:
        raise LogError(f"{folder} cannot be restored: {problem}.") from problem
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Restored(about, len(people), unknown, before)


def _forgotten_since(folder: Path, source: Path, about: BackedUp) -> tuple[set[LogId], int]:
    """Whom a log has forgotten behind the offset of a backup of it, and how many of them cannot be known."""
    people, unknown = set[LogId](), 0
    if not (folder / EVENTS).exists():
        return people, unknown
    try:
        with LogReader(folder) as newer, Reader(source, EVENTS) as older:
            if newer.log_id != about.log_id:
                return people, unknown
            at = about.offset
            while (control := newer.control_after(at, "forget")) is not None:
                at, user = control.offset, control.body["user"]
                if control.erased:
                    # The ids are gone here; the backup has them at the offsets of what is now the pseudonym's.
                    events = newer.of_user(user, 1, about.offset + 1)
                    rows = (
                        older._rows("SELECT user FROM events WHERE offset = ?", (events[0].offset,)) if events else []
                    )
                    user = rows[0][0] if rows else None
                if user is None:
                    unknown += 1
                else:
                    people.add(user)
    except LogError:  # damaged: that is why a backup is restored
        return people, max(unknown, 1)
    return people, unknown


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
