"""How many events a second `melon log import` brings into a log: one made-up file as CSV, Parquet and lines of JSON.

CPU seconds of the whole process count (reading, checking, appending, syncing), and wall time beside them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from melon.service.config import ServeSettings
from melon.service.importing import Reading, events_of
from melon.service.log.events import EventLog
from melon.service.log.exchange import imported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    count = parser.parse_args().events
    draws = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "user": [f"u{n}" for n in draws.integers(200_000, size=count).tolist()],
            "item": [f"i{n}" for n in draws.integers(50_000, size=count).tolist()],
            "time": 1_700_000_000 + np.arange(count) // 50,
            "type": np.where(draws.random(count) < 0.1, "buy", "view"),
        }
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        frame.write_csv(folder / "events.csv")
        frame.write_parquet(folder / "events.parquet")
        frame.write_ndjson(folder / "events.ndjson")
        for kind in ("csv", "parquet", "ndjson"):
            source = folder / f"events.{kind}"
            for again in ("first", "again"):
                with EventLog(folder / kind) as log:
                    cpu, wall = time.process_time(), time.perf_counter()
                    done = imported(log.submit, events_of(source, Reading(source.name, ServeSettings().uses())))
                    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                told = f"{done.accepted} stored, {done.duplicates} known"
                print(
                    f"{kind:8}{again:7}{count / cpu:10,.0f} events/CPU s {count / wall:10,.0f} /s by the wall; {told}"
                )


if __name__ == "__main__":
    main()
