"""Prepared streams on disk: a Parquet file of dense rows, with side-cars that know the original ids."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from melon.atomic import replacing
from melon.data.frames import interactions_from
from melon.data.ids import Ids, as_array
from melon.data.interactions import Interactions
from melon.data.raw.formats import find_columns, first_line
from melon.errors import DataError

STAMP = "melon.stream"  # the same in a stream and in its side-cars, so that strangers are recognised
VERSION_KEY, VERSION = "melon.version", "2"  # of the format; files of other programs have none
NAMES = {"user": ("user",), "item": ("item",), "time": ("ts", "time", "timestamp")}


def side_car(stream: Path, part: str) -> Path:
    """Where a stream's side-car is: `users.parquet`, `items.parquet` or `json`."""
    return stream.with_name(f"{stream.name.removesuffix('.parquet')}.{part}")


def write_stream(target: Path, log: Interactions, summary: dict[str, Any]) -> None:
    """Write a log as a stream with its side-cars; each file appears whole or not at all, the stream itself last."""
    stamp = {STAMP: log.identity, VERSION_KEY: VERSION}
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
    """Read a prepared stream, or any Parquet file with its columns; with side-cars, the ids are the original ones."""
    source = Path(path)
    frame = _read_parquet(source)
    if frame.is_empty():
        raise DataError(f"{source} has no interactions; prepare it again from its raw files.")
    try:
        columns = find_columns(frame.columns, str(source), usual=NAMES)
        log = interactions_from(frame, user=columns.user, item=columns.item, time=columns.time)
    except DataError as error:
        raise DataError(
            f"{source} is not a prepared stream with the columns 'user', 'item' and 'ts' (or 'time', 'timestamp'): "
            f"{error} Prepare it first: melon data prepare {source} --user … --item … --time … --out …"
        ) from error
    return replace(
        log, user_ids=_original(source, "users", log.user_ids), item_ids=_original(source, "items", log.item_ids)
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
        about = pl.read_parquet_metadata(source)
        if STAMP in about and about.get(VERSION_KEY) != VERSION:
            raise DataError(
                f"{source} has version {about.get(VERSION_KEY, '1')} of melon's stream format, and this melon reads "
                f"version {VERSION}; prepare it again from its raw files."
            )
        return pl.read_parquet(source, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{source} is a damaged Parquet file ({first_line(error)}); prepare it again.") from error


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
