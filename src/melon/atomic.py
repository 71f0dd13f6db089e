"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from melon.errors import DataError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to that replaces `path` at the end, synced to disk; if that fails, the old file stays.

    Each writer has a name of its own, so two processes that write the same file do not disturb each other.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(unfinished, path)
    except OSError as problem:
        raise cannot_write(path, problem) from problem
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace a file in one step; nobody whom `mode` leaves out may read it, from the first byte on."""
    with (
        replacing(path) as unfinished,
        open(unfinished, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file,
    ):
        file.write(text)


def require_writable(path: Path) -> None:
    """Raise now, rather than after hours, if a file cannot be written."""
    probe = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as problem:
        raise cannot_write(path, problem) from problem


def cannot_write(path: Path, problem: OSError) -> DataError:
    """The error for a file that cannot be written, with the system's reason."""
    return DataError(f"{path} cannot be written: {problem.strerror or problem}.")
