"""The two requests that nearly all traffic consists of, answered without the general machinery of routes.

Only what is plainly valid is taken here; anything else goes the general way (`http/recommendations.py`,
`http/interactions.py`), which has the same functions behind it, the same shapes and the same errors.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from melon.service.answers import Query
from melon.service.backend import Backend
from melon.service.config import MOST_K
from melon.service.http.interactions import store
from melon.service.http.recommendations import list_for
from melon.service.http.shapes import MOST_WAIT_MS
from melon.service.http.strict import Headers, authorise

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
    """Recognises the two requests. `state` is the application's: keys, limits and backend."""

    def __init__(self, state: Any, body_most: int) -> None:
        self._state, self._body_most = state, body_most
        self._backend: Backend = state.backend

    def take(
        self, scope: MutableMapping[str, Any], headers: Headers, receive: Callable[[], Awaitable[Any]]
    ) -> QuickAnswer | None:
        """The request, if it is one of the two and plainly valid as far as can be seen before its body."""
        path: bytes = scope["raw_path"]
        if b"transfer-encoding" in headers:
            return None
        length = headers.get(b"content-length", b"0")
        if scope["method"] == "GET" and path.startswith(_LISTS) and length == b"0":
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
