"""The records of a bench as runs, gaps, and contests of methods that ranked the same candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from melon import display
from melon.bench.record import is_auto, method_name
from melon.bench.work import RatesKeeper
from melon.errors import DataError
from melon.evaluation.ranking import Metrics, metrics
from melon.types import Flags, Floats, Ints, Plain

View = Literal["first", "all", "full"]
#: What others are compared with, named before anything is compared: plain fine-tuning.
REFERENCE = "default"
BASELINES = ("frozen", "popularity", "recent_popularity", REFERENCE)
#: What records of one table may differ in; everything else that was asked for has to be the same.
_FREE = {
    *("recommender", "strategy", "seed", "settings", "preset", "split", "threads", "device", "full_ranking"),
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

    @property
    def rates(self) -> Path | None:
        """Where its learning rates are kept, if they were asked for."""
        beside = self.path.with_suffix(RatesKeeper.suffix)
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
    """One stream, one recommender, one protocol: methods that ranked the same candidates."""

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
        return [method for method in self.methods if method not in self.baselines]

    @cached_property
    def baselines(self) -> list[str]:
        """Those that are always there, and simple rivals that every run has beside them; the reference last."""
        common = set.intersection(*(set(run.record["baselines"]) for run in self.runs))
        rivals = [name for name in self.first["baselines"] if name in common and name not in BASELINES]
        return [*BASELINES[:-1], *rivals, BASELINES[-1]]

    @cached_property
    def methods(self) -> list[str]:
        """The baselines, always, and whatever was run."""
        ran = dict.fromkeys(run.method for run in sorted(self.runs, key=lambda run: _order(run.record["strategy"])))
        return [*self.baselines, *(method for method in ran if method not in self.baselines)]

    def label(self, method: str) -> str:
        """A method's display name here: whether it was tuned, and `auto` where its configuration is that."""
        text = display.label(method)
        if method == REFERENCE and is_auto({**self.runs[0].request, "strategy": REFERENCE}):
            text = display.AUTO
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
        """Streams with repeats are judged without them (docs/methods.md 5.8)."""
        return "first" if self.repeats.any() and not self.repeats.all() else "all"

    @property
    def judged(self) -> Flags:
        """Which events the headline is about."""
        return ~self.repeats if self.headline == "first" else np.ones(len(self.repeats), dtype=bool)

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
            recorded = (_summary(run, method).get("full_ranking") for run in self.runs_of(method))
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
        """The loss that "level or better" rules out (docs/methods.md 5.8)."""
        return 0.005 if len(self.events) >= 10_000 else 0.015

    def hit_rate(self, method: str) -> float:
        """HR@5 in the headline's view, the mean over seeds."""
        return float(np.mean([scores["HR@5"] for scores in self.scores(method, self.headline)]))


@dataclass(frozen=True)
class Bench:
    """All contests of some records, the most common arrangement first."""

    sources: tuple[Path, ...]
    contests: tuple[Contest, ...]
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def main(self) -> tuple[Contest, ...]:
        """One contest for each stream and recommender: of several arrangements, the one that most runs share."""
        contests: dict[tuple[str, str], Contest] = {}
        for contest in self.contests:
            contests.setdefault((contest.stream, contest.recommender), contest)
        return tuple(contests.values())

    @property
    def runs(self) -> list[Run]:
        return [run for contest in self.contests for run in contest.runs]

    def fast(self, stream: str) -> bool:
        """Whether what was popular lately beats the best recommender that is never updated: a fast stream."""
        contests = [contest for contest in self.main if contest.stream == stream]
        recent, frozen = (max(c.hit_rate(name) for c in contests) for name in ("recent_popularity", "frozen"))
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
