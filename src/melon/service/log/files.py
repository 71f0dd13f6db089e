"""What a service is stored in: a folder of SQLite files, who may write them, and what is reserved for a full disk.

Log, steps and deltas are read and written through `Database`. Its queries are SQLite's; the other engine,
`melon.service.log.postgres`, translates them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote, urlsplit

import apsw

from melon.errors import DiskFullError, HeldError, LogError, StorageError
from melon.service.config import ServeSettings

if TYPE_CHECKING:
    from melon.service.log.postgres import Lease, SharedFiles

EVENTS, BATCHES, DELTAS = "events.db", "batches.db", "deltas.db"
#: A file of the data folder that says that there were keys once.
MARKER = "keys.required"
#: A file of the data folder with the token of whoever may read it: a key with the scope admin, on this machine.
TOKEN = "admin.token"
#: Before this version SQLite could lose a WAL that two connections reset at once.
LEAST_SQLITE = (3, 51, 3)
_FULL = 1 << 20
_HOLDER = 512
#: Errors that are about the files and not about what is written.
_STORAGE = (
    apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.ReadOnlyError, apsw.CantOpenError,
    apsw.BusyError, OSError,
)  # fmt: skip
logger = logging.getLogger("melon.service")

Sync = Literal["FULL", "NORMAL", "OFF"]


def trouble(path: Path, error: BaseException) -> LogError:
    """What went wrong with a file, as an error that says what to do."""
    if is_full(path.parent, error):
        return DiskFullError(f"the disk of {path} is full; make room, and the service then continues.")
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StorageError(f"{path} is damaged ({error}); {way_out(path)}")
    kind = StorageError if isinstance(error, _STORAGE) else LogError
    return kind(f"{path} cannot be used: {error}.")


def way_out(path: Path | str) -> str:
    """What to do about a file of the service that is damaged or does not fit the others."""
    if str(path).endswith(BATCHES):
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
        except DiskFullError as error:
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
        self.path = folder / f"{role}.lock"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as problem:
            raise StorageError(
                f"{folder} cannot be written: {problem.strerror}. Make it writable, or give another folder with --data."
            ) from None
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


class Database(Closing):
    """One connection to the log, the steps or the deltas of a service; used by one thread at a time.

    Errors of the engine come as `LogError`: `DiskFullError` and `StorageError` where nothing is wrong with what was to
    be read or written.
    """

    #: Where it is, in words.
    name: str

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a query; the rows that it gives."""
        raise NotImplementedError

    def many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a query once for each row of values."""
        raise NotImplementedError

    def transaction(self) -> AbstractContextManager[None]:
        """One transaction, alone among those that write: everything in the block, or nothing."""
        raise NotImplementedError

    def changed(self) -> bool:
        """Whether anything may have been committed since the last call; costs microseconds."""
        raise NotImplementedError

    def forget_version(self) -> None:
        """Have the next `changed` say yes."""
        raise NotImplementedError

    def meta(self) -> dict[str, Any]:
        """What is noted about the whole."""
        return dict(self.rows("SELECT name, value FROM meta"))

    def note(self, values: Mapping[str, Any]) -> None:
        """Note something about the whole; inside a transaction."""
        query = "INSERT INTO meta VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value = excluded.value"
        self.many(query, list(values.items()))

    def key(self, one: Any) -> Any:
        """An id as a column holds it."""
        return one

    def id(self, key: Any) -> Any:
        """The id that a column holds."""
        return key

    def has(self, table: str) -> bool:
        """Whether a table has been made, and something is in it."""
        raise NotImplementedError

    def check(self, *, thorough: bool = False) -> str:
        """Read everything; what was found in words, or an error where it is damaged."""
        raise NotImplementedError

    def scrub(self, *, rewrite: bool) -> None:
        """Have what was deleted leave the storage, where `rewrite` is wanted or the engine needs it."""
        raise NotImplementedError

    def sync(self) -> None:
        """Have everything that was committed survive a power cut."""


class Sqlite(Database):
    """A file of the service: with a `sync` the one connection that writes it, otherwise one that can only read."""

    def __init__(self, path: Path, sync: Sync | None = None, schema: str = "") -> None:
        self.path, self.name, self._seen = path, str(path), None
        try:
            self._connection = _open_reader(path) if sync is None else _open_writer(path, sync, schema)
        except apsw.Error as error:
            raise trouble(path, error) from error

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._connection.execute(query, tuple(values)).fetchall()
        except apsw.Error as error:
            raise trouble(self.path, error) from error

    def many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(query, rows)
        except apsw.Error as error:
            raise trouble(self.path, error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.rows("BEGIN IMMEDIATE")
        try:
            yield
            self.rows("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def changed(self) -> bool:
        version = self._connection.pragma("data_version")
        changed, self._seen = bool(version != self._seen), version
        return changed

    def forget_version(self) -> None:
        self._seen = None

    def has(self, table: str) -> bool:
        tables = self.rows("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
        return bool(tables and self.rows(f"SELECT 1 FROM {table} LIMIT 1"))

    def check(self, *, thorough: bool = False) -> str:
        found = self.rows(f"PRAGMA {'integrity' if thorough else 'quick'}_check(3)")
        if found != [("ok",)]:
            raise LogError(f"{self.path} is damaged: {'; '.join(str(one[0]) for one in found)}; {way_out(self.path)}")
        return f"whole (SQLite {apsw.sqlite_lib_version()})"

    def scrub(self, *, rewrite: bool) -> None:
        """What was overwritten must not live on in the WAL; with `rewrite` the whole file is written again."""
        try:
            if rewrite:
                self._connection.execute("VACUUM")
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            raise trouble(self.path, error) from error

    def sync(self) -> None:
        """Have everything that was committed survive a power cut."""
        try:
            self._connection.pragma("synchronous", "FULL")
            with self.transaction():
                self.note({"synced": time.time()})
            self._connection.pragma("synchronous", "NORMAL")
        except apsw.Error as error:
            raise trouble(self.path, error) from error

    def copy_to(self, target: Path) -> None:
        """Copy all of it as of one commit, while others write (SQLite's online backup), into one file."""
        try:
            writing = apsw.Connection(str(target))
            with writing.backup("main", self._connection, "main") as copy:
                copy.step()
            writing.pragma("journal_mode", "delete")
            writing.close()
        except apsw.Error as error:
            raise trouble(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _open_writer(path: Path, sync: Sync, schema: str) -> apsw.Connection:
    """The one connection that writes a file, in WAL mode; missing tables are made."""
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
    return connection


def _open_reader(path: Path) -> apsw.Connection:
    """A connection that can only read, and so never makes a checkpoint of the WAL."""
    if not path.exists():
        raise LogError(f"there is no {path}; start the service once, or point to the folder that holds it.")
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(str(path))}?mode=ro", flags=flags)
    connection.set_busy_timeout(10_000)
    connection.pragma("data_version")
    return connection


@dataclass(frozen=True)
class Place:
    """Where a service is stored: in a folder, and where several machines share it, in a PostgreSQL database too.

    With a database, log, steps, deltas, checkpoints and keys are there, and the folder holds what is of this machine
    alone: locks, fits and copies of checkpoints.
    """

    folder: Path
    url: str | None = None

    @classmethod
    def of(cls, given: Place | Path | str) -> Place:
        """A place by its folder, or by the address of its database."""
        if isinstance(given, str) and given.startswith(("postgresql:", "postgres:")):
            return cls(Path("melon.live"), given)
        return given if isinstance(given, Place) else cls(Path(given))

    def __str__(self) -> str:
        return str(self.folder) if self.url is None else masked(self.url)

    def named(self, name: str) -> str:
        """How messages call the log, the steps or the deltas."""
        return str(self.folder / name) if self.url is None else f"{masked(self.url)}, {name.removesuffix('.db')}"

    def open(self, name: str, sync: Sync | None = None, schema: str = "") -> Database:
        """The log, the steps or the deltas: with a `sync` to write, and then missing tables are made."""
        if self.url is None:
            return Sqlite(self.folder / name, sync, schema)
        from melon.service.log.postgres import Postgres

        return Postgres(self.url, name.removesuffix(".db"), sync, schema)

    def lease(self, role: str) -> Lease | None:
        """The right to a role among all machines; none is needed where there is one."""
        if self.url is None:
            return None
        from melon.service.log.postgres import Lease

        return Lease(self.url, role)

    def runs(self, role: str) -> bool:
        """Whether the process that last had a role still runs: on this machine, or on any where a database says so."""
        if self.url is None:
            return runs(self.folder, role)
        from melon.service.log.postgres import is_leased

        return is_leased(self.url, role)

    def shared(self) -> SharedFiles | None:
        """Checkpoints that all machines see, where they are not files of one folder."""
        if self.url is None:
            return None
        from melon.service.log.postgres import SharedFiles

        return SharedFiles(self.url)

    def exists(self, name: str) -> bool:
        """Whether the log, the steps or the deltas have been made."""
        if self.url is None:
            return (self.folder / name).exists()
        try:
            self.open(name).close()
        except StorageError:
            raise
        except LogError:
            return False
        return True


def place_of(settings: ServeSettings) -> Place:
    """Where the service of some settings is stored."""
    return Place(settings.folder, None if settings.log is None else settings.log.get_secret_value())


def masked(url: str) -> str:
    """A database's address without its password and parameters."""
    parts = urlsplit(url)
    return f"postgresql://{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}{parts.path}"


class Reader(Closing):
    """The log, the steps or the deltas, read-only; any process may have any number, each used by one thread."""

    def __init__(self, place: Place | Path, name: str) -> None:
        self.use(place, Place.of(place).open(name))

    def use(self, place: Place | Path, database: Database) -> None:
        """Read from a connection, which may be one that also writes."""
        self.place, self._db = Place.of(place), database
        self.changed, self.forget_version = self._db.changed, self._db.forget_version
        self.meta, self.has, self.check = self._db.meta, self._db.has, self._db.check
        self._rows = self._db.rows

    def close(self) -> None:
        """Close it."""
        self._db.close()
