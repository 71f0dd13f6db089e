"""Products of rows with a layer's weights, for NCF's pre-training, in lines of 64 numbers (`melon.kernels.lanes`).

A ReLU leaves half of a layer's values at exactly 0. So products take the others, by the bits of a mask: for each row
the units that are on, and for the gradient of a unit's weights the rows for which it is on.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.lanes import (
    LANES,
    added,
    loaded,
    lowest,
    masked,
    nothing,
    open_lanes,
    plus,
    scaled,
    stored,
    times,
    total_of,
)
from melon.types import Ints, Singles, Words

#: A call would cost as much as what these do.
INLINED: tuple[str, ...] = ("gathered", "dot", "multiplied", "moved_row")
_NO_BIT, _BIT = np.uint64(0), np.uint64(1)


def dense(rows: Singles, count: int, inputs: int, weights: Singles, tiles: int, out: Singles) -> None:
    """out[n] += rows[n] · weights; four lines at a time, of which the last ones may be left over from before."""
    for n in range(0, count, 4):
        for tile in range(tiles):
            a, b = loaded(out, n, tile), loaded(out, n + 1, tile)
            c, d = loaded(out, n + 2, tile), loaded(out, n + 3, tile)
            for k in range(inputs):
                a, b = plus(a, rows, n, k, weights, k, tile), plus(b, rows, n + 1, k, weights, k, tile)
                c, d = plus(c, rows, n + 2, k, weights, k, tile), plus(d, rows, n + 3, k, weights, k, tile)
            stored(a, out, n, tile)
            stored(b, out, n + 1, tile)
            stored(c, out, n + 2, tile)
            stored(d, out, n + 3, tile)


def upward(
    count: int, masks: Words, values: Singles, inputs: int, weights: Singles, tiles: int, out_masks: Words, out: Singles
) -> None:
    """A layer's values, and which of them are on; `inputs` and `tiles` are the numbers of tiles below and here."""
    for n in range(count):
        for tile in range(tiles):
            total = nothing()
            for word in range(inputs):
                mask = masks[n, word]
                while mask != _NO_BIT:
                    k = LANES * word + lowest(mask)
                    mask &= mask - _BIT
                    total = plus(total, values, n, k, weights, k, tile)
            out_masks[n, tile] = open_lanes(total)
            stored(masked(total, out_masks[n, tile]), out, n, tile)


def downward(
    count: int, masks: Words, delta: Singles, units: int, weights: Singles, tiles: int, below: Words, first: int,
    out: Singles,
) -> None:  # fmt: skip
    """What comes back through a layer's weights, from `first` on, to what is on `below`.

    `units` and `tiles` are the numbers of tiles here and below.
    """
    for n in range(count):
        for tile in range(tiles):
            total = nothing()
            for word in range(units):
                mask = masks[n, word]
                while mask != _NO_BIT:
                    k = LANES * word + lowest(mask)
                    mask &= mask - _BIT
                    total = plus(total, delta, n, k, weights, k, tile)
            stored(masked(total, below[n, tile]), out, first + n, tile)


def _bits_turned(words: Words) -> None:
    """64 words of 64 bits: bit i of word j becomes bit j of word i. Halves change places, then halves of these."""
    apart, kept = LANES // 2, np.uint64(0xFFFFFFFF)
    while apart:
        shift = np.uint64(apart)
        for first in range(0, LANES, 2 * apart):
            for n in range(first, first + apart):
                crossed = ((words[n] >> shift) ^ words[n + apart]) & kept
                words[n] ^= crossed << shift
                words[n + apart] ^= crossed
        apart //= 2
        kept ^= kept << np.uint64(apart)


def gradient(
    count: int, masks: Words, columns: Words, delta: Singles, units: int, values: Singles, tiles: int, out: Singles
) -> None:
    """Add the gradient of a layer's weights: for each unit, what comes back to it times the values below."""
    for word in range(units):
        for n in range(LANES):
            columns[n] = masks[n, word] if n < count else _NO_BIT
        _bits_turned(columns)
        for bit in range(LANES):
            unit = LANES * word + bit
            for tile in range(tiles):
                mask, total = columns[bit], loaded(out, unit, tile)
                while mask != _NO_BIT:
                    n = lowest(mask)
                    mask &= mask - _BIT
                    total = plus(total, delta, n, unit, values, n, tile)
                stored(total, out, unit, tile)


def gathered(table: Singles, rows: Ints, out: Singles) -> None:
    size = table.shape[1]
    for n in range(rows.size):
        row = rows[n]
        for tile in range(size // LANES):
            stored(loaded(table, row, tile), out, n, tile)
        for d in range(size // LANES * LANES, size):
            out[n, d] = table[row, d]


def dot(one: Singles, i: int, other: Singles, j: int) -> np.float32:
    """one[i] · other[j], as long as the rows of `one` are."""
    size, total = one.shape[1], nothing()
    for tile in range(size // LANES):
        total = added(total, times(loaded(one, i, tile), loaded(other, j, tile)))
    found = total_of(total)
    for d in range(size // LANES * LANES, size):
        found += one[i, d] * other[j, d]
    return found


def multiplied(one: Singles, i: int, other: Singles, j: int, out: Singles, n: int) -> None:
    """out[n] = one[i] ⊙ other[j]."""
    size = out.shape[1]
    for tile in range(size // LANES):
        stored(times(loaded(one, i, tile), loaded(other, j, tile)), out, n, tile)
    for d in range(size // LANES * LANES, size):
        out[n, d] = one[i, d] * other[j, d]


def moved_row(table: Singles, row: int, left: np.float32, step: np.float32, steps: Singles, n: int) -> None:
    """table[row] = left · table[row] − step · steps[n]."""
    size, back = table.shape[1], -step
    for tile in range(size // LANES):
        line = added(scaled(loaded(table, row, tile), left), scaled(loaded(steps, n, tile), back))
        stored(line, table, row, tile)
    for d in range(size // LANES * LANES, size):
        table[row, d] = left * table[row, d] + back * steps[n, d]
