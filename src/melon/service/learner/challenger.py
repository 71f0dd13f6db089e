"""A challenger: another model that learns the same recorded batches in a process of its own, and serves nobody.

It follows the steps that the learner has recorded, ranks each batch before it learns it, and is compared with the
served model event by event, on events that both have ranked. It begins with the first step of the log, so that one
that is added late, or started again, catches up by replay.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from melon.errors import MelonError, SettingsError
from melon.learning.deltas import NOTHING
from melon.learning.manifest import MANIFEST
from melon.learning.model import LiveModel
from melon.service.config import ServeSettings
from melon.service.learner.quality import PARTS, Quality, added, hits_of, rank_counts
from melon.service.learner.replay_state import ReplayState, unlearned
from melon.service.log.base import LoggedStep, Position
from melon.service.log.events import LogReader
from melon.service.log.files import Closing, Held, Reader, Sqlite, place_of
from melon.service.log.steps import StepReader
from melon.types import Plain

FOLDER = "challengers"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results(done REAL PRIMARY KEY, batch INTEGER NOT NULL, totals TEXT NOT NULL) WITHOUT ROWID;
"""
#: Seconds between two results that are kept, and how long they are.
_EACH_S, _KEPT_S = 1.0, 8 * 86_400.0
_POLL_S = 0.05


def challenger_model(text: str, settings: ServeSettings) -> LiveModel:
    """The saved model of a folder, or a recommender and strategy by name that have learned nothing."""
    from melon.estimator import Melon, cold_start

    if (Path(text) / MANIFEST).is_file():
        return LiveModel.load(Path(text))[0]
    recommender, slash, strategy = text.partition("/")
    if not slash or "/" in strategy:
        raise SettingsError(
            f"challenger model {text!r} is neither the folder of a model nor RECOMMENDER/STRATEGY such as bpr/melon."
        )
    return cold_start(Melon(recommender, strategy, seed=settings.seed, threads=settings.threads, progress=False))[0]


class ChallengerReader(Reader):
    """How a challenger does, read-only; not shared between threads."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder / FOLDER, f"{name}.db")

    def totals(self, by: float) -> dict[str, Any]:
        """Its counters at a moment (seconds); nothing where it had not begun."""
        rows = self._rows("SELECT totals FROM results WHERE done <= ? ORDER BY done DESC LIMIT 1", (by,))
        return dict(json.loads(rows[0][0])) if rows else {}


def challenger_names(folder: Path) -> list[str]:
    """Challengers that have begun."""
    return sorted(path.stem for path in (folder / FOLDER).glob("*.db"))


class Challenger(Closing):
    """One challenger of a log. `step` takes the next recorded step; `run` goes on until it is stopped."""

    def __init__(self, settings: ServeSettings, name: str) -> None:
        self.name, models = name, settings.challenger_models()
        if name not in models:
            raise SettingsError(f"there is no challenger {name!r}; choose one of: {', '.join(models) or 'none'}.")
        (settings.folder / FOLDER).mkdir(parents=True, exist_ok=True)
        self._held = Held(settings.folder / FOLDER, name)
        try:
            self._log, self._steps = LogReader(place_of(settings)), StepReader(place_of(settings))
            model = challenger_model(models[name], settings)
            if settings.max_pairs:
                model.updater.history.bound(settings.max_pairs)
            model.warm_up()
            self._results = Sqlite(settings.folder / FOLDER / f"{name}.db", "OFF", _SCHEMA)
            # It learns everything again, so that it counts everything again.
            self._results.rows("DELETE FROM results")
            start = Position(models[name], 0, 0, NOTHING)
            self.replay = ReplayState(model, start, self._log, unlearned(self._log, self._steps))
            self._quality = Quality(settings.negatives, settings.seed)
        except BaseException:
            self._held.close()
            raise
        self._totals: Mapping[str, Any] = {}
        self._written = 0.0

    def close(self) -> None:
        """Close its files; it learns everything again when it is started again."""
        for file in (self._log, self._steps, self._results):
            file.close()
        self._held.close()

    def step(self) -> bool:
        """Take the next step that the learner has finished, if there is one."""
        following = next(self._steps.after(self.replay.position.batch), None)
        if following is None or following.done is None:
            return False
        if following.kind == "events" and following.status == "learned":
            self._totals = added(self._totals, self._compared(following))
            self._write(following)
        self.replay.perform(following, self._steps.retried_by(following))
        return True

    def _compared(self, step: LoggedStep) -> Plain:
        """Counters of a batch beside those of the served model, on events that both have ranked."""
        _, ranked = self._quality.rank(self.replay.model, self.replay.events(step.first, step.last))
        if ranked is None:
            return {}
        both, hits = hits_of(step.about, ranked.offsets)
        counts = {}
        for number, part in enumerate(PARTS):
            some = both & (ranked.part == number)
            own = ranked.rank[some] <= 10
            counts[part] = {
                **rank_counts(ranked.rank[some]),
                "won@10": int((hits[some] & ~own).sum()),
                "lost@10": int((~hits[some] & own).sum()),
            }
        return counts

    def _write(self, step: LoggedStep) -> None:
        """Keep the counters as of a step, at most one for each second."""
        assert step.done is not None
        if step.done < self._written + _EACH_S and next(self._steps.after(step.number), None) is not None:
            return
        self._written = step.done
        with self._results.transaction():
            values = (step.done, step.number, json.dumps(self._totals))
            self._results.rows("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", values)
            self._results.rows("DELETE FROM results WHERE done < ?", (step.done - _KEPT_S,))

    def run(self, stop: threading.Event) -> None:
        """Go on until stopped."""
        while not stop.is_set():
            if not self.step():
                stop.wait(_POLL_S)


def run_challenger(settings: ServeSettings, name: str, stop: threading.Event | None = None) -> None:
    """Follow the learner until `stop` is set or the process is asked to end. Waits for the first recorded step."""
    from melon.kernels.threads import using_threads

    stop = stop or threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        try:
            with StepReader(place_of(settings)) as steps:
                if steps.has("steps"):
                    break
        except MelonError:
            pass  # the learner makes its files when it starts
        stop.wait(0.2)
    if stop.is_set():
        return
    with using_threads(settings.threads), Challenger(settings, name) as challenger:
        challenger.run(stop)


def compared_by(folder: Path, moments: list[float]) -> dict[str, list[dict[str, Any]]]:
    """The counters of every challenger by each moment."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in challenger_names(folder):
        with ChallengerReader(folder, name) as reader:
            if reader.has("results"):
                found[name] = [reader.totals(moment) for moment in moments]
    return found
