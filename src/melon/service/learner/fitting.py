"""A service that started cold fits a model on its own log, in a process beside it, and the learner switches to it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from melon.learning.deltas import NOTHING
from melon.learning.manifest import MANIFEST
from melon.learning.model import LiveModel, forget
from melon.service.config import ServeSettings
from melon.service.learner.challenger import challenger_model
from melon.service.learner.replay_state import ReplayState, typed
from melon.service.learner.start import COLD, cold_model
from melon.service.log.base import LogId, Position
from melon.service.log.events import LogReader
from melon.service.log.files import Place, place_of
from melon.service.log.steps import StepReader
from melon.service.process import die_with

logger = logging.getLogger("melon.service")
#: Entries of the log that the learner may have to take before it switches.
_FEW = 2_000
#: Seconds before a fit that failed is tried again; four times as many after each further failure.
_FIRST_PAUSE_S, _MOST_PAUSE_S = 10.0, 3600.0
_REACHED = "reached"
#: How versions of models begin that were fitted on the log.
FITTED = "fit-"


class Fitter:
    """One fit at a time, of the log up to an offset at which a step ends."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings, self._folder = settings, settings.folder / "fits"
        self._process: subprocess.Popen[bytes] | None = None
        self.offset, self.version, self._asked = 0, "", 0.0
        self.without: dict[LogId, int] = {}
        self.unlearns = 0  # the last control whose person is among them
        self.problem: str | None = None
        self._pause = self._not_before = 0.0

    @property
    def busy(self) -> bool:
        """Whether a fit was begun and its result not taken."""
        return self._process is not None

    def begin(
        self, offset: int, version: str, without: Mapping[LogId, int] | None = None, start: str | None = None
    ) -> None:
        """Make a model that is called `version` from the log up to an offset.

        One that was fitted is fitted. Another is replayed from its `start` (default: the service's own) `without`
        users, named with their rows.
        """
        given, self.offset, self.version, self.without = self._settings, offset, version, dict(without or {})
        start = start or (None if given.model is None else str(given.model))
        about = {
            "parent": os.getpid(),
            "folder": str(given.folder),
            "url": place_of(given).url,
            "out": str(self._folder / str(offset)),
            "offset": offset,
            "minutes": given.fit_minutes,
            "budget": given.fit_budget,
            "seed": given.seed,
            "threads": given.threads,
            "max_pairs": given.max_pairs,
            "version": version,
            "without": list(self.without.items()),
            "start": start,
        }
        logger.info("making a model from the first %d entries of the log, beside serving", offset)
        self._process = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(json.dumps(about).encode())  # many people may be named: more than a command line takes

    def consider(
        self, replay: ReplayState, version: str, log: LogReader, steps: StepReader, start: str | None = None
    ) -> None:
        """Begin where a model is due: a cold start has enough events, or (once a second) somebody is to be unlearned.

        Whoever was unlearned before stays so: all of them are left out.
        """
        if self.busy or time.monotonic() < self._not_before:
            return
        most, offset = self._settings.fit_after, replay.position.offset
        cold = version == COLD and most > 0 and replay.model.updater.history.events >= most
        if not cold and time.monotonic() < self._asked + 1.0:
            return
        self._asked, controls = time.monotonic(), log.to_unlearn()
        last = controls[-1].offset if controls else 0
        if last > steps.forgotten() or not (cold or last > steps.unlearned()):
            return
        users, people = replay.model.users, [control.body["pseudonym"] for control in controls]
        rows = [-1 if one is None else int(users.rows([one])[0]) for one in typed(users, people)]
        version = f"{FITTED}{offset}" if cold or version.startswith(FITTED) else version
        if not version.startswith(FITTED) and log.first() > 1:
            self.problem = (
                f"{len(people)} people cannot be unlearned: the log begins at offset {log.first()}, so the model "
                "cannot be replayed from its start; they are forgotten, and their events have no ids any more"
            )
            return
        self.unlearns = last
        self.begin(offset, version, dict(zip(people, rows, strict=True)), start)

    def result(self) -> Path | None:
        """The model that was fitted, once it is; a fit that failed is forgotten and may be begun again."""
        if self._process is None or self._process.poll() is None:
            return None
        code, self._process = self._process.returncode, None
        if code:
            self._pause = min(max(4 * self._pause, _FIRST_PAUSE_S), _MOST_PAUSE_S)
            self._not_before = time.monotonic() + self._pause
            self.problem = (
                f"a fit on the log ended with code {code}, its message is in the service's log; the model goes on, and "
                f"the fit is tried again in {self._pause:.0f} s"
            )
            return None
        self._pause, self.problem = 0.0, None
        return self._folder / str(self.offset)

    def cancel(self) -> None:
        """End the fit, and remove what fits have left."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


def caught_up(
    folder: Path, offset: int, version: str, log: LogReader, steps: StepReader, without: Collection[LogId] = ()
) -> tuple[ReplayState, dict[str, Any]]:
    """A model made from the log that has taken the recorded steps behind it, and what came with it."""
    model, extra = LiveModel.load(folder)
    reached = extra.pop(_REACHED, None)
    begun = steps.at(offset) if reached is None else steps.step(reached)
    number, at = (begun.number, begun.last) if begun else (0, 0)
    replay = ReplayState(model, Position(version, number, at, NOTHING), log, without)
    model.warm_up()
    for _ in replay.follow(steps):
        pass
    return replay, {name: value for name, value in extra.items() if name != "model"}


def main(about: dict[str, Any]) -> None:
    """Fit, take the steps since, and save, in a process of its own, which steps back for others.

    Steps are taken here until few are left or no fewer become of them, so that the learner hardly waits.
    """
    die_with(about["parent"])
    os.nice(10)
    place, out, without = Place(Path(about["folder"]), about["url"]), Path(about["out"]), dict(about["without"])
    (out / MANIFEST).unlink(missing_ok=True)
    if about["version"].startswith(FITTED):
        _fit(place, out, about, without)
    else:
        _start_anew(out, about, without)
    behind = about["offset"]
    with LogReader(place) as log, StepReader(place) as steps:
        while True:
            replay, extra = caught_up(out, about["offset"], about["version"], log, steps, without)
            if about["max_pairs"]:
                replay.model.updater.history.bound(about["max_pairs"])
            replay.model.save(out, {**extra, _REACHED: replay.position.batch})
            before, behind = behind, log.last()[0] - replay.position.offset
            if behind < _FEW or behind >= before:
                return


def _fit(place: Place, out: Path, about: dict[str, Any], without: Collection[LogId]) -> None:
    from melon.estimator import Melon

    with LogReader(place) as log:
        gone, users = log.retracted(), log.users_of()
        stored = [
            one
            for one in log.events(1, about["offset"])
            if one.use == "learn" and one.user not in without and one.offset not in gone
        ]
    model = Melon(
        seed=about["seed"], minutes=about["minutes"], budget=about["budget"], threads=about["threads"], progress=False
    )
    model.fit([(users.get(event.user, event.user), event.item, event.time) for event in stored])
    model.save(out)


def _start_anew(out: Path, about: dict[str, Any], without: Mapping[LogId, int]) -> None:
    """The model before its first step; people whom it knows from before are forgotten, each in their row."""
    settings = ServeSettings(seed=about["seed"], threads=about["threads"])
    model, extra = cold_model(settings) if about["start"] is None else challenger_model(about["start"], settings)[:2]
    for pseudonym, row in without.items():
        if 0 <= row < len(model.users):
            (name,) = typed(model.users, [pseudonym])
            assert name is not None  # a row of this book is called so by now
            forget(model, model.users.ids([row]).tolist()[0], name)
    model.save(out, {**extra, _REACHED: 0})


if __name__ == "__main__":
    main(json.load(sys.stdin))
