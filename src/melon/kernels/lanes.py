"""Lines of 64 numbers that compiled loops keep in vector registers, here as plain numpy.

`melon.kernels.vectors` has the same functions for numba, and the generator puts them in. A table has rows without
gaps whose length is a multiple of 64; a `tile` is which 64 numbers of a row are meant. Nothing checks a bound.
"""

from __future__ import annotations

import numpy as np

from melon.types import Singles

#: Numbers of a line, and bits of a mask.
LANES = 64


def nothing() -> Singles:
    """Zeros."""
    return np.zeros(LANES, np.float32)


def loaded(table: Singles, row: int, tile: int) -> Singles:
    """Numbers of a table."""
    return table[row, LANES * tile : LANES * (tile + 1)].copy()


def stored(line: Singles, table: Singles, row: int, tile: int) -> None:
    """Write a line into a table."""
    table[row, LANES * tile : LANES * (tile + 1)] = line


def added(line: Singles, other: Singles) -> Singles:
    """The sum of two lines."""
    return line + other


def plus(line: Singles, factors: Singles, i: int, j: int, table: Singles, row: int, tile: int) -> Singles:
    """line + factors[i, j] · the numbers of a table."""
    return line + factors[i, j] * table[row, LANES * tile : LANES * (tile + 1)]


def open_lanes(line: Singles) -> np.uint64:
    """A mask of the numbers that a ReLU lets through: above zero, and NaN."""
    return np.packbits(~(line <= 0), bitorder="little").view(np.uint64)[0]


def masked(line: Singles, mask: np.uint64) -> Singles:
    """Zeros outside the mask."""
    return np.where(np.unpackbits(np.array([mask]).view(np.uint8), bitorder="little"), line, np.float32(0))


def lowest(mask: np.uint64) -> int:
    """Where the lowest bit of a mask stands that is not empty."""
    return (int(mask) & -int(mask)).bit_length() - 1
