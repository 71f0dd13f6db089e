"""Result files: the JSON record and the rank of every evaluated event beside it, each whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from melon.atomic import replacing, write_text
from melon.types import Plain


def write_result(found: Plain, ranks: Mapping[str, np.ndarray[Any, Any]], path: Path) -> Plain:
    """Write `NAME.json` and `NAME.ranks.parquet`; returns the record as written."""
    beside = path.with_suffix(".ranks.parquet")
    record = {**found, "ranks": beside.name}
    with replacing(beside) as unfinished:
        pl.DataFrame(dict(ranks)).write_parquet(unfinished, compression="zstd")
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return record
