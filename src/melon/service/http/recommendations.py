"""Lists: for one user, for many, for a visitor; similar items, popular items, and why an item stands where it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import StringConstraints
from pydantic_core import to_json

from melon.data.ids import Id
from melon.errors import ServiceError
from melon.learning.model import LiveModel
from melon.service.answers import AnsweredList, about_model
from melon.service.answers import Query as Wanted
from melon.service.backend import Backend
from melon.service.config import MOST_CAPPED, MOST_DIVERSE, MOST_WORK, WORK_OF_A_REQUEST
from melon.service.http.errors import answers
from melon.service.http.shapes import MOST_WAIT_MS, ExplainOut, K, ListOut, ListsIn, ListsOut
from melon.service.http.strict import SLASH, Route, needs, ready_backend
from melon.service.ids import plain_id
from melon.service.log.base import Position
from melon.service.rules.arrange import POOL_FACTOR
from melon.service.rules.request import NO_RULES, Rules
from melon.stream.history import NOBODY
from melon.stream.pairs import pair_keys

router = APIRouter(route_class=Route, tags=["recommendations"])

UserPath = Annotated[str, Path(description="A user's id.", examples=["u17"], min_length=1, max_length=256)]
ItemPath = Annotated[str, Path(description="An item's id.", examples=["i23"], min_length=1, max_length=256)]
ListLengthQuery = Annotated[K, Query(description="Items in the list.")]
FilterSeen = Annotated[bool, Query(description="Leave out what the user has had.")]
_QueryText = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Categories = Annotated[list[_QueryText], Query(max_length=100, description="Only items of one of these categories.")]
Exclude = Annotated[list[_QueryText], Query(max_length=100, description="Items that must not be listed.")]
After = Annotated[int | None, Query(ge=0, le=1 << 62, description="An offset that the model must know.")]
WaitMs = Annotated[int, Query(ge=0, le=MOST_WAIT_MS, description="How long to wait for that, in milliseconds.")]
ForUser = Annotated[str | None, Query(min_length=1, max_length=256, description="Leave out what this user has had.")]
#: Answers that took so much work are encoded in a thread, half of the time.
_IN_THREAD = 2_000
#: Seconds between two looks whether a client is still there.
_LOOK_S = 0.25
T = TypeVar("T")
#: Similar items of a user's last items that `explain` names.
_BECAUSE = 5


@router.get("/v1/recommendations/{user}", response_model=ListOut, responses=answers(), **needs("read"))
async def recommend(
    request: Request,
    user: UserPath,
    k: ListLengthQuery = 10,
    filter_seen: FilterSeen = True,
    category: Categories = [],  # noqa: B006
    exclude: Exclude = [],  # noqa: B006
    after: After = None,
    wait_ms: WaitMs = 300,
    preview: Annotated[bool, Query(description="Somebody else looks: the list does not count as served.")] = False,
) -> Response:
    """The best items for a user, by the newest model; a user who is not known is scored as a newcomer."""
    backend = ready_backend(request)
    known, others = backend.user(path_id(user)), _items(backend, exclude)
    wanted = Wanted(user=known, k=k, filter_seen=filter_seen, rules=_only(category), exclude=others)
    return _json(await list_for(backend, wanted, after, wait_ms, preview=preview))


@router.post("/v1/recommendations", response_model=ListsOut, responses=answers(413, 415, 422), **needs("read"))
async def recommend_many(request: Request, wanted: ListsIn) -> Response:
    """Lists under rules: for many users, of given candidates, or for a visitor's history."""
    started, backend = time.perf_counter(), ready_backend(request)
    if not wanted.users and wanted.history is None:
        raise ServiceError(400, "invalid", "users: give at least one user, or a history.")
    if wanted.users and wanted.history is not None:
        raise ServiceError(400, "invalid", "history: is for a visitor who is not known; leave out users.")
    stale = wanted.after is not None and not await backend.wait_for(wanted.after, wanted.wait_ms / 1000)
    rules = wanted.rules
    work = work_of(wanted)
    for rule, most in (("diversity", MOST_DIVERSE), ("at_most", MOST_CAPPED)):
        if getattr(rules, rule) and wanted.k > most:
            raise ServiceError(400, "too_much_work", f"With {rule}, k is {most} at most, not {wanted.k}.")
    if work > MOST_WORK:
        raise ServiceError(
            400, "too_much_work", f"The request would take {work} units of work; {MOST_WORK} are allowed.",
            hint="Ask for fewer users, a smaller k, or with fewer candidates or rules at once.",
        )  # fmt: skip
    request.app.state.bucket.charge(request.scope["key_id"], work / WORK_OF_A_REQUEST)
    users: list[Id | None] = [backend.user(one) for one in wanted.users]
    history = tuple(backend.item(one) for one in wanted.history or ())
    pins = tuple((pin.at, backend.item(pin.item)) for pin in rules.pin)
    exclude = await backend.reading(lambda: _items(backend, rules.exclude)) if rules.exclude else ()
    named = wanted.candidates
    candidates = None if named is None else await backend.reading(lambda: _items(backend, named))
    queries = [
        Wanted(
            source="history" if wanted.history is not None else "model",
            user=user,
            k=wanted.k,
            filter_seen=wanted.filter_seen,
            rules=rules,
            exclude=exclude,
            pins=pins,
            candidates=candidates,
            items=history,
        )
        for user in (users or [None])
    ]
    lists = await unless_gone(request, backend.lists(queries))

    def encoded() -> bytes:
        results = []
        for query, listed in zip(queries, lists, strict=True):
            began = time.perf_counter()
            content = {**_plain(listed), **_served(backend, listed, query.user), "batch": listed.position.batch}
            results.append(to_json(content))
            if work >= _IN_THREAD:
                # The encoder keeps the interpreter to itself; others come between two lists.
                time.sleep(time.perf_counter() - began)
        rest = to_json({"model": lists[0].about, "stale": stale, "ms": _ms(started)})
        return b'{"results":[' + b",".join(results) + b"]," + rest[1:]

    return _json(encoded() if work < _IN_THREAD else await backend.reading(encoded))


