"""Result files: the JSON record and the rank of every evaluated event beside it, each whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from melon.errors import DataError

Plain = dict[str, Any]


def write_result(found: Plain, ranks: Mapping[str, np.ndarray[Any, Any]], path: Path) -> Plain:
    """Write `NAME.json` and `NAME.ranks.parquet`; returns the record as written."""
    beside = path.with_suffix(".ranks.parquet")
    record = {**found, "ranks": beside.name}
    with whole(beside) as unfinished:
        pl.DataFrame(dict(ranks)).write_parquet(unfinished, compression="zstd")
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return record


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    with whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to that becomes `path` at the end; where that fails, whatever was at `path` stays."""
    unfinished = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        os.replace(unfinished, path)
    except OSError as problem:
        raise cannot_write(path, problem) from problem
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def require_writable(path: Path) -> None:
    """Tell now, rather than after hours, that a file cannot be written."""
    probe = path.with_name(path.name + ".part")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as problem:
        raise cannot_write(path, problem) from problem


def cannot_write(path: Path, problem: OSError) -> DataError:
    """The error for a file that cannot be written, with the system's reason."""
    return DataError(f"{path} cannot be written: {problem.strerror or problem}.")
