"""A challenger: another model that learns the same recorded batches in a process of its own.

It follows the steps that the learner has recorded, ranks each batch before it learns it, and is compared with the
served model event by event, on events that both have ranked. It begins with the first step of the log or with its own
newest checkpoint, so that one that is added late, or started again, catches up by replay. When it is promoted, it
hands its model to the learner as of the step before; the model that was served until then goes on as `former`.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from melon.errors import CheckpointError, MelonError, SettingsError
from melon.learning.deltas import NOTHING
from melon.learning.manifest import MANIFEST
from melon.learning.model import LiveModel
from melon.service.config import FORMER, ServeSettings
from melon.service.learner.quality import PARTS, Quality, added, hits_of, rank_counts
from melon.service.learner.replay_state import ReplayState, StepOutcome, unlearned
from melon.service.learner.start import deployed, fingerprint
from melon.service.log.base import LoggedStep, LogId, Position, Published
from melon.service.log.checkpoints import Checkpoints, SavedModel, Saver
from melon.service.log.events import LogReader
from melon.service.log.files import Closing, Held, Reader, Sqlite, place_of, runs
from melon.service.log.steps import DeltaFeed, StepReader
from melon.service.process import began, until_signalled
from melon.types import Plain

logger = logging.getLogger("melon.service")
FOLDER, RESULTS = "challengers", "results.db"
#: Where a model came from that did not start the service: its text, as `unlearn` has to replay it from there.
START = "start"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS results(
    done REAL PRIMARY KEY, batch INTEGER NOT NULL, offset INTEGER NOT NULL, totals TEXT NOT NULL) WITHOUT ROWID;
"""
#: Seconds between two results that are kept, and how long they are.
_EACH_S, _KEPT_S = 1.0, 8 * 86_400.0
#: Checkpoints are written this many times less often than the learner's.
_SELDOM = 5
_POLL_S = 0.02


def home(folder: Path, name: str) -> Path:
    """The folder of a challenger."""
    return folder / FOLDER / name


def challenger_model(text: str, settings: ServeSettings) -> tuple[LiveModel, Plain, str]:
    """The saved model of a folder, or a recommender and strategy by name that have learned nothing; and its version."""
    from melon.estimator import Melon, cold_start

    if (Path(text) / MANIFEST).is_file():
        return *deployed(Path(text)), fingerprint(Path(text))[:12]
    recommender, slash, strategy = text.partition("/")
    if not slash or "/" in strategy:
        raise SettingsError(
            f"challenger model {text!r} is neither the folder of a model nor RECOMMENDER/STRATEGY such as bpr/melon."
        )
    made = Melon(recommender, strategy, seed=settings.seed, threads=settings.threads, progress=False)
    return *cold_start(made), text


