"""Arguments of kernels: their types, as numba writes them.

`::1` marks the axis along which an array has no gaps.
"""

from __future__ import annotations

from typing import NamedTuple

INT, WORD, FLAG, SINGLE, DOUBLE = "int64", "uint64", "boolean", "float32", "float64"
#: A first and a last number.
RANGE = "UniTuple(int64, 2)"
INTS, INT_TABLE = "int64[::1]", "int64[:, ::1]"
SMALL_INTS, SMALL_INT_TABLE = "int32[::1]", "int32[:, ::1]"
TINY_INT_CUBE = "int8[:, :, ::1]"
FLAGS, FLAG_TABLE = "boolean[::1]", "boolean[:, ::1]"
SINGLES, SINGLE_TABLE, SINGLE_CUBE = "float32[::1]", "float32[:, ::1]", "float32[:, :, ::1]"
WORDS, WORD_TABLE, WORD_CUBE = "uint64[::1]", "uint64[:, ::1]", "uint64[:, :, ::1]"
DOUBLES, DOUBLE_TABLE, DOUBLE_CUBE = "float64[::1]", "float64[:, ::1]", "float64[:, :, ::1]"


#: A table of rows (`Table.arrays`): values, last touches, and the half-life of idle rows, 0 where they do not decay.
ROWS: Signature = (SINGLE_TABLE, INTS, DOUBLE)


class Fields(NamedTuple):
    """The type of a named tuple: its class, and the type of each field."""

    of: type
    types: tuple[str | Fields, ...]


Signature = tuple[str | Fields, ...]
