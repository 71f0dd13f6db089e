"""`POST /v1/interactions`: one event, a list of them, or one on each line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError

from melon.errors import DataError, ServiceError
from melon.service.backend import Backend
from melon.service.config import MOST_EVENTS
from melon.service.http.errors import answers, invalid
from melon.service.http.shapes import Accepted, EventIn, Refused
from melon.service.http.strict import Headers, Route, content_type, needs, parse, parsed
from melon.service.ids import checked_text, plain_id, read_time
from melon.service.log.base import Appended, Event

router = APIRouter(route_class=Route, tags=["interactions"])

_MANY: TypeAdapter[list[EventIn]] = TypeAdapter(list[EventIn])
_ONE = TypeAdapter(EventIn)
_NDJSON = ("application/x-ndjson", "application/jsonl")
_EXAMPLE = EventIn.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index]
_SCHEMA = {"$ref": "#/components/schemas/EventIn"}
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"anyOf": [_SCHEMA, {"type": "array", "items": _SCHEMA, "maxItems": MOST_EVENTS}]},
            "examples": {"one": {"value": _EXAMPLE}, "list": {"value": [_EXAMPLE]}},
        },
        "application/x-ndjson": {
            "schema": {"type": "string", "description": "One event on each line."},
            "example": '{"user": "u17", "item": "i23"}\n{"user": "u17", "item": "i24"}\n',
        },
    },
}


@router.post(
    "/v1/interactions",
    status_code=202,
    response_model=Accepted,
    response_model_exclude_none=True,
    responses=answers(413, 415, 507),
    **needs("write", requestBody=_BODY, parameters=[
        {
            "name": "Idempotency-Key", "in": "header", "required": False,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[ -~]+$"},
            "description": "Event n of this request gets the id KEY/n, so that the request can be repeated.",
        }
    ]),
)  # fmt: skip
async def post_interactions(
    request: Request,
    partial: bool = Query(False, description="Store the events that are valid, and list the others."),
) -> JSONResponse:
    """Store interactions. The answer comes when they are synced to disk; they are learned within a second."""
    content = await store(request.app.state.backend, request.scope["plain_headers"], request.body, partial)
    return JSONResponse(content, 202)


async def store(
    backend: Backend, headers: Headers, read: Callable[[], Awaitable[bytes]], partial: bool = False
) -> dict[str, Any]:
    """Store the events of a body; what is answered when they are synced."""
    backend.require_ready()
    rows, refused = await _rows(content_type(headers), read, partial)
    given = headers.get(b"idempotency-key")
    events = _events(backend, rows, None if given is None else given.decode("latin-1"), refused, partial)
    done = await backend.append(events) if events else Appended(0, 0, 0, backend.log.offset)
    content: dict[str, Any] = {
        "accepted": done.accepted,
        "duplicates": done.duplicates,
        "conflicting": done.conflicting,
        "offset": done.offset,
    }
    if partial:
        content["refused"] = [one.model_dump() for one in sorted(refused, key=lambda one: one.index)]
    return content


async def _rows(
    kind: str, read: Callable[[], Awaitable[bytes]], partial: bool
) -> tuple[list[tuple[int, EventIn]], list[Refused]]:
    """The events of a body with their numbers, and those that have not the right shape."""
    if kind in _NDJSON:
        lines = (await read()).split(b"\n")
        numbered = [line for line in lines if line.strip()]
        _check_size(len(numbered))
        raw: Sequence[Any] = [_line(number, line) for number, line in enumerate(numbered)]
    elif kind == "application/json":
        body = await parsed(await read())
        raw = body if isinstance(body, list) else [body]
        _check_size(len(raw))
        if not isinstance(body, list):
            partial = False
    else:
        raise ServiceError(415, "unsupported_media_type", f"Send application/json or {_NDJSON[0]}.")
    if not partial:
        try:
            return list(enumerate(_MANY.validate_python(raw))), []
        except ValidationError as problem:
            raise invalid(problem.errors(include_url=False)) from None
    rows, refused = [], []
    for number, one in enumerate(raw):
        try:
            rows.append((number, _ONE.validate_python(one)))
        except ValidationError as problem:
            refused.append(Refused(index=number, message=invalid(problem.errors(include_url=False)).message))
    return rows, refused


def _line(number: int, line: bytes) -> Any:
    try:
        return parse(line)
    except ServiceError as problem:
        raise ServiceError(400, problem.code, problem.message.replace("The body", "The line"), index=number) from None


def _check_size(events: int) -> None:
    if events > MOST_EVENTS:
        raise ServiceError(
            413, "batch_too_large", f"{events} events in one request; {MOST_EVENTS} are allowed.", hint="Send parts."
        )


def _events(
    backend: Backend, rows: list[tuple[int, EventIn]], key: str | None, refused: list[Refused], partial: bool
) -> list[Event]:
    if key is not None and (len(key) > 200 or not key.isascii() or not key.isprintable() or not key):
        raise ServiceError(400, "invalid", "Idempotency-Key must be 1 to 200 printable ASCII characters.")
    now, events = backend.log.clock.now(), []
    for number, row in rows:
        try:
            events.append(_event(backend, row, None if key is None else f"{key}/{number}", now))
        except DataError as problem:
            if not partial:
                raise ServiceError(400, "invalid", str(problem), index=number) from None
            refused.append(Refused(index=number, message=str(problem)))
    return events


def _event(backend: Backend, row: EventIn, event_id: str | None, now: float) -> Event:
    use = backend.uses.get(row.type)
    if use is None:
        raise DataError(f"type {row.type[:40]!r} is not known to this service, which takes {', '.join(backend.uses)}.")
    user, item = backend.user(row.user), backend.item(row.item)
    if row.event_id is not None:
        event_id = checked_text(row.event_id, "event_id")
    recommendation = None if row.recommendation is None else checked_text(row.recommendation, "recommendation")
    moment = None if row.time is None else read_time(row.time, now)
    recommended = use == "learn" and backend.served.take(user, item, recommendation, now)
    return Event(plain_id(user), plain_id(item), moment, row.type, event_id, use, recommended, recommendation)
