"""Implicit ALS as compiled kernels: rows that are solved for, one after another, from the rows of their partners."""

from __future__ import annotations

import math

import numpy as np

from melon.kernels.types import FloatTable, SingleTable, SmallIntTable
from melon.types import Floats, Ints, Singles, SmallInts

#: Steps of conjugate gradients that a row makes towards the solution when the stream touches it.
STEPS = 3


def last_partners(
    rings: SmallIntTable,
    met: Ints,
    known: int,
    touched: Ints,
    rows: Ints,
    partners: Ints,
    places: SmallInts,
    starts: Ints,
    out: Ints,
) -> None:
    """The last partners of distinct rows after a batch that the rings do not know yet, newest first.

    Row touched[g] has out[starts[g]] … out[starts[g + 1] - 1]. `places` is scratch: −1 for each row, before and after.
    """
    most, total = rings.shape[1], 0
    for g in range(touched.size):
        places[touched[g]] = g
        starts[g + 1] = min(met[touched[g]], most) if touched[g] < known else 0
    for n in range(rows.size):
        starts[places[rows[n]] + 1] += 1
    for g in range(touched.size):
        total += min(starts[g + 1], most)
        starts[g + 1] = total
    filled = np.zeros(touched.size, dtype=np.int64)
    for n in range(rows.size - 1, -1, -1):
        g = places[rows[n]]
        if filled[g] < most:
            out[starts[g] + filled[g]] = partners[n]
            filled[g] += 1
    for g in range(touched.size):
        row = touched[g]
        for k in range(starts[g + 1] - starts[g] - filled[g]):
            out[starts[g] + filled[g] + k] = rings[row, (met[row] - 1 - k) % most]
        places[row] = -1


def solve(
    rows: Ints,
    starts: Ints,
    partners: Ints,
    others: SingleTable,
    gram: FloatTable,
    missing: float,
    reg: float,
    own: SingleTable,
    own_gram: FloatTable,
) -> None:
    """Solve (missing · gram + Σ v vᵀ + λ) x = Σ v for each row over its partners' rows v, and keep `own_gram` = Σ x xᵀ.

    λ = reg · (partners + missing · rows of the other side). A row whose partners say nothing stays as it is.
    """
    dim, most = own.shape[1], 1
    for n in range(rows.size):
        most = max(most, starts[n + 1] - starts[n])
    vectors, right = np.zeros((most + 3, dim), dtype=own.dtype), np.empty(dim, dtype=own.dtype)
    matrix = np.zeros((dim + 1, dim), dtype=own.dtype)  # the last line stays zero
    for n in range(rows.size):
        count = starts[n + 1] - starts[n]
        for q in range(count + 3):
            vector, copy = others[partners[starts[n] + min(q, count - 1)]], vectors[q]
            for d in range(dim):
                copy[d] = vector[d] if q < count else np.float32(0)
        _sum_up(vectors, count, gram, missing, matrix, right)
        ridge = np.float32(reg * (count + missing * others.shape[0]))
        known = False
        for d in range(dim):
            matrix[d, d] += ridge
            known |= right[d] != 0
        if known:
            _eliminate(matrix, right, ridge)
            _replace(own[rows[n]], right, own_gram)


def follow(
    rows: Ints,
    starts: Ints,
    partners: Ints,
    others: SingleTable,
    gram: FloatTable,
    missing: float,
    reg: float,
    own: SingleTable,
    own_gram: FloatTable,
) -> None:
    """Bring each row nearer to what `solve` gives, by STEPS conjugate gradients from where it stands.

    A batch changes few of a row's partners, so that it stands near its solution; nothing of size dim × dim is built.
    """
    dim, most = own.shape[1], 1
    for n in range(rows.size):
        most = max(most, starts[n + 1] - starts[n])
    padded = dim + (-dim) % 4
    vectors, unseen = np.zeros((most + 3, dim), dtype=own.dtype), np.zeros((padded, dim), dtype=own.dtype)
    for a in range(dim):
        for b in range(dim):
            unseen[a, b] = missing * gram[a, b]
    row, rest, way = np.empty(dim, own.dtype), np.empty(dim, own.dtype), np.zeros(padded, own.dtype)
    image = np.empty(dim, own.dtype)
    for n in range(rows.size):
        count, stored = starts[n + 1] - starts[n], own[rows[n]]
        _gather(others, partners[starts[n] : starts[n + 1]], vectors, rest)
        if _square(rest) != 0:
            ridge = np.float32(reg * (count + missing * others.shape[0]))
            _descend(vectors, count, unseen, ridge, stored, row, rest, way, image)
            _replace(stored, row, own_gram)


def _gather(others: Singles, partners: Ints, vectors: Singles, total: Singles) -> None:
    """Partners' rows side by side, with three zeros behind them, and their sum."""
    dim, count = total.size, partners.size
    for d in range(dim):
        total[d] = 0
    for q in range(count + 3):
        vector, copy = others[partners[min(q, count - 1)]], vectors[q]
        for d in range(dim):
            copy[d] = vector[d] if q < count else np.float32(0)
    for q in range(0, count, 4):
        v0, v1, v2, v3 = vectors[q], vectors[q + 1], vectors[q + 2], vectors[q + 3]
        for d in range(dim):
            total[d] += (v0[d] + v1[d]) + (v2[d] + v3[d])


