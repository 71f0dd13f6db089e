"""The routes that clients of Gorse call (`/api/…`), so that an application can change over without being changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi import APIRouter

from melon.data.ids import Id
from melon.errors import DataError, ServiceError
from melon.service.answers import Query
from melon.service.config import MOST_K
from melon.service.gorse import NEVER, feedback_id, item_profile, moment_of, user_profile, written
from melon.service.http.doors import DoorCall, Handler, add, field
from melon.service.ids import checked_text, plain_id, read_time
from melon.service.log.base import Event, StoredEvent
from melon.service.rules.items import Facts
from melon.service.rules.request import NO_RULES, Rules

router = APIRouter()
_N, _MOST_PAGE = 10, 10_000
#: Feedback of one user that is looked at, at most.
_MOST_FEEDBACK = 100_000


# Users.


async def _insert_users(call: DoorCall) -> dict[str, int]:
    users = {}
    for index, one in enumerate(await call.objects()):
        users[str(call.backend.user(field(one, "UserId", index)))] = user_profile(one)
    return await _stored(call, "user", users)


async def _modify_user(call: DoorCall) -> dict[str, int]:
    user = str(call.user())
    known = await _profile(call, "user", user)
    return await _stored(call, "user", {user: {**known, **user_profile({**known, **await _patch(call)})}})


async def _get_user(call: DoorCall) -> dict[str, Any]:
    user = str(call.user())
    return {"UserId": user, **await _profile(call, "user", user)}


async def _get_users(call: DoorCall) -> dict[str, Any]:
    return await _page(call, "user", "Users", lambda one, body: {"UserId": one, **body})


async def _delete_user(call: DoorCall) -> dict[str, int]:
    """The person is forgotten, as by `DELETE /v1/users/{user}`: rows, history, ids in the log."""
    await call.backend.forget(call.user(), unlearn=False)
    return {"RowAffected": 1}


# Items.


async def _insert_items(call: DoorCall) -> dict[str, int]:
    return await _put_items(call, await call.objects())


async def _put_items(call: DoorCall, given: list[dict[str, Any]]) -> dict[str, int]:
    profiles, facts = {}, dict[Id, Facts | None]()
    for index, one in enumerate(given):
        item = call.backend.item(field(one, "ItemId", index))
        try:
            profiles[str(item)], facts[item] = item_profile(one)
        except DataError as problem:
            raise ServiceError(400, "invalid", str(problem), index=index) from None
    if facts:
        await call.backend.put_facts(facts)
    return await _stored(call, "item", profiles)


async def _modify_item(call: DoorCall) -> dict[str, int]:
    return await _put_items(call, [{**await _get_item(call), **await _patch(call), "ItemId": str(call.item())}])


async def _get_item(call: DoorCall) -> dict[str, Any]:
    item = call.item()
    return _shown(call, item, await _profile(call, "item", str(item)))


async def _get_items(call: DoorCall) -> dict[str, Any]:
    return await _page(call, "item", "Items", lambda one, body: _shown(call, call.backend.item(one), body))


async def _delete_item(call: DoorCall) -> dict[str, int]:
    """The item is in no list any more; feedback about it stays in the log."""
    item = call.item()
    await _profile(call, "item", str(item))
    await call.backend.put_facts({item: Facts(available=False)})
    return await _stored(call, "item", {str(item): None})


async def _change_category(call: DoorCall) -> dict[str, int]:
    item, category = await _get_item(call), call.path("category")
    others = [one for one in item["Categories"] if one != category]
    return await _put_items(call, [{**item, "Categories": others + [category] * (call.request.method == "PUT")}])


def _shown(call: DoorCall, item: Id, body: Mapping[str, Any]) -> dict[str, Any]:
    facts = call.backend.facts.get(item) or Facts()
    known = {"Labels": None, "Timestamp": NEVER, "Comment": "", **body}
    return {"ItemId": str(item), "IsHidden": not facts.available, "Categories": list(facts.categories), **known}


# Feedback.


async def _insert_feedback(call: DoorCall) -> dict[str, int]:
    given, backend = await call.objects(), call.backend
    now, events = backend.log.clock.now(), []
    for index, one in enumerate(given):
        try:
            events.append(_event(call, one, index, now))
        except DataError as problem:
            raise ServiceError(400, "invalid", str(problem), index=index) from None
    if events:
        await backend.append(events)
        for kind in ("user", "item"):
            new: dict[str, dict[str, Any]] = {str(getattr(event, kind)): {} for event in events}
            await asyncio.wrap_future(backend.log.put_profiles(kind, new, replace=False))
    return {"RowAffected": len(given)}


def _event(call: DoorCall, one: dict[str, Any], index: int, now: float) -> Event:
    kind, names = field(one, "FeedbackType", index), (field(one, "UserId", index), field(one, "ItemId", index))
    user, item = call.backend.user(names[0]), call.backend.item(names[1])
    given = moment_of(one)
    moment = None if given is None else read_time(given, now)
    use = call.backend.uses.get(kind, "store")  # as Gorse keeps feedback that is neither positive nor read
    recommended = use == "learn" and call.backend.served.take(user, item, None, now)
    event_id = feedback_id(kind, *names, moment)
    return Event(plain_id(user), plain_id(item), moment, kind, event_id, use, recommended)


async def _get_feedback(call: DoorCall) -> dict[str, Any]:
    """Everything, in the order of the log."""
    kind, n = call.request.path_params.get("type"), call.number("n", _N, _MOST_PAGE)
    cursor = call.text("cursor") or call.text("Cursor") or "0"
    if not cursor.isdigit() or len(cursor) > 18:
        raise ServiceError(400, "invalid", "cursor must come from an answer.")
    events = await call.backend.from_log(lambda log: log.page(int(cursor), n, kind))
    return {"Cursor": str(events[-1].offset) if len(events) == n else "", "Feedback": list(map(_told, events))}


async def _of_user(call: DoorCall) -> list[dict[str, Any]]:
    user, wanted = plain_id(call.user()), call.request.path_params
    events = await call.backend.from_log(lambda log: log.of_user(user, _MOST_FEEDBACK))
    if "item" in wanted:
        item = plain_id(call.item())
        events = [event for event in events if event.item == item]
    return [_told(event) for event in events if event.type == wanted.get("type", event.type)]


async def _one_feedback(call: DoorCall) -> dict[str, Any]:
    found = await _of_user(call)
    if not found:
        raise ServiceError(404, "not_found", "There is no such feedback.")
    return found[0]


async def _delete_feedback(call: DoorCall) -> dict[str, Any]:
    kind = call.request.path_params.get("type")
    count = await call.backend.retract(call.user(), call.item(), kind)
    return {"RowAffected": count, "Note": "It is in no history any more; what was learned from it stays in the model."}


def _told(event: StoredEvent) -> dict[str, Any]:
    return {
        "FeedbackType": event.type, "UserId": str(event.user), "ItemId": str(event.item), "Value": 1.0,
        "Timestamp": written(event.time), "Updated": written(event.arrived), "Comment": "",
    }  # fmt: skip


# Lists.


async def _recommend(call: DoorCall) -> list[Any]:
    user, kind = call.user(), call.text("write-back-type")
    if call.text("write-back-delay"):
        raise _not_here("write-back-delay", "the list is written back at once; leave the delay out")
    if kind is not None and call.backend.uses.get(kind) == "learn":
        raise ServiceError(400, "invalid", f"write-back-type {kind!r} is learned: the model would learn its own lists.")
    scores = await _list(call, Query(user=user))
    call.backend.served.record(user, [call.backend.item(one["Id"]) for one in scores], call.backend.log.clock.now())
    if kind is not None and scores:
        use = call.backend.uses.get(checked_text(kind, "write-back-type"), "store")
        items = [plain_id(call.backend.item(one["Id"])) for one in scores]
        await call.backend.append([Event(plain_id(user), item, None, kind, None, use) for item in items])
    if call.request.headers.get("x-api-version") == "2":
        return scores
    return [one["Id"] for one in scores]


async def _scored(call: DoorCall) -> list[Any]:
    return await _list(call, Query(user=call.user()))


async def _session(call: DoorCall) -> list[Any]:
    given = await call.objects()
    when = [moment_of(one) or 0.0 for one in given]
    items = [call.backend.item(field(one, "ItemId", index)) for index, one in enumerate(given)]
    ordered = [items[n] for n in sorted(range(len(items)), key=lambda n: when[n])]
    return await _list(call, Query(source="history", items=tuple(ordered)))


async def _neighbours(call: DoorCall) -> list[Any]:
    try:
        return await _list(call, Query(source="similar", user=_reader(call), items=(call.item(),)))
    except ServiceError as problem:
        if problem.status != 404:
            raise
        return []


async def _popular(call: DoorCall) -> list[Any]:
    name = call.request.path_params.get("name", "popular")
    if name == "latest":
        return await _latest(call)
    if name != "popular":
        raise _not_here(f"the list {name[:40]!r}", "popular and latest are the lists for everybody")
    return await _list(call, Query(source="popular", user=_reader(call)))


async def _latest(call: DoorCall) -> list[Any]:
    n, offset = _window(call)
    wanted, facts = set(_categories(call)), call.backend.facts
    reader, seen = _reader(call), set[int | str]()
    if reader is not None:
        events = await call.backend.from_log(lambda log: log.of_user(plain_id(reader), _MOST_FEEDBACK))
        seen = {event.item for event in events}

    def found() -> list[dict[str, Any]]:
        with facts.lock:
            times = facts.numbers("published")
            slots = np.argsort(-times, kind="stable")[: int((~np.isnan(times)).sum())]
            latest: list[dict[str, Any]] = []
            for slot in slots.tolist():
                one, (item,) = facts.facts_at(slot), facts.book.ids([slot]).tolist()
                fits = one.available and (not wanted or wanted & set(one.categories))
                if fits and plain_id(item) not in seen:
                    latest.append({"Id": str(item), "Score": float(times[slot])})
                if len(latest) == n + offset:
                    break
            return latest[offset:]

    return await call.backend.reading(found)


async def _list(call: DoorCall, query: Query) -> list[dict[str, Any]]:
    n, offset = _window(call)
    wanted = _categories(call)
    rules = Rules(filter={"category": wanted}) if wanted else NO_RULES
    (listed,) = await call.backend.lists(
        [Query(source=query.source, user=query.user, k=n + offset, rules=rules, items=query.items)]
    )
    return [{"Id": str(one.item), "Score": one.score or 0.0} for one in listed.items[offset:]]


def _window(call: DoorCall) -> tuple[int, int]:
    n, offset = call.number("n", _N, MOST_K) or _N, call.number("offset", 0, MOST_K)
    if n + offset > MOST_K:
        raise ServiceError(400, "invalid", f"n + offset = {n + offset}; lists have {MOST_K} items at most.")
    return n, offset


def _categories(call: DoorCall) -> list[str]:
    named = [call.path("category")] if "category" in call.request.path_params else []
    return [checked_text(one, "category") for one in (*named, *call.request.query_params.getlist("category")) if one]


def _reader(call: DoorCall) -> Id | None:
    text = call.text("user-id")
    return None if text is None else call.backend.user(text)


# The rest.


async def _patch(call: DoorCall) -> dict[str, Any]:
    """What a change names; null is no change."""
    return {name: value for one in (await call.objects())[:1] for name, value in one.items() if value is not None}


async def _profile(call: DoorCall, kind: Any, one: str) -> dict[str, Any]:
    body = await call.backend.from_log(lambda log: log.profile(kind, one))
    if body is None:
        raise ServiceError(404, "not_found", f"There is no such {kind}.")
    return {**user_profile({}), **body} if kind == "user" else body


async def _stored(call: DoorCall, kind: Any, profiles: Mapping[str, Mapping[str, Any] | None]) -> dict[str, int]:
    if profiles:
        await asyncio.wrap_future(call.backend.log.put_profiles(kind, profiles))
    return {"RowAffected": len(profiles)}


async def _page(call: DoorCall, kind: Any, name: str, shown: Any) -> dict[str, Any]:
    n, cursor, text = call.number("n", _N, _MOST_PAGE), call.text("cursor") or call.text("Cursor"), call.text("q")
    found = await call.backend.from_log(lambda log: log.profiles(kind, cursor or "", n, text or ""))
    plain = [shown(one, {**user_profile({}), **body} if kind == "user" else body) for one, body in found]
    return {"Cursor": found[-1][0] if len(found) == n and n else "", name: plain}


async def _health(call: DoorCall) -> dict[str, Any]:
    if call.request.url.path.endswith("ready"):
        call.backend.require_ready()
    return {"Ready": call.backend.ready}


async def _absent(call: DoorCall) -> None:
    raise _not_here(f"{call.request.method} {call.request.url.path[:80]}", "GET /openapi.json has melon's own routes")


def _not_here(what: str, hint: str) -> ServiceError:
    return ServiceError(501, "not_implemented", f"melon does not have {what} of Gorse's API.", hint=f"{hint}.")


def _routes() -> dict[str, tuple[Any, Handler]]:
    """Method and path of each handler, with the scope that its key needs; people's data need the scope admin."""
    write: dict[str, Handler] = {
        "POST /user": _insert_users, "POST /users": _insert_users, "PATCH /user/{user}": _modify_user,
        "POST /item": _insert_items, "POST /items": _insert_items, "PATCH /item/{item}": _modify_item,
        "DELETE /item/{item}": _delete_item, "PUT /item/{item}/category/{category}": _change_category,
        "DELETE /item/{item}/category/{category}": _change_category, "POST /feedback": _insert_feedback,
        "PUT /feedback": _insert_feedback, "DELETE /feedback/{user}/{item}": _delete_feedback,
        "DELETE /feedback/{type}/{user}/{item}": _delete_feedback,
    }  # fmt: skip
    admin: dict[str, Handler] = {
        "GET /user/{user}": _get_user, "GET /users": _get_users, "DELETE /user/{user}": _delete_user,
        "GET /feedback": _get_feedback, "GET /feedback/{type}": _get_feedback,
        "GET /feedback/{user}/{item}": _of_user, "GET /feedback/{type}/{user}/{item}": _one_feedback,
        "GET /user/{user}/feedback": _of_user, "GET /user/{user}/feedback/{type}": _of_user,
    }  # fmt: skip
    read: dict[str, Handler] = {
        "GET /item/{item}": _get_item, "GET /items": _get_items,
        "GET /recommend/{user}": _recommend, "GET /recommend/{user}/{category}": _recommend,
        "GET /collaborative-filtering/{user}": _scored, "GET /collaborative-filtering/{user}/{category}": _scored,
        "POST /session/recommend": _session, "POST /session/recommend/{category}": _session,
        "GET /item/{item}/neighbors": _neighbours, "GET /item/{item}/neighbors/{category}": _neighbours,
        "GET /item-to-item/{name}/{item}": _neighbours, "GET /latest": _latest, "GET /latest/{category}": _latest,
        "GET /popular": _popular, "GET /popular/{category}": _popular, "GET /non-personalized/{name}": _popular,
    }  # fmt: skip
    open_to_all: dict[str, Handler] = {"GET /health/live": _health, "GET /health/ready": _health}
    scopes: dict[Any, dict[str, Handler]] = {"write": write, "admin": admin, "read": read, None: open_to_all}
    return {path: (scope, handler) for scope, paths in scopes.items() for path, handler in paths.items()}


for _route, (_scope, _handler) in _routes().items():
    _method, _path = _route.split()
    add(router, _method, f"/api{_path}", _scope, _handler)
    add(router, _method, f"/api{_path}/", _scope, _handler)  # some clients write it so
for _method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    add(router, _method, "/api/{rest:path}", "read", _absent)
