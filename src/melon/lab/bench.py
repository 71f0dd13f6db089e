"""`melon bench`: a grid of cells that share their pre-training, in a folder that a later run continues."""

from __future__ import annotations

import itertools
import json
import multiprocessing as mp
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from melon.atomic import replacing, require_writable, write_text
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import DataError, MelonError, MissingExtraError, SettingsError, StoppedError, unknown_name
from melon.evaluation.cell import Cell, CellResult
from melon.evaluation.record import read_json, write_result
from melon.evaluation.work import Work
from melon.fitting.config import CellConfig, read_config
from melon.progress import Progress
from melon.strategies.registry import ALL_STRATEGIES, STRATEGIES
from melon.stream.split import parse_split
from melon.types import Plain

#: Its cell makes what the others of its group start from: the shared pre-trained model and the baselines.
FIRST = "default"
_PATIENCE = 1.0  # seconds between two calls of `waiting`


@dataclass(frozen=True)
class Task:
    """One cell of a grid, on a stream that the executor knows by its name."""

    stream: str
    config: CellConfig

    @property
    def key(self) -> str:
        """The name of its record."""
        return f"{self.group}-{self.config.strategy}"

    @property
    def group(self) -> str:
        """Cells with the same group share their work."""
        return f"{self.stream}-{self.config.recommender}-{self.config.seed}"

    @property
    def shared(self) -> bool:
        """Whether the other cells of its group start from its work."""
        return self.config.strategy == FIRST

    def run(self, log: Interactions, work: Work) -> CellOutcome:
        """Run the cell in this process; a problem becomes an outcome."""
        began = time.perf_counter()
        try:
            cell = Cell(log, self.config, work=work)
        except SettingsError as reason:  # the pairing does not exist
            return CellOutcome(self, not_applicable=str(reason))
        except MelonError as problem:
            return CellOutcome(self, problem=str(problem))
        try:
            result: CellResult = cell.run(self.stream)
        except MelonError as problem:
            return CellOutcome(self, time.perf_counter() - began, problem=str(problem))
        return CellOutcome(self, time.perf_counter() - began, result.record, result.ranks)

    def lost(self, problem: str) -> CellOutcome:
        """The outcome of a cell whose worker died."""
        return CellOutcome(self, problem=problem)


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: a result, a reason why there can be none, or a problem."""

    task: Task
    seconds: float = 0.0
    record: Plain | None = None
    ranks: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    not_applicable: str | None = None
    problem: str | None = None


def tasks_of(
    streams: Mapping[str, tuple[float, float, float]],
    recommenders: Sequence[str],
    strategies: Sequence[str],
    seeds: int,
    base: CellConfig,
) -> list[Task]:
    """Every cell, those of `default` included, seed by seed so that a whole table is there early."""
    wanted = list(dict.fromkeys([FIRST, *strategies]))
    return [
        Task(
            stream,
            replace(
                base, recommender=recommender, strategy=strategy, seed=seed, split=split, preset=_preset(base, strategy)
            ),
        )
        for seed in range(seeds)
        for stream, split in streams.items()
        for recommender in recommenders
        for strategy in wanted
    ]


def _preset(base: CellConfig, strategy: str) -> str:
    """A preset is meant for the strategies that have it."""
    return base.preset if base.preset in STRATEGIES[strategy].presets else "default"


def run_grid(
    tasks: Sequence[Task],
    done: Mapping[str, CellOutcome],
    executor: Executor,
    keep: Callable[[CellOutcome], None],
    progress: Progress,
) -> Iterator[CellOutcome]:
    """Run what is not done yet; outcomes come as cells end, each kept before it is reported."""
    progress.jobs(tasks, done, executor.workers)
    laid = {task.group for task in tasks if task.shared and _stands(done.get(task.key))}
    open_tasks = [task for task in tasks if task.key not in done]
    ready = [task for task in open_tasks if task.shared or task.group in laid]
    waiting = [task for task in open_tasks if task not in ready]

    running = 0
    while True:
        while running < executor.workers and ready:
            progress.started(ready[0])
            executor.submit(ready.pop(0))
            running += 1
        if not running:
            return
        ended = executor.outcome(_PATIENCE)
        if ended is None:
            progress.waiting()
            continue
        running -= 1
        ends = [ended]
        if ended.task.shared:
            of_group = [task for task in waiting if task.group == ended.task.group]
            waiting = [task for task in waiting if task.group != ended.task.group]
            if _stands(ended):
                ready[:0] = of_group
            else:
                why = f"its pre-training failed: {ended.problem or ended.not_applicable}"
                ends += [CellOutcome(task, problem=why) for task in of_group]
        for outcome in ends:
            keep(outcome)
            progress.ended(outcome)
            yield outcome


def _stands(outcome: CellOutcome | None) -> bool:
    return outcome is not None and outcome.record is not None


#: What a file in a folder says of its own cells alone. The rest is shared by all cells of its stream and recommender.
_OWN = ("strategy", "settings", "preset")
#: What the bench itself says.
_BENCH_FIELDS = ("recommender", "seed", "budget", "threads", "lists")


@dataclass(frozen=True)
class TunedFile:
    """A file in a folder of configs, named after the cell that it is about."""

    path: Path
    options: Plain
    stream: str

    @property
    def group(self) -> tuple[str, str]:
        """The stream and the recommender, whose cells share their pre-training."""
        return self.stream, str(self.options.get("recommender"))

    @property
    def shared(self) -> Plain:
        """What holds for every cell of its stream and recommender: pre-training and protocol."""
        return {name: value for name, value in self.options.items() if name not in (*_OWN, *_BENCH_FIELDS)}


class Tuned:
    """All config files of a bench that are for some cells only."""

    def __init__(self, files: Sequence[TunedFile] = ()) -> None:
        self._files = files
        for one, other in itertools.pairwise(sorted(files, key=lambda file: file.group)):
            if one.group == other.group and one.shared != other.shared:
                names = dict.fromkeys([*one.shared, *other.shared])
                differing = [name for name in names if one.shared.get(name) != other.shared.get(name)]
                raise SettingsError(
                    f"{one.path} and {other.path} differ in {', '.join(differing)}, which the cells of a stream and "
                    "recommender share. Tune both with the same options, or make them agree."
                )

    def apply(self, stream: str, config: CellConfig, given: Collection[str]) -> CellConfig:
        """A cell's config with what the files say of it; what was `given` on the command line stays."""
        for file in self._files:
            if file.group != (stream, config.recommender):
                continue
            config = replace(config, **{name: value for name, value in file.shared.items() if name not in given})
            if file.options["strategy"] == config.strategy:
                own = {name: file.options[name] for name in ("preset", "settings") if name in file.options}
                config = replace(config, **own)
        return config


