"""The records of a bench as methods that ranked the same candidates, and the arithmetic of a report about them."""

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

from melon.errors import DataError
from melon.evaluation import labels
from melon.evaluation.compare import Comparison, Conclusion, compare, conclusions
from melon.evaluation.ranking import METRICS, Metrics, gains, metrics
from melon.evaluation.record import is_auto, judged, method_name, read_any_json, read_json
from melon.types import Flags, Floats, Ints, Plain

View = Literal["first", "all", "full"]
#: What others are compared with, named before anything is compared: plain fine-tuning.
REFERENCE = "default"
BASELINES = ("frozen", "popularity", "recent_popularity", REFERENCE)
#: What records of one table may differ in; everything else that was asked for has to be the same.
_FREE = {
    *("recommender", "strategy", "seed", "settings", "preset", "split", "threads", "lists"),
    *("auto", "minutes"),
}


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
        return method_name(self.record)

    @property
    def seed(self) -> int:
        return int(self.record["seed"])

    @property
    def arrangement(self) -> Plain:
        """How it was evaluated, stream and split apart."""
        return {name: value for name, value in self.request.items() if name not in _FREE}

    @property
    def request(self) -> Plain:
        """The options of its cell."""
        request: Plain = self.record["config"]["asked"]
        return request

    @property
    def trials(self) -> int | None:
        """Settings that were tried for its strategy; None where the settings were given, or nothing is known."""
        trials = self.record["config"]["chosen"].get(self.record["strategy"], {}).get("trials")
        given = self.request.get("settings") or self.record.get("preset", "default") != "default"
        return None if given or trials is None else len(trials)

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
class MethodComparison:
    """One stream, one recommender, one protocol: methods that ranked the same candidates."""

    runs: tuple[Run, ...]
    gaps: tuple[Gap, ...] = ()
    #: What sets it apart from other comparisons of its stream and recommender.
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
        return [method for method in self.methods if method not in self.baselines]

    @cached_property
    def baselines(self) -> list[str]:
        """Those that are always there, and simple baselines that every run has beside them; the reference last."""
        common = set.intersection(*(set(run.record["baselines"]) for run in self.runs))
        others = [name for name in self.first["baselines"] if name in common and name not in BASELINES]
        return [*BASELINES[:-1], *others, BASELINES[-1]]

    @cached_property
    def methods(self) -> list[str]:
        """The baselines, always, and whatever was run."""
        ran = dict.fromkeys(run.method for run in sorted(self.runs, key=lambda run: _order(run.record["strategy"])))
        return [*self.baselines, *(method for method in ran if method not in self.baselines)]

    def label(self, method: str) -> str:
        """A method's display name here: whether it was tuned, and `auto` where its configuration is that."""
        text = labels.label(method)
        if method == REFERENCE and is_auto({**self.runs[0].request, "strategy": REFERENCE}):
            text = labels.AUTO
        if not self.searched(method):
            text = text.removesuffix(" (tuned)") + " (not tuned)"
        seeds = len(self.runs_of(method))
        return text + (f" [{seeds} of {len(self.seeds)} seeds]" if seeds < len(self.seeds) else "")

    def searched(self, method: str) -> bool:
        """Whether settings of a method were searched or given; a strategy without a search space runs with defaults."""
        return all(run.trials != 0 for run in self.runs if run.method == method)

    def runs_of(self, method: str) -> list[Run]:
        """The runs of a method by seed; a baseline is in every run, and is taken from the first of each seed."""
        by_seed: dict[int, Run] = {}
        for run in self.runs:
            if run.method == method:
                by_seed[run.seed] = run
            elif method in self.baselines:
                by_seed.setdefault(run.seed, run)
        return [by_seed[seed] for seed in sorted(by_seed)]

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
                raise DataError(f"{run.path} ranks other events than {self.runs[0].path}; they cannot be compared.")
        return frame

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """One of the columns of `events`."""
        return self.events[name].to_numpy()

    @cached_property
    def repeats(self) -> Flags:
        return self.column("repeat").astype(bool)

    @property
    def headline(self) -> View:
        """The view that conclusions are about."""
        return "all" if self.judged.all() else "first"

    @property
    def judged(self) -> Flags:
        """Which events the headline is about."""
        return judged(self.repeats)

    def ranks(self, method: str) -> dict[int, Floats]:
        """Ranks of all events by seed."""
        by_seed = {}
        for run in self.runs_of(method):
            column = "rank" if run.method == method else f"rank_{method}"
            by_seed[run.seed] = self._frames[run.path][column].to_numpy().astype(np.float64)
        return by_seed

    def scores(self, method: str, view: View) -> list[Metrics]:
        """HR and NDCG of each seed; nothing where the view was not recorded."""
        if view == "full":
            recorded = ((_summary(run, method).get("lists") or {}).get("all") for run in self.runs_of(method))
            return [scores for scores in recorded if scores]
        events = ~self.repeats if view == "first" else slice(None)
        return [scores for rank in self.ranks(method).values() if (scores := metrics(rank[events]))]

    @property
    def batches(self) -> Ints:
        """The batch of each event."""
        sizes = np.array([batch["n"] for batch in self.first["batches"]])
        start = self.first["dataset"]["interactions"] - sizes.sum()
        numbers: Ints = np.searchsorted(start + np.cumsum(sizes), self.column("event"), side="right")
        return numbers

    @property
    def margin(self) -> float:
        """The loss that "no significant loss" rules out (docs/methods.md 5.8)."""
        return 0.005 if len(self.events) >= 10_000 else 0.015

    def hit_rate(self, method: str) -> float:
        """HR@5 in the headline's view, the mean over seeds."""
        return float(np.mean([scores["HR@5"] for scores in self.scores(method, self.headline)]))


