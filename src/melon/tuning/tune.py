"""`melon tune`, end to end: pre-train once, try settings round by round, write the best as a config file."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import melon
from melon.atomic import require_writable, write_text
from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.config_files import command, config_text
from melon.bench.executors import Executor, drive, executor_for
from melon.bench.work import Work
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import LearningError, MelonError, SettingsError, StoppedError, StreamError
from melon.evaluation.prequential import Tally
from melon.evaluation.ranking import selection_score
from melon.fitting.search import Curve, Search, edges
from melon.kernels.threads import use_threads
from melon.progress import Progress
from melon.tuning.study import PlannedTrial, Study, Tried, alone, best, counts
from melon.types import Plain

ROUND = 4
_DEFAULTS = "defaults"
_NOTHING_RANKED = "no event could be ranked: there are too few items beside what users have taken; lower --negatives."


@dataclass(frozen=True)
class Foundation:
    """Pre-training, chosen on the selection window and made once for all trials."""

    stream: str
    group: str
    config: CellConfig
    lays_foundation: bool = True
    keeps_work: bool = True

    @property
    def key(self) -> str:
        """A tuning has one."""
        return "pre-training"

    def run(self, log: Interactions, work: Work) -> Tried:
        """Choose and pre-train."""
        use_threads(self.config.threads)
        began = time.perf_counter()
        try:
            cell = Cell(log, self.config, work=work)
            choice, _ = cell.fitting.window()
            cell.fitting.window_again()
        except MelonError as problem:
            return self.lost(str(problem))
        return Tried(self.key, time.perf_counter() - began, choice["score"], pretrain=choice["settings"])

    def lost(self, problem: str) -> Tried:
        """The outcome of a pre-training whose worker died; without it there are no trials."""
        return Tried(self.key, problem=problem)


@dataclass(frozen=True)
class TrialJob:
    """One point of the space. With the `best` curve of earlier rounds it may be stopped early."""

    key: str
    stream: str
    group: str
    config: CellConfig
    settings: Plain
    best: Curve | None = None
    lays_foundation: bool = False
    keeps_work: bool = False

    def run(self, log: Interactions, work: Work) -> Tried:
        """Practise, stream through window and validation, and score what is judged."""
        use_threads(self.config.threads)
        began = time.perf_counter()
        curve, tally = Curve(), Tally()
        try:
            cell = Cell(log, self.config, work=work)
            selection, (_, start) = cell.selection, cell.fitting.window()
            again = cell.fitting.window_again()
            updater = selection.at_window(self.config.strategy, self.settings, start, again)
            for point in selection.through(updater):
                curve.add(point)
                tally.add(point)
                if self.best is not None and curve.hopeless(self.best):
                    return Tried(self.key, time.perf_counter() - began, curve.score(), curve, pruned=True)
        except MelonError as problem:
            return Tried(self.key, time.perf_counter() - began, problem=str(problem))
        seconds = time.perf_counter() - began
        if not len(tally.rank):
            return Tried(self.key, seconds, problem=_NOTHING_RANKED)
        return Tried(self.key, seconds, selection_score(tally.rank), curve)

    def lost(self, problem: str) -> Tried:
        """The outcome of a trial whose worker died."""
        return Tried(self.key, problem=problem)


@dataclass(frozen=True)
class TuneRequest:
    """The options of a tuning beyond its cell: how many trials, how many of them together, and its files."""

    trials: int
    together: int
    pruning: bool
    study: Path
    out: Path

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("round", self.together)):
            if value < 1:
                raise SettingsError(f"{name} = {value} must be at least 1.")
        if self.out.suffix != ".toml":
            raise SettingsError(f"--out {self.out} must end in .toml.")


@dataclass(frozen=True)
class TrialEnd:
    """A trial that has ended, its settings, and all trials so far."""

    tried: Tried
    settings: Plain
    trials: list[PlannedTrial]


@dataclass(frozen=True)
class TuneResult:
    """What was chosen, its gain over the strategy's defaults and the number of trials in words, and where it is."""

    stream: Path
    out: Path
    strategy: str
    settings: Plain
    edge: tuple[str, ...]
    gain: str
    counts: str


def tune_stream(
    stream: Path,
    options: Plain,
    *,
    trials: int,
    together: int,
    pruning: bool,
    jobs: int,
    ray: str | None,
    study: Path | None,
    out: Path,
    progress: Progress | None = None,
) -> TuneResult:
    """`melon tune`."""
    request = TuneRequest(trials, together, pruning, study or out.with_suffix(".journal"), out)
    config = CellConfig(**options)
    require_writable(out)
    log = load_stream(stream)
    cell = Cell(log, config)  # names, values and the pairing are checked before anything is spent
    if not cell.selection.possible:
        raise StreamError(
            f"{stream} is too short to compare settings on: its selection window has too few interactions or items."
        )
    with alone(request.study):
        tuning = _Tuning(stream, log, cell, request, progress or Progress())
        if not tuning.complete:
            streams, folder = {tuning.stream: stream}, request.study.parent / "work"
            try:
                with executor_for(streams, folder, jobs=jobs, ray=ray, threads=config.threads) as executor:
                    tuning.run(executor)
            except KeyboardInterrupt:
                raise StoppedError(tuning.stopped()) from None
        return tuning.finish()


