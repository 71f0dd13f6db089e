"""Result files: the JSON record and the rank of every evaluated event beside it, each whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = beside.with_name(beside.name + ".part")
        pl.DataFrame(dict(ranks)).write_parquet(unfinished, compression="zstd")
        os.replace(unfinished, beside)
        write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    except OSError as problem:
        raise DataError(f"the result cannot be written to {path}: {problem.strerror}.") from problem
    return record


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