@dataclass(frozen=True)
class Bench:
    """All comparisons of some records, the most common arrangement first."""

    sources: tuple[Path, ...]
    comparisons: tuple[MethodComparison, ...]
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def main(self) -> tuple[MethodComparison, ...]:
        """One comparison for each stream and recommender: of several arrangements, the one that most runs share."""
        comparisons: dict[tuple[str, str], MethodComparison] = {}
        for comparison in self.comparisons:
            comparisons.setdefault((comparison.stream, comparison.recommender), comparison)
        return tuple(comparisons.values())

    @property
    def runs(self) -> list[Run]:
        return [run for comparison in self.comparisons for run in comparison.runs]

    @property
    def commands(self) -> list[str]:
        """The commands that wrote the records, as the folders of benches have them."""
        files = [source / "bench.json" for source in self.sources]
        kept = [read_json(file).get("commands", []) for file in files if file.exists()]
        return [str(command) for commands in kept for command in commands]

    def fast(self, stream: str) -> bool:
        """Whether what was popular lately beats the best recommender that is never updated: a fast stream."""
        comparisons = [comparison for comparison in self.main if comparison.stream == stream]
        recent, frozen = (max(c.hit_rate(name) for c in comparisons) for name in ("recent_popularity", "frozen"))
        return recent > frozen

    def pace(self, stream: str) -> str:
        """`fast` or `slow`."""
        return "fast" if self.fast(stream) else "slow"


def stream_name(record: Mapping[str, Any]) -> str:
    """A bench names its streams; an evaluation gives the path."""
    return Path(str(record["dataset"]["path"] or "stream")).name.removesuffix(".parquet")


def _summary(run: Run, method: str) -> Plain:
    """The part of a record that is about a method."""
    summary: Plain = run.record if run.method == method else run.record["baselines"].get(method, {})
    return summary


def _order(strategy: str) -> int:
    from melon.strategies.registry import STRATEGIES

    names = STRATEGIES.names()
    return names.index(strategy) if strategy in names else len(names)


#: What tuned configs settle for each stream and recommender: no arrangement of its own.
_ITS_OWN = ("pretrain_settings", "epochs")
_NEEDED = ("dataset", "recommender", "strategy", "seed", "config", "protocol", "metrics", "baselines", "batches")


