"""The undo journal: what is overwritten while it is open, so that a batch can be taken back as a whole.

`undoable` opens it around a batch. Whoever writes state notes beforehand what is lost: `GrowingRows` do so by
themselves, others use `keep` and `note`. Where no journal is open, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from melon.types import AnyArray, Ints

Undo = Callable[[], None]
#: What has been noted so far; each thread has its own journal.
_open: ContextVar[list[Undo] | None] = ContextVar("undo journal", default=None)


@contextmanager
def undoable(*, always: bool = False) -> Iterator[None]:
    """Take back all that is noted inside the block if it fails, or `always`.

    A block inside another one that ends well is taken back with the outer one.
    """
    outer, journal, stays = _open.get(), list[Undo](), False
    token = _open.set(journal)
    try:
        yield
        stays = not always
    finally:
        _open.set(None)  # taking back is not noted
        while journal and not stays:
            journal.pop()()
        _open.reset(token)
        if outer is not None:
            outer.extend(journal)


def recording() -> bool:
    """Whether a journal is open: what cannot be noted for nothing is noted only then."""
    return _open.get() is not None


def note(undo: Undo) -> None:
    """Have something called when what comes next is taken back; the last one is called first."""
    journal = _open.get()
    if journal is not None:
        journal.append(undo)


def keep(owner: object, *names: str) -> None:
    """Note attributes that are about to change; arrays are copied."""
    if recording():
        held = ((name, getattr(owner, name)) for name in names)
        before = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in held}
        note(partial(owner.__dict__.update, before))


class RowPart(NamedTuple):
    """The type of one column: that of its numbers, the shape of a line, and what stands where nothing was written."""

    dtype: npt.DTypeLike
    shape: tuple[int, ...] = ()
    empty: float = 0


class GrowingRows:
    """Arrays that grow together, a line of each for every row; behind the first `rows` lines stands empty room.

    What is about to be written goes through `touch`, so that the open journal has it.
    """

    def __init__(self, *, spare: int = 0, **columns: RowPart) -> None:
        """Behind the rows stand at least `spare` empty lines."""
        self.rows, self._spare, self._columns = 0, spare, columns
        self.arrays: Any = self._empty(spare)  # a tuple, in the order of the columns

    def reserve(self, capacity: int) -> None:
        """Make room for this many rows in all."""
        if capacity + self._spare > len(self.arrays[0]):
            held, self.arrays = self.held, self._empty(capacity + self._spare)
            for array, before in zip(self.arrays, held, strict=True):
                array[: self.rows] = before

    def make_room(self, rows: int) -> None:
        """The same, and more than that where there is too little: growing row by row is O(1) on average."""
        if rows + self._spare > len(self.arrays[0]):
            self.reserve(max(rows, 2 * len(self.arrays[0])))

    def grow(self, rows: int) -> None:
        """Have at least this many rows; new ones are empty, unless their room has been written."""
        if rows > self.rows:
            self.make_room(rows)
            note(partial(self.truncate, self.rows))
            self.rows = rows

    def truncate(self, rows: int) -> None:
        """Remove the rows from number `rows` on."""
        for array, column in zip(self.arrays, self._columns.values(), strict=True):
            array[rows : self.rows] = column.empty
        self.rows = min(self.rows, rows)

    def touch(self, rows: Ints) -> None:
        """Note rows that are about to be written; those that do not exist are made."""
        self.before(rows)
        self.grow(rows_needed(rows))

    def before(self, rows: Ints) -> None:
        """Note what rows hold, as far as they exist."""
        if recording():
            held = rows[rows < self.rows]
            self.overwrites((held,), [array.take(held, axis=0) for array in self.arrays])

    def overwrites(self, places: tuple[Ints, ...], before: Sequence[AnyArray]) -> None:
        """Note what stood in places of all arrays; of a place that stands there several times, the first counts."""

        def undo() -> None:
            # The last value stays, and numpy would turn round what is backwards throughout: so these are copies.
            backwards = tuple(part[::-1].copy() for part in places)
            for array, values in zip(self.arrays, before, strict=True):
                array[backwards] = values[::-1].copy()

        note(undo)

    @property
    def held(self) -> Any:
        """Views of the rows."""
        return tuple(array[: self.rows] for array in self.arrays)

    def state(self) -> dict[str, AnyArray]:
        """Copies of the rows, by column."""
        return {name: array.copy() for name, array in zip(self._columns, self.held, strict=True)}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Become copies of what `state` described."""
        self.rows = len(state[next(iter(self._columns))])
        self.arrays = self._empty(self.rows + self._spare)
        for array, name in zip(self.arrays, self._columns, strict=True):
            array[: self.rows] = state[name]

    def _empty(self, size: int) -> tuple[AnyArray, ...]:
        return tuple(np.full((size, *of.shape), of.empty, of.dtype) for of in self._columns.values())


#: For so few numbers Python is quicker than numpy.
_FEW = 16


def rows_needed(rows: Ints) -> int:
    """One more than the largest row."""
    return max(rows.tolist(), default=-1) + 1 if len(rows) <= _FEW else int(rows.max()) + 1
