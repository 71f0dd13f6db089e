"""Lines of 64 numbers that compiled loops keep in vector registers, and numbers that threads share, as plain numpy.

`melon.kernels.vectors` has the same functions for numba, and the generator puts them in. A table has rows without
gaps whose length is a multiple of 64; a `tile` is which 64 numbers of a row are meant. Nothing checks a bound.
"""

from __future__ import annotations

import numpy as np

from melon.types import Ints, Singles

#: Numbers of a line, and bits of a mask.
LANES = 64


def room(*shape: int) -> Singles:
    """Zeros that begin at a line of the cache: rows across two of them take half as long again."""
    size, line = int(np.prod(shape)), 64
    whole = np.zeros(size + line // 4, np.float32)
    begin = -whole.ctypes.data % line // 4
    return whole[begin : begin + size].reshape(shape)


def nothing() -> Singles:
    """Zeros."""
    return np.zeros(LANES, np.float32)


def loaded(table: Singles, row: int, tile: int) -> Singles:
    """Numbers of a table."""
    return table[row, LANES * tile : LANES * (tile + 1)].copy()


def stored(line: Singles, table: Singles, row: int, tile: int) -> None:
    """Write a line into a table."""
    table[row, LANES * tile : LANES * (tile + 1)] = line


def scaled(line: Singles, factor: np.float32) -> Singles:
    """A line times a number."""
    return line * factor


def times(line: Singles, other: Singles) -> Singles:
    """The products of two lines, number by number."""
    return line * other


def total_of(line: Singles) -> np.float32:
    """The sum of a line's numbers."""
    return np.float32(line.sum(dtype=np.float32))


def added(line: Singles, other: Singles) -> Singles:
    """The sum of two lines."""
    return line + other


def plus(line: Singles, factors: Singles, i: int, j: int, table: Singles, row: int, tile: int) -> Singles:
    """line + factors[i, j] · the numbers of a table."""
    return added(line, scaled(loaded(table, row, tile), factors[i, j]))


def open_lanes(line: Singles) -> np.uint64:
    """A mask of the numbers that a ReLU lets through: above zero, and NaN."""
    return np.uint64(np.packbits(~(line <= 0), bitorder="little").view(np.uint64)[0])


def masked(line: Singles, mask: np.uint64) -> Singles:
    """Zeros outside the mask."""
    return np.where(np.unpackbits(np.array([mask]).view(np.uint8), bitorder="little"), line, np.float32(0))


def lowest(mask: np.uint64) -> int:
    """Where the lowest bit of a mask stands that is not empty."""
    return (int(mask) & -int(mask)).bit_length() - 1


def seen(numbers: Ints, at: int) -> int:
    """What other threads have made of a number by now, and of everything that they wrote before."""
    return int(numbers[at])


def put(numbers: Ints, at: int, number: int) -> None:
    """Write a number for other threads."""
    numbers[at] = number


def replaced(numbers: Ints, at: int, old: int, new: int) -> bool:
    """Write a new number if the old one is still there. Of several threads one succeeds; says whether this one did."""
    if numbers[at] != old:
        return False
    numbers[at] = new
    return True


def counted(numbers: Ints, at: int) -> None:
    """Add 1 to a number that other threads count in too."""
    numbers[at] += 1


def made_way() -> None:
    """Let another thread or process have this core for a while."""
