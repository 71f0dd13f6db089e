"""Reading a bench: records from folders, sorted into contests that can stand in one table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from melon.bench.record import read_any_json
from melon.errors import DataError
from melon.report.contests import Bench, Contest, Gap, Run, stream_name
from melon.types import Plain

#: What tuned configs settle for each stream and recommender: no arrangement of its own.
_ITS_OWN = ("pretrain_settings", "epochs")
_NEEDED = ("dataset", "recommender", "strategy", "seed", "config", "protocol", "metrics", "baselines", "batches")


def read_bench(sources: Sequence[Path]) -> Bench:
    """Records of benches (folders) and of single evaluations (files)."""
    runs: list[Run] = []
    gaps: list[Gap] = []
    for source in sources:
        read, missing = _read(source)
        if not read:
            raise DataError(f"{source} holds no results: give a folder that melon bench wrote, or a result file.")
        runs += read
        gaps += missing
    return _sorted_out(sources, runs, gaps)


def _read(source: Path) -> tuple[list[Run], list[Gap]]:
    if not source.exists():
        raise DataError(f"there is no {source}: give a folder that melon bench wrote, or a result file.")
    paths = sorted(source.glob("*.json")) if source.is_dir() else [source]
    runs, gaps = [], []
    for path in paths:
        record = _record(path)
        if record is None and not source.is_dir():
            raise DataError(f"{path} is no result of melon: it has no metrics.")
        if record is None:
            continue
        if "not_applicable" in record:
            gaps.append(_not_applicable(record))
        else:
            runs.append(Run(path, record))
    if source.is_dir():
        done = {run.path.stem for run in runs}
        gaps += [gap for path in sorted(source.glob("*.failed.txt")) for gap in _failed(path, done)]
    return runs, gaps


def _record(path: Path) -> Plain | None:
    """A record; None where the file is about something else."""
    record = read_any_json(path)
    if not isinstance(record, dict) or not ("metrics" in record or "not_applicable" in record):
        return None
    if "metrics" in record:
        for name in _NEEDED:
            if name not in record:
                raise DataError(f"{path} is no whole result: it has no {name!r}. Remove it, and run the bench again.")
        if not record["metrics"]:
            raise DataError(f"{path} has no event with a rank, so there is nothing to report of it.")
    return record


def _not_applicable(record: Plain) -> Gap:
    request = record["config"]["asked"]
    where = (stream_name(record), request["recommender"], request["strategy"], request["seed"])
    return Gap(*where, "N/A", str(record["not_applicable"]))


def _failed(path: Path, done: set[str]) -> Iterator[Gap]:
    name = path.name.removesuffix(".failed.txt")
    parts = name.rsplit("-", 3)
    if name in done or len(parts) != 4 or not parts[2].isdigit():
        return
    reason = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no reason was kept"]
    yield Gap(parts[0], parts[1], parts[3], int(parts[2]), "failed", reason[-1])


def _sorted_out(sources: Sequence[Path], runs: Sequence[Run], gaps: Sequence[Gap]) -> Bench:
    groups: dict[str, list[Run]] = defaultdict(list)
    notes: list[str] = []
    seen: dict[tuple[str, str, str, int], Path] = {}
    for run in runs:
        record = run.record
        key = _key(record["dataset"]["sha256"], run.stream, record["dataset"]["split"], run.arrangement)
        cell = (key, record["recommender"], run.method, run.seed)
        if cell in seen:
            notes.append(f"{run.path} is about the same cell as {seen[cell]}, and was left out.")
            continue
        seen[cell] = run.path
        groups[_key(key, record["recommender"])].append(run)
    common: dict[str, int] = defaultdict(int)
    for run in runs:
        common[_key(run.arrangement)] += 1
    places = {arrangement: place for place, arrangement in enumerate(common)}

    def order(group: list[Run]) -> tuple[int, int]:
        arrangement = _key(group[0].arrangement)
        return -common[arrangement], places[arrangement]

    ordered = sorted(groups.values(), key=order)
    contests = [
        Contest(
            tuple(group),
            tuple(g for g in gaps if (g.stream, g.recommender) == (group[0].stream, group[0].record["recommender"])),
            _apart(group[0], ordered[0][0], [other[0] for other in ordered]),
        )
        for group in ordered
    ]
    return Bench(tuple(sources), tuple(contests), tuple(gaps), tuple(notes))


def _apart(run: Run, usual: Run, others: Sequence[Run]) -> str:
    """What a contest has otherwise than those of the same stream and recommender, and than most of the report."""
    alike = [o for o in others if (o.stream, o.record["recommender"]) == (run.stream, run.record["recommender"])]

    def options(each: Run) -> Plain:
        about = {"split": each.record["dataset"]["split"], "data": each.record["dataset"]["sha256"][:8]}
        return {**each.arrangement, **about}

    ours = options(run)
    differing = [name for name in ours if any(options(other).get(name) != ours[name] for other in alike)]
    differing += [
        name
        for name in ours
        if name in run.arrangement and name not in (*_ITS_OWN, *differing) and usual.arrangement.get(name) != ours[name]
    ]
    return ", ".join(f"{name.replace('_', ' ')} {ours[name]}" for name in differing)


def _key(*parts: object) -> str:
    return json.dumps(parts, sort_keys=True, default=str)