def _descend(
    vectors: Singles,
    count: int,
    unseen: Singles,
    ridge: np.float32,
    start: Singles,
    row: Singles,
    rest: Singles,
    way: Singles,
    image: Singles,
) -> None:
    """Conjugate gradients from a start; `rest` is the right side and becomes what is left of it."""
    dim = row.size
    for d in range(dim):
        row[d], way[d] = start[d], start[d]
    _image(vectors, count, unseen, ridge, way, image)
    for d in range(dim):
        rest[d] -= image[d]
        way[d] = rest[d]
    far = _square(rest)
    for _ in range(STEPS):
        _image(vectors, count, unseen, ridge, way, image)
        curved = _along(image, way)
        if not curved > 0:
            break
        step = far / curved
        for d in range(dim):
            row[d] += step * way[d]
            rest[d] -= step * image[d]
        near = _square(rest)
        turned, far = near / far, near
        for d in range(dim):
            way[d] = rest[d] + turned * way[d]


def _square(vector: Singles) -> np.float32:
    total = np.float32(0)
    for d in range(vector.size):
        total += vector[d] * vector[d]
    return total


def _along(vector: Singles, way: Singles) -> np.float32:
    total = np.float32(0)
    for d in range(vector.size):
        total += vector[d] * way[d]
    return total


def _image(vectors: Singles, count: int, unseen: Singles, ridge: np.float32, way: Singles, out: Singles) -> None:
    """(unseen + Σ v vᵀ + ridge) · way, over the first vectors; four at a time, three zeros stand behind them."""
    dim = out.size
    for a in range(dim):
        out[a] = ridge * way[a]
    for a in range(0, dim, 4):
        f0, f1, f2, f3 = way[a], way[a + 1], way[a + 2], way[a + 3]
        u0, u1, u2, u3 = unseen[a], unseen[a + 1], unseen[a + 2], unseen[a + 3]
        for b in range(dim):
            out[b] += f0 * u0[b] + f1 * u1[b] + f2 * u2[b] + f3 * u3[b]
    for q in range(0, count, 4):
        v0, v1, v2, v3 = vectors[q], vectors[q + 1], vectors[q + 2], vectors[q + 3]
        t0, t1, t2, t3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for d in range(dim):
            t0 += v0[d] * way[d]
            t1 += v1[d] * way[d]
            t2 += v2[d] * way[d]
            t3 += v3[d] * way[d]
        for d in range(dim):
            out[d] += t0 * v0[d] + t1 * v1[d] + t2 * v2[d] + t3 * v3[d]


def _sum_up(vectors: Singles, count: int, gram: Floats, missing: float, matrix: Singles, right: Singles) -> None:
    """missing · gram + Σ v vᵀ, and Σ v, over the first vectors; four at a time, three zeros stand behind them."""
    dim = right.size
    for a in range(dim):
        line, others = matrix[a], gram[a]
        right[a] = 0
        for b in range(dim):
            line[b] = missing * others[b]
    for q in range(0, count, 4):
        v0, v1, v2, v3 = vectors[q], vectors[q + 1], vectors[q + 2], vectors[q + 3]
        for a in range(dim):
            f0, f1, f2, f3, line = v0[a], v1[a], v2[a], v3[a], matrix[a]
            right[a] += f0 + f1 + f2 + f3
            for b in range(dim):
                line[b] += f0 * v0[b] + f1 * v1[b] + f2 * v2[b] + f3 * v3[b]


def _eliminate(matrix: Singles, right: Singles, least: np.float32) -> None:
    """Solve a positive definite system in place, by Cholesky; only the upper half of the result is meant.

    No pivot is less than the system's least eigenvalue, whatever rounding says.
    """
    dim = right.size
    for a in range(dim):
        line = matrix[a]
        for p in range(0, a, 4):  # those above it, four at a time
            u0, u1 = matrix[p], matrix[p + 1 if p + 1 < a else dim]
            u2, u3 = matrix[p + 2 if p + 2 < a else dim], matrix[p + 3 if p + 3 < a else dim]
            f0, f1, f2, f3 = u0[a], u1[a], u2[a], u3[a]
            for b in range(dim):
                line[b] -= f0 * u0[b] + f1 * u1[b] + f2 * u2[b] + f3 * u3[b]
        scale = np.float32(1) / np.float32(math.sqrt(max(line[a], least)))
        for b in range(dim):
            line[b] *= scale
        factor = right[a] * scale
        right[a] = factor
        for b in range(a + 1, dim):
            right[b] -= factor * line[b]
    for a in range(dim - 1, -1, -1):
        line, rest = matrix[a], np.float32(0)
        for b in range(a + 1, dim):
            rest += line[b] * right[b]
        right[a] = (right[a] - rest) / line[a]


def _replace(row: Singles, new: Singles, gram: Floats) -> None:
    """Write a new row, and correct the sum over all rows of x xᵀ."""
    for a in range(row.size):
        before, after, line = np.float64(row[a]), np.float64(new[a]), gram[a]
        for b in range(row.size):
            line[b] += after * np.float64(new[b]) - before * np.float64(row[b])
    for a in range(row.size):
        row[a] = new[a]
