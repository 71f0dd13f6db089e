"""One JSON shape for every error: `{"error": {"code", "message", "hint", "index", "request"}}`."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Route

from melon.errors import BusyError, DataError, DiskFullError, LearningError, MelonError, ServiceError, SettingsError

_LOG = logging.getLogger("melon.service")
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}


class Problem(BaseModel):
    """What went wrong, and what to do."""

    code: str = Field(examples=["invalid"])
    message: str = Field(examples=["user '' is empty; give 1 to 256 bytes of text."])
    hint: str | None = None
    index: int | None = Field(None, description="Which event or item of a list, from 0.")
    request: str | None = Field(None, description="The request's id, as in the header X-Request-Id.")


class ErrorAnswer(BaseModel):
    """The answer to a request that failed."""

    error: Problem


_ABOUT = {
    400: "The request is not valid; the message names the field.",
    401: "No key, or one that is wrong or has expired.",
    403: "The key lacks the scope of this route, or the address is not allowed without keys.",
    404: "There is no such thing.",
    409: "It is not in a state in which this is possible.",
    413: "The body is too large.",
    415: "The content type is not supported.",
    422: "The rules have a field that does not exist.",
    429: "Too many requests, or too many events wait for the disk; see Retry-After.",
    431: "The headers or the address are too long.",
    503: "Not ready, or too many requests wait; see Retry-After.",
    507: "The disk is full; nothing of this request was stored.",
}


def answers(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for the OpenAPI."""
    usual = (400, 401, 403, 429, 431, 503)
    return {code: {"model": ErrorAnswer, "description": _ABOUT[code]} for code in sorted({*usual, *codes})}


def error_response(problem: ServiceError, request_id: str | None) -> JSONResponse:
    content = {"code": problem.code, "message": problem.message}
    if problem.hint is not None:
        content["hint"] = problem.hint
    if problem.index is not None:
        content["index"] = problem.index  # type: ignore[assignment]
    if request_id is not None:
        content["request"] = request_id
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": content}, problem.status, headers)


def as_service_error(problem: BaseException) -> ServiceError:
    """Any error as one that can be sent; what is our fault says nothing about the inside."""
    if isinstance(problem, ServiceError):
        return problem
    if isinstance(problem, HTTPException):
        if isinstance(problem.__cause__, ServiceError):
            return problem.__cause__
        code = _CODES.get(problem.status_code, "invalid")
        hint = "GET /openapi.json has all routes." if problem.status_code == 404 else None
        return ServiceError(problem.status_code, code, f"{problem.detail}.", hint=hint)
    if isinstance(problem, RequestValidationError):
        return invalid(problem.errors())
    if isinstance(problem, BusyError):
        return ServiceError(429, "too_many_events", str(problem), hint="Post the same events again.", retry_after=1)
    if isinstance(problem, DiskFullError):
        return ServiceError(507, "disk_full", str(problem), hint="Post the same events again later.", retry_after=5)
    if isinstance(problem, DataError | SettingsError):
        return ServiceError(400, "invalid", str(problem))
    if isinstance(problem, LearningError):
        return ServiceError(503, "model_broken", str(problem), retry_after=5)
    if isinstance(problem, MelonError):
        return ServiceError(503, "unavailable", str(problem), retry_after=5)
    _LOG.error("a request failed", exc_info=problem)
    return ServiceError(500, "internal", "Something went wrong in the service; its log has the details.")


def invalid(errors: Any, index: int | None = None) -> ServiceError:
    """The first error of a validation, with the place that it is about."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    numbers = [part for part in first["loc"] if isinstance(part, int)]
    kind, message = first["type"], str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    where = ".".join(place) or "the body"
    if kind == "json_invalid":
        return ServiceError(400, "invalid_json", f"The body is not valid JSON: {first['ctx']['error']}.")
    unknown_rule = kind == "extra_forbidden" and "rules" in place
    status, code = (422, "unknown_rule") if unknown_rule else (400, "invalid")
    message = "there is no such field" if kind == "extra_forbidden" else message
    return ServiceError(status, code, f"{where}: {message}.", index=numbers[0] if index is None and numbers else index)


def install(app: FastAPI) -> None:
    """Have every error answered in the one shape."""

    async def handle(request: Request, problem: Exception) -> JSONResponse:
        response = error_response(as_service_error(problem), request.scope.get("request_id"))
        if response.status_code == 405:
            response.headers["Allow"] = ", ".join(_methods(request))
        return response

    for kind in (HTTPException, RequestValidationError, MelonError, Exception):
        app.add_exception_handler(kind, handle)


def _methods(request: Request) -> list[str]:
    """The methods that a path knows, over all routes."""
    path = request.scope["path"]
    routes: list[Route] = [route for route in request.app.state.routes if route.path_regex.match(path)]
    return sorted({method for route in routes for method in route.methods or ()})