class _Tuning:
    """One tuning: its study, and the way from its trials to a file."""

    def __init__(self, path: Path, log: Interactions, cell: Cell, request: TuneRequest, progress: Progress) -> None:
        self._path, self._log, self._config, self._request = path, log, cell.config, request
        self.stream = path.name.removesuffix(".parquet")
        space = cell.selection.space(self._config.strategy, self._config.fixed)
        self._search = Search(space, self._config.fixed, request.together)
        if not self._search.axes:
            raise SettingsError(
                f"there is nothing to search: every setting in the space of {self._config.strategy!r} is fixed."
            )
        self._group = f"{self.stream}-{self._config.recommender}-{self._config.seed}-{self._key()}"
        self._study = Study(request.study, self._search, self._about())
        self._progress = progress

    @property
    def complete(self) -> bool:
        """Whether a study that is resumed has nothing left to do."""
        return self._study.pretraining is not None and not self._jobs()

    def run(self, executor: Executor[Tried]) -> None:
        """Everything that is not done yet."""
        with self._progress as progress:
            progress.stage(f"pre-training {self._config.recommender} for the selection window")
            foundation = Foundation(self.stream, self._group, self._config)
            (laid,) = drive(executor, partial(next, iter([foundation]), None), progress.waiting)
            if laid.problem is not None:
                raise LearningError(f"pre-training failed: {laid.problem}")
            self._study.keep_pretraining(dict(laid.pretrain or {}))
            progress.jobs(self._study.trials(), {}, executor.workers)
            while jobs := self._jobs():
                for tried in drive(executor, partial(next, iter(jobs.values()), None), progress.waiting):
                    self._keep(tried)
                    progress.ended(TrialEnd(tried, jobs[tried.key].settings, self._study.trials()))

    def _jobs(self) -> dict[str, TrialJob]:
        """The next round; the strategy's defaults, to compare with, run beside the first."""
        fixed, about = self._config.fixed, (self.stream, self._group, self._config)
        jobs: dict[str, TrialJob] = {}
        if self._study.defaults is None:
            jobs[_DEFAULTS] = TrialJob(_DEFAULTS, *about, fixed)
        for trial in self._study.round(self._request.trials):
            before = self._study.best_before(trial) if self._request.pruning else None
            curve = before.tried.curve if before and before.tried else None
            jobs[trial.key] = TrialJob(trial.key, *about, {**trial.point, **fixed}, curve)
        return jobs

    def _keep(self, tried: Tried) -> None:
        if tried.key == _DEFAULTS:
            self._study.keep_defaults(tried)
        else:
            running = {trial.key: trial for trial in self._study.trials()}
            self._study.tell(running[tried.key], tried)

    def stopped(self) -> str:
        """Write the best so far; say how to resume."""
        trials = self._study.trials()
        chosen = best(trials)
        ended = sum(trial.ended for trial in trials)
        message = f"stopped after {ended} of {self._request.trials} trials, which are kept in {self._request.study}"
        if chosen is None:
            return f"{message}. Run the same command again to resume."
        self._write(chosen, trials)
        return f"{message}; the best so far is in {self._request.out}. Run the same command again to resume."

    def finish(self) -> TuneResult:
        """Write the best and return what it gained."""
        trials = self._study.trials()
        chosen = best(trials)
        if chosen is None:
            problem = next((t.tried.problem for t in trials if t.tried and t.tried.problem), "there was none")
            raise LearningError(f"no trial came through. The first that failed: {problem}")
        self._write(chosen, trials)
        edge = edges(self._search.axes, chosen.point)
        strategy, gain = self._config.strategy, self._gain(chosen)
        return TuneResult(self._path, self._request.out, strategy, chosen.point, edge, gain, counts(trials))

    def _gain(self, chosen: PlannedTrial) -> str:
        text = f"HR@5 + NDCG@10 before the test part: {chosen.score:.4f}"
        defaults, curve = self._study.defaults, chosen.tried.curve if chosen.tried else None
        if defaults is None or defaults.score is None or defaults.curve is None or curve is None:
            return f"{text} (the strategy's defaults did not come through)"
        _, error = defaults.curve.behind(curve)
        gain = chosen.score - defaults.score
        return f"{text}, {gain:+.4f} over the strategy's defaults ({defaults.score:.4f}; standard error {error:.4f})"

    def _write(self, chosen: PlannedTrial, trials: list[PlannedTrial]) -> None:
        more = ["--trials", str(self._request.trials), "--round", str(self._request.together)]
        more += [] if self._request.pruning else ["--no-pruning"]
        comments = [
            command(str(self._path), self._config, more),
            f"{self.stream}: {len(self._log):,} interactions, sha256 {self._log.sha256}",
            self._gain(chosen),
            counts(trials),
            f"melon {melon.__version__}, torch {version('torch')}, threads {self._config.threads}",
        ]
        settings = {**chosen.point, **self._config.fixed}
        text = config_text(self._config, settings, self._study.pretraining or {}, self._request.trials, comments)
        write_text(self._request.out, text)

    def _about(self) -> Plain:
        """What a study has to agree on to be resumed; the number of trials may grow."""
        cell = {name: value for name, value in self._config.plain().items() if name not in ("budget", "full_ranking")}
        axes = {name: list(values) for name, values in self._search.axes.items()}
        more = {"round": self._request.together, "pruning": self._request.pruning, "axes": axes}
        return {"stream": self._log.identity, **cell, **more, "starts": list(self._search.starts)}

    def _key(self) -> str:
        """What pre-training for the window depends on: tunings in one folder that agree on it share it."""
        free = ("strategy", "preset", "settings", "pretrain", "fading", "full_ranking", "threads")
        shared: dict[str, Any] = {name: v for name, v in self._config.plain().items() if name not in free}
        return hashlib.sha256(json.dumps([self._log.identity, shared], sort_keys=True).encode()).hexdigest()[:8]
