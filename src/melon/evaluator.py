"""`melon.evaluate`: one evaluation of a recommender and a strategy on a stream, beside the baselines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from melon.atomic import require_writable
from melon.data.files import load_stream
from melon.data.frames import interactions_from
from melon.data.interactions import Interactions
from melon.errors import SettingsError, StoppedError
from melon.evaluation.cell import Cell
from melon.evaluation.record import write_result
from melon.evaluation.result import Evaluation
from melon.evaluation.work import Work, start_afresh, work_folder
from melon.fitting.auto import AUTO, settle_auto
from melon.fitting.config import CellConfig, config_from, name_or_class, whole_number
from melon.fitting.plan import RecommenderChoice, StrategyChoice, name_of, search_space
from melon.kernels.threads import cores
from melon.kernels.threads import using_threads as limited_threads
from melon.models.registry import RECOMMENDERS
from melon.progress import Progress, model_progress
from melon.registry import Entry, Registry, Space
from melon.strategies.registry import STRATEGIES


def evaluate(
    stream: Any,
    recommender: RecommenderChoice = AUTO,
    strategy: StrategyChoice = AUTO,
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    split: tuple[float, float, float] | str | None = None,
    seed: int | None = None,
    seeds: int | Iterable[int] | None = None,
    budget: int | None = None,
    minutes: float | None = None,
    epochs: int | None = None,
    half_life: str | float | None = None,
    settings: Mapping[str, Any] | None = None,
    recommender_settings: Mapping[str, Any] | None = None,
    pretrain_settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    pretrain: str | None = None,
    batch_size: int | None = None,
    candidates: str | None = None,
    negatives: int | None = None,
    lists: bool | None = None,
    retrain_every: int | None = None,
    threads: int | None = None,
    json: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Evaluation:
    """Evaluate on a stream: each batch of the test part is predicted first, then learned.

    Args:
        stream: a prepared stream's path, or interactions as `Melon.fit` takes them.
        recommender: a name, or a `Recommender` class of your own; "auto" is the blend.
        strategy: a name, or a `Strategy` class of your own; "auto" is default with time decay.
        user: the column of the users, if its name is unusual; `item` and `time` likewise.
        split: shares of training, validation and test in time order, by default (0.95, 0.005, 0.045).
        seed: the seed of all random numbers; or `seeds`, for a result over several: 5 means 0 to 4.
        budget: trials for each choice on the selection window; 0 takes the defaults.
        minutes: time for these trials; by default 30 with the strategy "auto", else without limit.
        epochs: passes of pre-training, at most.
        half_life: of idle items: "off", "auto" or a number; by default "auto" with the strategy "auto", else "off".
        settings: fixed settings of the strategy; those of the recommender and of pre-training likewise.
        preset: settings of the strategy that are fixed together, such as "paper".
        pretrain: "shared" or "own": whether the strategy trains its own recommender.
        batch_size: interactions in a mini-batch.
        candidates: from where candidates are drawn: "catalogue", "full-log" or "known"; `negatives` is their number.
        lists: whether to rank also by lists of the whole catalogue; by default yes.
        retrain_every: also evaluate a model that is trained from scratch every `retrain_every` interactions.
        threads: threads that compute.
        json: a file for the full result; the rank of each event is written beside it.
        resume: continue the same evaluation where it was stopped.
        progress: whether to show progress on standard error.
    """
    given = {name: value for name, value in locals().items() if name in _FIELDS and value is not None}
    with _named(RECOMMENDERS, recommender) as recommender_name, _named(STRATEGIES, strategy) as strategy_name:
        given |= {"recommender": recommender_name, "strategy": strategy_name}
        config = config_from(settle_auto(given))
        out = Path(json) if json is not None else None
        if out is not None and out.suffix != ".json":
            raise SettingsError(f"--json {out} must end in .json; the ranks go beside it.")
        configs = [replace(config, seed=one) for one in _seeds(config.seed, seeds)]
        files = [_file(out, one.seed, several=len(configs) > 1) for one in configs]
        for file in files:
            if file is not None:
                require_writable(file)
        path = str(stream) if isinstance(stream, str | os.PathLike) else ""
        if path and (user or item or time):
            raise SettingsError(
                "user, item and time name columns of a table; the columns of a prepared stream are known."
            )
        log = load_stream(path) if path else interactions_from(stream, user=user, item=item, time=time)
        return Evaluation(
            tuple(_run(log, one, path, file, resume, progress) for one, file in zip(configs, files, strict=True))
        )


#: Arguments that are fields of a configuration under the same name.
_FIELDS = frozenset(CellConfig.__dataclass_fields__) - {"recommender", "strategy", "auto"}


def _run(
    log: Interactions, config: CellConfig, path: str, file: Path | None, resume: bool, progress: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record and the ranks of one seed."""
    folder = work_folder(file, log, config.plain())
    if not resume:
        start_afresh(folder)
    try:
        with model_progress() if progress else Progress() as shown, limited_threads(config.threads):
            work = Work(folder, report=shown.notice)
            result = Cell(log, config, shown, work, workers=cores()).run(path)
    except KeyboardInterrupt:
        raise StoppedError(
            f"stopped; finished work is kept in {folder}. Run the same command with --resume (in Python, "
            "resume=True) to continue."
        ) from None
    record = write_result(result.record, result.ranks, file) if file is not None else result.record
    work.forget()
    return record, result.ranks


def _seeds(seed: int, seeds: int | Iterable[int] | None) -> list[int]:
    if seeds is None:
        return [seed]
    if isinstance(seeds, Iterable):
        listed = [whole_number("seeds", one, 0) for one in seeds]
    else:
        listed = list(range(whole_number("seeds", seeds, 1)))
    if not listed or len(set(listed)) != len(listed):
        raise SettingsError(f"seeds = {seeds!r} must name each seed once, and at least one.")
    return listed


def _file(out: Path | None, seed: int, *, several: bool) -> Path | None:
    return out.with_name(f"{out.stem}-{seed}.json") if out is not None and several else out


@dataclass(frozen=True)
class _ClassEntry(Entry):
    """A class that the caller wrote, known by its name while it is evaluated."""

    factory: Any = None

    def load(self, form: object = None) -> Any:
        return self.factory


@contextmanager
def _named(registry: Registry, choice: RecommenderChoice | StrategyChoice) -> Iterator[str]:
    """The name under which a registry knows the choice; a class is lent to it."""
    name_or_class(registry.kind, choice)
    if isinstance(choice, str):
        yield choice
        return
    name = name_of(choice)
    if name in registry.names():
        if registry[name].load() is not choice:
            raise SettingsError(
                f"there is another {registry.kind} named {name!r}; give {getattr(choice, '__name__', choice)} a name "
                "of its own."
            )
        yield name
        return
    space = search_space(choice, {}) if registry is STRATEGIES else Space()  # type: ignore[arg-type]
    summary = (getattr(choice, "__doc__", None) or name).strip()
    with registry.lent(_ClassEntry(name, summary, "", space, factory=choice)):
        yield name
