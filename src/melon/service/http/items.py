"""Facts about items: `PUT`, `PATCH`, `GET`, `DELETE /v1/items/{item}`, and many at once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse

from melon.data.ids import MOST_EXACT_FLOAT, Id
from melon.errors import DataError, ServiceError
from melon.service.backend import Backend
from melon.service.config import MOST_EVENTS
from melon.service.http.errors import answers
from melon.service.http.recommendations import ItemPath, path_id
from melon.service.http.shapes import MOST_ATTRIBUTES, FactsIn, FactsOut, ItemIn, Stored
from melon.service.http.strict import Route, needs, ready_backend
from melon.service.ids import checked_text, plain_id, to_seconds
from melon.service.rules.items import TIMES, Facts

router = APIRouter(route_class=Route, tags=["items"])
_WRITES = answers(413, 415, 507)


@router.put("/v1/items/{item}", response_model=Stored, responses=_WRITES, **needs("write"))
async def put_item(request: Request, item: ItemPath, facts: FactsIn) -> JSONResponse:
    """Replace everything that is known of an item."""
    backend = ready_backend(request)
    return await _store(backend, {backend.item(path_id(item)): _facts(facts.model_dump())})


@router.post("/v1/items", response_model=Stored, responses=_WRITES, **needs("write"))
async def put_items(
    request: Request, items: Annotated[list[ItemIn], Body(min_length=1, max_length=MOST_EVENTS)]
) -> JSONResponse:
    """Replace the facts of many items; one that is not valid refuses all."""
    backend = ready_backend(request)

    def read() -> dict[Id, Facts | None]:
        changes = dict[Id, Facts | None]()
        for number, one in enumerate(items):
            try:
                changes[backend.item(one.item)] = _facts(one.model_dump(exclude={"item"}))
            except DataError as problem:
                raise ServiceError(400, "invalid", str(problem), index=number) from None
        return changes

    return await _store(backend, await backend.reading(read))


@router.patch("/v1/items/{item}", response_model=Stored, responses={**_WRITES, **answers(404)}, **needs("write"))
async def patch_item(request: Request, item: ItemPath, facts: FactsIn) -> JSONResponse:
    """Change some facts of an item."""
    backend = ready_backend(request)
    known = backend.item(path_id(item))
    given = facts.model_dump(exclude_unset=True)

    def change(before: Facts | None) -> Facts:
        if before is None:
            raise _unknown()
        attributes = {**before.attributes, **(given.get("attributes") or {})}
        return _facts({**before.model_dump(), **given, "attributes": attributes})

    return JSONResponse({"stored": 1, "version": await backend.change_facts(known, change)})


@router.get("/v1/items/{item}", response_model=FactsOut, responses=answers(404), **needs("read"))
async def get_item(request: Request, item: ItemPath) -> JSONResponse:
    """What is known of an item."""
    backend = ready_backend(request)
    known = backend.item(path_id(item))
    return JSONResponse({"item": plain_id(known), **_known(backend, known).plain()})


@router.delete("/v1/items/{item}", response_model=Stored, responses=answers(404, 507), **needs("write"))
async def delete_item(request: Request, item: ItemPath) -> JSONResponse:
    """Remove the facts of an item. The model still knows it; set `available` to false to hide it."""
    backend = ready_backend(request)
    known = backend.item(path_id(item))
    _known(backend, known)
    return await _store(backend, {known: None})


async def _store(backend: Backend, changes: dict[Id, Facts | None]) -> JSONResponse:
    version = await backend.put_facts(changes)
    return JSONResponse({"stored": len(changes), "version": version})


def _known(backend: Backend, item: Id) -> Facts:
    facts = backend.facts.get(item)
    if facts is None:
        raise _unknown()
    return facts


def _unknown() -> ServiceError:
    return ServiceError(404, "not_found", "This item has no facts.")


def _facts(content: dict[str, Any]) -> Facts:
    """Facts as they are stored: texts checked, times as seconds, numbers that a float holds exactly."""
    categories = tuple(dict.fromkeys(checked_text(one, "category") for one in content["categories"] or ()))
    owner = None if content["owner"] is None else checked_text(str(content["owner"]), "owner")
    times = {name: None if content[name] is None else to_seconds(content[name], name) for name in TIMES}
    attributes = {name: value for name, value in (content["attributes"] or {}).items() if value is not None}
    if len(attributes) > MOST_ATTRIBUTES:
        raise DataError(f"the item would have {len(attributes)} attributes; {MOST_ATTRIBUTES} are allowed.")
    for name, value in attributes.items():
        if checked_text(name, "attribute") in TIMES:
            raise DataError(f"attribute {name!r} is a fact itself; give it outside of attributes.")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and abs(one) > MOST_EXACT_FLOAT:
                raise DataError(f"attribute {name!r}: {one} is too large to be compared exactly; give it as a text.")
            if isinstance(one, str) and one:
                checked_text(one, f"attribute {name!r}:")
    return Facts(
        categories=categories,
        available=content["available"] is not False,
        owner=owner,
        published=times["published"],
        expires=times["expires"],
        attributes=attributes,
    )
