"""Deltas: what one step changed of a model, as bytes that turn a copy before the step into one after it, bit for bit.

A delta holds the rows that changed, the step's interactions as rows, and the head's memory. What follows from the
interactions alone (history, counts, neighbours, popular items) is not sent but done again. Optimiser state stays with
the learner: a copy answers and never learns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from melon.data.ids import Id, IdBook
from melon.errors import CheckpointError
from melon.learning.model import Edit, LiveModel, edit_past, forget_past
from melon.learning.tensorfiles import pieces
from melon.models.blend.recommender import Blend
from melon.stream.pairs import distinct
from melon.stream.saved import MOST, part_of, require, saved_array
from melon.types import AnyArray, Ints, Scores

DIGEST_SIZE = 32
#: The digest before the first step.
NOTHING = bytes(DIGEST_SIZE)
_SIDES = ("users", "items")


@dataclass(frozen=True)
class ChangedRows:
    """Rows of one table as they are stored now, and how many the table has."""

    size: int
    rows: Ints
    values: Scores
    touched: Ints


@dataclass(frozen=True)
class Interacted:
    """Interactions that a step added to the past, as rows, in order."""

    users: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    items: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    times: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class Delta:
    """One step's changes. `books` are new ids by side, and how many there were before; `forgotten` is a row, `edit` a
    change of the past that no event made.
    """

    number: int
    events: int
    last_time: int
    late: int
    clock: int
    half_lives: Mapping[str, float]
    past: Interacted
    books: Mapping[str, tuple[int, IdBook]]
    tables: Mapping[str, ChangedRows]
    head: Mapping[str, AnyArray]
    forgotten: tuple[int, Id] | None = None
    edit: Edit | None = None

    def to_bytes(self) -> bytes:
        """The delta in the layout of safetensors; equal deltas are equal bytes.

        Rows that were touched at one moment, as those of a batch are, have it once.
        """
        about = {
            "number": self.number,
            "events": self.events,
            "last_time": self.last_time,
            "late": self.late,
            "clock": self.clock,
            "half_lives": dict(self.half_lives),
            "known": {side: known for side, (known, _) in self.books.items()},
            "sizes": {name: rows.size for name, rows in self.tables.items()},
            "forgotten": None if self.forgotten is None else self.forgotten[0],
        }
        if self.edit is not None:
            about["edit"] = list(self.edit)
        text = json.dumps(about, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        tensors: dict[str, AnyArray] = {"about": np.frombuffer(text, dtype=np.uint8).copy()}
        tensors |= {f"past.{name}": getattr(self.past, name) for name in ("users", "items", "times")}
        tensors |= {f"head.{name}": held for name, held in self.head.items()}
        books = {side: book for side, (_, book) in self.books.items()}
        if self.forgotten is not None:
            books["forgotten"] = IdBook("user")
            books["forgotten"].rows([self.forgotten[1]], add=True)
        tensors |= {f"{side}.{name}": held for side, book in books.items() for name, held in book.state().items()}
        for name, rows in self.tables.items():
            touched = rows.touched[:1] if bool((rows.touched == rows.touched[:1]).all()) else rows.touched
            numbers = rows.rows.astype(np.int32)
            parts: dict[str, AnyArray] = {"rows": numbers, "values": rows.values, "touched": touched}
            tensors |= {f"table.{name}/{part}": held for part, held in parts.items()}
        return b"".join(pieces(tensors))

    @classmethod
    def from_bytes(cls, content: bytes) -> Delta:
        """The delta that `to_bytes` wrote; bytes that no delta has are a `CheckpointError`."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays = {name: np.array(array) for name, array in load(content).items()}  # what is read is read-only
            about = json.loads(arrays["about"].tobytes())
            columns = (f"past.{part}" for part in ("users", "items", "times"))
            past = Interacted(*(saved_array(arrays, name, np.int64, (None,), least=0) for name in columns))
            require(len(past.users) == len(past.items) == len(past.times), "the columns of a delta's interactions")
            new = {side: IdBook.from_state(part_of(arrays, side), side) for side in (*_SIDES, "forgotten")}
            row = about["forgotten"]
            return cls(
                number=_count(about, "number"),
                events=_count(about, "events"),
                last_time=_count(about, "last_time"),
                late=_count(about, "late"),
                clock=_count(about, "clock"),
                half_lives={str(name): float(value) for name, value in about["half_lives"].items()},
                past=past,
                books={side: (_count(about["known"], side), new[side]) for side in _SIDES},
                tables={name: _rows_of(name, size, arrays) for name, size in about["sizes"].items()},
                head={name.removeprefix("head."): held for name, held in arrays.items() if name.startswith("head.")},
                forgotten=None if row is None else (int(row), new["forgotten"].ids([0]).tolist()[0]),
                edit=_edit(about["edit"]) if "edit" in about else None,
            )
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"these bytes are not a delta of a model: {error!r}.") from error


def chained(previous: bytes, content: bytes) -> bytes:
    """The digest after a delta: that of the digest before it and of its bytes."""
    return hashlib.blake2b(previous + content, digest_size=DIGEST_SIZE).digest()


