"""Times in any of the usual notations become whole ticks of a known length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from melon.errors import DataError, unknown_name

Notation = Literal["integer", "decimal", "date"]

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
LAST_SECOND = 253_402_300_799  # the end of the year 9999
LARGEST = 9.2e18  # stands for every number that is too large for 64 bits

_CALENDAR_NUMBERS = (19_000_101, 20_991_231)  # dates such as 20241231, written as one number

# The most usual first; %.f also matches no fraction at all. Times without an offset are taken as UTC.
_ISO = (
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f %#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d %H:%M:%S%.f",
    "%Y/%m/%d %H:%M",
    "%Y/%m/%d",
)
_CLOCKS = ("", " %H:%M:%S%.f", " %H:%M", " %I:%M:%S %p", " %I:%M %p")
# Dots are day-first wherever they are used. %y stands before %Y, which would read 24 as the year 24.
_DOTTED = tuple(day + clock for day in ("%d.%m.%y", "%d.%m.%Y") for clock in _CLOCKS)
_DAY_FIRST = tuple(f"%d{mark}%m{mark}%Y{clock}" for mark in "/-" for clock in _CLOCKS)
_MONTH_FIRST = tuple(f"%m{mark}%d{mark}%Y{clock}" for mark in "/-" for clock in _CLOCKS)
_EITHER_ORDER = r"^\s*[0-9]{1,2}([/-])[0-9]{1,2}[/-][0-9]{4}"


@dataclass(frozen=True)
class TimeScale:
    """How long a tick is (a name in `UNITS`), the unit that the source has, and how that was decided."""

    tick: str
    unit: str
    reason: str


def notation_of(sample: pl.Series) -> Notation:
    """How most of these texts write a time."""
    texts = sample.drop_nulls().str.strip_chars()
    whole = texts.cast(pl.Int64, strict=False).is_not_null().sum()
    number = texts.cast(pl.Float64, strict=False).is_not_null().sum()
    if 2 * number < len(texts):
        dates = any_date_ticks(texts, _ISO + _DOTTED + _DAY_FIRST + _MONTH_FIRST).is_not_null().sum()
        if dates >= number:
            return "date"
    # NaN is a number that no integer column holds; a few of them do not make the others decimal.
    fractional = texts.str.contains(r"^[+-]?[0-9]*\.[0-9]*|[0-9][eE]").sum()
    return "decimal" if fractional > 0 or whole == 0 else "integer"


def date_formats(column: pl.LazyFrame, sample: pl.Series, place: str, option: str = "") -> tuple[str, ...]:
    """Formats that the texts of a column may have; an error where days cannot be told from months.

    `column` is the whole column as a frame with one column `time`: one 13/04/2024 in it settles the order for all.
    `option` is how a person says the format, for the message.
    """
    if not bool(sample.drop_nulls().str.contains(_EITHER_ORDER).any()):
        return _ISO + _DOTTED
    text = pl.col("time").str.strip_chars()
    day, month = (_parsed(text, formats).is_not_null() for formats in (_DAY_FIRST, _MONTH_FIRST))
    example = text.filter(day | month).first()
    only_day, only_month, first = (
        column.select((day & ~month).sum().alias("day"), (month & ~day).sum().alias("month"), example.alias("text"))
        .collect(engine="streaming")
        .row(0)
    )
    if first is None or bool(only_day) != bool(only_month):
        return _ISO + _DOTTED + (_MONTH_FIRST if only_month else _DAY_FIRST)
    if only_day:
        raise DataError(
            f"{place}: the times have the day first in {only_day} rows and the month first in {only_month} rows; "
            "write all of them in one way."
        )
    orders = [best_format(pl.Series([first]), formats).replace("%.f", "") for formats in (_DAY_FIRST, _MONTH_FIRST)]
    way_out = (
        f"Say which with {option} '{orders[0]}' or {option} '{orders[1]}'." if option else "Give datetimes instead."
    )
    raise DataError(
        f"{place}: the time {first!r} can be read with the day first ({orders[0]}) or with the month first "
        f"({orders[1]}), and no row decides it. {way_out}"
    )


def best_format(sample: pl.Series, formats: Sequence[str]) -> str:
    """The format that reads most of these texts."""
    texts = sample.drop_nulls().to_frame("text")
    hits = texts.select(date_ticks(pl.col("text"), one).is_not_null().sum().alias(one) for one in formats).row(0)
    return formats[int(np.argmax(hits))]


def date_ticks(text: pl.Expr, form: str) -> pl.Expr:
    """Microseconds since 1970 of texts in this format, null where they are not."""
    return text.str.to_datetime(form, strict=False, time_unit="us").dt.epoch("us")


def any_date_ticks(texts: pl.Series, formats: Sequence[str]) -> pl.Series:
    """Microseconds since 1970 of texts in any of these formats."""
    return texts.to_frame("text").select(_parsed(pl.col("text").str.strip_chars(), formats)).to_series()


def _parsed(text: pl.Expr, formats: Sequence[str]) -> pl.Expr:
    return pl.coalesce(date_ticks(text, form) for form in formats)


def time_scale_for(values: npt.NDArray[np.generic], unit: str | None, place: str) -> TimeScale:
    """The unit that was asked for, or the one in which the median time lies in a plausible year.

    Seconds stay below 1e11 until the year 5138, while milliseconds have been above since 1973: the median is robust to
    a few wild values. Small numbers (event counters, say) count as seconds, except where they can be dates.
    """
    if unit is not None:
        if unit not in UNITS:
            raise unknown_name("time unit", unit, UNITS)
        return TimeScale(unit, unit, f"{UNIT_NAMES[unit]}, as asked")
    if not len(values):
        return TimeScale("s", "s", "seconds")
    middle = float(np.partition(values, len(values) // 2)[len(values) // 2])
    if middle < 1e8:
        _require_no_calendar(values, place)
    tick = "s" if middle < 1e11 else "ms" if middle < 1e14 else "us" if middle < 1e17 else "ns"
    seconds = middle / UNITS[tick]
    when = f"; the middle one is {day(int(seconds))}" if 0 <= seconds <= LAST_SECOND else ""
    doubt = " (if these are not counters, give --time-unit or --time-format)" if middle < 1e8 else ""
    return TimeScale(tick, tick, f"{UNIT_NAMES[tick]}, guessed by their size{when}{doubt}")


def _require_no_calendar(values: npt.NDArray[np.generic], place: str) -> None:
    """Raise where small numbers can be dates."""
    sample = values[:: max(1, len(values) // 10_000)].astype(np.float64)
    low, high = np.quantile(sample, (0.01, 0.99))
    if not _CALENDAR_NUMBERS[0] <= low <= high <= _CALENDAR_NUMBERS[1]:
        return
    texts = pl.Series(sample).cast(pl.Int64).cast(pl.String)
    if not texts.str.to_date("%Y%m%d", strict=False).null_count():
        raise DataError(
            f"{place}: the time {sample[0]:.10g} can be a date or a number of seconds since 1970. Say which with "
            "--time-format %Y%m%d or --time-unit s."
        )


def day(seconds: int) -> str:
    """The date of a moment, for people."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def ticks_of_typed(column: str, dtype: pl.DataType, place: str) -> tuple[pl.Expr, Notation]:
    """An expression for a time column that is not text, and the notation of what it gives."""
    expr = pl.col(column)
    if dtype.is_integer():
        wide = dtype in (pl.UInt64, pl.Int128)
        return (expr.clip(upper_bound=int(LARGEST)) if wide else expr).cast(pl.Int64, strict=False), "integer"
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
