"""Taking ids out of the log: of people who are forgotten, and of events that nobody will repeat any more."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import apsw

from melon.service.log.base import LogId
from melon.service.log.files import BATCHES
from melon.service.log.steps import StepReader

_AT_ONCE = 1_000


def pseudonym_of(user: LogId) -> LogId:
    """A random id of the same kind, which nothing maps back."""
    if isinstance(user, int):
        return -secrets.randbits(62) - 1
    with suppress(ValueError):
        if str(uuid.UUID(user)) == user:
            return str(uuid.uuid4())
    return f"forgotten-{secrets.token_hex(16)}"


def erasable(connection: apsw.Connection, folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Controls that forget a person, once the learner is past them and every checkpoint it keeps is too.

    Before that a restart still needs the events as they were: a first row is drawn by its id.
    """
    rows: Any = connection.execute("SELECT offset, body FROM controls WHERE kind = 'forget' AND NOT erased").fetchall()
    if not rows or not (folder / BATCHES).exists():
        return []
    with StepReader(folder) as steps:
        reached = steps.forgotten()
    return [(offset, json.loads(body)) for offset, body in rows if offset <= reached]


def erase(connection: apsw.Connection, offset: int, body: Mapping[str, Any]) -> list[tuple[LogId, str]]:
    """Give the events of a person before a control to a pseudonym; returns facts of items that named the person."""
    user, pseudonym = body["user"], body["pseudonym"]
    connection.execute(
        "UPDATE events SET user = ?, event_id = NULL, recommendation = NULL WHERE user = ? AND offset < ?",
        (pseudonym, user, offset),
    )
    gone = json.dumps({**body, "user": pseudonym})
    connection.execute("UPDATE controls SET body = ?, erased = 1 WHERE offset = ?", (gone, offset))
    owned: Any = connection.execute("SELECT item, body FROM facts WHERE body ->> '$.owner' = ?", (user,)).fetchall()
    return [(item, json.dumps({**json.loads(text), "owner": None})) for item, text in owned]


def expire_ids(connection: apsw.Connection, before: float) -> None:
    """Drop the ids of some events that arrived before a moment; the next call goes on behind them."""
    first = cast(int, connection.execute("SELECT value FROM meta WHERE name = 'expired'").get or 0)
    some = f"SELECT offset, arrived FROM events WHERE offset > ? ORDER BY offset LIMIT {_AT_ONCE}"
    last = connection.execute(f"SELECT max(offset) FROM ({some}) WHERE arrived < ?", (first, before)).get
    if last is not None:
        connection.execute("UPDATE events SET event_id = NULL WHERE offset > ? AND offset <= ?", (first, last))
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('expired', ?)", (last,))
