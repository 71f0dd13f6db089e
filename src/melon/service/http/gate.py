"""What every request passes: an id, a limit of its size, a path without tricks, a line in the log, a metric."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

from melon.errors import ServiceError
from melon.service.http.errors import error_response
from melon.service.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger("melon.access")
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
#: Stands for a slash inside an id, which the path has as %2F. Ids have no control characters, so nothing is lost.
SLASH = "\x1f"
#: How much of a body that is too large is read (in bodies), and for how long, before the answer is sent.
_DRAINED, _DRAIN_S = 4, 5.0


class Gate:
    """The outermost application."""

    def __init__(self, app: App, *, body_most: int, metrics: Metrics, salt: bytes, log_ids: bool) -> None:
        self._app, self._body_most, self._metrics = app, body_most, metrics
        self._salt, self._log_ids = salt, log_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = scope["request_id"] = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        started, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._body_most:
                raise self._too_large()
            return message

        try:
            self._check(scope, headers)
            await self._app(scope, limited, answer)
        except ServiceError as problem:
            if problem.status == 413:
                await self._drain(receive)
            await error_response(problem, request_id)(scope, receive, answer)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_most:
            raise self._too_large()
        raw: bytes = scope.get("raw_path") or b""
        if b"%" in raw:
            try:
                segments = [unquote_to_bytes(part).decode("utf-8") for part in raw.split(b"/")]
            except UnicodeDecodeError:
                raise ServiceError(400, "invalid", "The path is no valid UTF-8.") from None
            scope["path"] = "/".join(segment.replace("/", SLASH) for segment in segments)

    async def _drain(self, receive: Receive) -> None:
        """Read on for a while: a client that is still sending would not see an answer."""
        left, more = _DRAINED * self._body_most, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while more and left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    more = message["type"] == "http.request" and message.get("more_body", False)

    def _too_large(self) -> ServiceError:
        return ServiceError(
            413, "too_large", f"The body has more than {self._body_most} bytes.", hint="Send it in parts."
        )

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.request_seconds.labels(route, str(status)).observe(seconds)
        if not _LOG.isEnabledFor(logging.INFO):
            return
        line = {
            "route": route,
            "method": scope["method"],
            "status": status,
            "ms": round(seconds * 1000, 2),
            "request": scope["request_id"],
            "key": scope.get("key_id", "-"),
        }
        for name, value in (scope.get("path_params") or {}).items():
            line[name] = value if self._log_ids else hashed(self._salt, str(value))
        _LOG.info("request", extra={"fields": line})


def hashed(salt: bytes, one: str) -> str:
    """An id as the log has it: the same person is the same hash within one installation, and in no other."""
    return hashlib.blake2b(one.encode("utf-8", "surrogatepass"), key=salt, digest_size=8).hexdigest()


class JsonLines(logging.Formatter):
    """Log records as JSON, one to a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)
