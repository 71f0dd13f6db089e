"""Clients of the service: `melon.Client`, `melon.AsyncClient`, safe retries, a buffer of events, and typed results."""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from melon.errors import MissingExtraError, ServiceError

__all__ = ["AsyncClient", "Buffer", "Client", "Item", "Listed", "Recorded"]
RawId = str | int


@dataclass(frozen=True)
class Recorded:
    """Events that are durable; `offset` given as `after` waits for a model that knows them."""

    accepted: int
    duplicates: int
    conflicting: int
    offset: int


@dataclass(frozen=True)
class Item:
    """An item of a list, its score (none for one that was pinned), and why it is there."""

    item: RawId
    score: float | None
    why: str


@dataclass(frozen=True)
class Listed(Sequence[Item]):
    """A list, best first. `model` says which model made it; `stale`, that it did not know `after` yet."""

    items: tuple[Item, ...]
    user: RawId | None
    source: str
    recommendation: str | None
    filtered: Mapping[str, int]
    model: Mapping[str, Any]
    stale: bool

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: Any) -> Any:
        return self.items[place]


@dataclass(frozen=True)
class Call:
    """One request, and how its answer is read. Every call may be repeated: events carry ids."""

    method: str
    path: str
    read: Callable[[Any], Any]
    params: Mapping[str, Any] | None = None
    json: Any = None


def _id(one: RawId) -> str:
    return quote(str(one), safe="")


def _listed(content: Mapping[str, Any], whole: Mapping[str, Any] | None = None) -> Listed:
    whole = content if whole is None else whole
    return Listed(
        tuple(Item(one["item"], one["score"], one["why"]) for one in content["items"]),
        content.get("user"),
        content["source"],
        content.get("recommendation"),
        content["filtered"],
        whole["model"],
        whole.get("stale", False),
    )


def _many(content: Mapping[str, Any]) -> list[Listed]:
    return [_listed(one, content) for one in content["results"]]


def _recorded(content: Mapping[str, Any]) -> Recorded:
    return Recorded(content["accepted"], content["duplicates"], content["conflicting"], content["offset"])


def without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ()}


def complete_event(event: Mapping[str, Any]) -> dict[str, Any]:
    return {**event, "event_id": event.get("event_id") or secrets.token_hex(12)}


