"""The pre-filter of lists: a scan of 8-bit quantised rows, as compiled kernels. No sum is rounded.

Suites put this behind `best`, whose functions it uses.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.best import _better, _offer
from melon.kernels.seen import PairsSeen
from melon.kernels.types import IntTable, SingleTable, TinyIntCube
from melon.types import Flags, Ints, Singles, TinyInts

#: Rows of items stand in blocks, dimensions × items, so that a vector holds one dimension of many items.
BLOCK = 64
#: Codes are whole numbers from −127 to 127. Up to 2²⁴, float32 adds whole numbers without rounding, in any order.
_MOST, _EXACT = 127.0, 16_777_215.0
#: Dimensions that are taken together; rows are filled up with zeros.
TOGETHER = 4


def quantise(
    rows: Ints,
    vectors: SingleTable,
    touched: Ints,
    half_life: float,
    reference: int,
    biases: SingleTable,
    bias_touched: Ints,
    bias_half_life: float,
    bias_reference: int,
    codes: TinyIntCube,
    scales: Singles,
    bias: Singles,
) -> None:
    """Copy rows of items: vectors as codes and what a code of 1 is worth, biases as they are.

    Both are decayed by a reference.
    """
    for n in range(rows.size):
        row, most = rows[n], np.float32(0)
        vector, block, lane = vectors[row], codes[row // BLOCK], row % BLOCK
        for d in range(vector.size):
            most = max(most, abs(vector[d]))
        share = _MOST / most if most > 0 else 0.0
        for d in range(vector.size):
            block[d, lane] = np.int8(np.floor(vector[d] * share + 0.5))
        left, bias_left = 1.0, 1.0
        if half_life > 0:
            left = np.exp2((touched[row] - reference) / half_life)
        if bias_half_life > 0:
            bias_left = np.exp2((bias_touched[row] - bias_reference) / bias_half_life)
        scales[row], bias[row] = most / _MOST * left, biases[row, 0] * bias_left


def _whole(vector: Singles, out: Singles) -> np.float32:
    """A user's vector in whole numbers, so many that sums stay exact; returns what 1 is worth."""
    most, levels = np.float32(0), np.floor(_EXACT / (_MOST * out.size))
    for d in range(vector.size):
        most = max(most, abs(vector[d]))
    share = levels / most if most > 0 else 0.0
    for d in range(vector.size):
        out[d] = np.floor(vector[d] * share + 0.5)
    return np.float32(most / levels)


def _sums(vector: Singles, block: TinyInts, out: Singles) -> None:
    """vector · codes of each item of a block."""
    for lane in range(BLOCK):
        out[lane] = 0
    for d in range(0, vector.size, TOGETHER):
        one, two, three, four = vector[d], vector[d + 1], vector[d + 2], vector[d + 3]
        a, b, c, e = block[d], block[d + 1], block[d + 2], block[d + 3]
        for lane in range(BLOCK):
            left = one * np.float32(a[lane]) + two * np.float32(b[lane])
            out[lane] += left + (three * np.float32(c[lane]) + four * np.float32(e[lane]))


def _read(
    table: Singles, touched: Ints, half_life: float, known: int, now: int, users: Ints, factor: np.float32, out: Singles
) -> None:
    """Rows of users decayed, times a factor; users from number `known` on have none."""
    for n in range(users.size):
        scale = factor
        if half_life > 0 and users[n] < known:
            scale *= np.float32(np.exp2(min(touched[users[n]] - now, 0) / half_life))
        for d in range(out.shape[1]):
            out[n, d] = scale * table[users[n], d] if users[n] < known else np.float32(0)


def quantised_scan(
    user_vectors: SingleTable,
    user_touched: Ints,
    user_half_life: float,
    users_known: int,
    now: int,
    codes: TinyIntCube,
    scales: Singles,
    bias: Singles,
    factor: np.float32,
    bias_factor: np.float32,
    users: Ints,
    allowed: Flags,
    seen: PairsSeen,
    rows: IntTable,
    values: SingleTable,
    counts: Ints,
) -> int:
    """The best items by p_u · q_i + b_i, to the precision of codes and in no order; -1, or a line that is broken.

    Rows of users decay to `now` here; the items are those of `bias`. Each line's sums are exact, so that they do not
    depend on the other lines.
    """
    lines, many, dim = users.size, bias.size, codes.shape[1]
    vectors, whole = np.empty((lines, user_vectors.shape[1]), np.float32), np.zeros((lines, dim), np.float32)
    some, worth = np.empty(BLOCK, np.float32), np.empty(lines, np.float32)
    _read(user_vectors, user_touched, user_half_life, users_known, now, users, factor, vectors)
    for n in range(lines):
        counts[n], worth[n] = 0, _whole(vectors[n], whole[n])
    for start in range(0, many, BLOCK):
        stop = min(start + BLOCK, many)
        for n in range(lines):
            _sums(whole[n], codes[start // BLOCK], some)
            _scale(some, worth[n], scales[start:stop], bias_factor, bias[start:stop])
            line = some[: stop - start]
            if counts[n] == rows.shape[1] and not _better(line, 0, line.size, values[n, 0]):
                continue
            held = _offer(line, start, users[n], allowed, seen, rows[n], values[n], counts[n])
            if held < 0:
                return n
            counts[n] = held
    return -1


def _scale(sums: Singles, worth: np.float32, scales: Singles, bias_factor: np.float32, bias: Singles) -> None:
    """Sums of codes as scores."""
    for lane in range(scales.size):
        sums[lane] = worth * scales[lane] * sums[lane] + bias_factor * bias[lane]
