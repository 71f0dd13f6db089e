"""Erasing the ids of forgotten people from the log, in `events.db` down to the bytes that no row uses any more."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from melon.errors import LogError
from melon.service.log.base import CONTROLS, LogId
from melon.service.log.files import BATCHES, EVENTS, Database, Place
from melon.service.log.steps import StepReader

#: A control's state: the person's ids have left all rows; and the bytes between rows were searched, too.
ERASED, VERIFIED = 1, 2
#: Kinds of pages of a SQLite file that hold rows, with the bytes of their headers.
_HEADERS = {2: 12, 5: 12, 10: 8, 13: 8}
_BLOCK = 1 << 22


def pseudonym_of(user: LogId) -> LogId:
    """A random id of the same kind, which nothing maps back."""
    if isinstance(user, int):
        return -secrets.randbits(62) - 1
    with suppress(ValueError):
        if str(uuid.UUID(user)) == user:
            return str(uuid.uuid4())
    return f"forgotten-{secrets.token_hex(16)}"


class Erasure:
    """What the log's writer does about people who are forgotten; called by its thread alone."""

    def __init__(self, database: Database, place: Place) -> None:
        self._db, self._place = database, place
        self._ids: dict[int, LogId] = {}
        self._search: Future[bool] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="erasure")
        self.problem: str | None = None

    def due(self) -> list[tuple[int, dict[str, Any]]]:
        """Controls that forget a person, once the learner is past them and every checkpoint it keeps is too.

        Before that a restart still needs the events as they were: a first row is drawn by its id.
        """
        rows = self._db.rows("SELECT offset, body FROM controls WHERE kind = 'forget' AND erased = 0")
        if not rows or not self._place.exists(BATCHES):
            return []
        with StepReader(self._place) as steps:
            reached = steps.forgotten()
        return [(offset, json.loads(body)) for offset, body in rows if offset <= reached]

    def erase(self, offset: int, body: Mapping[str, Any]) -> list[tuple[LogId, str]]:
        """Give the events of a person before a control to a pseudonym; returns facts of items that named the person."""
        user, pseudonym = body["user"], body["pseudonym"]
        self._db.rows(
            "UPDATE events SET user = ?, event_id = NULL, recommendation = NULL WHERE user = ? AND offset < ?",
            (self._db.key(pseudonym), self._db.key(user), offset),
        )
        gone = json.dumps({**body, "user": pseudonym})
        self._db.rows("UPDATE controls SET body = ?, erased = ? WHERE offset = ?", (gone, ERASED, offset))
        for kind, rule in CONTROLS.items():
            for name in rule.people if kind != "forget" else ():
                self._rename(kind, name, user, pseudonym, offset)
        # Facts whose text holds the id; which of them name it as their owner is seen below.
        query = "SELECT item, body FROM facts WHERE replace(body, ?, '') != body"
        held = [(item, json.loads(text)) for item, text in self._db.rows(query, (json.dumps(str(user)),))]
        self._ids[offset] = user
        return [
            (self._db.id(item), json.dumps({**facts, "owner": None}))
            for item, facts in held
            if facts.get("owner") == str(user)
        ]

    def _rename(self, kind: str, name: str, user: LogId, pseudonym: LogId, before: int) -> None:
        """Give a person's place in earlier controls of a kind to the pseudonym."""
        bodies = self._db.rows("SELECT offset, body FROM controls WHERE kind = ? AND offset < ?", (kind, before))
        named = [(offset, body) for offset, text in bodies if (body := json.loads(text)).get(name) == user]
        changed = [(json.dumps({**body, name: pseudonym}, ensure_ascii=False), offset) for offset, body in named]
        self._db.many("UPDATE controls SET body = ? WHERE offset = ?", changed)

    def verify(self) -> None:
        """Search the file's unused bytes for the ids that were erased; where one is left, rewrite the file."""
        waiting = self._db.rows("SELECT offset FROM controls WHERE erased = ? ORDER BY offset", (ERASED,))
        if not waiting:
            return
        if self._search is None:
            self._db.scrub(rewrite=False)
            offsets = [offset for (offset,) in waiting]
            if self._place.url is not None or not all(offset in self._ids for offset in offsets):
                # A database's files are not ours to search; or a process that ended erased them: nobody knows the ids.
                self._finish(offsets, rewrite=True)
                return
            ids = {offset: self._ids[offset] for offset in offsets}
            self._search = self._pool.submit(left_over, self._place.folder / EVENTS, list(ids.values()))
            self._searched = offsets
        if self._search.done() or self._small():
            left, self._search = self._search.result(), None
            self._finish(self._searched, rewrite=left)

    def close(self) -> None:
        """Wait for a search that is under way."""
        self._pool.shutdown(wait=True)

    def _small(self) -> bool:
        return (self._place.folder / EVENTS).stat().st_size < 16 * _BLOCK

    def _finish(self, offsets: list[int], *, rewrite: bool) -> None:
        try:
            if rewrite:
                self._db.scrub(rewrite=True)
            with self._db.transaction():
                self._db.many(
                    "UPDATE controls SET erased = ? WHERE offset = ?", [(VERIFIED, offset) for offset in offsets]
                )
        except LogError as error:
            self.problem = f"forgetting does not finish: {EVENTS} cannot be rewritten ({error}); make room on the disk"
            raise
        self.problem = None
        for offset in offsets:
            self._ids.pop(offset, None)


def left_over(path: Path, ids: list[LogId]) -> bool:
    """Whether bytes of a SQLite file that no row uses hold one of some ids; False where none do.

    Rows are not looked at: that no row has the id was asked of SQLite, and the id may be a part of another one's.
    """
    needles = [_stored(one) for one in ids]
    if any(len(needle) < 3 for needle in needles):
        return True  # too short to be found: to be sure, the file is rewritten
    with path.open("rb") as file:
        size = int.from_bytes(file.read(18)[16:18], "big") or 4096
        size = 65_536 if size == 1 else size
        file.seek(0)
        number = 0
        while block := file.read(_BLOCK // size * size):
            for needle in needles:
                for at in _places(block, needle):
                    page = at // size
                    if _unused(
                        block[page * size : (page + 1) * size], at % size, len(needle), first=number + page == 0
                    ):
                        return True
            number += len(block) // size
    return False


def _stored(one: LogId) -> bytes:
    """An id as SQLite has it in a row."""
    if isinstance(one, str):
        return one.encode()
    length = next(n for n in (1, 2, 3, 4, 6, 8) if -(1 << (8 * n - 1)) <= one < 1 << (8 * n - 1))
    return one.to_bytes(length, "big", signed=True)


def _places(block: bytes, needle: bytes) -> Iterator[int]:
    at = block.find(needle)
    while at >= 0:
        yield at
        at = block.find(needle, at + 1)


def _unused(page: bytes, at: int, length: int, *, first: bool) -> bool:
    """Whether some bytes of a page are used by no row: between cells, in a free block, or the page is none of rows."""
    start = 100 if first else 0
    if page[start] not in _HEADERS:
        return True
    cells, content = (int.from_bytes(page[start + n : start + n + 2], "big") for n in (3, 5))
    gap = start + _HEADERS[page[start]] + 2 * cells
    if at < (content or 65_536) and at + length > gap:
        return True
    free = int.from_bytes(page[start + 1 : start + 3], "big")
    while free:
        block = int.from_bytes(page[free + 2 : free + 4], "big")
        if at < free + block and at + length > free:
            return True
        free = int.from_bytes(page[free : free + 2], "big")
    return False