def read_tuned(paths: Sequence[Path], streams: Mapping[str, Path]) -> tuple[Plain, Tuned]:
    """Options for every cell (files), and the files that are for one cell each (folders of them)."""
    general: Plain = {}
    files: list[TunedFile] = []
    for path in paths:
        if path.is_dir():
            files += _folder_files(path, streams)
            continue
        options = read_config(path)
        if "strategy" in options:
            raise SettingsError(
                f"{path} is about one strategy. Name it STREAM-RECOMMENDER-STRATEGY.toml, and give its folder."
            )
        general |= options
    return general, Tuned(files)


def files_about(folder: Path, streams: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """The files of a folder that are about these streams, by their names."""
    named = [(path.stem.rpartition("-")[0].rpartition("-")[0], path) for path in sorted(folder.glob("*.toml"))]
    return [(stream, path) for stream, path in named if stream in streams]


def tuned_elsewhere(path: Path, sha256: str) -> bool:
    """Whether the comments on top of a file name another stream; one without them is taken at its word."""
    head = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    named = re.findall(r"sha256 ([0-9a-f]{64})", "\n".join(head))
    return bool(named) and sha256 not in named


def _folder_files(folder: Path, streams: Mapping[str, Path]) -> list[TunedFile]:
    """`STREAM-RECOMMENDER-STRATEGY.toml` for each cell; files about other streams are left alone."""
    files, fingerprint = [], cache(lambda stream: load_stream(streams[stream]).sha256)
    for stream, path in files_about(folder, streams):
        options = read_config(path)
        says = f"{stream}-{options.get('recommender')}-{options.get('strategy')}"
        if says != path.stem:
            raise SettingsError(f"{path} is about {says}; a file in a folder of configs is named after its cell.")
        if tuned_elsewhere(path, fingerprint(stream)):
            raise SettingsError(
                f"{path} was tuned on another stream named {stream!r}; tune it again, or remove it from the folder."
            )
        files.append(TunedFile(path, options, stream))
    if not files:
        names = ", ".join(streams)
        raise SettingsError(
            f"{folder} has no config for any of: {names}. Files there are named STREAM-RECOMMENDER-STRATEGY.toml."
        )
    return files


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

    def tasks(self) -> list[Task]:
        """Every cell, with the settings of the config files that are about it."""
        splits = {name: self.splits.get(name, self.base.split) for name in self.streams}
        tasks = tasks_of(splits, self.recommenders, self.strategies, self.seeds, self.base)
        return [replace(task, config=self._tuned(task)) for task in tasks]

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


def command_line() -> str:
    """The command that runs now, as a person typed it."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


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
                    f"{value!r}. Choose another --out."
                )
        for name, sha in hashes.items():
            if before["streams"].get(name, sha) != sha:
                raise SettingsError(f"{self.out} holds a bench of another stream named {name!r}. Choose another --out.")
        commands = list(dict.fromkeys([*before.get("commands", ()), command_line()]))
        about = {"options": plan.options(), "streams": {**before["streams"], **hashes}, "commands": commands}
        write_text(self._about, json.dumps(about, indent=1) + "\n")

    def _before(self) -> Plain:
        """Options and streams of the bench that the folder holds; both empty in a new folder."""
        if not self._about.exists():
            return {"options": {}, "streams": {}}
        about = read_json(self._about)
        if not all(isinstance(about.get(name), dict) for name in ("options", "streams")):
            raise DataError(f"{self._about} is not a description of a bench: remove it, or choose another --out.")
        return about

    def path(self, task: Task) -> Path:
        """The record of a cell."""
        return self.out / f"{task.key}.json"

    def done(self, tasks: Sequence[Task]) -> dict[str, CellOutcome]:
        """Cells that have a record of the same settings."""
        return {task.key: self._outcome(task) for task in tasks if self.path(task).exists()}

    def _outcome(self, task: Task) -> CellOutcome:
        path = self.path(task)
        record = read_json(path)
        if "not_applicable" in record:
            return CellOutcome(task, not_applicable=record["not_applicable"])
        try:
            request, seconds = record["config"]["asked"], float(record["seconds"])
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{path} is not a complete record. Remove it, and run the bench again.") from None
        if request != json.loads(json.dumps(task.config.plain())):
            raise SettingsError(f"{path} was made with other settings; choose another --out, or remove it.")
        return CellOutcome(task, seconds, record)

    def keep(self, outcome: CellOutcome) -> None:
        """Write a cell's outcome; why one failed stands beside the records, and the cell is tried again next time."""
        path, failed = self.path(outcome.task), self.path(outcome.task).with_suffix(".failed.txt")
        if not outcome.task.shared:  # a failed cell starts afresh: it may be asked for with other settings
            shutil.rmtree(self.work / outcome.task.key, ignore_errors=True)
        if outcome.problem is not None:
            write_text(failed, outcome.problem + "\n")
            return
        failed.unlink(missing_ok=True)
        if outcome.record is None:
            about = {"dataset": {"path": outcome.task.stream}, "config": {"asked": outcome.task.config.plain()}}
            write_text(path, json.dumps({**about, "not_applicable": outcome.not_applicable}, indent=1) + "\n")
            return
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
    progress: Progress | None = None,
) -> BenchResult:
    """Run every cell that has no record in `out` yet."""
    plan = bench_plan(streams, options, recommenders, strategies, seeds, splits, configs)
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
            f"stopped; finished work is kept in {out}. Run the same command again to continue."
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
            f"--set {settings} is about one strategy, and a bench runs many; put it into a file named "
            "STREAM-RECOMMENDER-STRATEGY.toml with `recommender`, `strategy` and `settings`, and give its folder with "
            "--config."
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
    preset = options.get("preset", "default")
    meant = next((name for name in (*names, *STRATEGIES.names()) if preset in STRATEGIES[name].presets), FIRST)
    base = CellConfig(**{**options, "recommender": chosen[0], "strategy": meant})
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