def work_of(wanted: ListsIn) -> int:
    """What lists cost, in items: those listed, those that rules choose from one by one, those named in the request."""
    rules, k = wanted.rules, wanted.k
    chosen = k * k * POOL_FACTOR // 250 if rules.diversity else k * POOL_FACTOR if rules.at_most else 0
    named = (len(rules.exclude) + len(wanted.candidates or ())) // 10
    return max(len(wanted.users), 1) * (k + chosen + named)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do work for a client, and cancel it when the client has gone, or says that it will send nothing more."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # the body was read: what comes next is the end
    try:
        while not task.done():
            if gone.done() or request.scope.get("ended"):
                raise ServiceError(408, "gone", "The client has gone.")
            await asyncio.wait({task, gone}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


@router.get("/v1/similar/{item}", response_model=ListOut, responses=answers(404), **needs("read"))
async def similar(
    request: Request,
    item: ItemPath,
    k: ListLengthQuery = 10,
    user: ForUser = None,
    category: Categories = [],  # noqa: B006
    exclude: Exclude = [],  # noqa: B006
) -> Response:
    """The items that are most similar to one."""
    known = ready_backend(request).item(path_id(item))
    return await _other(request, Wanted(source="similar", items=(known,)), k, user, category, exclude)


@router.get("/v1/popular", response_model=ListOut, responses=answers(), **needs("read"))
async def popular(
    request: Request,
    k: ListLengthQuery = 10,
    user: ForUser = None,
    category: Categories = [],  # noqa: B006
    exclude: Exclude = [],  # noqa: B006
) -> Response:
    """The items that are taken most often now."""
    return await _other(request, Wanted(source="popular"), k, user, category, exclude)


@router.get("/v1/explain/{user}/{item}", response_model=ExplainOut, responses=answers(404), **needs("read"))
async def explain(request: Request, user: UserPath, item: ItemPath) -> JSONResponse:
    """Parts of a score, the item's rank, and what of the user's past speaks for it."""
    backend = ready_backend(request)
    known_user, known_item = backend.user(path_id(user)), backend.item(path_id(item))
    content = await backend.coalescer.look(lambda model, at: _explained(model, at, known_user, known_item))
    if content is None:
        raise ServiceError(404, "not_found", "The model does not know this user or this item yet.")
    events = await backend.from_log(lambda log: log.of_user(plain_id(known_user), 20))
    content["user_events"] = [event.offset for event in events if event.use == "learn"]
    return JSONResponse(content)


async def _other(
    request: Request, wanted: Wanted, k: int, user: str | None, category: list[str], exclude: list[str]
) -> Response:
    backend = ready_backend(request)
    query = Wanted(
        source=wanted.source,
        user=None if user is None else backend.user(user),
        k=k,
        rules=_only(category),
        exclude=_items(backend, exclude),
        items=wanted.items,
    )
    return _json(await list_for(backend, query, None, 0))


async def list_for(
    backend: Backend, wanted: Wanted, after: int | None, wait_ms: int, *, preview: bool = False
) -> bytes:
    """One list, as JSON, by a model that knows the offset `after` if it does in time."""
    started = time.perf_counter()
    stale = after is not None and not await backend.wait_for(after, wait_ms / 1000, wanted.user)
    (listed,) = await backend.lists([wanted])
    served = {"user": plain_id(wanted.user), "recommendation": None} if preview and wanted.user is not None else None
    served = served or _served(backend, listed, wanted.user)
    return to_json({**served, **_plain(listed), "model": listed.about, "stale": stale, "ms": _ms(started)})


def path_id(text: str) -> str:
    """An id out of a path, where a slash inside it has another sign."""
    return text.replace(SLASH, "/")


def _only(categories: list[str]) -> Rules:
    return Rules(filter={"category": categories}) if categories else NO_RULES


def _items(backend: Backend, items: Any) -> tuple[Id, ...]:
    return tuple(backend.item(one) for one in items)


def _plain(listed: AnsweredList) -> dict[str, Any]:
    return {
        "source": listed.source,
        "items": [{"item": plain_id(one.item), "score": one.score, "why": one.why} for one in listed.items],
        "filtered": dict(listed.filtered),
    }


def _served(backend: Backend, listed: AnsweredList, user: Id | None) -> dict[str, Any]:
    """Remember the list for rotation and for what is taken from it."""
    backend.metrics.sources.labels(listed.source).inc()
    if user is None:
        return {"user": None, "recommendation": None}
    maker = str(listed.about.get("challenger", ""))
    name = backend.served.record(user, [one.item for one in listed.items], time.time(), maker)
    return {"user": plain_id(user), "recommendation": name}


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _ms(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 2)


def _explained(model: LiveModel, position: Position, user: Id, item: Id) -> dict[str, Any] | None:
    row, column, n_items = int(model.users.rows([user])[0]), int(model.items.rows([item])[0]), model.rows_of("item")
    if not 0 <= row < model.rows_of("user") or not 0 <= column < n_items:
        return None
    updater, rows, columns = model.updater, np.array([row]), np.array([column])
    scores = updater.score_catalogue(rows, n_items, model.last_time)[0]
    popularity = model.popular.read(np.arange(n_items))[:, 0]
    biases = {}
    for spec in updater.recommender.specs:
        if spec.kind == "bias" and spec.role in ("user", "item"):
            place = rows if spec.role == "user" else columns
            biases[spec.name] = float(updater.recommender.tables[spec.name].gather(place)[0, 0])
    lasts = np.unique(updater.history.of_users.recent(rows).partners[0])
    lasts = lasts[(lasts != NOBODY) & (lasts != column)]
    because: list[dict[str, Any]] = []
    if any(spec.role == "item" and spec.kind == "embedding" for spec in updater.recommender.specs):
        alike = updater.similarities(columns, model.last_time)[0][lasts]
        best = np.argsort(-alike, kind="stable")[:_BECAUSE]
        names = model.items.ids(lasts[best]).tolist()
        because = [
            {"item": plain_id(one), "similarity": float(value)} for one, value in zip(names, alike[best], strict=True)
        ]
    score = float(scores[column])
    return {
        "user": plain_id(user),
        "item": plain_id(item),
        "score": score,
        "parts": {**biases, "personal": score - sum(biases.values())},
        "rank": int((scores > scores[column]).sum()) + 1,
        "items": n_items,
        "popularity_rank": int((popularity > popularity[column]).sum()) + 1,
        "seen": bool(updater.history.seen.contains(pair_keys(rows, columns))[0]),
        "because": because,
        "item_events": int(updater.history.of_items.met(columns)[0]),
        "model": about_model(model, position),
    }
