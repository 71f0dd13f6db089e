"""`melon.Client` and `melon.AsyncClient`: connections with safe retries, and a buffer of events."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from melon.client.calls import Call, Calls, RawId, complete_event, without_none
from melon.errors import MissingExtraError, ServiceError

if TYPE_CHECKING:
    import httpx

_AGAIN = (429, 502, 503, 504, 507)
_FIRST_WAIT, _MOST_WAIT = 0.05, 2.0


class _Tries:
    """How often a call is made: until it succeeds, its error is final, or the deadline has passed."""

    def __init__(self, url: str, deadline: float) -> None:
        self.url, self._end = url, time.monotonic() + deadline
        self._wait = _FIRST_WAIT

    def unreachable(self, problem: Exception) -> ServiceError:
        """The error of a call that got no answer."""
        return ServiceError(0, "unreachable", f"{self.url} cannot be reached: {problem}.", hint="Is it running?")

    def refused(self, response: httpx.Response) -> ServiceError:
        """The error that an answer tells."""
        try:
            error = dict(response.json()["error"])
        except (ValueError, KeyError, TypeError):
            error = {"code": "http", "message": f"{self.url} answered {response.status_code}."}
        after = response.headers.get("retry-after", "")
        return ServiceError(
            response.status_code,
            str(error.get("code")),
            str(error.get("message")),
            hint=error.get("hint"),
            index=error.get("index"),
            request=error.get("request"),
            retry_after=int(after) if after.isdigit() else None,
        )

    def wait(self, error: ServiceError) -> float:
        """Seconds until the next try; raises the error where there is none."""
        if error.status not in (0, *_AGAIN):
            raise error
        seconds = max(self._wait, float(error.retry_after or 0)) * random.uniform(0.5, 1.0)
        self._wait = min(2 * self._wait, _MOST_WAIT)
        if time.monotonic() + seconds > self._end:
            raise error
        return seconds


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise MissingExtraError("melon.Client", "client") from None
    return httpx


def _options(url: str, key: str | None, timeout: float) -> dict[str, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return {"base_url": url, "headers": headers, "timeout": timeout, "trust_env": False}


class Client(Calls):
    """A connection to the service. Calls that fail for a moment are repeated until `deadline` seconds have passed."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 10.0, deadline: float = 30.0) -> None:
        self.url, self.deadline = url, deadline
        self._library = _httpx()
        self._http: httpx.Client = self._library.Client(**_options(url, key, timeout))

    def _send(self, call: Call) -> Any:
        tries = _Tries(self.url, self.deadline)
        while True:
            try:
                answer = self._http.request(call.method, call.path, params=call.params, json=call.json)
            except self._library.TransportError as problem:
                error = tries.unreachable(problem)
            else:
                if answer.is_success:
                    return call.read(answer.json())
                error = tries.refused(answer)
            time.sleep(tries.wait(error))

    def buffer(self, *, every: float = 0.2, size: int = 500) -> Buffer:
        """A buffer that sends events together: each `every` seconds, and whenever `size` of them wait."""
        return Buffer(self, every, size)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Calls):
    """The same for asyncio: every call is awaited."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 10.0, deadline: float = 30.0) -> None:
        self.url, self.deadline = url, deadline
        self._library = _httpx()
        self._http: httpx.AsyncClient = self._library.AsyncClient(**_options(url, key, timeout))

    async def _send(self, call: Call) -> Any:
        tries = _Tries(self.url, self.deadline)
        while True:
            try:
                answer = await self._http.request(call.method, call.path, params=call.params, json=call.json)
            except self._library.TransportError as problem:
                error = tries.unreachable(problem)
            else:
                if answer.is_success:
                    return call.read(answer.json())
                error = tries.refused(answer)
            await asyncio.sleep(tries.wait(error))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Buffer:
    """Events that wait to be sent together. Leaving the block sends the rest; an error of sending is raised there.

    Each event has its id from the start, so that events whose answer was lost can be sent again.
    """

    def __init__(self, client: Client, every: float, size: int) -> None:
        self._client, self._every, self._size = client, every, size
        self._events: list[dict[str, Any]] = []
        self._ready = threading.Condition()
        self._closing = False
        self._problem: ServiceError | None = None
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="melon buffer", daemon=True)
        self._thread.start()

    def record(self, user: RawId, item: RawId, **more: Any) -> None:
        """Put an event into the buffer."""
        with self._ready:
            if self._problem is not None:
                raise self._problem
            self._events.append(complete_event(without_none(user=user, item=item, **more)))
            if len(self._events) >= self._size:
                self._ready.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join()
        if self._problem is not None and error is None:
            raise self._problem

    def _run(self) -> None:
        while self._problem is None:
            with self._ready:
                if not self._closing and len(self._events) < self._size:
                    self._ready.wait(self._every)
                events, self._events = self._events[: self._size], self._events[self._size :]
                if not events and self._closing:
                    return
            if events:
                try:
                    self._client.record_many(events)
                    self.sent += len(events)
                except ServiceError as problem:
                    self._problem = problem
