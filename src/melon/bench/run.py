"""`melon bench`: a grid of cells in a folder that can be gone on with, and a live table of how it stands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from melon.atomic import require_writable, write_text
from melon.bench.config import CellConfig
from melon.bench.executors import executor_for
from melon.bench.files import write_result
from melon.bench.grid import Outcome, Task, run_grid, tasks_of
from melon.bench.rate_capture import RATES_SUFFIX, RatesKeeper
from melon.bench.tuned import Tuned, read_tuned
from melon.data.files import load_stream
from melon.errors import SettingsError, StoppedError, unknown_name
from melon.strategies.registry import ALL_STRATEGIES, STRATEGIES
from melon.stream.split import parse_split
from melon.terminal.bench_view import BenchWatcher, became, standing
from melon.types import Plain

#: What may differ between two runs in one folder: more streams, strategies and seeds join what is there.
_GROWS = ("recommender", "strategy", "seed", "settings", "preset", "split")


@dataclass(frozen=True)
class BenchPlan:
    """What was asked for: the grid, and what every cell is told."""

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
        """Every cell, with the settings of the config files that speak of it."""
        splits = {name: self.splits.get(name, self.base.split) for name in self.streams}
        tasks = tasks_of(splits, self.recommenders, self.strategies, self.seeds, self.base)
        return [replace(task, config=self._tuned(task), rates=self.rates) for task in tasks]

    def _tuned(self, task: Task) -> CellConfig:
        given = (*self.given, "split") if task.stream in self.splits else self.given
        return self.tuned.apply(task.stream, task.config, given)

    def told(self) -> Plain:
        """What has to be the same for records to stand in one table."""
        plain = self.base.plain()
        return {name: value for name, value in plain.items() if name not in _GROWS}


class BenchFolder:
    """The records of a bench, one for each cell, and the work that is under way."""

    def __init__(self, out: Path) -> None:
        self.out, self.work = out, out / "work"
        self._about = out / "bench.json"

    def claim(self, plan: BenchPlan) -> None:
        """Make the folder this bench's own, or go on in it where the same was asked before."""
        require_writable(self._about)
        hashes = {name: load_stream(path).identity for name, path in plan.streams.items()}
        known: Plain = json.loads(self._about.read_text(encoding="utf-8")) if self._about.exists() else {}
        for name, value in plan.told().items():
            if known and known["options"].get(name) != value:
                raise SettingsError(
                    f"{self.out} holds a bench with {name} = {known['options'].get(name)!r}, and this one has "
                    f"{value!r}: they cannot stand in one table. Choose another --out."
                )
        for name, sha in hashes.items():
            if known.get("streams", {}).get(name, sha) != sha:
                raise SettingsError(f"{self.out} holds a bench of another stream named {name!r}. Choose another --out.")
        about = {"options": plan.told(), "streams": {**known.get("streams", {}), **hashes}}
        write_text(self._about, json.dumps(about, indent=1) + "\n")

    def path(self, task: Task) -> Path:
        """The record of a cell."""
        return self.out / f"{task.key}.json"

    def rates(self, task: Task) -> Path:
        """The learning rates of a cell, beside its record."""
        return self.out / f"{task.key}{RATES_SUFFIX}"

    def done(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        """Cells that have a record already, as far as it is about the same settings, and all that is asked for."""
        found = {}
        for task in tasks:
            path = self.path(task)
            if not path.exists():
                continue
            record: Plain = json.loads(path.read_text(encoding="utf-8"))
            if "not_applicable" in record:
                found[task.key] = Outcome(task, not_applicable=record["not_applicable"])
            elif record["config"]["asked"] == json.loads(json.dumps(task.config.plain())):
                # The foundation has one rate for everything: there is nothing to see.
                if task.rates and not task.lays_foundation and not self.rates(task).exists():
                    continue
                found[task.key] = Outcome(task, record["seconds"], record)
            else:
                raise SettingsError(
                    f"{path} was made with other settings than are asked for now; choose another --out, or remove it."
                )
        return found

    def keep(self, outcome: Outcome) -> None:
        """Write what became of a cell; a failed one is told beside the records and tried again next time."""
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
    asked: Plain,
    *,
    recommenders: str,
    strategies: str,
    seeds: int,
    splits: Sequence[str],
    configs: Sequence[Path],
    jobs: int,
    ray: str | None,
    rates: bool,
    out: Path,
) -> int:
    """`melon bench`; the exit code says whether every cell came through."""
    plan = replace(_plan(streams, asked, recommenders, strategies, seeds, splits, configs), rates=rates)
    folder = BenchFolder(out)
    folder.claim(plan)
    tasks = plan.tasks()
    done = folder.done(tasks)
    executor = (
        executor_for(plan.streams, folder.work, jobs=jobs, ray=ray, threads=plan.base.threads)
        if len(done) < len(tasks)
        else None
    )
    try:
        with BenchWatcher(executor.workers if executor else 1) as watcher:
            outcomes = list(run_grid(tasks, done, executor, folder.keep, watcher)) if executor else []
            if executor is None:
                watcher.begin(tasks, done)
    except KeyboardInterrupt:
        raise StoppedError(
            f"stopped; what was finished is kept in {out}. Run the same command again to go on."
        ) from None
    finally:
        if executor is not None:
            executor.stop()
    failed = [outcome for outcome in outcomes if outcome.problem is not None]
    _show(tasks, done | {outcome.task.key: outcome for outcome in outcomes}, out, failed)
    return 1 if failed else 0


