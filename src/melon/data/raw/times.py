"""Times in any of the usual notations become whole ticks of a known length."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from melon.errors import DataError, unknown_name
from melon.types import Ints

Notation = Literal["integer", "decimal", "date"]

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
LAST_SECOND = 253_402_300_799  # the end of the year 9999

MISSING, NOT_A_NUMBER, UNPARSABLE = "missing time", "NaN time", "unparsable time"
NEGATIVE, TOO_LATE = "negative time", "time after the year 9999"

# The most usual first; %.f also matches no fraction at all. Times without an offset are taken as UTC.
DATE_NOTATIONS = (
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f %#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d %H:%M:%S%.f",
    "%Y/%m/%d",
)


@dataclass(frozen=True)
class Clock:
    """The length of a tick, and how it was told."""

    unit: str
    said: str

    @property
    def per_second(self) -> int:
        """Ticks in a second."""
        return UNITS[self.unit]


def notation_of(sample: pl.Series) -> Notation:
    """How most of these texts write a time."""
    texts = sample.drop_nulls().str.strip_chars()
    whole = texts.cast(pl.Int64, strict=False).is_not_null().sum()
    number = texts.cast(pl.Float64, strict=False).is_not_null().sum()
    if 2 * number < len(texts):
        return "date"
    # NaN is a number that no integer column holds; a few of them do not make the others decimal.
    fractional = texts.str.contains(r"^[+-]?[0-9]*\.[0-9]*|[0-9][eE]").sum()
    return "decimal" if fractional > 0 or whole == 0 else "integer"


def date_notation(sample: pl.Series) -> str:
    """The date notation that reads most of these texts."""
    texts = sample.drop_nulls()
    hits = [int(texts_to_ticks(texts, each).is_not_null().sum()) for each in DATE_NOTATIONS]
    return DATE_NOTATIONS[int(np.argmax(hits))]


def date_ticks(text: pl.Expr, notation: str) -> pl.Expr:
    """Microseconds since 1970 of texts in this notation, null where they are not."""
    return text.str.to_datetime(notation, strict=False, time_unit="us").dt.epoch("us")


def texts_to_ticks(texts: pl.Series, notation: str) -> pl.Series:
    """The same for texts at hand."""
    return texts.to_frame("text").select(date_ticks(pl.col("text"), notation)).to_series()


def any_date_ticks(texts: pl.Series) -> pl.Series:
    """Microseconds since 1970, whatever notation each text is in."""
    every = [date_ticks(pl.col("text").str.strip_chars(), each) for each in DATE_NOTATIONS]
    return texts.to_frame("text").select(pl.coalesce(every)).to_series()


def clock_for(values: npt.NDArray[np.generic], unit: str | None) -> Clock:
    """The unit that was asked for, or the one in which the median time lies in a plausible year.

    Seconds stay below 1e11 until the year 5138, while milliseconds have been above since 1973: the median is robust to
    a few wild values. Small numbers (event counters, say) count as seconds.
    """
    if unit is not None:
        if unit not in UNITS:
            raise unknown_name("time unit", unit, UNITS)
        return Clock(unit, f"{UNIT_NAMES[unit]}, as asked")
    if not len(values):
        return Clock("s", "seconds")
    middle = float(np.partition(values, len(values) // 2)[len(values) // 2])
    size = abs(middle)
    found = "s" if size < 1e11 else "ms" if size < 1e14 else "us" if size < 1e17 else "ns"
    seconds = middle / UNITS[found]
    when = f"; the middle one is {day(int(seconds))}" if 0 <= seconds <= LAST_SECOND else ""
    return Clock(found, f"{UNIT_NAMES[found]}, by their size{when}")


def decimal_ticks(values: npt.NDArray[np.float64], clock: Clock) -> tuple[Ints, Clock]:
    """Decimal times as whole microseconds, the finest that a float holds for today's dates."""
    micro = np.round(values * (UNITS["us"] / clock.per_second))
    return micro.astype(np.int64), Clock("us", clock.said)


def day(seconds: int) -> str:
    """The date of a moment, for people."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def ticks_of_typed(column: str, dtype: pl.DataType, place: str) -> tuple[pl.Expr, Notation]:
    """An expression for a time column that is not text, and the notation of what it gives."""
    expr = pl.col(column)
    if dtype.is_integer():
        return expr.cast(pl.Int64, strict=False), "integer"
    if dtype.is_float() or dtype.is_decimal():
        return expr.cast(pl.Float64, strict=False), "decimal"
    if dtype == pl.Date:
        return expr.cast(pl.Datetime("us")).dt.epoch("us"), "date"
    if isinstance(dtype, pl.Datetime):
        return expr.dt.epoch("us"), "date"
    raise DataError(
        f"{place}: column {column!r} has type {dtype} and cannot be a time; "
        "use numbers, dates or texts, or name another column with --time."
    )