def read_bench(sources: Sequence[Path]) -> Bench:
    """Records of benches (folders) and of single evaluations (files)."""
    runs: list[Run] = []
    gaps: list[Gap] = []
    for source in sources:
        read, missing = _read_source(source)
        if not read:
            raise DataError(f"{source} holds no results: give a folder that melon bench wrote, or a result file.")
        runs += read
        gaps += missing
    return _sorted_out(sources, runs, gaps)


def _read_source(source: Path) -> tuple[list[Run], list[Gap]]:
    if not source.exists():
        raise DataError(f"there is no {source}: give a folder that melon bench wrote, or a result file.")
    paths = sorted(source.glob("*.json")) if source.is_dir() else [source]
    runs, gaps = [], []
    for path in paths:
        record = _record(path)
        if record is None and not source.is_dir():
            raise DataError(f"{path} is not a result of melon: it has no metrics.")
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
    if "fading" in record:
        raise DataError(f"{path} was written by an earlier version of melon, with other names; run the bench again.")
    if "metrics" in record:
        for name in _NEEDED:
            if name not in record:
                raise DataError(f"{path} is incomplete: it has no {name!r}. Remove it and run the bench again.")
        if not record["metrics"]:
            raise DataError(f"{path} has no event with a rank, so there is nothing to report.")
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
    comparisons = [
        MethodComparison(
            tuple(group),
            tuple(g for g in gaps if (g.stream, g.recommender) == (group[0].stream, group[0].record["recommender"])),
            _apart(group[0], ordered[0][0], [other[0] for other in ordered]),
        )
        for group in ordered
    ]
    return Bench(tuple(sources), tuple(comparisons), tuple(gaps), tuple(notes))


def _apart(run: Run, usual: Run, others: Sequence[Run]) -> str:
    """What a comparison has otherwise than those of the same stream and recommender, and than most of the report."""
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


METRIC = "HR@5"
#: Shown beside it with its own interval; conclusions are about the first alone.
SECOND_METRIC = "NDCG@10"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error, which one seed does not have."""

    mean: float
    error: float | None = None


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and sd(ddof=1)/√n; None of nothing."""
    if not values:
        return None
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return Estimate(float(np.mean(values)), error)


