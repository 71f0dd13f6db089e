"""The application: routes, keys, errors and the gate around one backend; and the process that serves it."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from melon import __version__
from melon.service.activity import Activity
from melon.service.backend import Backend
from melon.service.config import ServeSettings
from melon.service.http import admin, console, errors, gorse, interactions, items, overview, recommendations, segment
from melon.service.http.gate import App, AsgiScope, Gate, Quick, Receive, Send
from melon.service.http.overview import Sharing
from melon.service.http.protocol import patient_protocol
from melon.service.http.shapes import EventIn
from melon.service.http.tenants import TenantApps
from melon.service.keys import Bucket, keys_of, local_token
from melon.service.process import log_as_json

#: Requests wait this long for the model of a process that starts; after that they get a 503 with Retry-After.
_SETTLE_S = 5.0
#: Seconds after which a thread hands over the interpreter: the one that answers must not wait long for the others.
_SWITCH_S = 0.0005
_ABOUT = """Interactions in, fresh recommendations out. Events are durable when they are acknowledged and learned within
a second. Every error has one shape: `{"error": {"code", "message", "hint", "index", "request"}}`. Keys are sent as
`Authorization: Bearer mk_…`; without keys, the service answers on loopback only."""


class Application(FastAPI):
    """FastAPI behind the gate."""

    gate: App | None = None

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        await (self.general if self.gate is None else self.gate)(scope, receive, send)

    async def general(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """A request on its way through FastAPI."""
        await super().__call__(scope, receive, send)


def make_app(settings: ServeSettings, tenant: str = "") -> Application:
    """The application of one API process or tenant; its backend is opened when it starts and closed when it ends."""

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        backend: Backend = app.state.backend
        await backend.start()
        await backend.settle(_SETTLE_S)
        try:
            async with app.state.activity.running():
                yield
        finally:
            await backend.stop()

    app = bare_app(life)
    for door in [module.router for module, wanted in ((gorse, settings.gorse), (segment, settings.segment)) if wanted]:
        app.include_router(door)
        app.state.routes += door.routes
    app.state.settings = settings
    app.state.keys, app.state.token = keys_of(settings), local_token(settings.folder)
    app.state.bucket = Bucket(settings.rate, settings.burst)
    backend = app.state.backend = Backend(settings, tenant)
    app.state.activity, app.state.sharing = Activity(backend), Sharing()
    app.gate = Gate(
        app.general,
        Quick(app.state, settings.body_most),
        body_most=settings.body_most,
        metrics=backend.metrics,
        salt=_salt(settings.folder),
        log_ids=settings.log_ids,
    )
    return app


def bare_app(life: Any = None) -> Application:
    """The routes without anything behind them: enough for the OpenAPI."""
    app = Application(
        title="melon",
        version=__version__,
        description=_ABOUT,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    routers = [module.router for module in (interactions, recommendations, items, overview, admin, console)]
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


def run_api(
    settings: ServeSettings, listening: socket.socket, url: str, tenants: Mapping[str, ServeSettings] | None = None
) -> None:
    """Serve on `url` until SIGTERM or SIGINT: then refuse requests, finish those under way, commit what waits."""
    log_as_json()
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(20_000, 20, 50)
    if tenants:
        server = make_server(settings, TenantApps(tenants, url, make_app))
    else:
        server = make_server(settings)
        backend: Backend = server.config.app.state.backend  # type: ignore[union-attr]
        backend.replica.when_loaded(_keep_from_collecting)
        backend.log.announce(url)
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(3)


def _keep_from_collecting() -> None:
    """A model that was loaded stays for long: the garbage collector need not look at it again and again."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def make_server(settings: ServeSettings, app: App | None = None) -> uvicorn.Server:
    """uvicorn with an application (default: that of the settings) and its limits."""
    config = uvicorn.Config(
        app or make_app(settings),
        http=patient_protocol(settings.header_s, settings.body_rate, settings.connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.stop_s) or 1,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    return uvicorn.Server(config)


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
