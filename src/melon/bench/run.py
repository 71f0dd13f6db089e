"""`melon bench`: a grid of cells in a folder that a later run continues."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from melon.atomic import require_writable, write_text
from melon.bench.config import CellConfig
from melon.bench.config_files import Tuned, read_tuned
from melon.bench.executors import executor_for
from melon.bench.grid import CellOutcome, Task, run_grid, tasks_of
from melon.bench.record import read_json, write_result
from melon.bench.work import RatesKeeper
from melon.data.files import load_stream
from melon.errors import DataError, SettingsError, StoppedError, unknown_name
from melon.progress import Progress
from melon.strategies.registry import ALL_STRATEGIES, STRATEGIES
from melon.stream.split import parse_split
from melon.types import Plain

#: What may differ between two runs in one folder: more streams, strategies and seeds join what is there.
_GROWS = ("recommender", "strategy", "seed", "settings", "preset", "split")


@dataclass(frozen=True)
class BenchPlan:
    """What was asked for: the grid, and the options of its cells."""

    streams: Mapping[str, Path]
    recommenders: Sequence[str]
    strategies: Sequence[str]
    seeds: int
    base: CellConfig
    splits: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    tuned: Tuned = field(default_factory=Tuned)
    given: Collection[str] = ()
    rates: bool = False

    def tasks(self) -> list[Task]:
        """Every cell, with the settings of the config files that are about it."""
        splits = {name: self.splits.get(name, self.base.split) for name in self.streams}
        tasks = tasks_of(splits, self.recommenders, self.strategies, self.seeds, self.base)
        return [replace(task, config=self._tuned(task), rates=self.rates) for task in tasks]

    def _tuned(self, task: Task) -> CellConfig:
        given = (*self.given, "split") if task.stream in self.splits else self.given
        return self.tuned.apply(task.stream, task.config, given)

    def options(self) -> Plain:
        """What has to be the same for records to stand in one table, as a file holds it."""
        options: Plain = json.loads(json.dumps(self.base.plain()))
        return {name: value for name, value in options.items() if name not in _GROWS}


@dataclass(frozen=True)
class BenchResult:
    """A bench at its end: every cell with its outcome, and the folder of the records."""

    out: Path
    tasks: Sequence[Task]
    outcomes: Mapping[str, CellOutcome]

    @property
    def failed(self) -> list[CellOutcome]:
        """Cells that failed; the same command tries them again."""
        return [outcome for outcome in self.outcomes.values() if outcome.problem is not None]


class BenchFolder:
    """The records of a bench, one for each cell, and the work that is under way."""

    def __init__(self, out: Path) -> None:
        self.out, self.work = out, out / "work"
        self._about = out / "bench.json"

    def claim(self, plan: BenchPlan) -> None:
        """Make the folder this bench's own, or check that it holds a bench with the same options."""
        require_writable(self._about)
        hashes = {name: load_stream(path).identity for name, path in plan.streams.items()}
        before = self._before()
        for name, value in plan.options().items():
            if before["options"] and before["options"].get(name) != value:
                raise SettingsError(
                    f"{self.out} holds a bench with {name} = {before['options'].get(name)!r}, and this one has "
                    f"{value!r}: they cannot stand in one table. Choose another --out."
                )
        for name, sha in hashes.items():
            if before["streams"].get(name, sha) != sha:
                raise SettingsError(f"{self.out} holds a bench of another stream named {name!r}. Choose another --out.")
        about = {"options": plan.options(), "streams": {**before["streams"], **hashes}}
        write_text(self._about, json.dumps(about, indent=1) + "\n")

    def _before(self) -> Plain:
        """Options and streams of the bench that the folder holds; both empty in a new folder."""
        if not self._about.exists():
            return {"options": {}, "streams": {}}
        about = read_json(self._about)
        if not all(isinstance(about.get(name), dict) for name in ("options", "streams")):
            raise DataError(f"{self._about} is no description of a bench: remove it, or choose another --out.")
        return about

    def path(self, task: Task) -> Path:
        """The record of a cell."""
        return self.out / f"{task.key}.json"

    def rates(self, task: Task) -> Path:
        """The learning rates of a cell, beside its record."""
        return self.out / f"{task.key}{RatesKeeper.suffix}"

    def done(self, tasks: Sequence[Task]) -> dict[str, CellOutcome]:
        """Cells that have a record of the same settings, with everything that is asked for."""
        outcomes = {task.key: self._outcome(task) for task in tasks if self.path(task).exists()}
        return {key: outcome for key, outcome in outcomes.items() if outcome is not None}

    def _outcome(self, task: Task) -> CellOutcome | None:
        path = self.path(task)
        record = read_json(path)
        if "not_applicable" in record:
            return CellOutcome(task, not_applicable=record["not_applicable"])
        try:
            request, seconds = record["config"]["asked"], float(record["seconds"])
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{path} is no whole record. Remove it, and run the bench again.") from None
        if request != json.loads(json.dumps(task.config.plain())):
            raise SettingsError(
                f"{path} was made with other settings than are asked for now; choose another --out, or remove it."
            )
        if self._expects_rates(task) and not self.rates(task).exists():
            return None
        return CellOutcome(task, seconds, record)

    @staticmethod
    def _expects_rates(task: Task) -> bool:
        """Not of the foundation, which has one rate for everything, nor of a strategy without learning rates."""
        from melon.strategies.base import Strategy

        strategy = STRATEGIES[task.config.strategy].load()
        return task.rates and not task.lays_foundation and strategy.learning_rates is not Strategy.learning_rates

    def keep(self, outcome: CellOutcome) -> None:
        """Write a cell's outcome; why one failed stands beside the records, and the cell is tried again next time."""
        path, failed = self.path(outcome.task), self.path(outcome.task).with_suffix(".failed.txt")
        if not outcome.task.lays_foundation:  # a failed cell starts afresh: it may be asked for with other settings
            shutil.rmtree(self.work / outcome.task.key, ignore_errors=True)
        if outcome.problem is not None:
            write_text(failed, outcome.problem + "\n")
            return
        failed.unlink(missing_ok=True)
        if outcome.record is None:
            about = {"dataset": {"path": outcome.task.stream}, "config": {"asked": outcome.task.config.plain()}}
            write_text(path, json.dumps({**about, "not_applicable": outcome.not_applicable}, indent=1) + "\n")
            return
        if outcome.rates is not None:
            RatesKeeper().write(outcome.rates, self.rates(outcome.task))
        write_result({**outcome.record, "seconds": outcome.seconds}, outcome.ranks, path)


