"""Ids of any kind outside, dense rows by first appearance inside."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from melon.types import Ints

Ids = npt.NDArray[np.generic]


def first_positions(codes: npt.NDArray[np.integer], size: int) -> Ints:
    """Where each of the codes 0 … size-1 first appears; -1 for one that does not."""
    first = np.full(size, -1, dtype=np.int64)
    # Written backwards, so that the earliest position is the one that stays.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def rows_from_codes(codes: npt.NDArray[np.integer], size: int) -> tuple[Ints, Ints]:
    """Rows numbered by first appearance for codes below `size`, and the position where each row first appears."""
    first = first_positions(codes, size)
    positions = np.sort(first[first >= 0])
    row_of = np.full(size, -1, dtype=np.int64)
    row_of[codes[positions]] = np.arange(len(positions))
    return row_of[codes], positions


def codes_of(ids: pl.Series) -> tuple[npt.NDArray[np.integer], int]:
    """Some code below a modest bound for each id (integers, texts or categories; no nulls), and that bound."""
    if not len(ids):
        return np.zeros(0, dtype=np.int64), 0
    if ids.dtype.is_integer():
        numbers = ids.cast(pl.Int64).to_numpy()
        # Ids in a modest range are their own codes: no hashing, no sorting.
        if numbers.min() >= 0 and numbers.max() <= 4 * len(ids) + 1024:
            return numbers, int(numbers.max()) + 1
        distinct, codes = np.unique(numbers, return_inverse=True)
        return codes, len(distinct)
    if ids.dtype == pl.String:
        ids = ids.cast(pl.Categorical(pl.Categories.random()))
    codes = ids.to_physical().to_numpy()
    return codes, int(codes.max()) + 1


def as_array(ids: pl.Series) -> Ids:
    """Ids as melon hands them out: int64, or an object array of str, which keeps every text whole."""
    if ids.dtype.is_integer():
        return ids.cast(pl.Int64).to_numpy()
    return np.array(ids.to_list(), dtype=object)


def rows_and_ids(ids: pl.Series) -> tuple[Ints, Ids]:
    """Row number of each id, by first appearance, and the ids in that order."""
    rows, positions = rows_from_codes(*codes_of(ids))
    return rows, as_array(ids.gather(positions))


def as_integers_if_all_are(ids: pl.Series) -> pl.Series:
    """Texts become integers when each is one in its plain notation: "7", not "07" or "+7", and within 64 bits."""
    if ids.dtype == pl.Int64:
        return ids
    ids = ids.cast(pl.String)
    numbers = ids.cast(pl.Int64, strict=False)
    plain = ids.str.contains(r"^(?:0|-?[1-9][0-9]*)$")
    return numbers if bool((plain & numbers.is_not_null()).all()) else ids
