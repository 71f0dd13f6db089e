"""A saved model catches up with a file of new interactions: `melon learn`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from melon.data.files import load_stream
from melon.data.ids import IdBook, Ids
from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.learning.model import LiveModel
from melon.progress import counted
from melon.stream.pairs import pair_keys
from melon.stream.split import batches

if TYPE_CHECKING:
    from melon.estimator import Melon

#: Events whose item is looked for in the user's list before it is learned, spread over the file: enough for HR@5 ± .02.
_JUDGED = 500
_LIST = 5


@dataclass(frozen=True)
class Learned:
    """What a model has learned from a file, and how well it predicted a sample of it."""

    interactions: int
    new_users: int
    new_items: int
    judged: int
    hits: int

    def __str__(self) -> str:
        learned, users = counted(self.interactions, "interaction"), counted(self.new_users, "new user")
        text = f"learned {learned}, {users}, {counted(self.new_items, 'new item')}"
        if not self.judged:
            return text
        rate = self.hits / self.judged
        return f"{text}; HR@5 before learning {rate:.3f} (whole catalogue, {self.judged:,} first-time events)"


def read_new(paths: Sequence[Path], model: LiveModel, **columns: Any) -> tuple[Interactions, list[str]]:
    """Interactions from a prepared stream or from raw files, their ids as the model has them, and what to know of them.

    `columns` are options of `melon.data.prepare.prepare` for raw files; no user or item is dropped.
    """
    log, notes = _read(paths, {name: value for name, value in columns.items() if value is not None})
    user_ids, item_ids = _as_in(model.users, log.user_ids), _as_in(model.items, log.item_ids)
    return replace(log, user_ids=user_ids, item_ids=item_ids), notes


def catch_up(model: Melon, log: Interactions) -> Learned:
    """Learn a log batch by batch; a sample of its events is predicted before its batch is learned."""
    live = model.live
    users, items = len(live.users), len(live.items)
    ranges = list(batches(0, len(log), model.batch_size))
    sample = -(-_JUDGED // len(ranges))
    judged = hits = 0
    learning = live.learn(log, model.batch_size)
    for start, stop in ranges:
        counted, right = _look_ahead(live, log, start, min(start + sample, stop))
        judged, hits = judged + counted, hits + right
        next(learning)
    return Learned(len(log), len(live.users) - users, len(live.items) - items, judged, hits)


def _look_ahead(model: LiveModel, log: Interactions, start: int, stop: int) -> tuple[int, int]:
    """How many events have a user and an item that are known and new to each other, and how many were predicted."""
    users = model.users.rows(log.user_ids[log.users[start:stop]])
    items = model.items.rows(log.item_ids[log.items[start:stop]])
    known = (users >= 0) & (users < model.rows_of("user")) & (items >= 0) & (items < model.rows_of("item"))
    users, items = users[known], items[known]
    fresh = ~model.updater.history.seen.contains(pair_keys(users, items))
    users, items = users[fresh], items[fresh]
    lists = model.best(users, _LIST, filter_seen=True)
    return len(users), sum(item in rows for item, (rows, _) in zip(items.tolist(), lists, strict=True))


def _read(paths: Sequence[Path], columns: dict[str, Any]) -> tuple[Interactions, list[str]]:
    if len(paths) == 1 and paths[0].suffix == ".parquet" and not columns:
        try:
            return load_stream(paths[0]), []
        except DataError:
            if not paths[0].is_file():
                raise
    from melon.data.prepare import prepare

    with tempfile.TemporaryDirectory(prefix="melon-") as folder:
        out = Path(folder) / "new.parquet"
        report = prepare(paths, out=out, min_interactions=1, **columns)
        notes = [f"{report.bad_rows:,} of {report.rows_read:,} rows could not be read and are left out"]
        return load_stream(out), [*report.notes, *(notes if report.bad_rows else [])]


def _as_in(book: IdBook, ids: Ids) -> Ids:
    """Ids as the kind that the model's ids have: a file cannot say whether 7 is a number or a text."""
    if book.kind in (None, "int" if ids.dtype.kind in "iu" else "str"):
        return ids
    converted: Ids = np.empty(len(ids), dtype=np.int64 if book.kind == "int" else object)
    converted[:] = [book.parse(str(one)) for one in ids.tolist()]
    return converted