_RETRIES = 3
_ANSWERS = 10.0  # seconds in which a cluster must answer


class Executor(ABC):
    """Runs cells somewhere. What the first cell of a group made is given to the others. Leaving its block ends all."""

    workers: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Start a cell, or queue it."""

    @abstractmethod
    def outcome(self, patience: float) -> CellOutcome | None:
        """The outcome of the next cell that has ended, or None after `patience` seconds."""

    @abstractmethod
    def stop(self) -> None:
        """End what is running."""


def executor_for(streams: Mapping[str, Path], folder: Path, *, jobs: int, ray: str | None, threads: int) -> Executor:
    """What `--jobs` and `--ray` ask for; the folder keeps the work that cells share."""
    if jobs < 1:
        raise SettingsError(f"jobs = {jobs} is too few: it must be at least 1.")
    if ray is not None:
        return RayExecutor(streams, folder, address=ray, threads=threads)
    return LocalExecutor(streams, folder, jobs=jobs, threads=threads)


def environment(threads: int) -> dict[str, str]:
    """Environment variables of a process before it loads torch, so that processes do not compete for cores."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}


def _run(task: Task, log: Interactions, folder: Path) -> CellOutcome:
    """An outcome whatever happens, our own mistakes included."""
    try:
        shared = folder / task.group
        return task.run(log, Work(shared) if task.shared else Work(folder / task.key, base=shared))
    except Exception:
        return task.lost(traceback.format_exc())


