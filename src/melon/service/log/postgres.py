"""A service's log, steps, deltas, checkpoints and leases in PostgreSQL, for more than one machine.

Queries come in SQLite's words and are translated. Each part has a schema of its own (`melon_events`, `melon_batches`,
`melon_deltas`); `?schema=NAME` in the address gives the service another name than `melon`. Offsets are dense and in
the order of commits, because one lock is held from reading where the log ends to the commit. Readers are woken by
NOTIFY, which is sent after a commit and not inside it, and look by themselves ten times a second.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from zlib import crc32

from melon.errors import DataError, DiskFullError, HeldError, LogError, MissingExtraError, SettingsError, StorageError
from melon.service.log.files import Closing, Database, Place, Sync, masked
from melon.service.log.steps import alone

try:
    import psycopg
    from psycopg.types.string import TextLoader
except ImportError:
    raise MissingExtraError("a log in PostgreSQL", "postgres") from None

#: Seconds between two looks of a reader that nobody has woken, and between two wake-ups by one writer.
_POLL_S, _TELL_S = 0.1, 0.002
#: Bytes of a file in one row; always the same, so that a part that is stored again is equal.
_PART = 1 << 20
_BLOB = "INSERT INTO blobs VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
#: A connection that does not answer for this long is given up.
_TIMEOUT: dict[str, Any] = {
    "connect_timeout": 5, "keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}  # fmt: skip
#: The same on the server's side; and nobody waits longer for a lock, or holds one without saying anything.
_SESSION = "; ".join(f"SET {name} = {value}" for name, value in {
    "tcp_keepalives_idle": 2, "tcp_keepalives_interval": 1, "tcp_keepalives_count": 3, "tcp_user_timeout": 5000,
    "idle_in_transaction_session_timeout": 5000, "lock_timeout": 5000,
}.items())  # fmt: skip
#: Connections of the service that hold a lock and have waited for their client for 5 s in the middle of something.
_STUCK = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'melon process %' AND state <> 'idle'
AND wait_event_type = 'Client' AND state_change < clock_timestamp() - interval '5 s'
AND pid IN (SELECT pid FROM pg_locks WHERE granted AND locktype <> 'virtualxid' AND mode <> 'AccessShareLock')
"""
#: Seconds between two signs of life of a lease's holder, without one until another may take it, and until it is over.
_BEAT_S, LEASE_S, _OVER_S = 0.25, 1.2, 30.0
_TYPES = {
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    "BLOB": "BYTEA",
    "/*any*/": "TEXT",
    "/*id*/": 'TEXT COLLATE "C"',
}
#: Names of columns that are words of PostgreSQL; a literal in quotes is none.
_RESERVED = re.compile(r"(?<!')\b(user|offset)\b(?!')")
_SHARED = """
CREATE TABLE IF NOT EXISTS blobs(sha256 TEXT, part BIGINT, content BYTEA NOT NULL, PRIMARY KEY (sha256, part));
CREATE TABLE IF NOT EXISTS checkpoints(number BIGINT PRIMARY KEY, files TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS leases(role TEXT PRIMARY KEY, holder TEXT, pid BIGINT, beat DOUBLE PRECISION NOT NULL);
"""


