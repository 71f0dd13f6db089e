"""Where a learner begins: a deployed model, a cold one, or the newest checkpoint of a log that is its own."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from melon import __version__
from melon.errors import CheckpointError, LogError
from melon.learning.deltas import NOTHING
from melon.learning.manifest import MANIFEST, read_manifest
from melon.learning.model import LiveModel
from melon.service.config import ServeSettings
from melon.service.learner.guard import Alarms
from melon.service.log.base import Position
from melon.service.log.checkpoints import Checkpoints, SavedModel
from melon.service.log.events import LogReader
from melon.service.log.files import BATCHES, DELTAS, EVENTS, Place, place_of, way_out
from melon.service.log.steps import StepBook, StepReader

COLD = "cold"


def begin(
    settings: ServeSettings, book: StepBook, checkpoints: Checkpoints, log: LogReader, warm: SavedModel | None = None
) -> SavedModel:
    """The model to go on with: of the newest checkpoint that the recorded steps lead to, or the first of all.

    Files that do not belong together are refused with the way out: of another model or log, a log that is shorter than
    what was learned from it, checkpoints without their steps. A `warm` model is taken where the steps lead to it.
    """
    book.check()
    meta, log_id = book.meta(), log.log_id
    name, mark = (COLD, COLD) if settings.model is None else (str(settings.model), fingerprint(settings.model))
    if "log_id" in meta and meta["log_id"] != log_id:
        raise LogError(
            f"{place_of(settings)} has the log {log_id}, and its batches were cut from the log {meta['log_id']}; "
            "use the files of one service, or give an empty folder."
        )
    if settings.model is not None and meta.get("start", mark) != mark:
        raise LogError(
            f"the log in {place_of(settings)} belongs to the model {meta['start_name']} ({meta['start'][:12]}), not to "
            f"{name} ({mark[:12]}); give that model, or another folder for this one."
        )
    check_together(place_of(settings), book, checkpoints, log)
    if "start" not in meta:
        position = Position(COLD if settings.model is None else mark[:12], 0, 0, NOTHING)
        model, extra = cold_model(settings) if settings.model is None else deployed(settings.model)
        if settings.max_pairs:
            model.updater.history.bound(settings.max_pairs)
        checkpoints.write(model, position, log_id, extra)
        book.state(log_id=log_id, start=mark, start_name=name, bases="[0]")
        book.sync()
        return SavedModel(model, position, log_id, extra)
    recorded = None if warm is None else book.step(warm.position.batch)
    if warm is not None and recorded is not None and recorded.digest == warm.position.digest:
        return warm
    return _newest(place_of(settings), book, checkpoints)


def check_together(place: Place | Path, steps: StepReader, checkpoints: Checkpoints, log: LogReader) -> None:
    """Refuse files of different moments or services, as a careless copy or half of a backup leaves them."""
    place, offset, first = Place.of(place), log.last()[0], log.first()
    events, batches = place.named(EVENTS), place.named(BATCHES)
    alone = f"to go on with this log alone, {way_out(BATCHES).partition(', or ')[2]}"
    advice = "Restore all files of one backup (melon restore), or use files of one moment"
    learned = steps.reached()
    if learned > offset:
        raise LogError(
            f"{events} ends at offset {offset}, and {batches} has learned up to {learned}: the log is older than the "
            f"rest, or its -wal file is missing. {advice}; {alone}"
        )
    for number in checkpoints.numbers():
        with suppress(CheckpointError):  # one that cannot be read is passed by
            position, owner = checkpoints.position(number)
            if owner != log.log_id:
                raise LogError(
                    f"the checkpoint {checkpoints.path(number)} belongs to the log {owner}, and {place} has the log "
                    f"{log.log_id}. {advice}."
                )
            if position.offset > offset:
                raise LogError(
                    f"{events} ends at offset {offset}, and the checkpoint {checkpoints.path(number)} knows "
                    f"{position.offset}: the log is older than the rest. {advice}; {alone}"
                )
    if "start" not in steps.meta() and (any(checkpoints.numbers()) or first > 1):
        raise LogError(
            f"{batches} is new, and {checkpoints.folder} or the log is not. {advice}"
            + (
                f"; or move {checkpoints.folder.name} and {DELTAS} away, too: the log is then learned again."
                if first == 1
                else f": the log begins at offset {first}, so it cannot be learned again from the start."
            )
        )


def warm_up(model: LiveModel, alarm: Alarms, beat: Callable[[], None] = lambda: None, patience: float = 3.0) -> None:
    """Load the compiled kernels. Events wait meanwhile, so an alarm says so where they have to be compiled first."""
    with ThreadPoolExecutor(1, thread_name_prefix="compiling") as pool:
        loaded = pool.submit(model.warm_up)
        while not wait([loaded], patience).done:
            beat()
            alarm("kernels", "the learner compiles its kernels, once per machine; events are stored and learned later.")
        loaded.result()
    alarm("kernels", None)


def _newest(place: Place, book: StepBook, checkpoints: Checkpoints) -> SavedModel:
    """The newest checkpoint that can be read and that the recorded steps lead to."""
    problem: CheckpointError | None = None
    for number in reversed(checkpoints.numbers()):
        try:
            position, _ = checkpoints.position(number)
            step = book.step(number)
            if number and (step is None or step.digest != position.digest):
                continue  # written after a step that a power cut took away
            return checkpoints.load(number)
        except CheckpointError as error:
            problem = problem or error
    raise problem or CheckpointError(f"{checkpoints.folder} holds no checkpoint that the steps in {place} lead to.")


def deployed(folder: Path) -> tuple[LiveModel, dict[str, Any]]:
    """A saved model, and what came with it."""
    model, extra = LiveModel.load(folder)
    return model, {name: value for name, value in extra.items() if name not in ("model", "service")}


def cold_model(settings: ServeSettings) -> tuple[LiveModel, dict[str, Any]]:
    """A model that has learned nothing, as `auto` makes it."""
    from melon.estimator import Melon, cold_start

    return cold_start(Melon(seed=settings.seed, threads=settings.threads, progress=False))


def fingerprint(folder: Path) -> str:
    """What tells one saved model from another: the digest of its manifest, which names its files by content."""
    read_manifest(folder)
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


def surroundings(threads: int) -> dict[str, Any]:
    """What the bits of a replay depend on beside the log."""
    cpu, known = platform.processor(), Path("/proc/cpuinfo")
    lines = known.read_text(errors="replace").splitlines() if known.exists() else []
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "host": platform.node(),
        "cpu": cpu,
        "melon": __version__,
        "numba": version("numba"),
        "threads": threads,
        "kernel": os.environ.get("MELON_KERNEL") or "numba",
    }


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What two surroundings do not share, in words."""
    names = ("cpu", "melon", "numba", "threads", "kernel")
    words = [f"{name} {one.get(name)!r} and {other.get(name)!r}" for name in names if one.get(name) != other.get(name)]
    return ", ".join(words) or "nothing that is recorded"
