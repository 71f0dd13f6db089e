"""What every request passes: an id, a limit of its size, a path without tricks, a line in the log, a metric."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect

from melon.errors import ServiceError
from melon.service.http.errors import as_service_error, error_response
from melon.service.http.quick import Quick, QuickAnswer
from melon.service.http.strict import SLASH
from melon.service.ids import Tokens
from melon.service.metrics import ServiceMetrics

AsgiScope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger("melon.access")
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
#: How much of a body that is too large is read (in bodies), and for how long, before the answer is sent.
_DRAINED, _DRAIN_S = 4, 5.0


class Gate:
    """The outermost application: what `quick` takes is answered by it, everything else by `app`."""

    def __init__(
        self, app: App, quick: Quick, *, body_most: int, metrics: ServiceMetrics, salt: bytes, log_ids: bool
    ) -> None:
        self._app, self._quick, self._body_most, self._metrics = app, quick, body_most, metrics
        self._salt, self._log_ids, self._tokens = salt, log_ids, Tokens()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Of headers that are repeated, the first counts.
        headers = scope["plain_headers"] = dict(reversed(scope["headers"]))
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = scope["request_id"] = given if _REQUEST_ID.fullmatch(given) else self._tokens.next()
        started, status = time.perf_counter(), 500
        taken = self._quick.take(scope, headers, receive)
        if taken is not None:
            await self._quickly(taken, scope, send, started)
            return

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
            route = getattr(scope.get("route"), "path", "other")
            self._note(scope, route, scope.get("path_params") or {}, status, time.perf_counter() - started)

    async def _quickly(self, taken: QuickAnswer, scope: AsgiScope, send: Send, started: float) -> None:
        status, more = taken.status, list[tuple[bytes, bytes]]()
        try:
            content = await taken.answer()
        except ClientDisconnect:
            return
        except Exception as problem:
            response = error_response(as_service_error(problem), scope["request_id"])
            status, content = response.status_code, bytes(response.body)
            more = [pair for pair in response.raw_headers if pair[0] not in (b"content-length", b"content-type")]
        headers = [
            (b"content-length", b"%d" % len(content)),
            (b"content-type", b"application/json"),
            *more,
            (b"x-request-id", scope["request_id"].encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        self._note(scope, taken.route, taken.parameters, status, time.perf_counter() - started)

    def _check(self, scope: AsgiScope, headers: dict[bytes, bytes]) -> None:
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

    def _note(self, scope: AsgiScope, route: str, parameters: dict[str, Any], status: int, seconds: float) -> None:
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
        for name, value in parameters.items():
            line[name] = value if self._log_ids else hashed(self._salt, str(value))
        _LOG.info("request", extra={"fields": line})


def hashed(salt: bytes, one: str) -> str:
    """An id as the log has it: the same person is the same hash within one installation, and in no other."""
    return hashlib.blake2b(one.encode("utf-8", "surrogatepass"), key=salt, digest_size=8).hexdigest()
