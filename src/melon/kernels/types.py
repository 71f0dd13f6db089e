"""Arguments of kernels: their types, as numba writes them, from the annotations of the functions.

An array has one axis unless its name says otherwise. `::1` marks the axis along which an array has no gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeAlias, get_type_hints

import numpy as np
import numpy.typing as npt

from melon.types import Flags, Floats, Ints, Scores, Singles, SmallInts, TinyInts

#: Numbers of the compiled kernels, which are single precision; tests run them in double precision, too.
Numbers: TypeAlias = npt.NDArray[np.floating]
IntTable: TypeAlias = Annotated[Ints, "int64[:, ::1]"]
SmallIntTable: TypeAlias = Annotated[SmallInts, "int32[:, ::1]"]
TinyIntCube: TypeAlias = Annotated[TinyInts, "int8[:, :, ::1]"]
FlagTable: TypeAlias = Annotated[Flags, "boolean[:, ::1]"]
SingleTable: TypeAlias = Annotated[Singles, "float32[:, ::1]"]
SingleCube: TypeAlias = Annotated[Singles, "float32[:, :, ::1]"]
NumberTable: TypeAlias = Annotated[Numbers, "float32[:, ::1]"]
NumberCube: TypeAlias = Annotated[Numbers, "float32[:, :, ::1]"]
ScoreTable: TypeAlias = Annotated[Scores, "float32[:, ::1]"]
FloatTable: TypeAlias = Annotated[Floats, "float64[:, ::1]"]
FloatCube: TypeAlias = Annotated[Floats, "float64[:, :, ::1]"]

_WRITTEN: dict[Any, str] = {
    int: "int64",
    float: "float64",
    bool: "boolean",
    np.int64: "int64",
    np.uint64: "uint64",
    np.float32: "float32",
    tuple[int, int]: "UniTuple(int64, 2)",
    Ints: "int64[::1]",
    SmallInts: "int32[::1]",
    Flags: "boolean[::1]",
    Singles: "float32[::1]",
    Numbers: "float32[::1]",
    Floats: "float64[::1]",
}


class Fields(NamedTuple):
    """The type of a named tuple: its class, and the type of each field."""

    of: type
    types: tuple[str | Fields, ...]


Signature = tuple[str | Fields, ...]


def signatures(*kernels: Callable[..., Any]) -> dict[str, Signature]:
    """What each kernel takes, by its name."""
    return {kernel.__name__: tuple(map(_written, _hints(kernel))) for kernel in kernels}


def fields(of: type) -> Fields:
    """A named tuple as an argument."""
    return Fields(of, tuple(map(_written, _hints(of))))


def doubled(given: dict[str, Signature]) -> dict[str, Signature]:
    """The same in double precision."""
    return {
        name: tuple(each.replace("float32", "float64") if isinstance(each, str) else each for each in signature)
        for name, signature in given.items()
    }


def _hints(of: Any) -> list[Any]:
    return [hint for name, hint in get_type_hints(of, include_extras=True).items() if name != "return"]


def _written(hint: Any) -> str | Fields:
    if hasattr(hint, "__metadata__"):
        return str(hint.__metadata__[0])
    return fields(hint) if hasattr(hint, "_fields") else _WRITTEN[hint]
