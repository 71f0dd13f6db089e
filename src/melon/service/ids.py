"""Ids and times as they come over HTTP: of the kind that the model's book has, short, without control characters."""

from __future__ import annotations

import contextlib
import math
import re
import unicodedata
import uuid
from datetime import UTC, datetime
from typing import Any

from melon.data.ids import HIGHEST, LOWEST, MOST_EXACT_FLOAT, Id, IdKind, is_unicode
from melon.errors import DataError
from melon.service.config import MOST_AHEAD_S, MOST_ID_BYTES

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_PLURALS = {"int": "integers", "uuid": "UUIDs", "str": "texts"}


def read_id(value: Any, kind: IdKind | None, what: str) -> Id:
    """An id from JSON or a URL as the kind that the model's ids have; a model without ids takes texts.

    Over HTTP, a number and its plain text are the same id: 27 and "27".
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{what} {_short(value)} is not an id; ids are texts or integers.")
    if kind == "int" and isinstance(value, int) and LOWEST <= value <= HIGHEST:
        return value
    text = checked_text(str(value), what)
    if kind == "int" and _WHOLE.fullmatch(text) and LOWEST <= int(text) <= HIGHEST:
        return int(text)
    with contextlib.suppress(ValueError):
        if kind == "uuid":
            return uuid.UUID(text)
    if kind in ("int", "uuid"):
        raise DataError(f"{what} {_short(text)} cannot be in this model, whose {what} ids are {_PLURALS[kind]}.")
    return text


def checked_text(text: str, what: str) -> str:
    """A text that can be stored, shown and logged: not empty, at most 256 bytes of UTF-8, no control characters."""
    # The cheap test first: most ids are short ASCII.
    if 0 < len(text) <= MOST_ID_BYTES and text.isascii() and text.isprintable():
        return text
    if not text:
        raise DataError(f"{what} is empty; give 1 to {MOST_ID_BYTES} bytes of text.")
    if len(text) > MOST_ID_BYTES or (not text.isascii() and is_unicode(text) and len(text.encode()) > MOST_ID_BYTES):
        raise DataError(f"{what} {_short(text)} is too long; {MOST_ID_BYTES} bytes of UTF-8 are allowed.")
    if not text.isprintable() and any(unicodedata.category(one) in ("Cc", "Cs") for one in text):
        raise DataError(f"{what} {_short(text)} has a control character or half of a surrogate pair.")
    return text


def plain_id(one: Id) -> int | str:
    """An id as JSON can hold it."""
    return one if isinstance(one, int) else str(one)


def read_time(value: Any, now: float) -> int:
    """Unix seconds of an event; now where there is no time, and hardly later than now."""
    seconds = now if value is None else to_seconds(value, "time")
    if seconds > now + MOST_AHEAD_S:
        raise DataError(f"time {_short(value)} is more than {MOST_AHEAD_S} s ahead of this server's clock.")
    return int(seconds)


def to_seconds(value: Any, what: str) -> float:
    """Unix seconds from a number or an ISO 8601 text (UTC where it names no zone)."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        else:
            seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{what} {_short(value)} is neither Unix seconds nor ISO 8601.") from None
    if not 0 <= seconds <= MOST_EXACT_FLOAT:
        raise DataError(f"{what} {_short(value)} is not between 1970 and the far future.")
    return seconds


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
