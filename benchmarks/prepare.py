"""How many raw rows a second `melon data prepare` turns into a stream, from a three-million-row CSV file.

Run: python benchmarks/prepare.py [--rows N] [--repeats N]. The clicks are those of
$MELON_DATA/news_globo_unfiltered.parquet where it is, in random order, and made up elsewhere.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from melon.data.files import load_stream
from melon.data.prepare import prepare

GOAL = 1_000_000
DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))


def clicks(rows: int) -> tuple[pl.DataFrame, str]:
    """User, item and second of each click, and where they are from."""
    known = DATA / "news_globo_unfiltered.parquet"
    if known.exists():
        frame = pl.read_parquet(known).select("user", "item", "ts")
        repeated = pl.concat([frame] * -(-rows // len(frame)))
        return repeated.head(rows), known.name
    rng = np.random.default_rng(0)
    users, items = (rng.zipf(1.2, rows) % size for size in (300_000, 45_000))
    return pl.DataFrame(
        {"user": users, "item": items, "ts": 1_506_826_800 + rng.integers(1_400_000, size=rows)}
    ), "made up"


def write_clicks(path: Path, rows: int) -> str:
    """A file as Globo.com's: twelve columns, times in milliseconds, in no order."""
    frame, origin = clicks(rows)
    rng = np.random.default_rng(1)
    moment = frame["ts"].to_numpy() * 1000
    order = rng.permutation(rows)
    pl.DataFrame(
        {
            "user_id": frame["user"],
            "session_id": moment * 1000 + rng.integers(1000, size=rows),
            "session_start": moment - rng.integers(600_000, size=rows),
            "session_size": rng.integers(2, 9, rows),
            "click_article_id": frame["item"],
            "click_timestamp": moment + rng.integers(1000, size=rows),
            "click_environment": 4,
            "click_deviceGroup": rng.integers(1, 4, rows),
            "click_os": rng.integers(1, 21, rows),
            "click_country": 1,
            "click_region": rng.integers(1, 29, rows),
            "click_referrer_type": rng.integers(1, 8, rows),
        }
    )[order].write_csv(path)
    return origin


def main() -> None:
    """Write the file, prepare it a few times, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="melon-prepare-") as folder:
        raw, out = Path(folder) / "clicks.csv", Path(folder) / "stream.parquet"
        origin = write_clicks(raw, options.rows)
        print(f"{options.rows:,} rows ({origin}), {raw.stat().st_size / 1e6:.0f} MB, {pl.thread_pool_size()} threads")
        print(f"{'run':<14}{'seconds':>9}{'cpu s':>8}{'rows/s':>13}{'kept':>11}{'users':>9}{'items':>8}")
        best = 0.0
        for number in range(options.repeats):
            # Processor time tells a slow program from a busy machine.
            spent = time.process_time()
            report = prepare(raw, out=out)
            spent = time.process_time() - spent
            rate = report.rows_read / report.seconds
            best = max(best, rate)
            counts = f"{report.interactions:>11,}{report.users:>9,}{report.items:>8,}"
            print(f"{number + 1:<14}{report.seconds:>9.2f}{spent:>8.2f}{rate:>13,.0f}{counts}")
        load_stream(out)
        print(f"best run: {best:,.0f} rows/s, {best / GOAL:.2f} × the goal of {GOAL:,}")


if __name__ == "__main__":
    main()
