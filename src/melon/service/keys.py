"""API keys: `mk_<id>_<secret>`, stored as SHA-256, with scopes and an end; the file is read again when it changes."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from melon.atomic import cannot_write
from melon.errors import DataError, SettingsError, unknown_name

KeyScope = Literal["read", "write", "admin"]
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
_CHECK_EVERY_S = 1.0


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
    """The keys of one installation. Several processes may read the file; commands replace it whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._checked = -_CHECK_EVERY_S
        self._keys: dict[str, ApiKey] = {}

    def keys(self) -> dict[str, ApiKey]:
        """All keys by id; a file that has changed since is read again (looked at once a second)."""
        with self._lock:
            if time.monotonic() - self._checked >= _CHECK_EVERY_S:
                self._refresh()
                self._checked = time.monotonic()
            return self._keys

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
        self._replace({**self._read(), key.id: key})
        return text, key

    def revoke(self, key_id: str) -> None:
        """Remove a key; services that watch the file refuse it within a second."""
        keys = self._read()
        if key_id not in keys:
            raise unknown_name(f"key in {self.path}", key_id, keys)
        del keys[key_id]
        self._replace(keys)

    def _refresh(self) -> None:
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        except FileNotFoundError:
            self._keys, self._stamp = {}, None
            return
        if stamp != self._stamp:
            self._keys, self._stamp = self._read(), stamp

    def _read(self) -> dict[str, ApiKey]:
        try:
            lines = json.loads(self.path.read_text(encoding="utf-8"))["keys"]
            return {line["id"]: _checked(line) for line in lines}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise DataError(f"the file of keys {self.path} cannot be read: {problem}.") from None

    def _replace(self, keys: dict[str, ApiKey]) -> None:
        text = json.dumps({"keys": [asdict(key) for key in keys.values()]}, indent=1)
        unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Nobody but the owner may read it, from the first byte on.
            handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, self.path)
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem


def _checked(line: dict[str, Any]) -> ApiKey:
    key = ApiKey(**{**line, "scopes": tuple(line["scopes"])})
    end_is_valid = key.expires is None or type(key.expires) is int
    if len(key.sha256) != 64 or not set(key.scopes) <= set(SCOPES) or not end_is_valid:
        raise ValueError(f"the key {key.id!r} is damaged")
    return key


class Bucket:
    """Token buckets, one for each name: `burst` requests at once, `rate` in a second. Old buckets are dropped."""

    def __init__(self, rate: float, burst: int, most: int = 10_000) -> None:
        self.rate, self.burst, self.most = rate, burst, most
        self._tokens: dict[str, tuple[float, float]] = {}

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