class LocalExecutor(Executor):
    """Processes on this machine, each a pool of its own: one that dies takes its own cell down and is replaced."""

    def __init__(self, streams: Mapping[str, Path], folder: Path, *, jobs: int, threads: int) -> None:
        self.workers, self._streams, self._folder, self._threads = jobs, dict(streams), folder, threads
        self._free: list[ProcessPoolExecutor] = []
        self._running: dict[Future[CellOutcome], tuple[Task, ProcessPoolExecutor]] = {}
        self._context: Any = mp.get_context("forkserver" if sys.platform == "linux" else "spawn")
        self._context.set_forkserver_preload(["melon.evaluation.cell"])

    def submit(self, task: Task) -> None:
        variables = environment(self._threads)
        pool = self._free.pop() if self._free else ProcessPoolExecutor(1, self._context, _start, (variables,))
        with _environment(variables):
            future = pool.submit(_run_here, task, self._streams[task.stream], self._folder)
        self._running[future] = task, pool

    def outcome(self, patience: float) -> CellOutcome | None:
        ended, _ = wait(self._running, patience, FIRST_COMPLETED)
        if not ended:
            return None
        future = ended.pop()
        task, pool = self._running.pop(future)
        try:
            result = future.result()
        except BrokenProcessPool:
            pool.shutdown(wait=False)
            return task.lost("its process ended early; the machine may have run out of memory.")
        self._free.append(pool)
        return result

    def stop(self) -> None:
        for pool in (*self._free, *(pool for _, pool in self._running.values())):
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)  # waits: at the interpreter's end, pools that still close would raise
        self._free.clear()
        self._running.clear()


_stream = cache(load_stream)


def _run_here(task: Task, stream: Path, folder: Path) -> CellOutcome:
    return _run(task, _stream(stream), folder)


def _start(variables: Mapping[str, str]) -> None:
    """A worker leaves Ctrl-C to the process that started it, and ends with it."""
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for processes that are started inside."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class RayExecutor(Executor):
    """Tasks on a Ray cluster; a lost worker's cell is run again.

    Nodes need no common disk: streams and shared work travel through the object store, and shared work comes back here.
    """

    def __init__(self, streams: Mapping[str, Path], folder: Path, *, address: str, threads: int) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtraError("--ray", "ray") from None
        self._ray: Any = ray
        self._folder = folder
        _require_cluster(address)
        variables = {"env_vars": environment(threads)}
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=variables)
        except (ConnectionError, OSError, ValueError, RuntimeError) as problem:
            raise SettingsError(f"no Ray cluster at {address!r}: {str(problem).partition(chr(10))[0]}") from None
        self.workers = max(int(ray.cluster_resources().get("CPU", 1)) // threads, 1)
        self._logs = {name: ray.put(load_stream(path)) for name, path in streams.items()}
        self._shared: dict[str, Any] = {}
        self._running: dict[Any, tuple[Task, Any]] = {}
        self._remote = ray.remote(num_cpus=threads, num_returns=2, max_retries=_RETRIES)(_run_remotely)

    def submit(self, task: Task) -> None:
        if task.group not in self._shared:
            self._shared[task.group] = self._ray.put(_files(self._folder / task.group))
        outcome, files = self._remote.remote(task, self._logs[task.stream], self._shared[task.group])
        self._running[outcome] = task, files

    def outcome(self, patience: float) -> CellOutcome | None:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=patience)
        if not ready:
            return None
        task, files = self._running.pop(ready[0])
        try:
            ended: CellOutcome = self._ray.get(ready[0])
            if task.shared:
                self._shared[task.group] = files
                _write(self._ray.get(files), self._folder / task.group)
        except self._ray.exceptions.RayError as problem:
            return task.lost(f"its worker was lost {_RETRIES} times: {problem}")
        return ended

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _run_remotely(task: Task, log: Interactions, shared: Mapping[str, bytes]) -> tuple[CellOutcome, dict[str, bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="melon-cell-"))
    try:
        _write(shared, folder / task.group)
        ended = _run(task, log, folder)
        return ended, _files(folder / task.group) if task.shared else {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(folder: Path) -> dict[str, bytes]:
    """The finished files of a folder."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path.read_bytes() for path in paths if path.suffix != ".part"}


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        with replacing(folder / name) as unfinished:
            unfinished.write_bytes(content)


def _require_cluster(address: str) -> None:
    """Raise at once if nothing listens at an address; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # `auto`, or a form that Ray itself looks at
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS).close()
    except OSError as problem:
        raise SettingsError(f"no Ray cluster at {address!r}: {problem.strerror or problem}.") from None
