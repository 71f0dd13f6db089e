"""Database files of a service: who may write them, how they are opened, and what is reserved for a full disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import apsw

from melon.errors import DiskFullError, HeldError, LogError

EVENTS, BATCHES, DELTAS = "events.db", "batches.db", "deltas.db"
#: Before this version SQLite could lose a WAL that two connections reset at once.
LEAST_SQLITE = (3, 51, 3)
_FULL = 1 << 20
_HOLDER = 512
logger = logging.getLogger("melon.service")

Sync = Literal["FULL", "NORMAL", "OFF"]


def open_writer(path: Path, sync: Sync, schema: str) -> apsw.Connection:
    """The one connection that writes a file, in WAL mode; missing tables are made."""
    try:
        # Nobody but the service's user reads who took what; SQLite gives the files beside it the same rights.
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(10_000)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", sync)
        connection.pragma("journal_size_limit", 1 << 26)
        # What is deleted is overwritten: a forgotten person's ids do not stay in free pages.
        connection.pragma("secure_delete", True)
        connection.execute(schema).fetchall()
    except apsw.Error as error:
        raise trouble(path, error) from error
    return connection


def open_reader(path: Path) -> apsw.Connection:
    """A connection that can only read, and so never makes a checkpoint of the WAL."""
    if not path.exists():
        raise LogError(f"there is no {path}; start the service once, or point to the folder that holds it.")
    try:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        connection.set_busy_timeout(10_000)
        connection.pragma("data_version")
    except apsw.Error as error:
        raise trouble(path, error) from error
    return connection


@contextlib.contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """One transaction: everything in the block, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def trouble(path: Path, error: apsw.Error) -> LogError:
    """What went wrong with a file, as an error that says what to do."""
    if is_full(path.parent, error):
        return DiskFullError(f"the disk of {path} is full; make room, and the service goes on by itself.")
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return LogError(f"{path} is damaged ({error}); {way_out(path)}")
    return LogError(f"{path} cannot be used: {error}.")


def way_out(path: Path) -> str:
    """What to do about a file of the service that is damaged or does not fit the others."""
    if path.name == BATCHES:
        return (
            f"stop the service and restore a backup (melon restore), or move {BATCHES}, {DELTAS} and checkpoints away: "
            "the log is then learned again from the model that the service started with."
        )
    return "stop the service and restore a backup (melon restore), or give an empty folder."


def is_full(folder: Path, error: BaseException) -> bool:
    """Whether an error says that there is no room left."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, apsw.FullError):
        return True
    return isinstance(error, apsw.IOError) and shutil.disk_usage(folder).free < _FULL


def until_there_is_room(folder: Path, write: Callable[[], Any], stopping: Callable[[], bool]) -> None:
    """Write, and where the disk is full, again every second until there is room or the process is asked to end."""
    while True:
        try:
            write()
        except (apsw.Error, DiskFullError) as error:
            if not isinstance(error, DiskFullError) and not is_full(folder, error):
                raise
            if stopping():
                raise DiskFullError(f"the disk of {folder} is full; make room, then start again.") from error
            logger.warning("the disk of %s is full; waiting for room", folder)
            time.sleep(1.0)
        else:
            return


class Closing:
    """Something that is closed when its block ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError


class Held(Closing):
    """The right to write some files of a folder: one process at a time has it, until it ends."""

    def __init__(self, folder: Path, role: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{role}.lock"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, _HOLDER, 0).decode(errors="replace").split() or ["unknown"]
            os.close(self._descriptor)
            raise HeldError(
                f"{folder} has a {role} already: process {holder[0]}. Stop it first, or give another folder.",
                holder[1] if len(holder) > 1 else None,
            ) from None
        self.announce("")

    def announce(self, url: str) -> None:
        """Write who holds it: this process, and where it answers."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()} {url}".encode(), 0)

    def beat(self) -> None:
        """Give a sign of life: the supervisor restarts a process whose lock file was not touched for long."""
        os.utime(self._descriptor)

    def close(self) -> None:
        """Let others have it."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)  # nobody runs here any more
            os.close(self._descriptor)
            self._descriptor = -1


def runs(folder: Path, role: str) -> bool:
    """Whether the process that last held a role on this machine still runs."""
    try:
        number = int((folder / f"{role}.lock").read_text().split()[0])
        os.kill(number, 0)
    except (FileNotFoundError, IndexError, ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True  # it belongs to somebody else
    return True


def address_of(folder: Path) -> str:
    """Where the service of a folder answers; an error where none runs."""
    words = (folder / "writer.lock").read_text().split() if runs(folder, "writer") else []
    if len(words) < 2:
        raise LogError(f"no service runs in {folder}; start it with melon serve --data {folder}.")
    return words[1]


class Reserve:
    """Room that is given up when the disk is full, so that what must still be written can be."""

    def __init__(self, folder: Path, size: int) -> None:
        self.path, self.size = folder / "reserve", size

    def make(self) -> bool:
        """Reserve the room; False where there is not enough of it."""
        if not self.size or (self.path.exists() and self.path.stat().st_size == self.size):
            return True
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self.size)
            finally:
                os.close(descriptor)
        except OSError:
            self.give_up()
            return False
        return True

    def give_up(self) -> None:
        """Let others use the room."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class Reader(Closing):
    """A file of the service, read-only; any process may have any number, each used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self._connection = path, open_reader(path)
        self._seen: Any = None

    def changed(self) -> bool:
        """Whether anything was committed since the last call; costs microseconds."""
        version = self._connection.pragma("data_version")
        changed, self._seen = bool(version != self._seen), version
        return changed

    def forget_version(self) -> None:
        """Have the next `changed` say yes."""
        self._seen = None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def has(self, table: str) -> bool:
        """Whether a table has been made, and something is in it."""
        tables = self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
        return bool(tables and self._rows(f"SELECT 1 FROM {table} LIMIT 1"))

    def meta(self) -> dict[str, Any]:
        """What the file says about itself."""
        return dict(self._rows("SELECT name, value FROM meta"))

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except apsw.Error as error:
            raise trouble(self.path, error) from error

    def check(self, *, thorough: bool = False) -> None:
        """Read every page; a file that is damaged is an error."""
        found = self._rows(f"PRAGMA {'integrity' if thorough else 'quick'}_check(3)")
        if found != [("ok",)]:
            raise LogError(f"{self.path} is damaged: {'; '.join(str(one[0]) for one in found)}; {way_out(self.path)}")
