"""Segment's HTTP tracking API (`/v1/track, /v1/batch, /v1/identify, /v1/alias`), which RudderStack's clients send too.

A `track` call about a product is an event; `identify` stores traits; `alias` lets a visitor be a user. Other calls are
answered and left out, as Segment's clients expect.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from fastapi import APIRouter

from melon.data.ids import Id
from melon.errors import DataError, ServiceError
from melon.service.config import MOST_EVENTS
from melon.service.http.doors import DoorCall, add
from melon.service.http.strict import Headers
from melon.service.ids import checked_text, plain_id, read_time, to_seconds
from melon.service.log.base import Event

router = APIRouter()
#: What Segment's names of e-commerce events are here, where no type of the service has the name itself.
_TYPES = {"product_viewed": "view", "product_clicked": "click", "order_completed": "buy"}
#: Properties that may name the item, the first of them that is there.
_ITEMS = ("product_id", "item_id", "productId", "itemId", "sku")
_CALLS = ("track", "identify", "alias")


async def _one(call: DoorCall) -> dict[str, Any]:
    body = await call.json()
    return await _take(call, [{**body, "type": call.request.url.path.rpartition("/")[2]}] if _is(body) else None)


async def _batch(call: DoorCall) -> dict[str, Any]:
    body = await call.json()
    batch = body.get("batch") if _is(body) else None
    if isinstance(batch, list) and len(batch) > MOST_EVENTS:
        raise ServiceError(413, "batch_too_large", f"{len(batch)} calls in one request; {MOST_EVENTS} are allowed.")
    skew = _skew(call, body.get("sentAt") if _is(body) else None)
    return await _take(call, batch if isinstance(batch, list) and all(map(_is, batch)) else None, skew)


def _is(one: Any) -> bool:
    return isinstance(one, dict)


async def _take(call: DoorCall, calls: list[dict[str, Any]] | None, skew: float = 0.0) -> dict[str, Any]:
    """Do what a list of calls says, in its order; one that is not valid refuses all."""
    if calls is None:
        raise ServiceError(400, "invalid", "The body must be a call, or an object with a list of calls as its batch.")
    named = {call.backend.user(one) for one in map(_named, calls) if one}
    users = await call.backend.from_log(lambda log: {plain_id(one): log.user_of(plain_id(one)) for one in named})
    planned: list[tuple[str, Any]] = []
    ignored = 0
    for index, one in enumerate(calls):
        try:
            plan = list(_plan(call, one, users, skew))
        except DataError as problem:
            raise ServiceError(400, "invalid", str(problem), index=index) from None
        planned += plan
        ignored += not plan
    events: list[Event] = []
    for kind, content in planned:
        if kind == "event":
            events.append(content)
            continue
        if events:
            await call.backend.append(events)
            events = []
        if kind == "alias":
            await call.backend.alias(*content)
        else:
            await _identify(call, *content)
    if events:
        await call.backend.append(events)
    return {"success": True, "ignored": ignored}


def _plan(call: DoorCall, one: Mapping[str, Any], users: dict[Any, Any], skew: float) -> Iterator[tuple[str, Any]]:
    """What a call comes to: events, traits, an alias, or nothing."""
    kind, backend = one.get("type"), call.backend
    if kind not in _CALLS:
        return
    user = _person(call, one, users)
    if kind == "alias":
        previous = backend.user(one.get("previousId"))
        users[plain_id(previous)] = plain_id(user)
        yield "alias", (previous, user)
    elif kind == "identify":
        yield "traits", (user, _object(one.get("traits")))
    else:
        yield from (("event", event) for event in _events(call, one, user, skew))


def _person(call: DoorCall, one: Mapping[str, Any], users: Mapping[Any, Any]) -> Id:
    """Whom a call is about; a visitor who turned out to be a user is that user."""
    given = _named(one)
    if not given:
        raise DataError("a call needs a userId or an anonymousId.")
    known = plain_id(call.backend.user(given))
    return call.backend.user(users.get(known, known))


def _named(one: Mapping[str, Any]) -> Any:
    return one.get("userId") or one.get("anonymousId")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _events(call: DoorCall, one: Mapping[str, Any], user: Id, skew: float) -> Iterator[Event]:
    name = one.get("event")
    if not isinstance(name, str):
        raise DataError("a track call needs an event, which is a text.")
    slug = "_".join(name.lower().split())
    kind = next((known for known in (name, slug, _TYPES.get(slug)) if known in call.backend.uses), None)
    if kind is None:
        return
    properties = _object(one.get("properties"))
    products = properties.get("products")
    listed = [part for part in products if isinstance(part, dict)] if isinstance(products, list) else [properties]
    now, message = call.backend.log.clock.now(), one.get("messageId")
    when = one.get("timestamp") or one.get("originalTimestamp")
    moment = None if when is None else read_time(min(to_seconds(when, "timestamp") + skew, now), now)
    for number, product in enumerate(listed):
        item = next((product[name] for name in _ITEMS if product.get(name) not in (None, "")), None)
        if item is None:
            continue
        known, use = call.backend.item(item), call.backend.uses[kind]
        event_id = None if message is None else f"{checked_text(str(message), 'messageId')}"
        event_id = f"{event_id}/{number}" if event_id is not None and isinstance(products, list) else event_id
        recommended = use == "learn" and call.backend.served.take(user, known, None, now)
        yield Event(plain_id(user), plain_id(known), moment, kind, event_id, use, recommended)


async def _identify(call: DoorCall, user: Id, traits: Mapping[str, Any]) -> None:
    name = str(user)
    known = await call.backend.from_log(lambda log: log.profile("user", name)) or {}
    profile = {"Comment": "", **known, "Labels": {**_object(known.get("Labels")), **traits}}
    await asyncio.wrap_future(call.backend.log.put_profiles("user", {name: profile}))


def _skew(call: DoorCall, sent: Any) -> float:
    """How far the client's clock is behind ours, by when it says that it sent the batch."""
    if not isinstance(sent, str):
        return 0.0
    try:
        return call.backend.log.clock.now() - datetime.fromisoformat(sent).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _basic(headers: Headers) -> Headers:
    """The write key is the user name of Basic authentication."""
    scheme, _, coded = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return headers
    try:
        key = base64.b64decode(coded, validate=True).partition(b":")[0]
    except binascii.Error:
        key = b""
    return {**headers, b"x-api-key": key or b"-"}


for _name in _CALLS:
    add(router, "POST", f"/v1/{_name}", "write", _one, _basic)
add(router, "POST", "/v1/batch", "write", _batch, _basic)
