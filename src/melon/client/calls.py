"""What the service's clients ask for: one request for each call, and its answer as a typed result."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

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

    def status(self) -> Any:
        """The service in one look, as plain JSON."""
        return self._send(Call("GET", "/v1/status", dict))

    def quality(self, window: str = "1h") -> Any:
        """Live quality in a window, as plain JSON."""
        return self._send(Call("GET", "/v1/quality", dict, {"window": window}))
