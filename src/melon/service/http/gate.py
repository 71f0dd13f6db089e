"""What every request passes: an id, a limit of its size, a path without tricks, a log line, a metric.

The two requests that nearly all traffic consists of, and answers that many consoles share, are given here without the
general machinery of routes. Only what is plainly valid is taken; anything else goes the general way, which has the same
functions behind it, the same shapes and the same errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from melon.errors import ServiceError
from melon.service.answers import Query
from melon.service.backend import Backend
from melon.service.config import MOST_K
from melon.service.http.errors import as_service_error, error_response
from melon.service.http.interactions import store
from melon.service.http.overview import Sharing, address_of
from melon.service.http.recommendations import list_for
from melon.service.http.shapes import MOST_WAIT_MS
from melon.service.http.strict import SLASH, Headers, authorise
from melon.service.metrics import ServiceMetrics

_LISTS, _EVENTS = b"/v1/recommendations/", b"/v1/interactions"
_USER = re.compile(rb"[\w.:@~-]{1,256}")  # letters and digits of ASCII
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_BOOLS = {"true": True, "false": False}


@dataclass(frozen=True)
class QuickAnswer:
    """A request that is answered here: its route, the parameters of its path, the status and how to get the answer."""

    route: str
    parameters: dict[str, str]
    status: int
    answer: Callable[[], Coroutine[Any, Any, bytes]]


class Quick:
    """Recognises these requests. `state` is the application's: keys, limits and backend."""

    def __init__(self, state: Any, body_most: int) -> None:
        self._state, self._body_most = state, body_most
        self._backend: Backend = state.backend
        self._sharing: Sharing = state.sharing

    def take(
        self, scope: MutableMapping[str, Any], headers: Headers, receive: Callable[[], Awaitable[Any]]
    ) -> QuickAnswer | None:
        """The request, if it is one of these and plainly valid as far as can be seen before its body."""
        path: bytes = scope["raw_path"]
        if b"transfer-encoding" in headers:
            return None
        length = headers.get(b"content-length", b"0")
        if scope["method"] == "GET" and length == b"0":
            if not path.startswith(_LISTS):
                shared = self._sharing.under_way(address_of(scope))
                if shared is None:
                    return None
                return QuickAnswer(scope["path"], {}, 200, lambda: self._shared(scope, headers, shared))
            user, parameters = path[len(_LISTS) :], _parameters(scope["query_string"])
            if parameters is None or not _USER.fullmatch(user):
                return None
            text = user.decode("ascii")
            return QuickAnswer(
                "/v1/recommendations/{user}", {"user": text}, 200, lambda: self._list(scope, headers, text, parameters)
            )
        if scope["method"] != "POST" or path != _EVENTS or scope["query_string"]:
            return None
        if not length.isdigit() or len(length) > 9 or int(length) > self._body_most:
            return None
        return QuickAnswer("/v1/interactions", {}, 202, lambda: self._store(scope, headers, receive))

    async def _shared(self, scope: MutableMapping[str, Any], headers: Headers, shared: asyncio.Future[bytes]) -> bytes:
        scope["key_id"] = authorise(self._state, "read", headers)
        return await asyncio.shield(shared)  # others wait for it

    async def _list(
        self, scope: MutableMapping[str, Any], headers: Headers, user: str, parameters: dict[str, int | bool]
    ) -> bytes:
        scope["key_id"] = authorise(self._state, "read", headers)
        backend = self._backend
        backend.require_ready()
        wanted = Query(
            user=backend.user(user), k=parameters.get("k", 10), filter_seen=bool(parameters.get("filter_seen", True))
        )
        return await list_for(backend, wanted, parameters.get("after"), parameters.get("wait_ms", 300))

    async def _store(
        self, scope: MutableMapping[str, Any], headers: Headers, receive: Callable[[], Awaitable[Any]]
    ) -> bytes:
        scope["key_id"] = authorise(self._state, "write", headers)
        return to_json(await store(self._backend, headers, lambda: _body(receive)))


async def _body(receive: Callable[[], Awaitable[Any]]) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _parameters(query: bytes) -> dict[str, int | bool] | None:
    """Parameters of a list that have one plain form; None where there are others, or their values need a look."""
    parameters: dict[str, int | bool] = {}
    for pair in query.decode("latin-1").split("&") if query else ():
        name, _, text = pair.partition("=")
        value: int | bool | None = None
        if name == "filter_seen":
            value = _BOOLS.get(text)
        elif name in ("k", "after", "wait_ms") and _NUMBER.fullmatch(text):
            value = int(text)
        if value is None or name in parameters:
            return None
        parameters[name] = value
    in_range = 1 <= parameters.get("k", 10) <= MOST_K and parameters.get("wait_ms", 300) <= MOST_WAIT_MS
    return parameters if in_range else None


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
        self._salt, self._log_ids = salt, log_ids

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Of headers that are repeated, the first counts.
        headers = scope["plain_headers"] = dict(reversed(scope["headers"]))
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        plain = _REQUEST_ID.fullmatch(given) and "mk_" not in given  # a key is never logged, wherever it is sent
        request_id = scope["request_id"] = given if plain else secrets.token_hex(8)
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
                raise ServiceError(400, "invalid", "The path is not valid UTF-8.") from None
            if any(SLASH in segment for segment in segments):
                raise ServiceError(400, "invalid", "The path has a control character.")
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
