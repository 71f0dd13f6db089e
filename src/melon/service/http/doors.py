"""Routes of other systems' clients: a table of handlers, which take the request as those clients send it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from melon.data.ids import Id
from melon.errors import ServiceError
from melon.service.backend import Backend
from melon.service.config import MOST_EVENTS
from melon.service.http.recommendations import path_id
from melon.service.http.strict import Headers, authorise, parsed
from melon.service.ids import checked_text
from melon.service.keys import KeyScope

#: Bytes of a body that was compressed, at most.
_UNPACKED = 16 << 20


@dataclass(frozen=True)
class DoorCall:
    """A request on its way to a handler: the backend, and readers of path, query and body."""

    request: Request
    backend: Backend

    def path(self, name: str) -> str:
        return path_id(self.request.path_params[name])

    def user(self, name: str = "user") -> Id:
        return self.backend.user(self.path(name))

    def item(self, name: str = "item") -> Id:
        return self.backend.item(self.path(name))

    def text(self, name: str) -> str | None:
        return self.request.query_params.get(name) or None

    def number(self, name: str, otherwise: int, most: int) -> int:
        """A whole number of the query; empty is absent."""
        text = self.text(name)
        if text is None:
            return otherwise
        if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > most:
            raise ServiceError(400, "invalid", f"{name} = {ascii(text)[:40]} is not a whole number from 0 to {most}.")
        return int(text)

    async def json(self) -> Any:
        """The body, strictly JSON; one that is compressed by gzip is unpacked."""
        body = await self.request.body()
        if self.request.headers.get("content-encoding", "").lower() == "gzip":
            try:
                unpacking = zlib.decompressobj(wbits=31)
                body = await asyncio.to_thread(unpacking.decompress, body, _UNPACKED)
            except zlib.error:
                raise ServiceError(400, "invalid", "The body is not valid gzip.") from None
            if unpacking.unconsumed_tail:
                raise ServiceError(413, "too_large", f"The body has more than {_UNPACKED} bytes.", hint="Send parts.")
        return await parsed(body)

    async def objects(self) -> list[dict[str, Any]]:
        """The body as a list of objects, at most as many as one request may bring; one object is a list of one."""
        body = await self.json()
        body = [body] if isinstance(body, dict) else body
        if not isinstance(body, list) or not all(isinstance(one, dict) for one in body):
            raise ServiceError(400, "invalid", "The body must be an object, or a list of objects.")
        if len(body) > MOST_EVENTS:
            raise ServiceError(413, "batch_too_large", f"{len(body)} in one request; {MOST_EVENTS} are allowed.")
        return body


Handler = Callable[[DoorCall], Awaitable[Any]]


def add(
    router: APIRouter, method: str, path: str, scope: KeyScope | None, handler: Handler,
    headers: Callable[[Headers], Headers] = lambda headers: headers,
) -> None:  # fmt: skip
    """Have a handler answer a path with 200 and JSON, for keys of a scope; `headers` may say where the key is."""

    async def handle(request: Request) -> JSONResponse:
        if scope is not None:
            given = headers(request.scope["plain_headers"])
            request.scope["key_id"] = authorise(request.app.state, scope, given)
        backend: Backend = request.app.state.backend
        if scope is not None:
            backend.require_ready()
        return JSONResponse(await handler(DoorCall(request, backend)))

    router.add_route(path, handle, methods=[method], include_in_schema=False)


def field(one: dict[str, Any], name: str, index: int) -> str:
    """A text that an object of a list must have."""
    value = one.get(name)
    if not isinstance(value, str):
        raise ServiceError(400, "invalid", f"{name} must be a text.", index=index)
    return checked_text(value, name)