class Postgres(Database):
    """One connection to a part of a service's database; a broken one is made again when it is used next."""

    def __init__(self, url: str, part: str, sync: Sync | None = None, schema: str = "") -> None:
        self._conninfo, service = _split(url)
        self.name, self.schema = masked(url), f"{service}_{part}"
        self._sync, self._tables = sync, schema
        self._lock_number = _number(f"{self.schema} writes")
        self._inside = self._listens = False
        self._told = self._looked = 0.0
        self._connection = self._connect()

    # Connecting.

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True, application_name=_name(_this()), **_TIMEOUT)
        except psycopg.Error as error:
            raise StorageError(f"{self.name} cannot be reached: {_first_line(error)}. Is the server running?") from None
        try:
            self._prepare(connection)
        except psycopg.Error as error:
            connection.close()
            raise self._trouble(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        _require_direct(connection, self.name)
        connection.execute(f"{_SESSION}; SET search_path = {self.schema}")
        if self._sync is not None:
            _require_durable(connection, self.name)
            # One message and so one transaction, in which the server waits for nobody.
            self._execute(
                connection,
                f"SELECT pg_advisory_xact_lock({_number('melon schemas')}); CREATE SCHEMA IF NOT EXISTS {self.schema}; "
                + _definition(self._tables, unlogged=self._sync == "OFF")
                + (_SHARED if self._sync == "NORMAL" else ""),
            )
            # Steps are synced together by `sync`; deltas are lost with the server and made again.
            connection.execute(f"SET synchronous_commit = {'on' if self._sync == 'FULL' else 'off'}")
        elif not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self.schema,)).fetchone():
            raise LogError(f"{self.name} has no schema {self.schema}; start the service once.")

    def _live(self) -> psycopg.Connection[Any]:
        if (self._connection.closed or self._connection.broken) and not self._inside:
            self._connection, self._listens = self._connect(), False
        return self._connection

    def _trouble(self, error: psycopg.Error) -> LogError:
        if isinstance(error, psycopg.errors.DiskFull):
            return DiskFullError(f"the disk of {self.name} is full; make room, and the service then continues.")
        storage = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError)
        return (StorageError if storage else LogError)(f"{self.name} cannot be used: {_first_line(error)}.")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # Reading and writing.

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        text, numbered = _translated(query)
        given: Any = {f"p{n}": value for n, value in enumerate(values, 1)} if numbered else tuple(values)
        try:
            found = self._execute(self._live(), text, given)
            return found.fetchall() if found.description is not None else []
        except psycopg.Error as error:
            raise self._trouble(error) from error

    def many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            with self._live().cursor() as cursor:
                cursor.executemany(_translated(query)[0], [tuple(row) for row in rows])
        except psycopg.Error as error:
            raise self._trouble(error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        connection = self._live()
        try:
            self._execute(connection, f"BEGIN; SELECT pg_advisory_xact_lock({self._lock_number})")
            self._inside = True
            yield
            connection.execute("COMMIT")
        except psycopg.Error as error:
            raise self._trouble(error) from error
        finally:
            self._inside = False
            with suppress(psycopg.Error):  # it has ended, and the transaction with it
                connection.rollback()
        self._tell()

    def _execute(
        self, connection: psycopg.Connection[Any], query: str, values: Any = None
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run what may wait for a lock: a holder whose client says nothing is ended, and it is tried once more."""
        try:
            return connection.execute(query, values)
        except psycopg.errors.LockNotAvailable:
            if self._inside:
                raise
            connection.rollback()
            connection.execute(_STUCK)
            return connection.execute(query, values)

    def meta(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self.rows("SELECT name, value FROM meta")}

    def note(self, values: Mapping[str, Any]) -> None:
        super().note({name: json.dumps(value) for name, value in values.items()})

    def key(self, one: Any) -> Any:
        return f"#{one}" if isinstance(one, int) else f"={one}"

    def id(self, key: Any) -> Any:
        return int(key[1:]) if key[0] == "#" else key[1:]

    def sync(self) -> None:
        """Have everything that was committed survive a power cut: a commit that is synced syncs those before it."""
        with self.transaction():
            self.rows("SET LOCAL synchronous_commit = on")
            self.note({"synced": time.time()})

    def has(self, table: str) -> bool:
        return bool(self.rows("SELECT to_regclass(?)", (table,))[0][0] and self.rows(f"SELECT 1 FROM {table} LIMIT 1"))

    def check(self, *, thorough: bool = False) -> str:
        """Whether the server answers. What its files hold is for its own tools (`pg_amcheck`, data checksums)."""
        return f"there (PostgreSQL {self.rows('SHOW server_version')[0][0]})"

    def scrub(self, *, rewrite: bool) -> None:
        """Dead rows leave tables and, few as they may be, indexes. WAL and backups have them while they are kept."""
        if rewrite:
            for (table,) in self.rows("SELECT tablename FROM pg_tables WHERE schemaname = ?", (self.schema,)):
                self.rows(f"VACUUM (INDEX_CLEANUP ON) {table}")

    # Waking and being woken.

    def _tell(self) -> None:
        now = time.monotonic()
        if now >= self._told + _TELL_S:
            self._told = now
            with suppress(psycopg.Error):  # readers look by themselves, too
                self._connection.execute(f"NOTIFY {self.schema}")

    def changed(self) -> bool:
        now = time.monotonic()
        try:
            if not self._listens:
                self._live().execute(f"LISTEN {self.schema}")
                self._listens = True
            told = any(True for _ in self._connection.notifies(timeout=0))
        except (psycopg.Error, LogError):
            self._listens, told = False, False
        if not told and now < self._looked + _POLL_S:
            return False
        self._looked = now
        return True

    def forget_version(self) -> None:
        self._looked = 0.0


class Lease(Closing):
    """The right to be the one learner of a service, on any machine: a lock that ends with its connection.

    A thread of its holder gives signs of life. One that gives none for a moment (its machine hangs, its network is cut
    off, or it was stopped) loses it to whoever asks; what it still writes is refused, since a later epoch has begun.
    """

    def __init__(self, url: str, role: str) -> None:
        self._db = Postgres(url, "batches", "NORMAL", "")
        self._role = role
        self._problem: LogError | None = None
        self._ended = threading.Event()
        query = "SELECT holder, pid, extract(epoch FROM clock_timestamp()) - beat FROM leases WHERE role = ?"
        holder, pid, age = (self._db.rows(query, (role,)) or [("another process", 0, 0.0)])[0]
        taken = self._tried()
        if not taken and float(age) > LEASE_S:
            self._cut_off(holder, pid)
            taken = any(self._tried(wait_s) for wait_s in [0.02] * 20)
        if not taken:
            self._db.close()
            raise HeldError(f"{self._db.name} has a {role} already: {holder}.", None)
        if holder != _this():
            self._cut_off(holder)
        self._sign()
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)
        self._thread.start()

    def _tried(self, wait_s: float = 0.0) -> bool:
        time.sleep(wait_s)
        number = _number(f"{self._db.schema} {self._role}")
        return bool(self._db.rows("SELECT pg_try_advisory_lock(?)", (number,))[0][0])

    def _cut_off(self, holder: str, pid: int = 0) -> None:
        """End a holder's connection, and those where it was in the middle of something: they hold other locks."""
        its = "pid = ? OR application_name = ? AND state <> 'idle' AND wait_event_type = 'Client'"
        self._db.rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {its}", (pid, _name(holder)))

    def _live(self) -> None:
        try:
            while not self._ended.wait(_BEAT_S):
                self._sign()
        except LogError as problem:
            self._problem = problem

    def _sign(self) -> None:
        """Give a sign of life; a lease whose connection has ended is lost."""
        self._db.rows(
            "INSERT INTO leases VALUES (?, ?, pg_backend_pid(), extract(epoch FROM clock_timestamp())) "
            "ON CONFLICT(role) DO UPDATE SET holder = excluded.holder, pid = excluded.pid, beat = excluded.beat",
            (self._role, _this()),
        )
        if not self._db.rows("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"):
            raise HeldError(f"the connection to {self._db.name} was lost, and so was the role of {self._role}.", None)

    def check(self) -> None:
        """Raise what has ended it, if anything has."""
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        """Let others have it."""
        self._ended.set()
        self._thread.join(1.0)
        with suppress(psycopg.Error):  # the server would notice the end of the connection only a moment later
            self._db._connection.execute("SELECT pg_advisory_unlock_all()")
        self._db.close()


def is_leased(url: str, role: str) -> bool:
    """Whether the holder of a role has given a sign of life lately."""
    with Postgres(url, "batches") as db:
        query = "SELECT 1 FROM leases WHERE role = ? AND beat > extract(epoch FROM clock_timestamp()) - ?"
        return bool(db.rows(query, (role, _OVER_S)))


def answered(address: str, query: str, at_once: int) -> Iterator[Any]:
    """The names of a query's columns, then its rows in parts, by a cursor of the server; nothing can be written."""
    try:
        with psycopg.connect(address, application_name="melon import", connect_timeout=10) as connection:
            connection.read_only = True
            connection.adapters.register_loader("uuid", TextLoader)
            with connection.cursor("melon") as cursor:
                cursor.execute(query.encode())
                yield [column.name for column in cursor.description or ()]
                while rows := cursor.fetchmany(at_once):
                    yield rows
    except psycopg.Error as error:
        raise DataError(f"{masked(address)} cannot answer the query: {_first_line(error)}.") from None


class SharedFiles(Closing):
    """Checkpoints in the database: files by their SHA-256, in parts; each machine keeps copies of what it loads."""

    def __init__(self, url: str) -> None:
        self._url, self._place, self._lock = url, Place(Path(), url), threading.Lock()
        self._db: Database | None = None
        #: The epoch of the learner that writes, once it has begun.
        self.epoch: int | None = None

    @contextmanager
    def _open(self) -> Iterator[Database]:
        with self._lock:
            if self._db is None:
                self._db = Postgres(self._url, "batches", "NORMAL", "")
            yield self._db

    def numbers(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        with self._open() as db:
            return [number for (number,) in db.rows("SELECT number FROM checkpoints ORDER BY number")]

    def put(self, number: int, folder: Path) -> None:
        """Store the checkpoint of a step; files that are there already are not sent again."""
        names = {str(path.relative_to(folder)): _sha256(path) for path in folder.rglob("*") if path.is_file()}
        with self._open() as db:
            for name, digest in names.items():
                if not db.rows("SELECT 1 FROM blobs WHERE sha256 = ? AND part = -1", (digest,)):
                    # Without the lock: the learner goes on with its steps meanwhile. Part -1 says that all is there.
                    with (folder / name).open("rb") as file:
                        for part, content in enumerate(iter(lambda: file.read(_PART), b"")):
                            db.rows(_BLOB, (digest, part, content))
                    db.rows(_BLOB, (digest, -1, b""))
            with alone(db, self._place, self.epoch):
                query = "INSERT INTO checkpoints VALUES (?, ?) ON CONFLICT(number) DO UPDATE SET files = excluded.files"
                db.rows(query, (number, json.dumps(names)))
            db.sync()

    def get(self, number: int, folder: Path, last: str) -> None:
        """Copy a checkpoint into a folder unless it is there; the file `last` makes it whole. Digests are compared."""
        with self._open() as db:
            rows = db.rows("SELECT files FROM checkpoints WHERE number = ?", (number,))
            if not rows:
                raise LogError(f"{masked(self._url)} has no checkpoint of step {number} any more.")
            names: dict[str, str] = json.loads(rows[0][0])
            if (folder / last).is_file() and _sha256(folder / last) == names[last]:
                return
            (folder / last).unlink(missing_ok=True)
            for name in sorted(names, key=lambda name: name == last):
                path = (folder / name).resolve()
                if not path.is_relative_to(folder.resolve()):
                    raise LogError(f"{masked(self._url)} names a file {name!r} outside of its checkpoint.")
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
                with part.open("wb") as file:
                    number_of_part = 0
                    query = "SELECT content FROM blobs WHERE sha256 = ? AND part = ?"
                    while rows := db.rows(query, (names[name], number_of_part)):
                        file.write(rows[0][0])
                        number_of_part += 1
                if _sha256(part) != names[name]:
                    part.unlink()
                    raise LogError(f"{name} of checkpoint {number} in {masked(self._url)} is damaged.")
                part.rename(path)

    def keep(self, wanted: set[int]) -> None:
        """Remove all other checkpoints, and the files that none has any more."""
        with self._open() as db, alone(db, self._place, self.epoch):
            rows = db.rows("SELECT number, files FROM checkpoints")
            db.many("DELETE FROM checkpoints WHERE number = ?", [(n,) for n, _ in rows if n not in wanted])
            used = {digest for n, files in rows if n in wanted for digest in json.loads(files).values()}
            stored = {digest for (digest,) in db.rows("SELECT DISTINCT sha256 FROM blobs")}
            db.many("DELETE FROM blobs WHERE sha256 = ?", [(digest,) for digest in stored - used])

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()


def _split(url: str) -> tuple[str, str]:
    """What libpq is given, and the name of the service in the database."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise SettingsError(
            f"log {masked(url)!r} is not an address of a database; give postgresql://USER@HOST/DATABASE."
        )
    query = dict(parse_qsl(parts.query))
    service = query.pop("schema", "melon")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", service):
        raise SettingsError(f"schema {service!r} in the address of the log: give lower-case letters, digits and _.")
    return urlunsplit(parts._replace(query=urlencode(query))), service


def _require_direct(connection: psycopg.Connection[Any], name: str) -> None:
    """Refuse a pooler: it gives one client's session to another, and with it locks and what is listened to."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] != connection.info.backend_pid:
        raise SettingsError(
            f"{name} is behind a connection pooler. Sessions, locks and notifications do not survive it: give the "
            "address of the server itself."
        )


def _require_durable(connection: psycopg.Connection[Any], name: str) -> None:
    """Refuse a server that acknowledges what a power cut can take."""
    for setting in ("synchronous_commit", "fsync"):
        row = connection.execute(f"SHOW {setting}").fetchone()
        if row is not None and row[0] == "off":
            raise SettingsError(
                f"{name} has {setting} = off: it would acknowledge events that a crash can lose. Set it to on."
            )


@lru_cache(maxsize=512)
def _translated(query: str) -> tuple[str, bool]:
    """A query of SQLite in PostgreSQL's words, and whether its values are numbered."""
    text = _RESERVED.sub(r'"\1"', query.replace("%", "%%"))
    if re.search(r"\?\d", text):
        return re.sub(r"\?(\d)", r"%(p\1)s", text), True
    return text.replace("?", "%s"), False


def _definition(tables: str, *, unlogged: bool) -> str:
    for one, other in _TYPES.items():
        tables = tables.replace(one, other)
    tables = tables.replace("WITHOUT ROWID", "").replace("CREATE TABLE", f"CREATE {'UNLOGGED ' * unlogged}TABLE")
    return _RESERVED.sub(r'"\1"', tables)


def _this() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _name(process: str) -> str:
    """How a process is called in the server's list of connections."""
    return f"melon {process}"[:63]


def _number(text: str) -> int:
    """The number of an advisory lock."""
    return 0x6D656C6F << 31 | crc32(text.encode()) >> 1


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
