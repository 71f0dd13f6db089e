"""Prepared streams on disk: a Parquet file of dense rows, with side-cars that know the original ids."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from melon.atomic import replacing
from melon.data.columns import Columns, find_columns, first_line
from melon.data.ids import Ids, as_array, first_beyond_64_bits, rows_by_first_appearance
from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.types import Ints

STAMP = "melon.stream"  # the same in a stream and in its side-cars, so that strangers are recognised
NAMES = {"user": ("user",), "item": ("item",), "time": ("ts", "time", "timestamp")}


def side_car(stream: Path, part: str) -> Path:
    """Where a stream's side-car is: `users.parquet`, `items.parquet` or `json`."""
    return stream.with_name(f"{stream.name.removesuffix('.parquet')}.{part}")


def write_stream(target: Path, log: Interactions, summary: dict[str, Any]) -> None:
    """Write a log as a stream with its side-cars; each file appears whole or not at all, the stream itself last."""
    stamp = {STAMP: log.identity}
    events = {"user": pl.Int32, "item": pl.Int32, "ts": pl.Int64}
    columns = zip(events.items(), (log.users, log.items, log.times), strict=True)
    stream = pl.DataFrame([pl.Series(name, values, dtype=dtype) for (name, dtype), values in columns])
    try:
        # Files are replaced in the opposite order, after all of them have been written.
        with ExitStack() as files:
            parts = [target, *(side_car(target, part) for part in ("json", "items.parquet", "users.parquet"))]
            stream_file, json_file, items_file, users_file = (files.enter_context(replacing(part)) for part in parts)
            _id_frame(log.user_ids).write_parquet(users_file, compression="zstd", metadata=stamp)
            _id_frame(log.item_ids).write_parquet(items_file, compression="zstd", metadata=stamp)
            text = json.dumps(summary | {"stamp": log.identity}, indent=2, ensure_ascii=False)
            json_file.write_text(text + "\n", encoding="utf-8")
            stream.write_parquet(stream_file, compression="zstd", metadata=stamp)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{target} cannot be written: {first_line(error)}") from error


def load_stream(path: str | os.PathLike[str]) -> Interactions:
    """Read a prepared stream; with side-cars beside it, the ids are the original ones."""
    source = Path(path)
    frame = _read_parquet(source)
    if frame.is_empty():
        raise DataError(f"{source} has no interactions in it; prepare it again from its raw files.")
    columns = _stream_columns(frame, source)
    for role, name in (("user", columns.user), ("item", columns.item)):
        _check_ids(frame[name], role, name, source)
    times = _checked_times(frame[columns.time], columns.time, source)
    user_rows, user_ids = rows_by_first_appearance(frame[columns.user])
    item_rows, item_ids = rows_by_first_appearance(frame[columns.item])
    return Interactions(
        users=user_rows,
        items=item_rows,
        times=times,
        user_ids=_original(source, "users", user_ids),
        item_ids=_original(source, "items", item_ids),
    )


def _read_parquet(source: Path) -> pl.DataFrame:
    if not source.exists():
        raise DataError(f"there is no stream {source}; make one with: melon data prepare RAW --out {source}")
    if source.is_dir():
        raise DataError(f"{source} is a folder; name the .parquet file in it.")
    if not source.stat().st_size:
        raise DataError(f"{source} is empty; prepare it again from its raw files.")
    with source.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"PAR1":
        raise DataError(
            f"{source} is not a Parquet file; prepare it first: melon data prepare {source} --out "
            f"{source.with_suffix('.parquet').name}"
        )
    try:
        return pl.read_parquet(source, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{source} is a damaged Parquet file ({first_line(error)}); prepare it again.") from error


def _stream_columns(frame: pl.DataFrame, source: Path) -> Columns:
    try:
        return find_columns(frame.columns, str(source), usual=NAMES)
    except DataError as error:
        columns = ", ".join(map(repr, frame.columns))
        raise DataError(
            f"{source} is not a prepared stream: it needs the columns 'user', 'item' and 'ts' (or 'time', "
            f"'timestamp') and has {columns}. Prepare it first: melon data prepare {source} --user … --item … --time … "
            "--out …"
        ) from error


def _check_ids(column: pl.Series, role: str, name: str, source: Path) -> None:
    if not (column.dtype.is_integer() or column.dtype == pl.String):
        raise DataError(
            f"{source}: column {name!r} has type {column.dtype}, but a {role} is an integer or a text; "
            "prepare the file again with melon data prepare."
        )
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise DataError(f"{source}: row {row} has no {role}; prepare the file again with melon data prepare.")
    if column.dtype.is_integer() and (large := first_beyond_64_bits(column)) is not None:
        raise DataError(
            f"{source}: the {role} in row {large}, {column[large]}, does not fit 64 bits; "
            "prepare the file again with melon data prepare, which makes texts of such ids."
        )


def _checked_times(column: pl.Series, name: str, source: Path) -> Ints:
    again = "prepare the file with melon data prepare, which counts such rows and leaves them out."
    if not column.dtype.is_numeric():
        raise DataError(f"{source}: column {name!r} has type {column.dtype}, not whole seconds; {again}")
    bad = column.is_null() | (column.is_nan() if column.dtype.is_float() else False)
    if bad.any():
        raise DataError(f"{source}: the time in row {bad.arg_max()} is missing or NaN; {again}")
    if column.dtype.is_float() and not bool((column == column.floor()).all()):
        raise DataError(f"{source}: column {name!r} has fractions, not whole seconds; {again}")
    if (wild := first_beyond_64_bits(column)) is not None:
        raise DataError(f"{source}: the time in row {wild} is no moment ({column[wild]}); {again}")
    times = column.cast(pl.Int64).to_numpy()
    if times.min() < 0:
        row = int(np.argmax(times < 0))
        raise DataError(f"{source}: the time in row {row} is negative ({times[row]}); {again}")
    late = np.flatnonzero(np.diff(times) < 0)
    if len(late):
        row = int(late[0]) + 1
        raise DataError(
            f"{source} is not in time order: row {row} ({times[row]}) is earlier than the one before it "
            f"({times[row - 1]}); sort it with melon data prepare."
        )
    return times


def _original(source: Path, part: str, rows: Ids) -> Ids:
    path = side_car(source, f"{part}.parquet")
    if not path.exists():
        return rows
    frame = _read_parquet(path)
    stranger = f"{path} does not belong to {source}"
    again = "prepare the stream again, or remove the side-car to have row numbers as ids."
    if set(frame.columns) != {"row", "id"}:
        raise DataError(f"{stranger}: it has the columns {', '.join(frame.columns)}, not row and id; {again}")
    if _stamp(path) != _stamp(source):
        raise DataError(f"{stranger}: it was written with another stream; {again}")
    numbers = frame["row"].to_numpy()
    fits = rows.dtype.kind in "iu" and len(numbers) == len(rows) and bool((numbers == np.arange(len(rows))).all())
    if not fits or not bool((np.sort(rows) == numbers).all()):
        raise DataError(f"{stranger}: it has {len(numbers)} ids, the stream {len(rows)} {part}; {again}")
    return as_array(frame["id"])[rows.astype(np.int64)]


def _stamp(path: Path) -> str | None:
    return pl.read_parquet_metadata(path).get(STAMP)


def _id_frame(ids: Ids) -> pl.DataFrame:
    values = (
        pl.Series("id", ids.tolist(), dtype=pl.Int64)
        if ids.dtype.kind in "iu"
        else pl.Series("id", list(map(str, ids)))
    )
    return pl.DataFrame({"row": pl.int_range(len(ids), dtype=pl.Int32, eager=True), "id": values})
