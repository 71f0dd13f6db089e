"""A service that started cold fits a model on its own log, in a process beside it, and the learner switches to it."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from melon.learning.deltas import NOTHING
from melon.learning.manifest import MANIFEST
from melon.learning.model import LiveModel
from melon.service.learner.course import Course
from melon.service.learner.settings import LearnerSettings
from melon.service.log.base import Position
from melon.service.log.reader import LogReader
from melon.service.log.steps import StepReader

logger = logging.getLogger("melon.service")
#: Entries of the log that the learner may have to take before it switches.
_FEW = 2_000
_REACHED = "reached"


class Fitter:
    """One fit at a time, of the log up to an offset at which a step ends."""

    def __init__(self, settings: LearnerSettings) -> None:
        self._settings, self._folder = settings, settings.folder / "fits"
        self._process: subprocess.Popen[bytes] | None = None
        self.offset = 0

    @property
    def busy(self) -> bool:
        """Whether a fit was begun and its result not taken."""
        return self._process is not None

    def begin(self, offset: int) -> None:
        """Start to fit."""
        given = self._settings
        about = {
            "folder": str(given.folder),
            "out": str(self._folder / str(offset)),
            "offset": offset,
            "minutes": given.fit_minutes,
            "budget": given.fit_budget,
            "seed": given.seed,
            "threads": given.threads,
            "max_pairs": given.max_pairs,
        }
        logger.info("fitting a model on the first %d entries of the log, beside serving", offset)
        self.offset = offset
        self._process = subprocess.Popen([sys.executable, "-m", __name__, json.dumps(about)], stdin=subprocess.DEVNULL)

    def result(self) -> Path | None:
        """The model that was fitted, once it is; a fit that failed is forgotten and may be begun again."""
        if self._process is None or self._process.poll() is None:
            return None
        code, self._process = self._process.returncode, None
        if code:
            logger.warning("the fit on the log ended with code %d; the cold model goes on", code)
        return None if code else self._folder / str(self.offset)

    def cancel(self) -> None:
        """End the fit, and remove what fits have left."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


def caught_up(folder: Path, offset: int, log: LogReader, steps: StepReader) -> tuple[Course, dict[str, Any]]:
    """A fitted model that has taken the recorded steps behind it, and what came with it."""
    model, extra = LiveModel.load(folder)
    reached = extra.pop(_REACHED, None)
    begun = steps.at(offset) if reached is None else steps.step(reached)
    number, at = (begun.number, begun.last) if begun else (0, offset)
    course = Course(model, Position(f"fit-{offset}", number, at, NOTHING), log)
    model.warm_up()
    for step in steps.after(number):
        if step.done is not None:
            course.perform(step, steps.aside_of(step))
    return course, {name: value for name, value in extra.items() if name != "model"}


def main(about: dict[str, Any]) -> None:
    """Fit, take the steps since, and save, in a process of its own, which steps back for others.

    Steps are taken here until few are left or no fewer become of them, so that the learner hardly waits.
    """
    import os

    from melon.estimator import Melon
    from melon.service.learner.run import die_with_parent

    die_with_parent()
    os.nice(10)
    folder, out = Path(about["folder"]), Path(about["out"])
    with LogReader(folder) as log:
        stored = [event for event in log.events(1, about["offset"]) if event.use == "learn"]
    model = Melon(
        seed=about["seed"], minutes=about["minutes"], budget=about["budget"], threads=about["threads"], progress=False
    )
    model.fit([(event.user, event.item, event.time) for event in stored])
    (out / MANIFEST).unlink(missing_ok=True)
    model.save(out)
    behind = about["offset"]
    with LogReader(folder) as log, StepReader(folder) as steps:
        while True:
            course, extra = caught_up(out, about["offset"], log, steps)
            if about["max_pairs"]:
                course.model.updater.history.bound(about["max_pairs"])
            course.model.save(out, {**extra, _REACHED: course.position.batch})
            before, behind = behind, log.last()[0] - course.position.offset
            if behind < _FEW or behind >= before:
                return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
