"""Status, quality, the stream of batches, a user's history, forgetting, export, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from melon.errors import ServiceError
from melon.service.backend import Backend
from melon.service.config import FORMER
from melon.service.http.errors import answers
from melon.service.http.overview import Settled, Window, seconds_of
from melon.service.http.recommendations import UserPath, path_id
from melon.service.http.shapes import BatchesOut, Health, HistoryOut, Job, QualityOut, StatusOut
from melon.service.http.strict import Route, needs, ready_backend
from melon.service.ids import plain_id
from melon.service.learner.challenger import compared_by
from melon.service.learner.quality import between
from melon.service.log.base import CONTROLS, LoggedStep
from melon.service.log.erasure import VERIFIED
from melon.service.log.exchange import exported
from melon.service.metrics import quality_between, told

router = APIRouter(route_class=Route)
_MOST_OFFSET = 1 << 62
_EXPORTED_AT_ONCE = 1_000
_PING_S = 15.0
#: Messages of the stream are sent together, this many seconds apart.
_TOGETHER_S = 0.25


def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


@router.get("/v1/status", response_model=StatusOut, responses=answers(), tags=["service"], **needs("read"))
async def status(request: Request) -> JSONResponse:
    """Log, model, quality and freshness in one look."""
    backend = _backend(request)
    return JSONResponse(await backend.status())


@router.get("/v1/quality", response_model=QualityOut, responses=answers(), tags=["service"], **needs("read"))
async def quality(request: Request, window: Window = "1h") -> JSONResponse:
    """How often what was taken stood among the first, for the served model and its baselines, on the same events."""
    backend, seconds = _backend(request), seconds_of(window)
    since = time.time() - seconds
    content = await backend.from_steps(
        lambda steps: quality_between(steps.since(since), steps.last()), quality_between(None, None)
    )
    beside = await backend.reading(lambda: compared_by(backend.settings.folder, [since, time.time()], Settled().get))
    content["models"] |= {name: told(between(later, earlier)) for name, ((earlier, later), _) in beside.items()}
    return JSONResponse({"window_s": float(seconds), **content})


@router.get(
    "/v1/stream",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **answers()},
    tags=["service"],
    response_class=StreamingResponse,
    **needs("read"),
)
async def stream(
    request: Request,
    most: Annotated[int, Query(ge=0, le=_MOST_OFFSET, description="Messages after which it ends; 0 never ends.")] = 0,
) -> StreamingResponse:
    """Server-sent events: a message for each batch that this process has applied, sent four times a second."""
    backend = ready_backend(request)
    listening = contextlib.ExitStack()
    queue: asyncio.Queue[str] = listening.enter_context(backend.listening())

    async def messages() -> AsyncIterator[str]:
        with listening:
            yield f"event: status\ndata: {json.dumps(await backend.status())}\n\n"
            sent, quiet = 1, 0.0
            while not backend.stopping and (not most or sent < most):
                # Batches of a while go out together: a listener costs the same however often the model learns.
                await asyncio.sleep(_TOGETHER_S)
                waiting = [
                    queue.get_nowait() for _ in range(min(queue.qsize(), most - sent if most else queue.qsize()))
                ]
                sent, quiet = sent + len(waiting), 0.0 if waiting else quiet + _TOGETHER_S
                if waiting:
                    yield "".join(waiting)
                elif quiet >= _PING_S:
                    quiet = 0.0
                    yield ": still here\n\n"

    return StreamingResponse(messages(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@router.get(
    "/v1/users/{user}/history", response_model=HistoryOut, responses=answers(), tags=["users"], **needs("admin")
)
async def history(
    request: Request,
    user: UserPath,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    before: Annotated[int | None, Query(ge=0, le=_MOST_OFFSET, description="`next` of the page before.")] = None,
) -> JSONResponse:
    """A user's events, newest first."""
    backend = ready_backend(request)
    known = plain_id(backend.user(path_id(user)))
    events = await backend.from_log(lambda log: log.of_user(known, limit, before))
    fields = ("offset", "item", "time", "type", "use", "event_id")
    lines = [{name: getattr(event, name) for name in fields} for event in events]
    next_page = events[-1].offset if len(events) == limit else None
    return JSONResponse({"user": known, "events": lines, "next": next_page})