class Calls:
    """What a client can ask for; `_send` says how, and whether the answer is waited for or awaited."""

    def _send(self, call: Call) -> Any:
        raise NotImplementedError

    def record(self, user: RawId, item: RawId, *, type: str | None = None, **more: Any) -> Any:  # noqa: A002
        """Store one interaction (`time`, `event_id` and `recommendation` may be given); a `Recorded`."""
        return self.record_many([without_none(user=user, item=item, type=type, **more)])

    def record_many(self, events: Iterable[Mapping[str, Any]]) -> Any:
        """Store interactions, each with `user`, `item` and what else the service takes; a `Recorded`."""
        return self._send(Call("POST", "/v1/interactions", _recorded, json=[complete_event(event) for event in events]))

    def recommend(
        self,
        user: RawId,
        k: int = 10,
        *,
        filter_seen: bool = True,
        category: Sequence[str] = (),
        exclude: Sequence[RawId] = (),
        after: int | None = None,
        wait_ms: int | None = None,
    ) -> Any:
        """The best items for a user, as `Listed`."""
        choices = without_none(category=category, exclude=exclude, after=after, wait_ms=wait_ms)
        path = f"/v1/recommendations/{_id(user)}"
        params = {"k": k, "filter_seen": str(filter_seen).lower(), **choices}
        return self._send(Call("GET", path, _listed, params))

    def recommend_many(self, users: Sequence[RawId] = (), k: int = 10, **more: Any) -> Any:
        """Lists for many users, or for `history=[…]`; `rules`, `candidates`, `after` … as the service has them."""
        body = {"k": k, **({"users": list(users)} if users else {}), **more}
        return self._send(Call("POST", "/v1/recommendations", _many, json=body))

    def similar(self, item: RawId, k: int = 10, **params: Any) -> Any:
        """The items most similar to one; `user`, `category` and `exclude` as parameters."""
        return self._send(Call("GET", f"/v1/similar/{_id(item)}", _listed, {"k": k, **params}))

    def popular(self, k: int = 10, **params: Any) -> Any:
        """The items that are taken most often now."""
        return self._send(Call("GET", "/v1/popular", _listed, {"k": k, **params}))

    def explain(self, user: RawId, item: RawId) -> Any:
        """Why an item stands where it does, as plain JSON."""
        return self._send(Call("GET", f"/v1/explain/{_id(user)}/{_id(item)}", dict))

    def put_item(self, item: RawId, **facts: Any) -> Any:
        """Replace the facts of an item."""
        return self._send(Call("PUT", f"/v1/items/{_id(item)}", dict, json=facts))

    def put_items(self, items: Iterable[Mapping[str, Any]]) -> Any:
        """Replace the facts of many items, each with `item`."""
        return self._send(Call("POST", "/v1/items", dict, json=list(items)))

    def item(self, item: RawId) -> Any:
        """The facts of an item."""
        return self._send(Call("GET", f"/v1/items/{_id(item)}", dict))

    def history(self, user: RawId, limit: int = 100, before: int | None = None) -> Any:
        """A user's events, newest first, as plain JSON."""
        return self._send(Call("GET", f"/v1/users/{_id(user)}/history", dict, without_none(limit=limit, before=before)))

    def forget(self, user: RawId, *, unlearn: bool = False) -> Any:
        """Have a person forgotten, and unlearned from the model if wished; the job as plain JSON."""
        return self._send(Call("DELETE", f"/v1/users/{_id(user)}", dict, {"unlearn": str(unlearn).lower()}))

    def promote(self, name: str) -> Any:
        """Have a challenger served; the job as plain JSON."""
        return self._send(Call("POST", f"/v1/challengers/{_id(name)}/promote", dict))

    def rollback(self) -> Any:
        """Have the model served again that was served before the last promotion; the job as plain JSON."""
        return self._send(Call("POST", "/v1/rollback", dict))

    def status(self) -> Any:
        """The service in one look, as plain JSON."""
        return self._send(Call("GET", "/v1/status", dict))

    def quality(self, window: str = "1h") -> Any:
        """Live quality in a window, as plain JSON."""
        return self._send(Call("GET", "/v1/quality", dict, {"window": window}))


if TYPE_CHECKING:
    import httpx

_AGAIN = (429, 502, 503, 504, 507)
_FIRST_WAIT, _MOST_WAIT = 0.05, 2.0


class _Tries:
    """How often a call is made: until it succeeds, its error is final, or the deadline has passed."""

    def __init__(self, url: str, deadline: float) -> None:
        self.url, self._end = url, time.monotonic() + deadline
        self._wait = _FIRST_WAIT

    def pause(self, answer: httpx.Response | Exception) -> float:
        """Seconds until the next try after an answer that is no success, or none at all; raises where it is final."""
        if isinstance(answer, Exception):
            text = f"{self.url} cannot be reached: {answer}."
            return self.wait(ServiceError(0, "unreachable", text, hint="Is it running?"))
        return self.wait(self.refused(answer))

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
    """A connection to the service. Calls that fail temporarily are repeated for `deadline` seconds."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 10.0, deadline: float = 30.0) -> None:
        self.url, self.deadline = url, deadline
        self._library = _httpx()
        self._http: httpx.Client = self._library.Client(**_options(url, key, timeout))

    def _send(self, call: Call) -> Any:
        tries = _Tries(self.url, self.deadline)
        while True:
            try:
                answer = self._http.request(call.method, call.path, params=call.params, json=call.json)
                if answer.is_success:
                    return call.read(answer.json())
            except self._library.TransportError as problem:
                answer = problem
            time.sleep(tries.pause(answer))

    def buffer(self, *, every: float = 0.2, size: int = 500, most: int = 100_000) -> Buffer:
        """A buffer that sends events together: each `every` seconds, and whenever `size` of them wait.

        If `most` events wait because the service does not answer, further events are refused.
        """
        return Buffer(self, every, size, most)

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
                if answer.is_success:
                    return call.read(answer.json())
            except self._library.TransportError as problem:
                answer = problem
            await asyncio.sleep(tries.pause(answer))

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

    def __init__(self, client: Client, every: float, size: int, most: int) -> None:
        self._client, self._every, self._size, self._most = client, every, size, most
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
            if len(self._events) >= self._most:
                raise ServiceError(
                    0, "buffer_full", f"{self._most} events wait for {self._client.url}.", hint="Record it again later."
                )
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
