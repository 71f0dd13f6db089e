"""Routes that check the key before the body is read, and bodies that are exactly JSON."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, get_origin

import numpy as np
from fastapi import Request, Response
from fastapi.routing import APIRoute

from melon.errors import ServiceError
from melon.service.backend import Backend
from melon.service.config import LOOPBACK, MOST_DEPTH, MOST_VALUES
from melon.service.keys import KeyScope
from melon.service.log.files import TOKEN

#: Stands for a slash inside an id, which the path has as %2F. Ids have no control characters, so nothing is lost.
SLASH = "\x1f"
#: Headers by name in small letters; of those that are repeated, the first.
Headers = Mapping[bytes, bytes]
#: Headers by which a proxy says that somebody else asks.
_FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
#: Larger bodies are parsed in a thread, so that others need not wait.
IN_THREAD = 1 << 16
#: A string, closed or cut off by the end of the body. Every match consumes what it scanned, so one pass is linear.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


class StrictRequest(Request):
    """A request whose JSON is strict: UTF-8, no NaN, no repeated names, at most 16 deep."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = await parsed(await self.body())
        return self._json


class Route(APIRoute):
    """A route with a scope (`x-scope` of its OpenAPI entry); query parameters that it does not know are refused."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        scope: KeyScope | None = (self.openapi_extra or {}).get("x-scope")
        known = {field.alias for field in self.dependant.query_params}
        lists = {field.alias for field in self.dependant.query_params if _takes_many(field)}
        takes_json = self.body_field is not None

        async def handle(request: Request) -> Response:
            if scope is not None:
                request.scope["key_id"] = authorise(request.app.state, scope, request.scope["plain_headers"])
            for name in request.query_params:
                if name not in known:
                    raise ServiceError(400, "invalid", f"{ascii(name)[:60]}: there is no such parameter.")
                if name not in lists and len(request.query_params.getlist(name)) > 1:
                    raise ServiceError(400, "invalid", f"{name}: is given more than once.")
            if takes_json:
                check_content(request.scope["plain_headers"], ("application/json",))
            return await inner(StrictRequest(request.scope, request.receive))

        return handle


def _takes_many(field: Any) -> bool:
    return get_origin(field.field_info.annotation) is list


def ready_backend(request: Request) -> Backend:
    """What answers a request, once the model is there."""
    backend: Backend = request.app.state.backend
    backend.require_ready()
    return backend


def needs(scope: KeyScope, **more: Any) -> dict[str, Any]:
    """The OpenAPI entry of a route that needs a key with a scope."""
    return {"openapi_extra": {"x-scope": scope, "security": [{"key": []}], **more}}


def check_content(headers: Headers, kinds: Sequence[str]) -> str:
    """The type of a body, if it is one of these and not compressed."""
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if kind not in kinds or headers.get(b"content-encoding", b"identity") != b"identity":
        raise ServiceError(415, "unsupported_media_type", f"The body must be {' or '.join(kinds)}, not compressed.")
    return kind


def authorise(state: Any, scope: KeyScope, headers: Headers) -> str:
    """The id of the key, if it has the scope; "-" where there never were keys and the request comes by loopback.

    Administration needs a key or, from this machine, the token that only the service's user can read.
    """
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    text = (headers.get(b"x-api-key") or (token if scheme.lower() == b"bearer" else b"")).decode("latin-1")
    local = hmac.compare_digest(text.encode(), state.token.encode())
    if not state.keys.required:
        host = headers.get(b"host", b"").decode("latin-1").rsplit(":", 1)[0].strip("[]")
        # A page of the web must not reach us through a name that it had pointed to this machine, nor a proxy's client.
        if state.settings.host not in LOOPBACK or host not in LOOPBACK or not _FORWARDED.isdisjoint(headers):
            raise ServiceError(403, "loopback_only", "Without keys, this service answers on loopback only.")
        # A browser says which page asks: one of another origin, which anybody may have written, must not.
        origin = headers.get(b"origin", b"").partition(b"://")[2]
        site = headers.get(b"sec-fetch-site", b"none")
        if (b"origin" in headers and origin != headers.get(b"host")) or site not in (b"none", b"same-origin"):
            raise ServiceError(403, "foreign_origin", "Without keys, pages of other origins are not answered.")
        if scope == "admin" and not local:
            raise ServiceError(
                403, "token_needed", "Without keys, administration needs the token of this service's user.",
                hint=f"Send the content of {TOKEN} in the data folder: Authorization: Bearer mk_local_….",
            )  # fmt: skip
        name = "-"
    elif local and scope == "admin" and state.settings.host in LOOPBACK and _FORWARDED.isdisjoint(headers):
        name = "local"
    else:
        key = state.keys.find(text) if text else None
        now = time.time()
        if state.keys.problem is not None:
            raise ServiceError(503, "keys_unreadable", "This service cannot read its keys.", retry_after=10)
        if key is None or (key.expires is not None and now >= key.expires):
            raise ServiceError(401, "unauthorised", "A valid key is needed.", hint="Send Authorization: Bearer mk_….")
        if not key.allows(scope, now):
            raise ServiceError(403, "forbidden", f"This key lacks the scope {scope!r}.")
        name = key.id
    wait = state.bucket.wait_s(name, time.monotonic())
    if wait:
        raise ServiceError(429, "too_many_requests", "This key makes too many requests.", retry_after=int(wait) + 1)
    return name


async def parsed(body: bytes) -> Any:
    """The same without holding up others for long."""
    return await asyncio.to_thread(parse, body) if len(body) > IN_THREAD else parse(body)


def parse(body: bytes) -> Any:
    """Strict JSON; a nested or malformed body, or one of very many values, is refused before it costs much."""
    if body.count(b",") > MOST_VALUES:
        raise ServiceError(
            413, "too_many_values", f"The body has more than {MOST_VALUES} values.", hint="Send it in parts."
        )
    if body.count(b"[") + body.count(b"{") > MOST_DEPTH:
        brackets = np.frombuffer(_STRINGS.sub(b"", body), dtype=np.uint8)
        steps = np.isin(brackets, (91, 123)).astype(np.int32) - np.isin(brackets, (93, 125)).astype(np.int32)
        if len(steps) and int(np.cumsum(steps).max()) > MOST_DEPTH:
            raise ServiceError(400, "invalid_json", f"The body is nested more than {MOST_DEPTH} deep.")
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_distinct)
    except UnicodeDecodeError:
        raise ServiceError(400, "invalid_json", "The body is not valid UTF-8.") from None
    except (ValueError, RecursionError) as problem:
        raise ServiceError(400, "invalid_json", f"The body is not valid JSON: {str(problem)[:200]}.") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("an object has the same name twice")
    return content