@router.delete(
    "/v1/users/{user}", status_code=202, response_model=Job, responses=answers(507), tags=["users"], **needs("admin")
)
async def forget(
    request: Request,
    user: UserPath,
    unlearn: Annotated[bool, Query(description="Also replay the model without the person's events.")] = False,
) -> JSONResponse:
    """Forget a person: the events lose their ids, the user's row and history are removed, at this place in the log."""
    backend = ready_backend(request)
    offset = await backend.forget(backend.user(path_id(user)), unlearn=unlearn)
    return JSONResponse(_job("forget", offset, backend, erased=False), 202)


@router.get("/v1/jobs/{job}", response_model=Job, responses=answers(404), tags=["users"], **needs("admin"))
async def job(
    request: Request,
    job: Annotated[str, Path(pattern=rf"^({'|'.join(CONTROLS)})-[0-9]{{1,18}}$", examples=["forget-184468"])],
) -> JSONResponse:
    """How far a job is."""
    backend = ready_backend(request)
    kind, _, number = job.partition("-")
    control = await backend.from_log(lambda log: log.control_after(int(number) - 1))
    if control is None or control.offset != int(number) or control.kind != kind:
        raise ServiceError(404, "not_found", f"There is no job {job!r}.")
    erased = kind != "forget" or control.erased == VERIFIED
    if erased and control.body.get("unlearn"):
        erased = control.offset <= await backend.from_steps(lambda steps: steps.unlearned(), 0)
    return JSONResponse(_job(kind, int(number), backend, erased=erased))


@router.get("/v1/batches", response_model=BatchesOut, responses=answers(), tags=["service"], **needs("admin"))
async def batches(
    request: Request,
    status: Annotated[Literal["quarantined"], Query(description="Which batches.")] = "quarantined",  # noqa: ARG001
) -> JSONResponse:
    """Batches that were quarantined because learning them would have done harm."""
    steps: list[LoggedStep] = await _backend(request).from_steps(lambda steps: steps.quarantined(), [])
    names = {"number": "batch", "first": "first", "last": "last", "status": "status", "reason": "reason"}
    lines = [{out: getattr(step, name) for name, out in names.items()} | {"planned": step.planned} for step in steps]
    return JSONResponse({"batches": lines})


@router.post(
    "/v1/batches/{batch}/retry",
    status_code=202,
    response_model=Job,
    responses=answers(404, 409, 507),
    tags=["service"],
    **needs("admin"),
)
async def retry(request: Request, batch: Annotated[int, Path(ge=0, le=_MOST_OFFSET)]) -> JSONResponse:
    """Learn a batch that was quarantined after all."""
    backend = ready_backend(request)
    step: LoggedStep | None = await backend.from_steps(lambda steps: steps.step(batch), None)
    if step is None:
        raise ServiceError(404, "not_found", f"There is no batch {batch}.")
    if step.status != "quarantined":
        raise ServiceError(409, "not_quarantined", f"Batch {batch} is {step.status}; it is not quarantined.")
    offset = await asyncio.wrap_future(backend.log.control("retry", {"batch": batch}))
    return JSONResponse(_job("retry", offset, backend), 202)


@router.post(
    "/v1/resume", status_code=202, response_model=Job, responses=answers(507), tags=["service"], **needs("admin")
)
async def resume(request: Request) -> JSONResponse:
    """Go on learning when learning waits because too many batches in a row were quarantined."""
    backend = ready_backend(request)
    offset = await asyncio.wrap_future(backend.log.control("resume", {}))
    return JSONResponse(_job("resume", offset, backend), 202)


