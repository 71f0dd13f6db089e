"""Arrays of a checkpoint: checked for type, shape and range before anything relies on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from melon.errors import CheckpointError

#: No count and no time is larger; there is room to go on counting.
MOST = 1 << 62

SavedArrays = Mapping[str, npt.NDArray[Any]]


def saved_array(
    state: SavedArrays,
    name: str,
    dtype: npt.DTypeLike,
    shape: tuple[int | None, ...],
    *,
    least: float | None = None,
    most: float | None = None,
) -> npt.NDArray[Any]:
    """An array by name, if it is of this type and shape (None: any length), finite, and between `least` and `most`."""
    if name not in state:
        raise CheckpointError(f"the saved state has no {name!r}.")
    array = state[name]
    fits = len(array.shape) == len(shape) and all(
        wanted in (None, length) for length, wanted in zip(array.shape, shape, strict=True)
    )
    if array.dtype != np.dtype(dtype) or not fits:
        wanted = " × ".join("any" if length is None else str(length) for length in shape)
        raise CheckpointError(
            f"the saved {name!r} is {array.dtype} of shape {array.shape} instead of {np.dtype(dtype)} of {wanted}."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CheckpointError(f"the saved {name!r} has numbers that are not finite.")
    if array.size and ((least is not None and array.min() < least) or (most is not None and array.max() > most)):
        raise CheckpointError(
            f"the saved {name!r} has numbers from {array.min()} to {array.max()}, outside {least} to {most}."
        )
    return array.copy()


def saved_number(state: SavedArrays, name: str, *, least: int = 0) -> int:
    """One whole number that was saved as an array of one."""
    return int(saved_array(state, name, np.int64, (1,), least=least, most=MOST)[0])


def part_of(state: SavedArrays, name: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays whose names begin with `name.`, without that."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}


def require(holds: bool, what: str) -> None:
    """Refuse a checkpoint whose parts do not agree."""
    if not holds:
        raise CheckpointError(f"the parts of the saved state do not agree: {what}.")
