"""Raw files become one prepared stream: filtered, in time order, with dense ids that lead back to the original."""

from __future__ import annotations

import hashlib
import os
import time as clock
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from melon.data.files import write_stream
from melon.data.ids import codes_of, original_ids, rows_from_codes
from melon.data.interactions import Interactions
from melon.data.raw.formats import ReadOptions
from melon.data.raw.open import BadRows
from melon.data.raw.read import UNPARSABLE, RawEvents, read_raw
from melon.data.raw.times import UNITS
from melon.errors import DataError, SettingsError


@dataclass(frozen=True)
class PreparationReport:
    """What was read, what was left out and why, and what was written."""

    out: str
    sources: tuple[dict[str, Any], ...]
    format: str
    time_unit: str
    min_interactions: int
    rows_read: int
    bad_rows: int  # that are no interactions, whatever the reason
    bad: tuple[BadRows, ...]
    filtered: int
    users: int
    items: int
    interactions: int
    first_time: int
    last_time: int
    notes: tuple[str, ...]
    seconds: float
    version: str

    @property
    def dropped_share(self) -> float:
        """Which part of the well-formed interactions the filter dropped."""
        return self.filtered / max(self.filtered + self.interactions, 1)

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, as the JSON side-car holds it; how long it took is no part of the result."""
        values = asdict(self)
        del values["seconds"]
        return values


def prepare(
    sources: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    format: str | None = None,  # noqa: A002 - the word of the command line
    time_unit: str | None = None,
    time_format: str | None = None,
    separator: str | None = None,
    header: bool | None = None,
    encoding: str | None = None,
    missing: Sequence[str] | None = None,
    min_interactions: int = 1,
    strict: bool = False,
) -> PreparationReport:
    """Prepare raw files as one stream and write it to `out` with files of the original ids beside it.

    Everything is kept by default. Users and items with fewer than `min_interactions` are dropped, by counts taken once
    on the input. Events are in time order at the resolution of the source, and equal times keep the order of the files.
    After a failure, the former file is still at `out`. Options that are None are guessed, and the report's notes say
    so; `missing` are the texts that mean "no id", in addition to the empty one.
    """
    began = clock.perf_counter()
    files = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    paths, target = [Path(file) for file in files], Path(out)
    if min_interactions < 1:
        raise SettingsError(f"--min-interactions must be 1 or more, got {min_interactions}.")
    if target.suffix != ".parquet":
        raise SettingsError(f"--out must end in .parquet, got {str(target)!r}.")
    if any(target.exists() and path.exists() and target.samefile(path) for path in paths):
        raise DataError(f"--out {target} is one of the raw files; give another path.")
    options = ReadOptions(
        columns={"user": user, "item": item, "time": time},
        format=format,
        separator=separator,
        header=header,
        encoding=encoding,
        time_unit=time_unit,
        time_format=time_format,
        missing=None if missing is None else tuple(missing),
        strict=strict,
    )
    events = read_raw(paths, options)
    if not len(events.ticks):
        raise DataError(_nothing_read(events, paths))
    # Hashing the sources needs no lock of Python's, so it runs beside the sorting.
    with ThreadPoolExecutor(1) as aside:
        hashes = aside.submit(fingerprints, paths)
        stream = _stream_of(events, min_interactions)
        digests = zip(paths, hashes.result(), strict=True)
    report = PreparationReport(
        out=target.name,
        sources=tuple({"name": path.name, "bytes": path.stat().st_size, "sha256": sha} for path, sha in digests),
        format=events.format,
        time_unit=events.clock.unit,
        min_interactions=min_interactions,
        rows_read=events.rows_read,
        bad_rows=sum(bad.count for bad in events.bad),
        bad=events.bad,
        filtered=len(events.ticks) - len(stream.times),
        users=len(stream.user_ids),
        items=len(stream.item_ids),
        interactions=len(stream.times),
        first_time=int(stream.times[0]),
        last_time=int(stream.times[-1]),
        notes=(*events.notes, *_duplicates(stream)),
        seconds=0.0,
        # By name: an import statement would point up the layers, for the package's front door leads to all of it.
        version=str(import_module("melon").__version__),
    )
    write_stream(target, stream, report.as_dict())
    return replace(report, seconds=clock.perf_counter() - began)


def _duplicates(stream: Interactions) -> list[str]:
    """A note where several interactions have the same user, item and time."""
    tied = np.flatnonzero(np.diff(stream.times) == 0)  # only events at one time can be equal
    if not len(tied):
        return []
    places = np.union1d(tied, tied + 1)
    columns = {"user": stream.users, "item": stream.items, "time": stream.times}
    count = len(places) - pl.DataFrame({name: column[places] for name, column in columns.items()}).n_unique()
    return [f"{count:,} exact repeats of another interaction (same user, item and time) are kept"] if count else []


def fingerprints(paths: Sequence[Path]) -> list[str]:
    """SHA-256 of each file as it came."""
    digests = []
    for path in paths:
        with path.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests


def _stream_of(events: RawEvents, minimum: int) -> Interactions:
    users, n_users = codes_of(events.users)
    items, n_items = codes_of(events.items)
    enough = np.bincount(users)[users] >= minimum
    enough &= np.bincount(items)[items] >= minimum
    positions = np.flatnonzero(enough)
    if not len(positions):
        raise DataError(
            f"nothing is left of {len(users)} interactions when users and items with fewer than {minimum} are "
            f"dropped; lower --min-interactions (1 keeps everything)."
        )
    # Stable: events at the same time stay in the order of the file, which is all that is known about them.
    positions = positions[np.argsort(events.ticks[positions], kind="stable")]
    users, items = users[positions], items[positions]
    user_rows, first_of_user = rows_from_codes(users, n_users)
    item_rows, first_of_item = rows_from_codes(items, n_items)
    return Interactions(
        users=user_rows,
        items=item_rows,
        times=events.ticks[positions] // UNITS[events.clock.tick],
        user_ids=original_ids(events.users.gather(positions[first_of_user]), events.text_users),
        item_ids=original_ids(events.items.gather(positions[first_of_item]), events.text_items),
    )


def _nothing_read(events: RawEvents, paths: Sequence[Path]) -> str:
    names = ", ".join(map(str, paths))
    if not events.bad:
        return f"there is no interaction in {names}: no line after the header."
    reasons = "; ".join(f"{bad.count} × {bad.reason}" for bad in events.bad)
    first = next((str(row) for bad in events.bad for row in bad.examples), "")
    way_out = "Check the columns and the separator."
    if events.bad[0].reason == UNPARSABLE:
        way_out = "Say how times are written with --time-format (such as '%d.%m.%Y %H:%M'), or check --time."
    return f"there is no good row in {names} ({reasons}). The first bad one: {first}. {way_out}"
