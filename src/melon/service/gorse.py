"""Gorse's notions in ours: what its clients send and what its exports hold."""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from melon.errors import DataError
from melon.service.config import MOST_ID_BYTES
from melon.service.ids import checked_text, to_seconds
from melon.service.rules.items import Facts

#: The time of what has none.
NEVER = "0001-01-01T00:00:00Z"
#: Labels that rules can filter by are scalars and lists of them, this many at most.
_MOST_LABELS = 100


def text_of(one: Mapping[str, Any], name: str) -> str:
    """A text that an object must have."""
    value = one.get(name)
    if not isinstance(value, str):
        raise DataError(f"{name} must be a text.")
    return checked_text(value, name)


def user_profile(one: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a user."""
    return {"Labels": one.get("Labels"), "Comment": str(one.get("Comment") or "")}


def item_profile(one: Mapping[str, Any]) -> tuple[dict[str, Any], Facts]:
    """What is kept of an item as it was sent, and what rules make of it."""
    given, labels = one.get("Categories") or [], one.get("Labels")
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise DataError("Categories must be a list of texts.")
    categories = dict.fromkeys(checked_text(name, "category") for name in given)
    seconds = moment_of(one)
    profile = {
        "Labels": labels,
        "Timestamp": NEVER if seconds is None else written(seconds),
        "Comment": str(one.get("Comment") or ""),
    }
    named = labels if isinstance(labels, dict) else {} if labels is None else {"labels": labels}
    plain = {str(name): value for name, value in named.items() if _is_plain(value)}
    facts = Facts(
        categories=tuple(categories),
        available=not one.get("IsHidden"),
        published=seconds,
        attributes={name: value for name, value in plain.items() if name not in ("published", "expires")},
    )
    return profile, facts


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MOST_LABELS and all(isinstance(one, str | int | float) for one in value)
    return isinstance(value, str | int | float)


def moment_of(one: Mapping[str, Any]) -> float | None:
    """Unix seconds of a Timestamp; None where there is none."""
    given = one.get("Timestamp")
    return None if given in (None, "", NEVER) else to_seconds(given, "Timestamp")


def feedback_id(kind: str, user: str, item: str, moment: int | None) -> str:
    """The id of feedback's event: the same for the same feedback, so that a retry or an import adds nothing.

    Without a time it is Gorse's own key, so there is one event for each type, user and item.
    """
    parts = (kind, user, item, "" if moment is None else str(moment))
    text = "gorse/" + "/".join(urllib.parse.quote(part, safe=" ") for part in parts)
    return text if len(text) <= MOST_ID_BYTES else f"gorse/{hashlib.blake2b(text.encode(), digest_size=24).hexdigest()}"


def written(seconds: float) -> str:
    """A moment as Gorse writes it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
