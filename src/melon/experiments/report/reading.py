"""Reading a bench: records and ranks from folders, sorted into contests that can stand in one table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from melon.data.interactions import Flags, Ints
from melon.errors import DataError
from melon.evaluate.ranking import Floats, Metrics, metrics
from melon.experiments.watching import RATES_SUFFIX

Plain = dict[str, Any]
View = Literal["first", "all", "full"]
BASELINES = ("frozen", "popularity", "recent_popularity", "default")
#: What records of one table may differ in; everything else that was asked for has to be the same.
_FREE = ("recommender", "strategy", "seed", "settings", "preset", "split", "threads", "device", "full_ranking")
_NEEDED = ("dataset", "recommender", "strategy", "seed", "config", "protocol", "metrics", "baselines", "batches")


@dataclass(frozen=True)
class Run:
    """One record, and the file that it is from."""

    path: Path
    record: Plain

    @property
    def stream(self) -> str:
        return stream_name(self.record)

    @property
    def method(self) -> str:
        """The strategy, and what sets it apart from the same strategy under the usual preset."""
        strategy, preset = str(self.record["strategy"]), self.record.get("preset", "default")
        if strategy == "default" and self.record.get("pretrain") == "own":
            strategy = "default, own pre-training"
        return strategy if preset == "default" else f"{strategy} ({preset})"

    @property
    def seed(self) -> int:
        return int(self.record["seed"])

    @property
    def arrangement(self) -> Plain:
        """How it was evaluated, stream and split apart."""
        return {name: value for name, value in self.record["config"]["asked"].items() if name not in _FREE}

    @property
    def rates(self) -> Path | None:
        """Where its learning rates are kept, if they were asked for."""
        beside = self.path.with_suffix(RATES_SUFFIX)
        return beside if beside.exists() else None

    def ranks(self) -> pl.DataFrame:
        """The rank of every evaluated event."""
        path = self.path.with_name(str(self.record.get("ranks", "")))
        try:
            return pl.read_parquet(path)
        except (OSError, pl.exceptions.PolarsError) as problem:
            raise DataError(f"{self.path} needs its ranks in {path.name} beside it: {problem}.") from None


@dataclass(frozen=True)
class Gap:
    """A cell without a result: a pairing that does not exist, or one that failed."""

    stream: str
    recommender: str
    strategy: str
    seed: int
    kind: Literal["N/A", "failed"]
    reason: str


@dataclass(frozen=True, eq=False)
class Contest:
    """One stream, one recommender, one protocol: methods that faced the same candidates."""

    runs: tuple[Run, ...]
    gaps: tuple[Gap, ...] = ()
    #: What sets it apart from other contests of its stream and recommender.
    apart: str = ""

    @property
    def first(self) -> Plain:
        return self.runs[0].record

    @property
    def stream(self) -> str:
        return self.runs[0].stream

    @property
    def recommender(self) -> str:
        return str(self.first["recommender"])

    @property
    def arrangement(self) -> Plain:
        return self.runs[0].arrangement

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @property
    def strategies(self) -> list[str]:
        """Methods beyond the baselines, in the order of the table."""
        return [method for method in self.methods if method not in BASELINES]

    @cached_property
    def methods(self) -> list[str]:
        """The baselines, always, and whatever was run."""
        ran = dict.fromkeys(run.method for run in sorted(self.runs, key=lambda run: _order(run.record["strategy"])))
        return [*BASELINES, *(method for method in ran if method not in BASELINES)]

    def runs_of(self, method: str) -> list[Run]:
        """The runs of a method by seed; a baseline is in every run, and is taken from the first of each seed."""
        found: dict[int, Run] = {}
        for run in self.runs:
            if run.method == method:
                found[run.seed] = run
            elif method in BASELINES:
                found.setdefault(run.seed, run)
        return [found[seed] for seed in sorted(found)]

    @cached_property
    def _frames(self) -> dict[Path, pl.DataFrame]:
        return {run.path: run.ranks() for run in self.runs}

    @cached_property
    def events(self) -> pl.DataFrame:
        """Event, user, item, and whether it is a repeat or the user cold: the same for every run."""
        columns = ["event", "user", "item", "repeat", "cold"]
        frame = self._frames[self.runs[0].path].select(columns)
        for run in self.runs[1:]:
            if not frame["event"].equals(self._frames[run.path]["event"]):
                raise DataError(f"{run.path} ranks other events than {self.runs[0].path}; they are no one contest.")
        return frame

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """One of the columns of `events`."""
        return self.events[name].to_numpy()

    @cached_property
    def repeats(self) -> Flags:
        return self.column("repeat").astype(bool)

    @property
    def headline(self) -> View:
        """Streams with repeats are judged without them (METHODS.md 5.8)."""
        return "first" if self.repeats.any() and not self.repeats.all() else "all"

    @property
    def judged(self) -> Flags:
        """Which events the headline is about."""
        return ~self.repeats if self.headline == "first" else np.ones(len(self.repeats), dtype=bool)

    def ranks(self, method: str) -> dict[int, Floats]:
        """Ranks of all events by seed."""
        found = {}
        for run in self.runs_of(method):
            column = "rank" if run.method == method else f"rank_{method}"
            found[run.seed] = self._frames[run.path][column].to_numpy().astype(np.float64)
        return found

    def scores(self, method: str, view: View) -> list[Metrics]:
        """HR and NDCG of each seed; nothing where the view was not recorded."""
        if view == "full":
            recorded = (_summary(run, method).get("full_ranking") for run in self.runs_of(method))
            return [found for found in recorded if found]
        kept = ~self.repeats if view == "first" else slice(None)
        return [found for rank in self.ranks(method).values() if (found := metrics(rank[kept]))]

    @property
    def batches(self) -> Ints:
        """The batch of each event."""
        sizes = np.array([batch["n"] for batch in self.first["batches"]])
        start = self.first["dataset"]["interactions"] - sizes.sum()
        found: Ints = np.searchsorted(start + np.cumsum(sizes), self.column("event"), side="right")
        return found

    @property
    def margin(self) -> float:
        """What a loss may be at most for "not worse" (METHODS.md 5.8)."""
        return 0.005 if len(self.events) >= 10_000 else 0.015

    @property
    def fast(self) -> bool:
        """Whether what was popular lately beats a model that is never updated: the mark of a fast stream."""
        means = [
            np.mean([found["HR@5"] for found in self.scores(name, self.headline)])
            for name in ("recent_popularity", "frozen")
        ]
        return bool(means[0] > means[1])


@dataclass(frozen=True)
class Bench:
    """Everything that was found: contests, the most common arrangement first."""

    sources: tuple[Path, ...]
    contests: tuple[Contest, ...]
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def main(self) -> tuple[Contest, ...]:
        """One contest for each stream and recommender: of several arrangements, the one that most runs share."""
        found: dict[tuple[str, str], Contest] = {}
        for contest in self.contests:
            found.setdefault((contest.stream, contest.recommender), contest)
        return tuple(found.values())

    @property
    def runs(self) -> list[Run]:
        return [run for contest in self.contests for run in contest.runs]


def read_bench(sources: Sequence[Path]) -> Bench:
    """Records of benches (folders) and of single evaluations (files)."""
    runs: list[Run] = []
    gaps: list[Gap] = []
    for source in sources:
        found, missing = _read(source)
        if not found:
            raise DataError(f"{source} holds no results: give a folder that melon bench wrote, or a result file.")
        runs += found
        gaps += missing
    return _sorted_out(sources, runs, gaps)


def stream_name(record: Mapping[str, Any]) -> str:
    """A bench names its streams; an evaluation gives the path."""
    return Path(str(record["dataset"]["path"] or "stream")).name.removesuffix(".parquet")


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
    """A record; nothing where the file is about something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}.") from None
    except ValueError as problem:
        raise DataError(f"{path} is not valid JSON: {problem}. Remove it, and run the bench again.") from None
    if not isinstance(found, dict) or not ("metrics" in found or "not_applicable" in found):
        return None
    if "metrics" in found:
        for name in _NEEDED:
            if name not in found:
                raise DataError(f"{path} is no whole result: it has no {name!r}. Remove it, and run the bench again.")
        if not found["metrics"]:
            raise DataError(f"{path} has no event with a rank, so there is nothing to report of it.")
    return found


