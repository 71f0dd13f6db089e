"""The application: routes, keys, errors and the gate around one backend; and the process that serves it."""

from __future__ import annotations

import atexit
import contextlib
import logging
import logging.handlers
import os
import queue
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from melon import __version__
from melon.service.backend import Backend
from melon.service.config import ServeSettings
from melon.service.http import admin, errors, interactions, items, recommendations
from melon.service.http.gate import Gate, JsonLines
from melon.service.http.protocol import patient_protocol
from melon.service.http.shapes import EventIn
from melon.service.keys import Bucket, KeyFile

#: Requests wait this long for the model of a process that starts; after that they get a 503 with Retry-After.
_SETTLE_S = 5.0
_ABOUT = """Interactions in, fresh recommendations out. Events are durable when they are acknowledged and learned within
a second. Every error has one shape: `{"error": {"code", "message", "hint", "index", "request"}}`. Keys are sent as
`Authorization: Bearer mk_…`; without keys, the service answers on loopback only."""


def make_app(settings: ServeSettings) -> FastAPI:
    """The application of one API process; its backend is opened when it starts and closed when it ends."""

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        backend: Backend = app.state.backend
        await backend.start()
        await backend.settle(_SETTLE_S)
        try:
            yield
        finally:
            await backend.stop()

    app = bare_app(life)
    app.state.settings = settings
    app.state.keys = KeyFile(settings.key_file)
    app.state.bucket = Bucket(settings.rate, settings.burst)
    backend = app.state.backend = Backend(settings)
    app.add_middleware(
        Gate,
        body_most=settings.body_most,
        metrics=backend.metrics,
        salt=_salt(settings.folder),
        log_ids=settings.log_ids,
    )
    return app


def bare_app(life: Any = None) -> FastAPI:
    """The routes without anything behind them: enough for the OpenAPI."""
    app = FastAPI(
        title="melon",
        version=__version__,
        description=_ABOUT,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    routers = [module.router for module in (interactions, recommendations, items, admin)]
    for router in routers:
        app.include_router(router)
    app.state.routes = [route for router in routers for route in router.routes]
    errors.install(app)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["key"] = {"type": "http", "scheme": "bearer", "description": "A key made by `melon keys add`."}
        shapes = schema["components"]["schemas"]
        shapes["EventIn"] = EventIn.model_json_schema()
        # FastAPI's own error of validation: ours has another status and the one shape.
        shapes.pop("HTTPValidationError", None)
        shapes.pop("ValidationError", None)
        for operation in (operation for path in schema["paths"].values() for operation in path.values()):
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def run_api(settings: ServeSettings, listening: socket.socket, url: str) -> None:
    """Serve on `url` until SIGTERM or SIGINT: then refuse requests, finish those under way, commit what waits."""
    log_as_json()
    server = make_server(settings)
    server.config.app.state.backend.log.announce(url)  # type: ignore[union-attr]
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(3)


def make_server(settings: ServeSettings) -> uvicorn.Server:
    """uvicorn with the application and its limits."""
    config = uvicorn.Config(
        make_app(settings),
        http=patient_protocol(settings.header_s, settings.body_rate, settings.connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.stop_s) or 1,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    return uvicorn.Server(config)


def log_as_json() -> None:
    """Log lines of this process as JSON on standard error, written by a thread: a reader that stalls stops nobody."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    waiting = _Waiting(queue.Queue(10_000))
    listener = logging.handlers.QueueListener(waiting.queue, handler)
    listener.start()
    atexit.register(listener.enqueue_sentinel)
    logging.basicConfig(handlers=[waiting], level=os.environ.get("MELON_LOG_LEVEL", "INFO").upper(), force=True)


class _Waiting(logging.handlers.QueueHandler):
    """Lines that wait to be written; beyond a number they are dropped."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


def _salt(folder: Path) -> bytes:
    """Random bytes of this installation, by which ids are hashed in its log lines."""
    path = folder / "salt"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        salt = secrets.token_bytes(32)
        with (
            contextlib.suppress(FileExistsError),
            open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
        ):
            file.write(salt)
        return path.read_bytes()
