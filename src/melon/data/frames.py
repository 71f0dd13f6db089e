"""Interactions from what a Python program has at hand: polars, pandas, Arrow, a list of tuples or of dicts.

Ids are integers, texts or UUIDs, one kind per column. Inside `Interactions` they are an int64 array, or an object array
of `str` or of `uuid.UUID`, so that `user_ids[row]` gives back an id equal to the one that came in. A float that holds a
whole number is that integer.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from melon.data.ids import (
    MOST_EXACT_FLOAT,
    IdBook,
    Ids,
    first_beyond_64_bits,
    rows_by_first_appearance,
    rows_from_codes,
)
from melon.data.interactions import Interactions
from melon.data.raw import times as notations
from melon.data.raw.formats import USUAL_NAMES, find_columns, first_line, plain_name
from melon.errors import DataError
from melon.types import Flags, Floats, Ints

Column = pl.Series | list[Any]

#: Types of None, pandas.NA and pandas.NaT, by name: pandas need not be there.
_MISSING_TYPES = {"NoneType", "NAType", "NaTType"}
_FLOATS = (float, np.floating)

ACCEPTED = "a polars or pandas DataFrame, an Arrow table, (user, item, time) tuples, or dicts with these keys"


def interactions_from(
    source: Any, *, user: str | None = None, item: str | None = None, time: str | None = None
) -> Interactions:
    """Interactions in stable time order, from any of the accepted shapes.

    Columns (or keys of dicts) have the given or the usual names (user, user_id, userId …). Integer times are taken as
    they are; datetimes, dates, ISO texts and decimal seconds become whole seconds, after sorting at their own
    resolution. Pairs (user, item) are taken in their order, and their times are event numbers. Rows without a user, an
    item or a time are left out with a warning that counts them, as `melon data prepare` does.
    """
    if isinstance(source, Interactions):
        return source
    users, items, times = _complete(*_columns_of(source, {"user": user, "item": item, "time": time}))
    user_rows, user_ids = _numbered(users, "user")
    item_rows, item_ids = _numbered(items, "item")
    if times is None:
        moments = np.arange(len(user_rows), dtype=np.int64)
        return Interactions(user_rows, item_rows, moments, user_ids, item_ids)
    key, moments = _moments(_time_series(times))
    if bool((np.diff(key) >= 0).all()):
        return Interactions(user_rows, item_rows, moments, user_ids, item_ids)
    # Rows are numbered by first appearance in time, so they are numbered again once in order.
    order = np.argsort(key, kind="stable")
    users_then, items_then = user_rows[order], item_rows[order]
    user_rows, first_users = rows_from_codes(users_then, len(user_ids))
    item_rows, first_items = rows_from_codes(items_then, len(item_ids))
    return Interactions(
        users=user_rows,
        items=item_rows,
        times=moments[order],
        user_ids=user_ids[users_then[first_users]],
        item_ids=item_ids[items_then[first_items]],
    )


def _columns_of(source: Any, wanted: dict[str, str | None]) -> tuple[Column, Column, Column | None]:
    if isinstance(source, pl.LazyFrame):
        source = source.collect()
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        by_name = {str(name): name for name in source.columns}
        columns = [_from_pandas(source[by_name[name]]) for name in _names(list(by_name), wanted)]
        return columns[0], columns[1], columns[2]
    if hasattr(source, "__arrow_c_stream__") and not isinstance(source, pl.DataFrame | pl.Series):
        source = pl.DataFrame(source)  # a table of Arrow, DuckDB and others, by Arrow's C interface
    if isinstance(source, pl.DataFrame):
        names = _names(source.columns, wanted)
        return source[names[0]], source[names[1]], source[names[2]]
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping):
        rows = list(source)
        return _from_dicts(rows, wanted) if rows and isinstance(rows[0], Mapping) else _from_tuples(rows)
    raise DataError(f"interactions cannot be made from {type(source).__name__}; give {ACCEPTED}.")


def _complete(users: Column, items: Column, times: Column | None) -> tuple[Column, Column, Column | None]:
    """The columns without the rows in which a value is missing, which a warning counts by what is missing."""
    if not len(users):
        raise DataError("the data has no interaction; give at least one.")
    columns = {"user": users, "item": items} | ({} if times is None else {"time": times})
    left_out, reasons = np.zeros(len(users), dtype=bool), []
    for role, column in columns.items():
        missing = _missing(column) & ~left_out
        if missing.any():
            reasons.append(f"{np.count_nonzero(missing)} × missing {role} (first in event {int(missing.argmax())})")
            left_out |= missing
    if not reasons:
        return users, items, times
    said = f"{np.count_nonzero(left_out)} of {len(users)} interactions left out: {', '.join(reasons)}"
    if left_out.all():
        raise DataError(f"the data has no complete interaction; {said}.")
    warnings.warn(said, stacklevel=4)
    kept = np.flatnonzero(~left_out)
    whole = [one.gather(kept) if isinstance(one, pl.Series) else [one[n] for n in kept] for one in columns.values()]
    return whole[0], whole[1], None if times is None else whole[2]


def _missing(column: Column) -> Flags:
    """Whether each value is null, NaN or an empty text."""
    if isinstance(column, pl.Series) and column.dtype == pl.Object:
        column = column.to_list()
    if isinstance(column, list):
        return np.fromiter(map(_is_missing, column), dtype=bool, count=len(column))
    missing = column.is_null()
    if column.dtype.is_float():
        missing |= column.is_nan().fill_null(value=True)
    elif column.dtype in (pl.String, pl.Categorical, pl.Enum):
        missing |= (column.cast(pl.String) == "").fill_null(value=True)
    return missing.to_numpy()


def _is_missing(value: Any) -> bool:
    if isinstance(value, _FLOATS):
        return bool(np.isnan(value))
    return type(value).__name__ in _MISSING_TYPES or (isinstance(value, str) and not value)


def _names(available: Sequence[str], wanted: dict[str, str | None]) -> tuple[str, str, str]:
    columns = find_columns(available, "interactions", wanted, option="{role}=…")
    return columns.user, columns.item, columns.time


def _from_pandas(column: Any) -> Column:
    # Numbers and dates are arrays; texts, UUIDs and dates with a zone come one by one, which needs no pyarrow.
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "iufM":
        return list(column)
    return pl.Series(column.to_numpy().astype("datetime64[us]") if column.dtype.kind == "M" else column.to_numpy())


def _from_tuples(rows: list[Any]) -> tuple[Column, Column, Column | None]:
    for number, row in enumerate(rows):
        if not isinstance(row, tuple | list | np.ndarray) or len(row) not in (2, 3):
            raise DataError(
                f"event {number} is {_shown(row)}, but interactions are {ACCEPTED}; (user, item) pairs are taken in "
                "their order."
            )
    if not rows:
        return [], [], None
    if len({len(row) for row in rows}) > 1:
        raise DataError("some of the tuples have a time and some have none; give all of them three values, or two.")
    columns = [list(values) for values in zip(*rows, strict=True)]
    return columns[0], columns[1], columns[2] if len(columns) == 3 else None


def _from_dicts(rows: list[Any], wanted: dict[str, str | None]) -> tuple[Column, Column, Column | None]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"event {number} is {_shown(row)}, but the events before it are dicts; give dicts only.")
    keys = list(dict.fromkeys(str(key) for row in rows for key in row))
    # Two keys without a time are the user and the item of a pair.
    pairs = len(keys) == 2 and not wanted["time"] and not any(plain_name(key) in USUAL_NAMES["time"] for key in keys)
    user, item, time = _names([*keys, "time"] if pairs else keys, wanted)
    columns = [[row.get(name) for row in rows] for name in ((user, item) if pairs else (user, item, time))]
    return columns[0], columns[1], None if pairs else columns[2]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:120] + "…"


def _numbered(column: Column, role: str) -> tuple[Ints, Ids]:
    if isinstance(column, pl.Series) and column.dtype == pl.Object:
        column = column.to_list()
    if isinstance(column, pl.Series) and column.dtype == pl.Binary and bool((column.bin.size() == 16).all()):
        column = [uuid.UUID(bytes=one) for one in column]  # UUIDs of Arrow
    if isinstance(column, list):
        book = IdBook(role)
        rows = book.rows(column, add=True)
        return rows, book.ids(range(len(book)))
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype.is_float():
        column = _whole_numbers(column, role)
    if not (column.dtype.is_integer() or column.dtype == pl.String):
        raise DataError(
            f"the {role} column has type {column.dtype}; ids are integers, texts or UUIDs, one kind per column."
        )
    try:
        return rows_by_first_appearance(column)
    except pl.exceptions.InvalidOperationError as error:
        raise DataError(f"a {role} id does not fit 64 bits ({column.max()!r}); give such ids as texts.") from error


def _whole_numbers(column: pl.Series, role: str) -> pl.Series:
    odd = (column != column.floor()) | (column.abs() > MOST_EXACT_FLOAT)
    if odd.any():
        row = int(odd.arg_max() or 0)
        raise DataError(
            f"event {row} has the {role} {column[row]!r}, not a whole number; ids are integers, texts or UUIDs."
        )
    return column.cast(pl.Int64)


def _time_series(times: Column) -> pl.Series:
    if isinstance(times, pl.Series):
        return times
    try:
        # Dates of numpy are understood in an array, and not one by one.
        dates = isinstance(times[0], np.datetime64)
        series = pl.Series(np.array(times, dtype="datetime64[us]")) if dates else pl.Series(times)
        if series.dtype == pl.Object:
            raise TypeError("of no known kind")  # noqa: TRY301  (polars says this in its own words elsewhere)
    except (OverflowError, TypeError, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"times must be all integers, decimals, dates or ISO texts, one kind: {times[0]!r} … ({first_line(error)})."
        ) from error
    return series


def _moments(times: pl.Series) -> tuple[Ints | Floats, Ints]:
    """What to sort by, and whole seconds (integers: as they are)."""
    per_second = 1
    if times.dtype == pl.String:
        times, per_second = _read_texts(times)
    elif not times.dtype.is_integer():
        expr, notation = notations.ticks_of_typed(times.name, times.dtype, "interactions")
        times = times.to_frame().select(expr).to_series()
        per_second = notations.UNITS["us"] if notation == "date" else 1
    if times.dtype.is_float() and not times.is_finite().all():
        row = int((~times.is_finite()).arg_max() or 0)
        raise DataError(f"the time of event {row} is {times[row]}; give a finite one.")
    if (wild := first_beyond_64_bits(times)) is not None:
        raise DataError(f"the time of event {wild} is {times[wild]}, which is not a time; give seconds since 1970.")
    key = times.cast(pl.Int64).to_numpy() if times.dtype.is_integer() else times.to_numpy()
    if key.min() < 0:
        row = int(np.argmax(key < 0))
        raise DataError(f"the time of event {row} is negative ({key[row]}); times begin at 0 (1970 for dates).")
    return key, (key // per_second).astype(np.int64)


def _read_texts(texts: pl.Series) -> tuple[pl.Series, int]:
    notation = notations.notation_of(texts)
    if notation == "date":
        formats = notations.date_formats(texts.to_frame("time").lazy(), texts, "interactions")
        ticks, per_second = notations.any_date_ticks(texts, formats), notations.UNITS["us"]
    else:
        kind = pl.Int64 if notation == "integer" else pl.Float64
        ticks, per_second = texts.str.strip_chars().cast(kind, strict=False), 1
    if ticks.null_count():
        row = int(ticks.is_null().arg_max() or 0)
        raise DataError(f"the time of event {row}, {texts[row]!r}, cannot be read; use numbers or ISO dates.")
    return ticks, per_second