@router.post(
    "/v1/challengers/{name}/promote", status_code=202, response_model=Job, responses=answers(404, 409, 507),
    tags=["service"], **needs("admin"),
)  # fmt: skip
async def promote(
    request: Request, name: Annotated[str, Path(min_length=1, max_length=32, examples=["rates"])]
) -> JSONResponse:
    """Have a challenger served from this place in the log on; what was served before goes on as `former`."""
    return await _promotion(request, "promote", name)


@router.post(
    "/v1/rollback", status_code=202, response_model=Job, responses=answers(404, 409, 507), tags=["service"],
    **needs("admin"),
)  # fmt: skip
async def rollback(request: Request) -> JSONResponse:
    """Have the model served again that was served before the last promotion; it has learned everything since."""
    return await _promotion(request, "rollback", FORMER)


async def _promotion(request: Request, kind: str, name: str) -> JSONResponse:
    backend = ready_backend(request)
    known = (await backend.status())["challengers"]
    if name not in known:
        what = "There is no model to go back to" if kind == "rollback" else f"There is no challenger {name[:40]!r}"
        raise ServiceError(404, "not_found", f"{what}; there are: {', '.join(known) or 'none'}.")
    state, most = known[name], backend.settings.max_lag
    if not state["running"] or state["lag"] > most:
        raise ServiceError(
            409, "not_caught_up", f"{name} {'is' if state['running'] else 'does not run; it is'} {state['lag']} events "
            "behind.", hint=f"It can be served when it runs and is at most {most} behind.",
        )  # fmt: skip
    offset = await asyncio.wrap_future(backend.log.control(kind, {"challenger": name}))
    return JSONResponse(_job(kind, offset, backend), 202)


@router.get(
    "/v1/export",
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}, **answers()},
    tags=["service"],
    response_class=StreamingResponse,
    **needs("admin"),
)
async def export(
    request: Request,
    from_: Annotated[int, Query(alias="from", ge=0, le=_MOST_OFFSET, description="The first offset.")] = 0,
    to: Annotated[int | None, Query(ge=0, le=_MOST_OFFSET, description="The last offset.")] = None,
) -> StreamingResponse:
    """Events as NDJSON, in the order of the log, as `melon log export` writes and `melon log import` reads them."""
    backend = _backend(request)
    end = backend.log.offset if to is None else min(to, backend.log.offset)

    async def lines() -> AsyncIterator[str]:
        first = from_
        while first <= end:
            last = min(first + _EXPORTED_AT_ONCE - 1, end)
            part = await backend.from_log(lambda log, first=first, last=last: list(exported(log, first, last)))  # type: ignore[misc]
            if part:
                yield "\n".join([*part, ""])
            first = last + 1

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.get("/health/live", response_model=Health, tags=["health"])
async def live() -> JSONResponse:
    """The process answers."""
    return JSONResponse({"status": "ok"})


@router.get(
    "/health/ready",
    response_model=Health,
    responses={503: {"model": Health, "description": "Not ready."}},
    tags=["health"],
)
async def ready(request: Request) -> JSONResponse:
    """The model is loaded, the log can be written and the keys can be read; `lists` says what lists are made from."""
    backend = _backend(request)
    why = backend.unready
    if why is None and not backend.log.writable:
        why = backend.log.problem or "the log is closed"
    if why is None and request.app.state.keys.required and request.app.state.keys.problem is not None:
        why = "the file of keys cannot be read"
    if why is None:
        return JSONResponse({"status": "ok", "lists": "model" if backend.warm else "popular"})
    return JSONResponse({"status": "not_ready", "why": why}, 503, {"Retry-After": "1"})


@router.get(
    "/metrics", tags=["health"], responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response, **needs("read"),
)  # fmt: skip
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in the text format of Prometheus."""
    backend = _backend(request)
    return Response(await backend.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _job(kind: str, offset: int, backend: Backend, *, erased: bool = True) -> dict[str, Any]:
    """A job is done when this process knows its step; forgetting, when ids and, if wished, events are gone too."""
    return {"job": f"{kind}-{offset}", "offset": offset, "done": erased and backend.replica.position.offset >= offset}