def estimates(scores: Sequence[Metrics]) -> dict[str, Estimate]:
    """Of every metric that all seeds have."""
    names = [name for name in (scores[0] if scores else ()) if all(name in each for each in scores)]
    means = {name: estimate([seed[name] for seed in scores]) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


def table_of(comparison: MethodComparison, view: View) -> dict[str, dict[str, Estimate]]:
    """Methods × metrics; a method without the view has an empty line."""
    return {method: estimates(comparison.scores(method, view)) for method in comparison.methods}


@dataclass(frozen=True)
class Compared:
    """Two methods, or groups of them, on the same events."""

    difference: Comparison
    conclusion: Conclusion
    margin: float
    family: int

    @property
    def visible(self) -> float:
        """The smallest difference that could be seen at all: half the interval."""
        low, high = self.difference.by_user
        return (high - low) / 2

    @property
    def no_gain(self) -> bool:
        """Whether a gain of the margin's size is ruled out."""
        return self.conclusion != "better" and self.difference.by_user[1] < self.margin


class PairedTests:
    """Paired tests (docs/methods.md 5.8), each made once; a table is judged as the family that it declares."""

    def __init__(self) -> None:
        self._cache: dict[tuple[MethodComparison, tuple[str, ...], tuple[str, ...], str], Comparison] = {}

    def family(
        self, comparison: MethodComparison, ours: Sequence[str], baseline: str = REFERENCE
    ) -> dict[str, Compared]:
        """Each of ours against one baseline, as one family."""
        return self._judged(comparison, {name: ((name,), (baseline,)) for name in ours if name != baseline})

    def against(self, comparison: MethodComparison, ours: str, baselines: Sequence[str]) -> dict[str, Compared]:
        """One of ours against each baseline, as one family."""
        return self._judged(comparison, {name: ((ours,), (name,)) for name in baselines if name != ours})

    def groups(self, comparison: MethodComparison, ours: Sequence[str], theirs: Sequence[str]) -> Compared:
        """The mean of some methods against the mean of others: a family of one."""
        return self._judged(comparison, {"": (tuple(ours), tuple(theirs))})[""]

    def second(self, comparison: MethodComparison, ours: str, baseline: str = REFERENCE) -> Comparison:
        """The same two methods by the second metric."""
        return self._compare(comparison, (ours,), (baseline,), SECOND_METRIC)

    def _judged(
        self, comparison: MethodComparison, pairs: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> dict[str, Compared]:
        family = {name: self._compare(comparison, *sides) for name, sides in pairs.items()}
        judged = conclusions(family, comparison.margin)
        return {name: Compared(each, judged[name], comparison.margin, len(family)) for name, each in family.items()}

    def _compare(
        self, comparison: MethodComparison, ours: tuple[str, ...], theirs: tuple[str, ...], metric: str = METRIC
    ) -> Comparison:
        key = (comparison, ours, theirs, metric)
        if key not in self._cache:
            sides = [
                {seed: self._values(comparison, side, seed, metric) for seed in comparison.seeds}
                for side in (ours, theirs)
            ]
            common = [seed for seed in comparison.seeds if all(side[seed] is not None for side in sides)]
            one, other = ([values for seed in common if (values := side[seed]) is not None] for side in sides)
            users, items = (comparison.column(name)[comparison.judged] for name in ("user", "item"))
            self._cache[key] = compare(one, other, users, items)
        return self._cache[key]

    @staticmethod
    def _values(comparison: MethodComparison, methods: tuple[str, ...], seed: int, metric: str) -> Floats | None:
        """The part of each event in the metric, the mean over methods; None where one of them lacks the seed."""
        ranks = [comparison.ranks(method).get(seed) for method in methods]
        if any(rank is None for rank in ranks):
            return None
        values: Floats = np.mean(
            [METRICS[metric](rank[comparison.judged]) for rank in ranks if rank is not None], axis=0
        )
        return values


def curve(comparison: MethodComparison, method: str) -> Floats:
    """NDCG@10 of each batch, averaged over seeds, on the events that the headline is about; NaN where there is none."""
    batches, judged = comparison.batches[comparison.judged], comparison.judged
    count = np.bincount(batches, minlength=len(comparison.first["batches"]))
    gain = np.mean([gains(rank[judged]) for rank in comparison.ranks(method).values()], axis=0)
    sums = np.bincount(batches, weights=gain, minlength=len(count))
    means: Floats = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
    return means


def trailing_width(batches: int) -> int:
    """An eighth of the stream, but at least three batches and at most twenty."""
    return int(np.clip(batches // 8, 3, 20))


def trailing_mean(values: Floats, width: int = 10) -> Floats:
    """The mean of the last `width` values that are known, at each place."""
    windows = (values[max(0, at - width + 1) : at + 1] for at in range(len(values)))
    return np.array([numbers.mean() if len(numbers := window[~np.isnan(window)]) else np.nan for window in windows])


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Of (cost, accuracy) points those that no other beats at the same or a lower cost, from cheap to expensive."""
    best, names = -np.inf, []
    for name, (_, accuracy) in sorted(points.items(), key=lambda each: (each[1][0], -each[1][1])):
        if accuracy > best:
            best = accuracy
            names.append(name)
    return names


def milliseconds(comparison: MethodComparison, method: str, what: str = "median") -> float | None:
    """Time per update, the mean over seeds of each one's median (or mean, or p95); nothing where it was not timed."""
    taken = [
        run.record["update_ms"][what]
        for run in comparison.runs
        if run.method == method and what in run.record.get("update_ms", {})
    ]
    return float(np.mean(taken)) if taken else None