def _plan(
    streams: Sequence[Path],
    asked: Plain,
    recommenders: str,
    strategies: str,
    seeds: int,
    splits: Sequence[str],
    configs: Sequence[Path],
) -> BenchPlan:
    named = {path.name.removesuffix(".parquet"): path for path in streams}
    if len(named) < len(streams):
        raise SettingsError("two streams have the same file name; records are named after it, so rename one.")
    if seeds < 1:
        raise SettingsError(f"seeds = {seeds} will not do: it must be at least 1.")
    if asked.get("settings"):
        settings = ", ".join(asked["settings"])
        raise SettingsError(
            f"--set {settings} would speak of one strategy where there are many; put it into a file with `strategy` "
            "and `settings`, and give that with --config."
        )
    general, tuned = read_tuned(configs, named)
    if general.get("minutes") is not None:
        raise SettingsError(
            "minutes would give the cells of a bench different numbers of trials; limit these with --budget."
        )
    common, per_stream = _splits(splits, named)
    told: Plain = {**general, **asked}
    if common is not None:
        told["split"] = common
    wanted = ALL_STRATEGIES if strategies == "all" else tuple(strategies.split(","))
    for name in wanted:
        STRATEGIES[name]
    told.pop("strategy", None)
    told.pop("recommender", None)
    chosen = tuple(recommenders.split(","))
    base = CellConfig(**{**told, "recommender": chosen[0]})
    given = [name for name, value in told.items() if value != {}]  # an empty table of settings says nothing
    return BenchPlan(named, chosen, wanted, seeds, base, per_stream, tuned, given)


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


def _show(tasks: Sequence[Task], outcomes: Mapping[str, Outcome], out: Path, failed: Sequence[Outcome]) -> None:
    console = Console(soft_wrap=True)
    table = standing(tasks, outcomes)
    table.title = "HR@5, mean over seeds"
    console.print(table)
    for outcome in failed:
        console.print(f"{outcome.task.key} {became(outcome)}", markup=False, highlight=False)
    if failed:
        where = f"{out}/*.failed.txt"
        console.print(
            f"{len(failed)} of {len(tasks)} cells failed ({where} say why); run the same command to try them again.",
            markup=False,
            highlight=False,
        )
    console.print(f"records in {out}: melon report {out}", markup=False, highlight=False)