class ChallengerReader(Reader):
    """How a challenger does, read-only; not shared between threads."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(home(folder, name), RESULTS)

    def totals(self, by: float) -> dict[str, Any]:
        """Its counters at a moment (seconds); nothing where it had not begun."""
        rows = self._rows("SELECT totals FROM results WHERE done <= ? ORDER BY done DESC LIMIT 1", (by,))
        return dict(json.loads(rows[0][0])) if rows else {}

    def newest(self) -> float:
        """The moment of its last counters: those by earlier moments stay as they are."""
        return float(self._rows("SELECT coalesce(max(done), 0) FROM results")[0][0])

    def offset(self) -> int:
        """The last offset that it was compared at."""
        return int(self._rows("SELECT coalesce(max(offset), 0) FROM results")[0][0])


def challenger_states(folder: Path) -> dict[str, dict[str, Any]]:
    """Challengers that have begun: whether each runs, and the last offset that it has learned."""
    states = {}
    for path in sorted((folder / FOLDER).glob(f"*/{RESULTS}")):
        name = path.parent.name
        with suppress(MelonError), ChallengerReader(folder, name) as reader:
            offset = reader.offset() if reader.has("results") else 0
            states[name] = {"running": runs(folder / FOLDER, name), "offset": offset}
    return states


class Challenger(Closing):
    """One challenger of a log. `step` takes the next recorded step; `run` goes on until it is stopped."""

    def __init__(self, settings: ServeSettings, name: str) -> None:
        self.name, self._settings, models = name, settings, settings.challenger_models()
        if name != FORMER and name not in models:
            raise SettingsError(f"there is no challenger {name!r}; choose one of: {', '.join(models) or 'none'}.")
        self._text, self._home = models.get(name, ""), home(settings.folder, name)
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held = Held(settings.folder / FOLDER, name)
        try:
            self._log, self._steps = LogReader(place_of(settings)), StepReader(place_of(settings))
            self._results = Sqlite(self._home / RESULTS, "OFF", _SCHEMA)
            self._checkpoints = Checkpoints(self._home)
            self._saver = Saver(self._checkpoints)
            self._feed = (
                DeltaFeed(self._home, seconds=settings.keep_deltas_s, most_bytes=settings.keep_deltas_bytes)
                if name in settings.shares()
                else None
            )
            self._quality = Quality(settings.negatives, settings.seed)
            self._begin()
        except BaseException:
            self._held.close()
            raise

    def close(self) -> None:
        """Close its files."""
        self._saver.close()
        for file in (self._log, self._steps, self._results, self._feed):
            if file is not None:
                file.close()
        self._held.close()

    def _begin(self) -> None:
        """Go on from the newest checkpoint that the recorded steps lead to, or begin with the first step."""
        self._without = unlearned(self._log, self._steps)
        saved = self._newest()
        if saved is None:
            if self.name == FORMER:
                raise SettingsError("there is no model that was served before.")
            shutil.rmtree(self._checkpoints.folder, ignore_errors=True)
            model, extra, version = challenger_model(self._text, self._settings)
            if self._settings.max_pairs:
                model.updater.history.bound(self._settings.max_pairs)
            extra = {**extra, START: self._text, "without": named(self._without), "totals": {}}
            saved = SavedModel(model, Position(version, 0, 0, NOTHING), self._log.log_id, extra)
        saved.model.warm_up()
        # What came after the checkpoint is learned again, so that it is counted again.
        self._results.rows("DELETE FROM results WHERE batch > ?", (saved.position.batch,))
        self._totals: Mapping[str, Any] = saved.extra.get("totals", {})
        self._extra = {name: value for name, value in saved.extra.items() if name not in ("model", "service")}
        self.replay = ReplayState(saved.model, saved.position, self._log, self._without)
        self._written, self._saved_at = 0.0, time.monotonic()
        if self._feed is not None:
            self._feed.drop(above=saved.position.batch)
            self.save(wait=True)  # what API processes begin with

    def _newest(self) -> SavedModel | None:
        for number in reversed(self._checkpoints.numbers()):
            with suppress(CheckpointError):
                saved = self._checkpoints.load(number)
                extra, step = saved.extra, self._steps.step(number)
                if number and (step is None or extra.get("followed") != (step.digest or b"").hex()):
                    continue  # written after a step that a power cut took away
                same = self.name == FORMER or extra.get(START) == self._text
                if same and extra.get("without") == named(self._without) and saved.log_id == self._log.log_id:
                    return saved
        return None

    def step(self) -> bool:
        """Take the next step that the learner has finished, if there is one."""
        following = next(self._steps.after(self.replay.position.batch), None)
        if following is None:
            return False
        if following.done is None:
            if following.about.get("challenger") == self.name:
                self._hand_over()
            return False
        if following.kind == "events" and following.status == "learned":
            self._totals = added(self._totals, self._compared(following))
            self._write(following)
        outcome = self.replay.perform(following, self._steps.retried_by(following))
        self._publish(following, outcome)
        if following.kind == "forget":
            self.save(wait=True)
            self._checkpoints.prune(set(), before=following.number)
            if self._feed is not None:
                self._feed.drop(up_to=following.number)
        if following.switched and self.name == FORMER:
            self._results.rows("DELETE FROM results")
            self._begin()  # with the model that was served until this step
        elif following.switched and unlearned(self._log, self._steps) != self._without:
            self._begin()  # from the first step on, without the people who are unlearned
        return True

    def _publish(self, step: LoggedStep, outcome: StepOutcome) -> None:
        if self._feed is not None:
            position = self.replay.position
            kind = "events" if step.kind == "events" else "control"
            self._feed.publish(
                Published(position.batch, position.offset, kind, outcome.digest, outcome.content, outcome.arrived)
            )

    def _hand_over(self) -> None:
        """Save the model as it is before the step that the learner waits with."""
        if self.replay.position.batch not in self._checkpoints.numbers():
            self.save(wait=True)

    def save(self, *, wait: bool = False) -> None:
        """Write a checkpoint, and remove older ones when it is whole."""
        if self._saver.busy:
            self._saver.result(wait=True)
        step = self._steps.step(self.replay.position.batch)
        followed = "" if step is None or step.digest is None else step.digest.hex()
        extra = {**self._extra, "totals": self._totals, "followed": followed}
        self._saver.begin(self.replay.model, self.replay.position, self._log.log_id, extra, wait=wait)
        self._saved_at = time.monotonic()
        if wait:
            self._saver.result(wait=True)
            self._checkpoints.prune(set())

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
        whole = self._quality.whole_lists(self.replay.model, ranked).get("lists", {})
        return counts | ({"lists": {track: one["served"] for track, one in whole.items()}} if whole else {})

    def _write(self, step: LoggedStep) -> None:
        """Keep the counters as of a step, at most one for each second."""
        assert step.done is not None
        if step.done < self._written + _EACH_S and next(self._steps.after(step.number), None) is not None:
            return
        self._written = step.done
        with self._results.transaction():
            values = (step.done, step.number, step.last, json.dumps(self._totals))
            self._results.rows("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", values)
            self._results.rows("DELETE FROM results WHERE done < ?", (step.done - _KEPT_S,))

    def run(self, stop: threading.Event) -> None:
        """Go on until stopped; then save."""
        while not stop.is_set():
            self._held.beat()
            if not self.step():
                stop.wait(_POLL_S)
            if self._saver.ready:
                self._saver.result()
                self._checkpoints.prune(set())
            if time.monotonic() > self._saved_at + _SELDOM * self._settings.checkpoint_s and not self._saver.busy:
                self.save()
        self.save(wait=True)


def run_challenger(settings: ServeSettings, name: str, stop: threading.Event | None = None) -> None:
    """Follow the learner until `stop` is set (default: until it is asked to end). Waits for the first recorded step."""
    from melon.kernels.threads import using_threads

    stop = stop or until_signalled()
    while not stop.is_set():
        try:
            with StepReader(place_of(settings)) as steps:
                saved = Checkpoints(home(settings.folder, name)).numbers() if name == FORMER else []
                step = steps.step(saved[-1]) if saved else steps.last()
                if step is not None and step.done is not None:
                    break
        except MelonError:
            pass  # the learner makes its files when it starts
        stop.wait(0.2)
    if stop.is_set():
        return
    with using_threads(settings.threads), Challenger(settings, name) as challenger:
        began.set()
        challenger.run(stop)


def compared_by(
    folder: Path, moments: Sequence[float], remember: Callable[..., dict[str, Any]]
) -> dict[str, tuple[list[dict[str, Any]], float]]:
    """The counters of every challenger by each moment, and the moment until which they stay as they are.

    `remember` gives what it knows by a name, or has it made and remembers it if nothing can change it.
    """
    found: dict[str, tuple[list[dict[str, Any]], float]] = {}
    for name in challenger_states(folder):
        with suppress(MelonError), ChallengerReader(folder, name) as reader:
            if reader.has("results"):
                until, began = reader.newest(), moments[0]
                totals = [remember((name, began, one), one <= until, reader.totals, one) for one in moments]
                found[name] = totals, until
    return found


# What the learner does about challengers.


def handed_over(folder: Path, name: str, batch: int) -> SavedModel | None:
    """A challenger's model as of a step, if it has saved one."""
    checkpoints = Checkpoints(home(folder, name))
    return checkpoints.load(batch) if batch in checkpoints.numbers() else None


def named(people: Collection[LogId]) -> list[str]:
    """People whose events a model was never taught, as a checkpoint says so."""
    return sorted(map(str, people))


def forgotten_by_challengers(folder: Path, number: int, *, patient: bool) -> bool:
    """Whether no challenger has a checkpoint from before a step that forgot somebody.

    A challenger that does not run loses what it saved, unless one is patient.
    """
    waiting = False
    for path in (folder / FOLDER).glob("*/checkpoints"):
        checkpoints, name = Checkpoints(path.parent), path.parent.name
        if not any(one < number for one in checkpoints.numbers()):
            continue
        if patient or runs(folder / FOLDER, name):
            waiting = True
        else:
            shutil.rmtree(path.parent, ignore_errors=True)
            logger.warning("challenger %s does not run, and its model knew a forgotten person: deleted", name)
    return not waiting