def bench_streams(
    streams: Sequence[Path],
    options: Plain,
    *,
    recommenders: str,
    strategies: str,
    seeds: int,
    out: Path,
    splits: Sequence[str] = (),
    configs: Sequence[Path] = (),
    jobs: int = 1,
    ray: str | None = None,
    rates: bool = False,
    progress: Progress | None = None,
) -> BenchResult:
    """Run every cell that has no record in `out` yet."""
    plan = replace(bench_plan(streams, options, recommenders, strategies, seeds, splits, configs), rates=rates)
    folder = BenchFolder(out)
    folder.claim(plan)
    tasks = plan.tasks()
    done = folder.done(tasks)
    shown = progress or Progress()
    if len(done) == len(tasks):
        shown.jobs(tasks, done, 1)
        return BenchResult(out, tasks, done)
    executor = executor_for(plan.streams, folder.work, jobs=jobs, ray=ray, threads=plan.base.threads)
    try:
        with executor, shown:
            outcomes = {outcome.task.key: outcome for outcome in run_grid(tasks, done, executor, folder.keep, shown)}
    except KeyboardInterrupt:
        raise StoppedError(
            f"stopped; what was finished is kept in {out}. Run the same command again to go on."
        ) from None
    return BenchResult(out, tasks, done | outcomes)


def bench_plan(
    streams: Sequence[Path],
    options: Plain,
    recommenders: str,
    strategies: str,
    seeds: int,
    splits: Sequence[str],
    configs: Sequence[Path],
) -> BenchPlan:
    """The grid that the options of `melon bench` describe."""
    named = {path.name.removesuffix(".parquet"): path for path in streams}
    if len(named) < len(streams):
        raise SettingsError("two streams have the same file name; records are named after it, so rename one.")
    if seeds < 1:
        raise SettingsError(f"seeds = {seeds} is too few: it must be at least 1.")
    if options.get("settings"):
        settings = ", ".join(options["settings"])
        raise SettingsError(
            f"--set {settings} is about one strategy, and a bench runs many; put it into a file with `strategy` "
            "and `settings`, and give that with --config."
        )
    general, tuned = read_tuned(configs, named)
    if general.get("minutes") is not None:
        raise SettingsError(
            "minutes would give the cells of a bench different numbers of trials; limit these with --budget."
        )
    common, per_stream = _splits(splits, named)
    options = {**general, **options}
    if common is not None:
        options["split"] = common
    names = ALL_STRATEGIES if strategies == "all" else tuple(strategies.split(","))
    for name in names:
        STRATEGIES[name]
    options.pop("strategy", None)
    options.pop("recommender", None)
    chosen = tuple(recommenders.split(","))
    base = CellConfig(**{**options, "recommender": chosen[0]})
    given = [name for name, value in options.items() if value != {}]  # an empty table of settings says nothing
    return BenchPlan(named, chosen, names, seeds, base, per_stream, tuned, given)


def _splits(
    given: Sequence[str], streams: Mapping[str, Path]
) -> tuple[tuple[float, float, float] | None, dict[str, tuple[float, float, float]]]:
    """`0.95,0.005,0.045` for all streams, `NAME=0.8,0.02,0.18` for one."""
    common, per_stream = None, {}
    for text in given:
        name, equals, shares = text.rpartition("=")
        if not equals:
            common = parse_split(shares)
        elif name in streams:
            per_stream[name] = parse_split(shares)
        else:
            raise unknown_name("stream in --split", name, streams)
    return common, per_stream
