"""Several tenants behind one port: an application for each, at `/t/NAME/…`, with nothing in common but the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping

from fastapi import FastAPI
from starlette.responses import JSONResponse, RedirectResponse

from melon.errors import ServiceError
from melon.service.config import ServeSettings
from melon.service.http.errors import error_response
from melon.service.http.gate import App, AsgiScope, Receive, Send

#: Seconds between two tries to open a tenant that could not be opened.
_AGAIN_S = 5
_LOG = logging.getLogger("melon.service")


class TenantApps:
    """The applications by tenant. One that cannot be opened answers 503 and is tried again; the others go on."""

    def __init__(
        self, tenants: Mapping[str, ServeSettings], url: str, make: Callable[[ServeSettings, str], FastAPI]
    ) -> None:
        self._tenants, self._url, self._make = tenants, url, make
        self._apps: dict[str, App | None] = {}

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        parts = scope["raw_path"].decode("latin-1").split("/", 3)
        name = parts[2] if parts[1] == "t" and len(parts) > 2 else ""
        if name not in self._tenants:
            await self._whole(scope["path"])(scope, receive, send)
        elif (app := self._apps.get(name)) is None:
            problem = ServiceError(503, "tenant_closed", "This tenant cannot be served now.", retry_after=_AGAIN_S)
            await _refused(problem)(scope, receive, send)
        elif len(parts) == 3:
            await RedirectResponse(f"/t/{name}/")(scope, receive, send)  # the console's links are relative
        else:
            mount = scope["root_path"] = f"/t/{name}"
            scope["path"], scope["raw_path"] = scope["path"].removeprefix(mount), scope["raw_path"][len(mount) :]
            await app(scope, receive, send)

    def _whole(self, path: str) -> App:
        """What the process says of itself; who its tenants are is nobody's business."""
        if path == "/health/live":
            return JSONResponse({"status": "live"})
        if path == "/health/ready":
            opened = sum(app is not None for app in self._apps.values())
            tried = len(self._apps) == len(self._tenants)
            ready = tried and opened > 0
            return JSONResponse(
                {"status": "ready" if ready else "starting", "tenants": len(self._tenants), "open": opened},
                200 if ready else 503,
            )
        return _refused(
            ServiceError(404, "not_found", "There is no such path.", hint="A tenant's paths begin with /t/NAME/.")
        )

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        stopping = asyncio.Event()
        tasks = [asyncio.create_task(self._keep(name, one, stopping)) for name, one in self._tenants.items()]
        await send({"type": "lifespan.startup.complete"})
        await receive()
        stopping.set()
        await asyncio.gather(*tasks)
        await send({"type": "lifespan.shutdown.complete"})

    async def _keep(self, name: str, settings: ServeSettings, stopping: asyncio.Event) -> None:
        """Have a tenant's application open until the end, whatever happens to it."""
        while not stopping.is_set():
            try:
                app = await asyncio.to_thread(self._make, settings, name)
                async with app.router.lifespan_context(app):
                    app.state.backend.log.announce(f"{self._url}/t/{name}")
                    self._apps[name] = app
                    await stopping.wait()
            except Exception as problem:  # of whatever kind: it is this tenant's alone
                _LOG.error("tenant %s cannot be opened: %s", name, problem)
                self._apps[name] = None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), _AGAIN_S)


def _refused(problem: ServiceError) -> JSONResponse:
    return error_response(problem, secrets.token_hex(8))