def _not_applicable(record: Plain) -> Gap:
    asked = record["config"]["asked"]
    where = (stream_name(record), asked["recommender"], asked["strategy"], asked["seed"])
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
        key = _told(record["dataset"]["sha256"], run.stream, record["dataset"]["split"], run.arrangement)
        cell = (key, record["recommender"], run.method, run.seed)
        if cell in seen:
            notes.append(f"{run.path} tells of the same cell as {seen[cell]}, and was left out.")
            continue
        seen[cell] = run.path
        groups[_told(key, record["recommender"])].append(run)
    common: dict[str, int] = defaultdict(int)
    for run in runs:
        common[_told(run.arrangement)] += 1
    places = {arrangement: place for place, arrangement in enumerate(common)}

    def order(group: list[Run]) -> tuple[int, int]:
        arrangement = _told(group[0].arrangement)
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

    def told(each: Run) -> Plain:
        about = {"split": each.record["dataset"]["split"], "data": each.record["dataset"]["sha256"][:8]}
        return {**each.arrangement, **about}

    ours = told(run)
    differing = [name for name in ours if any(told(other).get(name) != ours[name] for other in alike)]
    differing += [
        n for n in ours if n in run.arrangement and usual.arrangement.get(n) != ours[n] and n not in differing
    ]
    return ", ".join(f"{name.replace('_', ' ')} {ours[name]}" for name in differing)


def _told(*parts: object) -> str:
    return json.dumps(parts, sort_keys=True, default=str)


def _summary(run: Run, method: str) -> Plain:
    """The part of a record that is about a method."""
    record = run.record
    found: Plain = record if run.method == method else record["baselines"].get(method, {})
    return found


def _order(strategy: str) -> int:
    from melon.strategies.registry import STRATEGIES

    known = STRATEGIES.names()
    return known.index(strategy) if strategy in known else len(known)
