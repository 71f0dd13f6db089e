"""`POST /v1/interactions`: one event, a list of them, or one on each line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError

from melon.errors import DataError, ServiceError
from melon.service.backend import Backend
from melon.service.config import MOST_EVENTS
from melon.service.http.errors import answers, invalid
from melon.service.http.shapes import Accepted, EventIn, Refused
from melon.service.http.strict import IN_THREAD, Headers, Route, check_content, needs, parse
from melon.service.ids import checked_text, plain_id, read_time
from melon.service.log.base import Appended, Event

router = APIRouter(route_class=Route, tags=["interactions"])

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
    kind, given = check_content(headers, ("application/json", *_NDJSON)), headers.get(b"idempotency-key")
    key = None if given is None else given.decode("latin-1")
    if key is not None and (len(key) > 200 or not key.isascii() or not key.isprintable() or not key):
        raise ServiceError(400, "invalid", "Idempotency-Key must be 1 to 200 printable ASCII characters.")
    body = await read()
    parts = (backend, kind, body, key, partial)
    events, refused = await asyncio.to_thread(_events, *parts) if len(body) > IN_THREAD else _events(*parts)
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


def _events(
    backend: Backend, kind: str, body: bytes, key: str | None, partial: bool
) -> tuple[list[Event], list[Refused]]:
    """The events of a body, and those that are not valid: without `partial`, one of them refuses all.

    One by one: nothing here keeps the interpreter to itself for long, so that others are answered meanwhile.
    """
    rows, events, refused = list[tuple[int, EventIn]](), list[Event](), list[Refused]()

    def refuse(number: int, problem: ServiceError) -> None:
        if not partial:
            raise problem
        refused.append(Refused(index=number, message=problem.message))

    raw = _raw(kind, body)
    for number, one in enumerate(raw if isinstance(raw, list) else [raw]):
        try:
            rows.append((number, _ONE.validate_python(one)))
        except ValidationError as problem:
            refuse(number, invalid(problem.errors(include_url=False), number if isinstance(raw, list) else None))
    now = backend.log.clock.now()
    for number, row in rows:
        try:
            events.append(_event(backend, row, None if key is None else f"{key}/{number}", now))
        except DataError as problem:
            refuse(number, ServiceError(400, "invalid", str(problem), index=number))
    return events, refused


def _raw(kind: str, body: bytes) -> Any:
    """What a body holds, before its shape is looked at: a list of events, or one."""
    if kind in _NDJSON:
        lines = [line for line in body.split(b"\n") if line.strip()]
        _check_size(len(lines))
        return [_line(number, line) for number, line in enumerate(lines)]
    raw = parse(body)
    _check_size(len(raw) if isinstance(raw, list) else 1)
    return raw


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
