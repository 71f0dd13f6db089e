"""The console at `/` and the API reference at `/docs`: files of this package, which ask nobody but this service."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from melon.errors import ServiceError
from melon.service.http.strict import Route

router = APIRouter(route_class=Route, include_in_schema=False)

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"


@cache
def console_files() -> dict[str, bytes]:
    """The files of the console by name."""
    folder = files("melon.service") / "console"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES}


@router.get("/")
async def page(request: Request) -> Response:
    """The console."""
    return _sent(request, "index.html")


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The API reference, made in the browser from the OpenAPI."""
    return _sent(request, "reference.html")


@router.get("/console/{name}")
async def file(request: Request, name: Annotated[str, Path(max_length=64)]) -> Response:
    """A script, style or picture of the two pages."""
    if name not in console_files():
        raise ServiceError(404, "not_found", f"The console has no file {ascii(name)[:60]}.")
    return _sent(request, name)


def _sent(request: Request, name: str) -> Response:
    content = console_files()[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {
        "Content-Security-Policy": _POLICY,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
        "ETag": tag,
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