class Recorder:
    """Watches a model that learns, and tells after each step what it changed."""

    def __init__(self, model: LiveModel) -> None:
        self._model = model
        self._changes = {name: table.watch() for name, table in model.updater.recommender.tables.items()}
        self._known = {side: len(getattr(model, side)) for side in _SIDES}

    def take(
        self, number: int, past: Interacted, forgotten: tuple[int, Id] | None = None, edit: Edit | None = None
    ) -> Delta:
        """The changes since the last call, which made the model's step of this number."""
        model, updater = self._model, self._model.updater
        recommender, tables = updater.recommender, dict[str, ChangedRows]()
        for name, table in recommender.tables.items():
            rows, view = distinct(self._changes[name].take()), table.view()
            rows = rows[rows < table.rows]
            if len(rows):
                tables[name] = ChangedRows(table.rows, rows, view.storage[rows], view.touched[rows])
        books: dict[str, tuple[int, IdBook]] = {}
        for side, known in self._known.items():
            book, new = getattr(model, side), IdBook(side)
            new.rows(book.ids(range(known, len(book))), add=True)
            books[side], self._known[side] = (known, new), len(book)
        return Delta(
            number,
            updater.history.events,
            model.last_time,
            model.late,
            recommender.clock.now,
            updater.moment().half_lives,
            past,
            books,
            tables,
            {name: np.array(held) for name, held in recommender.head.memory().items()}
            if isinstance(recommender, Blend)
            else {},
            forgotten,
            edit,
        )


def apply(model: LiveModel, delta: Delta) -> None:
    """Do to a copy of the model what the delta's step did; the caller keeps readers away meanwhile."""
    updater = model.updater
    recommender, history, past = updater.recommender, updater.history, delta.past
    _check(model, delta)
    for side, (_, new) in delta.books.items():
        getattr(model, side).rows(new.ids(range(len(new))), add=True)
    for name, rows in delta.tables.items():
        table = recommender.tables[name]
        table.grow(rows.size, np.zeros(max(rows.size - table.rows, 0), dtype=np.int64))
        table.scatter(rows.rows, rows.values)
        table.stamp(rows.rows, rows.touched)
    if len(past.users):
        recommender.observe(past.users, past.items, past.times, history)
        history.append(past.users, past.items)
        model.popular.observe(past.items)
    if isinstance(recommender, Blend):
        recommender.head.recall(delta.head)
    if delta.forgotten is not None:
        forget_past(model, *delta.forgotten)
    if delta.edit is not None:
        edit_past(model, delta.edit)
    recommender.clock.now = delta.clock
    updater.follow(delta.half_lives)
    model.last_time, model.late = delta.last_time, delta.late


def state_digest(model: LiveModel, *, answering: bool = False) -> str:
    """A digest of everything that learning goes on from; with `answering`, of what answers depend on alone."""
    updater = model.updater
    recommender, strategy = updater.recommender, updater.strategy
    parts: dict[str, Mapping[str, AnyArray]] = {
        "history": updater.history.state(),
        "popular": model.popular.state(),
        "users": model.users.state(),
        "items": model.items.state(),
        "streaming": recommender.streaming_state(),
        "model": {"counts": np.array([model.last_time, model.late])},
        "half_life": {name: np.array([value]) for name, value in updater.moment().half_lives.items()},
        **{f"table {name}": table.state() for name, table in recommender.tables.items()},
    }
    if not answering:
        parts["memory"] = strategy.memory()
        for name, tables in updater.row_state.items():
            parts |= {f"state {name} {key}": table.state() for key, table in tables.items()}
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for part in sorted(parts):
        digest.update(part.encode())
        for piece in pieces(parts[part]):
            digest.update(piece)
    return digest.hexdigest()


def _count(about: Mapping[str, Any], name: str) -> int:
    value = about[name]
    require(type(value) is int and 0 <= value <= MOST, f"{name} = {value!r} of a delta")
    return int(value)


def _edit(given: Any) -> Edit:
    kind, row, other = given
    require(kind in ("retract", "move", "rename"), f"the edit {kind!r} of a delta")
    require(type(row) is int and row >= 0 and (kind == "rename" or type(other) is int), "the rows of a delta's edit")
    return kind, row, other


def _rows_of(name: str, size: int, arrays: Mapping[str, AnyArray]) -> ChangedRows:
    rows, values, touched = (arrays[f"table.{name}/{part}"] for part in ("rows", "values", "touched"))
    whole = rows.dtype == np.int32 and touched.dtype == np.int64
    require(whole and values.ndim == 2, f"the rows of {name!r} in a delta")
    require(len(rows) == len(values) and len(touched) in (1, len(rows)), f"the lengths of {name!r} in a delta")
    require(not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < size, f"the row numbers of {name!r} in a delta")
    return ChangedRows(int(size), rows.astype(np.int64), values, np.broadcast_to(touched, len(rows)))


def _check(model: LiveModel, delta: Delta) -> None:
    """Refuse a delta of another model, or one that does not come next, before anything is changed."""
    updater = model.updater
    headed = isinstance(updater.recommender, Blend)
    require(headed == bool(delta.head), f"a head in a delta of {updater.recommender.name!r}")
    require(delta.tables.keys() <= updater.recommender.tables.keys(), f"the tables {sorted(delta.tables)} of a delta")
    require(updater.history.events + len(delta.past.users) == delta.events, f"{delta.events} interactions of a delta")
    sizes = {}
    for side, (known, new) in delta.books.items():
        require(len(getattr(model, side)) == known, f"{known} {side} before a delta")
        sizes[side] = known + len(new)
    for side, rows in (("users", delta.past.users), ("items", delta.past.items)):
        require(int(rows.max(initial=-1)) < sizes[side], f"rows of {side} in a delta")
    for name, written in delta.tables.items():
        table = updater.recommender.tables[name]
        fits = written.values.shape[1:] == (table.spec.dim,) and written.values.dtype == table.dtype
        require(fits and written.size >= table.rows, f"the table {name!r} of a delta")
