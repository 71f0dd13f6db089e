"""API keys: `mk_<id>_<secret>`, stored as SHA-256, with scopes and an end; the file is read again when it changes.

Keys fail closed. A folder that ever had keys holds a marker: from then on every request needs a valid key, also where
the file of keys is empty, damaged or gone. Only deleting file and marker leads back to a service without keys.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from melon.atomic import write_text
from melon.errors import DataError, LogError, SettingsError, StorageError, unknown_name
from melon.service.config import ServeSettings
from melon.service.log.files import MARKER, TOKEN, Place, place_of

KeyScope = Literal["read", "write", "admin"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
_CHECK_EVERY_S = 1.0
_SCHEMA = "CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value /*any*/)"
_LOG = logging.getLogger("melon.service")


@dataclass(frozen=True)
class ApiKey:
    """What the file knows of a key: its secret only as a digest."""

    id: str
    sha256: str
    scopes: tuple[KeyScope, ...]
    created: int
    expires: int | None = None
    note: str = ""

    def allows(self, scope: KeyScope, now: float) -> bool:
        return scope in self.scopes and (self.expires is None or now < self.expires)


class KeyFile:
    """The keys of one installation. Several processes may read the file; commands replace it whole.

    Args:
        path: the file.
        folder: the data folder of the service, which holds the marker (default: the folder of the file).
        required: whether keys are needed even if there never were any.
    """

    def __init__(self, path: Path, folder: Path | None = None, *, required: bool = False) -> None:
        self.path, self._marker = path, (folder or path.parent) / MARKER
        self.problem: str | None = None
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._checked = -_CHECK_EVERY_S
        self._keys: dict[str, ApiKey] = {}
        self._required = required

    def keys(self) -> dict[str, ApiKey]:
        """All keys by id; a file that has changed since is read again (looked at once a second)."""
        self._look()
        return self._keys

    @property
    def required(self) -> bool:
        """Whether a request needs a key: once there was a file of keys, for ever."""
        self._look()
        return self._required

    def _look(self) -> None:
        with self._lock:
            if time.monotonic() - self._checked >= _CHECK_EVERY_S:
                self._refresh()
                self._checked = time.monotonic()

    def find(self, text: str) -> ApiKey | None:
        """The key that a client sent, if its secret is right; takes as long for a wrong secret as for a right one."""
        parts = text.split("_", 2)
        key = self.keys().get(parts[1]) if len(parts) == 3 and parts[0] == "mk" else None
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        right = hmac.compare_digest(digest, key.sha256 if key is not None else "0" * 64)
        return key if right else None

    def add(self, scopes: Iterable[str], *, days: float | None = None, note: str = "") -> tuple[str, ApiKey]:
        """A new key: the text to give to the client, which is shown once, and what is stored of it."""
        wanted = tuple(dict.fromkeys(scopes))
        for scope in wanted:
            if scope not in SCOPES:
                raise unknown_name("scope", scope, SCOPES)
        if not wanted:
            raise SettingsError(f"a key needs a scope. Choose one of: {', '.join(SCOPES)}.")
        if days is not None and not 0 < days <= 36_500:
            raise SettingsError(f"a key that ends in {days} days is not valid; give more than 0 and at most 36500.")
        now = int(time.time())
        text = f"mk_{secrets.token_hex(4)}_{secrets.token_hex(32)}"
        end = None if days is None else now + int(days * 86_400)
        key = ApiKey(text.split("_")[1], hashlib.sha256(text.encode()).hexdigest(), wanted, now, end, note)  # type: ignore[arg-type]
        self._replace({**self.read(), key.id: key})
        return text, key

    def revoke(self, key_id: str) -> None:
        """Remove a key; services that watch the file refuse it within a second."""
        keys = self.read()
        if key_id not in keys:
            raise unknown_name(f"key in {self.path}", key_id, keys)
        del keys[key_id]
        self._replace(keys)

    def _refresh(self) -> None:
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        except FileNotFoundError:
            self._keys, self._stamp, self.problem = {}, None, None
            self._required = self._required or self._marker.exists()
            return
        except OSError as problem:  # whether there are keys cannot be seen
            self._keys, self._stamp, self._required, self.problem = {}, None, True, str(problem)
            return
        if stamp == self._stamp:
            return
        self._stamp, self._required = stamp, True
        try:
            self._keys, self.problem = self.read(), None
        except DataError as problem:
            _LOG.error("%s No key is accepted until it can.", problem)
            self._keys, self.problem = {}, str(problem)
        try:
            self._mark()
        except DataError as problem:
            _LOG.warning("%s A restart without the file of keys would not know that there were any.", problem)

    def _mark(self) -> None:
        """Note durably that there are keys."""
        if not self._marker.exists():
            write_text(self._marker, "This service has keys: it answers nobody without one.\n")

    def read(self) -> dict[str, ApiKey]:
        """What the file says now; one that cannot be read is an error."""
        try:
            return _read_keys(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise DataError(f"the file of keys {self.path} cannot be read: {problem}.") from None

    def _replace(self, keys: dict[str, ApiKey]) -> None:
        self._mark()
        write_text(self.path, _written(keys), mode=0o600)


class SharedKeys(KeyFile):
    """The same in a database, for all machines. A thread looks once a second, so that nobody waits for the database.

    While it is away, the keys that were last seen count; before it was seen once, nobody is let in.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place.folder / "keys.json", place.folder)
        self.place, self._db, self._text = place, place.open("keys", "FULL", _SCHEMA), ""
        self._seen = False
        self._watch: threading.Thread | None = None

    def _look(self) -> None:
        with self._lock:
            if self._watch is None:
                self._refresh()
                self._watch = threading.Thread(target=self._watching, name="keys", daemon=True)
                self._watch.start()

    def _watching(self) -> None:
        while True:
            time.sleep(_CHECK_EVERY_S)
            self._refresh()

    def _refresh(self) -> None:
        try:
            text = self._db.meta().get("keys")
            keys = {} if text is None or text == self._text else _read_keys(text)
        except StorageError as problem:
            if not self._seen:
                self._required, self.problem = True, str(problem)
            return
        except (LogError, ValueError, KeyError, TypeError) as problem:
            self._required, self.problem = True, f"the keys in {self.place} cannot be read: {problem}"
            return
        self.problem, self._seen = None, True
        if self._text == "" and text is None:
            self._required = False
        if text is not None and text != self._text:
            self._keys, self._text, self._required = keys, text, True

    def read(self) -> dict[str, ApiKey]:
        return _read_keys(self._db.meta().get("keys", '{"keys": []}'))

    def _replace(self, keys: dict[str, ApiKey]) -> None:
        with self._db.transaction():
            self._db.note({"keys": _written(keys)})


