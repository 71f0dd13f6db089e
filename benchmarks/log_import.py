"""How many events a second `melon log import` brings into a log: made-up events as CSV, Parquet, lines of JSON, SQLite.

With the address of a PostgreSQL database, from a query of that too; its table `melon_import` is made anew.

CPU seconds of the whole process count (reading, checking, appending, syncing), and wall time beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from melon.service.config import ServeSettings
from melon.service.importing import Reading, events_of
from melon.service.log.events import EventLog
from melon.service.log.exchange import imported

QUERY = """SELECT 'shop/' || id AS event_id, "user", item, time, type FROM melon_import"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--postgres", metavar="postgresql://…")
    given = parser.parse_args()
    count = given.events
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
        with contextlib.closing(sqlite3.connect(folder / "events.db")) as database:
            database.execute('CREATE TABLE melon_import(id INTEGER PRIMARY KEY, "user", item, time, type)')
            database.executemany("INSERT INTO melon_import VALUES (?, ?, ?, ?, ?)", frame.with_row_index().rows())
            database.commit()
        sources: dict[str, Path | str] = {kind: folder / f"events.{kind}" for kind in ("csv", "parquet", "ndjson")}
        sources["sqlite"] = f"sqlite:///{folder}/events.db"
        if given.postgres is not None:
            _fill(given.postgres, frame)
            sources["postgres"] = given.postgres
        for kind, source in sources.items():
            query = QUERY if isinstance(source, str) else None
            reading = Reading(f"events.{kind}", ServeSettings().uses(), query=query)
            for again in ("first", "again"):
                with EventLog(folder / kind) as log:
                    cpu, wall = time.process_time(), time.perf_counter()
                    done = imported(log.submit, events_of(source, reading))
                    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                told = f"{done.accepted} stored, {done.duplicates} known"
                print(
                    f"{kind:8}{again:7}{count / cpu:10,.0f} events/CPU s {count / wall:10,.0f} /s by the wall; {told}"
                )


def _fill(address: str, frame: pl.DataFrame) -> None:
    import psycopg

    with psycopg.connect(address) as connection:
        connection.execute("DROP TABLE IF EXISTS melon_import")
        connection.execute('CREATE TABLE melon_import(id bigint, "user" text, item text, time bigint, type text)')
        with connection.cursor().copy("COPY melon_import FROM STDIN") as copy:
            for row in frame.with_row_index().rows():
                copy.write_row(row)


if __name__ == "__main__":
    main()
