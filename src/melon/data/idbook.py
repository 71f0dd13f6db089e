"""The book of ids: which row stands for which of the caller's ids, in the order in which they arrived."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from melon.data.interactions import id_keys
from melon.errors import DataError
from melon.types import Ints

Id = int | str | uuid.UUID
Kind = Literal["int", "str", "uuid"]
Ids = npt.NDArray[Any]

UNKNOWN = -1
_KINDS: dict[type, Kind] = {int: "int", str: "str", uuid.UUID: "uuid"}
_SAID: dict[Kind, str] = {"int": "integers", "str": "texts", "uuid": "UUIDs"}
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class IdBook:
    """Ids to dense rows and back. All ids are integers, all are texts or all are UUIDs; the first one decides.

    `what` says whose ids they are in errors: "user" or "item".
    """

    def __init__(self, what: str = "id") -> None:
        self.what = what
        self.kind: Kind | None = None
        self._ids: list[Id] = []
        self._row_of: dict[Id, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def rows(self, ids: Ids | Iterable[Id], *, add: bool = False) -> Ints:
        """The row of each id. An id that is not here is -1, or with `add` gets the next row, in the order given.

        An id of another kind than the book's is an error, and then none of the ids is added.
        """
        plain, kind = self._checked(ids)
        if not plain:
            return np.empty(0, dtype=np.int64)
        if add:
            fresh = [one for one in dict.fromkeys(plain) if one not in self._row_of]
            self._check_storable(fresh, kind)
            self.kind = kind
            self._row_of.update(zip(fresh, range(len(self._ids), len(self._ids) + len(fresh)), strict=True))
            self._ids.extend(fresh)
        known = self._row_of
        return np.fromiter((known.get(one, UNKNOWN) for one in plain), dtype=np.int64, count=len(plain))

    def truncate(self, size: int) -> None:
        """Remove the ids from row `size` on; a book that is empty again takes ids of any kind."""
        for one in self._ids[size:]:
            del self._row_of[one]
        del self._ids[size:]
        if not self._ids:
            self.kind = None

    def ids(self, rows: Ints | Sequence[int]) -> Ids:
        """The ids of rows: int64, or an object array of texts or UUIDs."""
        numbers = np.asarray(rows, dtype=np.int64).reshape(-1)
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self._ids):
            raise DataError(f"row {int(numbers.max())} stands for no {self.what}: there are {len(self._ids)}.")
        out = np.empty(len(numbers), dtype=np.int64 if self.kind == "int" else object)
        out[:] = [self._ids[row] for row in numbers.tolist()]
        return out

    def keys(self, rows: Ints | Sequence[int]) -> Ints:
        """The 64-bit keys by which the rows of these ids are drawn."""
        return id_keys(self.ids(rows))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays of plain numbers that `from_state` turns back into the same book."""
        if self.kind is None:
            return {}
        if self.kind == "int":
            return {"int": np.array(self._ids, dtype=np.int64)}
        if self.kind == "uuid":
            joined = b"".join(one.bytes for one in self._ids)  # type: ignore[union-attr]
            return {"uuid": np.frombuffer(joined, dtype=np.uint8).reshape(-1, 16)}
        texts = [str(one).encode() for one in self._ids]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return {"str": np.frombuffer(b"".join(texts), dtype=np.uint8), "str_offsets": ends}

    @classmethod
    def from_state(cls, state: Mapping[str, npt.NDArray[Any]], what: str = "id") -> IdBook:
        """The book that `state` described."""
        book = cls(what)
        if "int" in state:
            book.rows(state["int"], add=True)
        elif "uuid" in state:
            raw = state["uuid"].tobytes()
            book.rows([uuid.UUID(bytes=raw[start : start + 16]) for start in range(0, len(raw), 16)], add=True)
        elif "str" in state:
            raw, ends = state["str"].tobytes(), state["str_offsets"].tolist()
            book.rows([raw[start:end].decode() for start, end in pairwise(ends)], add=True)
        return book

    def _checked(self, ids: Ids | Iterable[Id]) -> tuple[list[Id], Kind]:
        """The ids as plain Python values of one kind, which is the book's if it has one."""
        plain = _plain(ids)
        wanted = self.kind or (self._kind_of(plain[0]) if plain else "int")
        for kind in {type(one) for one in plain}:
            if _KINDS.get(kind) != wanted:
                odd = next(one for one in plain if type(one) is kind)
                self._kind_of(odd)
                raise DataError(
                    f"{self.what} {odd!r} is of another kind than the others, which are {_SAID[wanted]}; "
                    f"give all {self.what}s as {_SAID[wanted]}."
                )
        return plain, wanted

    def _kind_of(self, one: object) -> Kind:
        if type(one) not in _KINDS:
            raise DataError(f"{self.what} {one!r} is a {type(one).__name__}; ids are integers, texts or UUIDs.")
        return _KINDS[type(one)]

    def _check_storable(self, fresh: list[Id], kind: Kind) -> None:
        if kind == "int":
            for one in fresh:
                if not _LOWEST <= one <= _HIGHEST:  # type: ignore[operator]
                    raise DataError(f"{self.what} {one} does not fit 64 bits; give it as a text.")
        elif kind == "str":
            for one in fresh:
                try:
                    str(one).encode()
                except UnicodeEncodeError:
                    raise DataError(f"{self.what} {one!r} is no valid Unicode text.") from None


def _plain(ids: Ids | Iterable[Id]) -> list[Any]:
    values = ids.reshape(-1).tolist() if isinstance(ids, np.ndarray) else list(ids)
    # Numbers and texts of numpy, alone or in an object array, are taken for what they hold.
    return [one.item() if isinstance(one, np.generic) else one for one in values]
