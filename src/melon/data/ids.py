"""Ids of any kind outside, dense rows by first appearance inside."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from melon.errors import DataError
from melon.types import Ints

if TYPE_CHECKING:
    import polars as pl

Id = int | str | uuid.UUID
IdKind = Literal["int", "str", "uuid"]
Ids = npt.NDArray[Any]
Codes = npt.NDArray[np.integer]

UNKNOWN = -1
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
#: Up to here a float holds every whole number.
MOST_EXACT_FLOAT = 1 << 53

_KINDS: dict[type, IdKind] = {int: "int", str: "str", uuid.UUID: "uuid"}
_TYPES = {kind: of for of, kind in _KINDS.items()}
_PLURALS: dict[IdKind, str] = {"int": "integers", "str": "texts", "uuid": "UUIDs"}


def first_positions(codes: Codes, size: int) -> Ints:
    """Position at which each of the codes 0 … size-1 first appears; -1 for a code that does not."""
    first = np.full(size, -1, dtype=np.int64)
    # Written backwards, so that the earliest position is written last.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def rows_from_codes(codes: Codes, size: int) -> tuple[Ints, Ints]:
    """Rows numbered by first appearance for codes below `size`, and the position where each row first appears."""
    first = first_positions(codes, size)
    positions = np.sort(first[first >= 0])
    row_of = np.full(size, -1, dtype=np.int64)
    row_of[codes[positions]] = np.arange(len(positions))
    return row_of[codes], positions


def rows_by_first_appearance(ids: Ids | pl.Series) -> tuple[Ints, Ids]:
    """Row number of each id, numbered in the order in which the ids first appear, and the ids in that order."""
    rows, positions = rows_from_codes(*codes_of(ids))
    return rows, ids[positions] if isinstance(ids, np.ndarray) else as_array(ids.gather(positions))


def codes_of(ids: Ids | pl.Series) -> tuple[Codes, int]:
    """Some code below a modest bound for each id (integers, texts or categories; no nulls), and that bound."""
    if not len(ids):
        return np.zeros(0, dtype=np.int64), 0
    if not isinstance(ids, np.ndarray):
        import polars as pl

        if not ids.dtype.is_integer():
            categories = ids.cast(pl.Categorical(pl.Categories.random())) if ids.dtype == pl.String else ids
            codes = categories.to_physical().to_numpy()
            return codes, int(codes.max()) + 1
        ids = ids.cast(pl.Int64).to_numpy()
    # Integers in a modest range are their own codes: no hashing, no sorting.
    if ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() <= 4 * len(ids) + 1024:
        return ids.astype(np.int64, copy=False), int(ids.max()) + 1
    distinct, codes = np.unique(ids, return_inverse=True)
    return codes.reshape(-1), len(distinct)


def as_array(ids: pl.Series) -> Ids:
    """Ids as melon returns them: int64, or an object array of str, which keeps every text whole."""
    if ids.dtype.is_integer():
        return ids.to_numpy().astype(np.int64, copy=False)
    return np.array(ids.to_list(), dtype=object)


def first_beyond_64_bits(numbers: pl.Series) -> int | None:
    """Position of the first number (no nulls, no NaN) that is too large or too small for 64 bits; None if all fit."""
    import polars as pl

    lost = numbers.cast(pl.Int64, strict=False).is_null()
    return lost.arg_max() if lost.any() else None


def original_ids(ids: pl.Series, texts: bool) -> Ids:
    """Raw ids as melon returns them: texts if the source says so, and else integers where each id is one.

    "7" is an integer in its plain notation; "07" and "+7" are not, nor is a number beyond 64 bits.
    """
    import polars as pl

    if ids.dtype != pl.Int64 or texts:
        ids = ids.cast(pl.String)
        numbers = ids.cast(pl.Int64, strict=False)
        plain = ids.str.contains(r"^(?:0|-?[1-9][0-9]*)$")
        ids = numbers if not texts and bool((plain & numbers.is_not_null()).all()) else ids
    return as_array(ids)


def id_keys(ids: Ids) -> Ints:
    """64-bit keys: integers stand for themselves, other ids are hashed through their text, equally on every machine."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    digests = (hashlib.blake2b(str(one).encode(), digest_size=8).digest() for one in ids.tolist())
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def id_bytes(ids: Ids) -> bytes:
    """Bytes that differ wherever the ids differ, for fingerprints."""
    if ids.dtype.kind in "iu":
        return np.ascontiguousarray(ids, dtype="<i8").tobytes()
    return json.dumps(ids.tolist(), default=str).encode()


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; one with half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class IdBook:
    """Ids to dense rows and back. All ids are integers, all are texts or all are UUIDs; the first one decides.

    `what` says whose ids they are in errors: "user" or "item".
    """

    def __init__(self, what: str = "id") -> None:
        self.what = what
        self.kind: IdKind | None = None
        self._ids: list[Id] = []
        self._row_of: dict[Id, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> IdBook:
        twin = IdBook(self.what)
        twin.kind, twin._ids, twin._row_of = self.kind, self._ids.copy(), self._row_of.copy()
        return twin

    def rows(self, ids: Ids | Iterable[Id], *, add: bool = False) -> Ints:
        """Row of each id. An unknown id is -1, or with `add` gets the next row, in the order given.

        An id of another kind than the book's is an error, and then none of the ids is added.
        """
        row_of, plain = self._row_of, ids.reshape(-1).tolist() if isinstance(ids, np.ndarray) else ids
        if self.kind is not None and isinstance(plain, list) and set(map(type, plain)) == {_TYPES[self.kind]}:
            rows = list(map(row_of.get, plain))
            if None not in rows:
                return np.array(rows, dtype=np.int64)
        values, kind = self._checked(plain)
        if not values:
            return np.empty(0, dtype=np.int64)
        strangers = [one for one in dict.fromkeys(values) if one not in row_of]
        self._check_storable(strangers, kind)
        if add:
            self.kind = kind
            row_of.update(zip(strangers, range(len(self._ids), len(self._ids) + len(strangers)), strict=True))
            self._ids.extend(strangers)
        return np.array([row_of.get(one, UNKNOWN) for one in values], dtype=np.int64)

    def truncate(self, size: int) -> None:
        """Remove the ids from row `size` on; a book that is empty again takes ids of any kind."""
        for one in self._ids[size:]:
            del self._row_of[one]
        del self._ids[size:]
        if not self._ids:
            self.kind = None

    def rename(self, row: int, to: Id) -> None:
        """Give a row another id, of the same kind and new; the old one is unknown from now on."""
        if self.rows([to])[0] >= 0 and self._ids[row] != to:
            raise DataError(f"{self.what} {to!r} has row {self._row_of[to]} and cannot be row {row} too.")
        del self._row_of[self._ids[row]]
        self._ids[row], self._row_of[to] = to, row

    def parse(self, text: str) -> Id:
        """A written id as the kind that the book has; texts do not say whether 7 is a number."""
        try:
            parsed: Id = _TYPES[self.kind or "str"](text)
        except ValueError:
            kinds = _PLURALS[self.kind or "str"]
            raise DataError(
                f"{self.what} {text!r} cannot be in this model, whose {self.what} ids are {kinds}."
            ) from None
        return parsed

    def ids(self, rows: Ints | Sequence[int]) -> Ids:
        """Ids of rows: int64, or an object array of texts or UUIDs."""
        numbers = np.asarray(rows, dtype=np.int64).reshape(-1)
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self._ids):
            raise DataError(f"row {int(numbers.max())} belongs to no {self.what}: there are {len(self._ids)}.")
        out = np.empty(len(numbers), dtype=np.int64 if self.kind == "int" else object)
        out[:] = [self._ids[row] for row in numbers.tolist()]
        return out

    def named(self, rows: Sequence[int]) -> list[Id]:
        """Ids of rows that there are, as plain values: quicker for the few of a list."""
        ids = self._ids
        return [ids[row] for row in rows]

    def keys(self, rows: Ints | Sequence[int]) -> Ints:
        """64-bit keys by which the initial rows of these ids are drawn."""
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

    def _checked(self, ids: Iterable[Any]) -> tuple[list[Id], IdKind]:
        """Ids as plain Python values of one kind, which is the book's if it has one."""
        values = _python_values(ids)
        kinds = set(map(type, values))
        if float in kinds:
            values = [whole_float(one) if type(one) is float else one for one in values]
            kinds = set(map(type, values))
        wanted = self.kind or (self._kind_of(values[0]) if values else "int")
        for kind in kinds:
            if _KINDS.get(kind) != wanted:
                odd = next(one for one in values if type(one) is kind)
                self._kind_of(odd)
                raise DataError(
                    f"{self.what} {odd!r} has another type than the others, which are {_PLURALS[wanted]}; "
                    f"give all {self.what}s as {_PLURALS[wanted]}."
                )
        return values, wanted

    def _kind_of(self, one: object) -> IdKind:
        if type(one) not in _KINDS:
            raise DataError(f"{self.what} {one!r} is a {type(one).__name__}; ids are integers, texts or UUIDs.")
        return _KINDS[type(one)]

    def _check_storable(self, ids: list[Id], kind: IdKind) -> None:
        if kind == "int":
            for one in ids:
                if not LOWEST <= one <= HIGHEST:  # type: ignore[operator]
                    raise DataError(f"{self.what} {one} does not fit 64 bits; give it as a text.")
        elif kind == "str":
            for one in ids:
                if not is_unicode(str(one)):
                    raise DataError(f"{self.what} {one!r} is not valid Unicode: it has half of a surrogate pair.")


def _python_values(ids: Iterable[Any]) -> list[Any]:
    # Numbers and texts of numpy, alone or in an object array, are taken for what they hold.
    return [one.item() if isinstance(one, np.generic) else one for one in ids]


def whole_float(value: float) -> int | float:
    """27.0 is the integer 27; a number with a fraction, or one too large for a float to hold exactly, stays a float."""
    return int(value) if value.is_integer() and abs(value) <= MOST_EXACT_FLOAT else value