def _read_keys(text: str) -> dict[str, ApiKey]:
    return {line["id"]: _checked(line) for line in json.loads(text)["keys"]}


def _written(keys: dict[str, ApiKey]) -> str:
    return json.dumps({"keys": [asdict(key) for key in keys.values()]}, indent=1)


def _checked(line: dict[str, Any]) -> ApiKey:
    key = ApiKey(**{**line, "scopes": tuple(line["scopes"])})
    end_is_valid = key.expires is None or type(key.expires) is int
    if len(key.sha256) != 64 or not set(key.scopes) <= set(SCOPES) or not end_is_valid:
        raise ValueError(f"the key {key.id!r} is damaged")
    return key


def keys_of(settings: ServeSettings) -> KeyFile:
    """The keys of a service; an operator who names their file wants them."""
    if place_of(settings).url is not None and settings.keys is None:
        return SharedKeys(place_of(settings))
    return KeyFile(settings.key_file, settings.folder, required=settings.keys is not None)


def local_token(folder: Path) -> str:
    """The token of a folder's administrator: random, in a file that only the service's user can read; made once."""
    path = folder / TOKEN
    try:
        if path.stat().st_mode & 0o077:
            raise SettingsError(f"others may read {path}; delete it, and it is made again.")
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(path, f"mk_local_{secrets.token_hex(32)}\n", mode=0o600)
        return path.read_text(encoding="utf-8").strip()


class Bucket:
    """Token buckets, one for each name: `burst` requests at once, `rate` in a second. Old buckets are dropped."""

    def __init__(self, rate: float, burst: int, most: int = 10_000) -> None:
        self.rate, self.burst, self.most = rate, burst, most
        self._tokens: dict[str, tuple[float, float]] = {}

    def charge(self, name: str, work: float) -> None:
        """Take more tokens for a request that was allowed and turned out to be costly; there may be a debt."""
        if name in self._tokens:
            tokens, then = self._tokens[name]
            self._tokens[name] = tokens - work, then

    def wait_s(self, name: str, now: float) -> float:
        """0 and one token less, or the seconds until there is one."""
        if not self.rate:
            return 0.0
        tokens, then = self._tokens.pop(name, (float(self.burst), now))
        tokens = min(tokens + (now - then) * self.rate, float(self.burst))
        allowed = tokens >= 1
        self._tokens[name] = (tokens - allowed, now)
        if len(self._tokens) > self.most:
            del self._tokens[next(iter(self._tokens))]
        return 0.0 if allowed else (1 - tokens) / self.rate
