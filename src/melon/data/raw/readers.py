"""Raw files of any format are read as one run of events, with every bad row counted by its reason."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from melon.data.raw import times
from melon.data.raw.blocks import GOOD, BadRows, Block, read_block
from melon.data.raw.formats import FRONT_PAGE
from melon.data.raw.sources import EXAMPLES, RawFile, open_source
from melon.data.raw.times import Clock
from melon.errors import DataError
from melon.types import Ints


@dataclass(frozen=True)
class RawEvents:
    """Good raw rows in file order: integer or categorical ids, and times in ticks of one clock."""

    users: pl.Series
    items: pl.Series
    ticks: Ints
    clock: Clock
    format: str
    rows_read: int
    bad: tuple[BadRows, ...]
    notes: tuple[str, ...]
    text_users: bool
    text_items: bool


def read_raw(
    sources: Sequence[Path],
    *,
    form: str | None = None,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    time_unit: str | None = None,
    strict: bool = False,
) -> RawEvents:
    """Read raw files of one format, in the order given; `strict` makes the first bad row an error."""
    if not sources:
        raise DataError("no raw file was given; name at least one.")
    asked = {"user": user, "item": item, "time": time}
    people, things = pl.Categories.random(), pl.Categories.random()
    with tempfile.TemporaryDirectory(prefix="melon-") as folder:
        blocks = []
        for given in sources:
            file = open_source(given, Path(folder), form, asked)
            form = form or file.format
            block = read_block(file, people, things, time_unit, Path(folder))
            bad = block.bad_rows()
            # A front page is part of its format and says nothing against the file.
            faults = [row for each in bad if each.reason != FRONT_PAGE for row in each.examples]
            if strict and faults:
                first = min(faults, key=lambda row: row.line)
                raise DataError(f"{first}. Mend the file, or leave --strict out to skip and count such rows.")
            blocks.append((block, bad))
    return _together([block for block, _ in blocks], _merged([bad for _, bad in blocks]), form or "")


def _merged(by_file: Sequence[Sequence[BadRows]]) -> tuple[BadRows, ...]:
    merged: dict[str, BadRows] = {}
    for each in (each for bad in by_file for each in bad):
        known = merged.get(each.reason, BadRows(each.reason, 0, ()))
        examples = (known.examples + each.examples)[:EXAMPLES]
        merged[each.reason] = BadRows(each.reason, known.count + each.count, examples)
    return tuple(sorted(merged.values(), key=lambda each: (-each.count, each.reason)))


def _together(blocks: Sequence[Block], bad: tuple[BadRows, ...], form: str) -> RawEvents:
    clocks = {block.clock.unit for block in blocks}
    unit = clocks.pop() if len(clocks) == 1 else "us"
    users, items, ticks = [], [], []
    for block in blocks:
        good = block.reasons == GOOD
        kept = block.frame if good.all() else block.frame.filter(pl.Series(good))
        users.append(kept["user"])
        items.append(kept["item"])
        ticks.append(_rescaled(block.ticks if good.all() else block.ticks[good], block.clock.unit, unit))
    notes = [note for block in blocks for note in block.file.notes]
    notes += [f"{Path(block.file.name).name}: times are {block.clock.said}" for block in blocks]
    read = sum(len(block.frame) + sum(block.file.malformed.values()) for block in blocks)
    return RawEvents(
        users=_one_kind(users),
        items=_one_kind(items),
        ticks=np.concatenate(ticks),
        clock=Clock(unit, blocks[0].clock.said),
        format=form,
        rows_read=read,
        bad=bad,
        notes=tuple(notes),
        text_users=any(_has_texts(block.file, "user") for block in blocks),
        text_items=any(_has_texts(block.file, "item") for block in blocks),
    )


def _rescaled(ticks: Ints, unit: str, wanted: str) -> Ints:
    have, want = times.UNITS[unit], times.UNITS[wanted]
    return ticks * (want // have) if want >= have else ticks // (have // want)


def _has_texts(file: RawFile, role: str) -> bool:
    return file.layout.kind == "parquet" and file.scan.collect_schema()[role] in (pl.String, pl.Categorical, pl.Enum)


def _one_kind(columns: Sequence[pl.Series]) -> pl.Series:
    kind = next((each.dtype for each in columns if each.dtype != pl.Int64), pl.Int64())
    return pl.concat([each if each.dtype == kind else each.cast(pl.String).cast(kind) for each in columns])
