"""The learner: cut, write the boundary, predict, learn, record, publish; a checkpoint now and then; and its process."""

from __future__ import annotations

import copy
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from melon.errors import CheckpointError, HeldError, LearningError, LogError, MelonError, StorageError
from melon.learning.deltas import chained, state_digest
from melon.service.config import FORMER, ServeSettings
from melon.service.learner.challenger import START, forgotten_by_challengers, handed_over, home, named
from melon.service.learner.fitting import Fitter, caught_up
from melon.service.learner.guard import (
    ENOUGH,
    REMEMBERED,
    Alarms,
    Guard,
    Promise,
    Watch,
    cut,
    norms,
    quarantined_in_a_row,
)
from melon.service.learner.quality import Quality, added
from melon.service.learner.replay_state import ReplayState, StepOutcome, unlearned
from melon.service.learner.start import COLD, begin, differences, surroundings, warm_up
from melon.service.log.base import LoggedStep, Position, Published, StepKind
from melon.service.log.checkpoints import Checkpoints, SavedModel, Saver
from melon.service.log.events import LogReader
from melon.service.log.files import EVENTS, Closing, Held, Place, Reader, place_of, until_there_is_room
from melon.service.log.steps import DeltaFeed, StepBook, StepReader
from melon.service.process import began, until_signalled

if TYPE_CHECKING:
    from melon.service.log.postgres import Lease

logger = logging.getLogger("melon.service")
_POLL = 0.004
#: Seconds after which the learner looks around although nothing was posted.
_LOOK = 1.0
#: Seconds between two tries of a learner that waits for its turn.
_STAND_BY = 0.2
#: Batches are cut to this part of their size when learning goes on by itself.
_SMALLER = 8
#: Controls that have another model served, and the seconds for which they wait for it.
PROMOTIONS = ("promote", "rollback")
_HANDOVER_S = 120.0
#: Seconds after which a challenger that does not run loses what it saved, if that knows a forgotten person.
_FORGET_S = 60.0
#: What a challenger's checkpoint says that one of the learner does not.
OF_CHALLENGERS = ("model", "service", "totals", "without", "followed")
BOOKS = ("users", "items")


class Learner(Closing):
    """The one learner of a log. `step` takes one step if anything waits; `run` goes on until it is stopped."""

    def __init__(self, settings: ServeSettings, standby: Standby | None = None) -> None:
        self.settings, place = settings, place_of(settings)
        self._held = Held(settings.folder, "learner") if standby is None else standby.held
        self._lease = None if standby is None else standby.lease
        try:
            self._lease = self._lease or place.lease("learner")
            self.log, self.book = LogReader(place), StepBook(place)
            self.feed = DeltaFeed(place, seconds=settings.keep_deltas_s, most_bytes=settings.keep_deltas_bytes)
            self.checkpoints = Checkpoints(place)
            self._saver, self._fitter = Saver(self.checkpoints), Fitter(settings)
            self._alarm = Alarms(lambda texts: self._insist(lambda: self.book.state(alarms=json.dumps(texts))))
            self._watch = Watch(settings, self.log, self.book, self._alarm)
            self._stopping: Callable[[], bool] = lambda: False
            saved = begin(settings, self.book, self.checkpoints, self.log, None if standby is None else standby.saved)
            self.book.state(alarms="{}")  # what a learner before this one said is over
            self._around = surroundings(settings.threads)
            epochs = self.book.epochs()
            self._epoch = self.book.begin_epoch(self._around)
            self.checkpoints.belong_to(self._epoch)
            self._before = epochs[-1] if epochs else self._around
            self.recover(saved)
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        """Close the log; what was not saved is learned again."""
        self._fitter.cancel()
        self._saver.close()
        for file in (self.log, self.book, self.feed):
            file.close()
        self._let_go()

    def _let_go(self) -> None:
        self._held.close()
        if self._lease is not None:
            self._lease.close()

    def _beat(self) -> None:
        """Give a sign of life."""
        self._held.beat()
        if self._lease is not None:
            self._lease.check()

    @property
    def position(self) -> Position:
        """Where the model stands."""
        return self.replay.position

    # Beginning, and beginning again.

    def recover(self, saved: SavedModel) -> None:
        """Be where the recorded steps lead to: from a checkpoint, by taking the steps behind it again."""
        self.extra, self._version = saved.extra, saved.position.version
        self.replay = ReplayState(saved.model, saved.position, self.log, unlearned(self.log, self.book))
        warm_up(saved.model, self._alarm, self._beat)
        last = self.book.last()
        self.feed.drop(above=last.number if last else 0)
        self._totals: Mapping[str, Any] = last.totals if last else {}
        learned = [step for step in self.book.newest(2 * REMEMBERED) if step.status == "learned"]
        #: The last offsets of the newest batches, as long as all of them were quarantined.
        self._in_a_row = quarantined_in_a_row(self.book.newest(2 * self.settings.stop_after))
        self._halted_at: float | None = None
        self._small = 0  # batches to go that are cut small
        self._guard = Guard(self.settings.guard, [step.about for step in reversed(learned)])
        self._saved_at, self._saved_offset = time.monotonic(), saved.position.offset
        self._must_save = saved.position.batch not in self.checkpoints.numbers()
        self.quality = Quality(self.settings.negatives, self.settings.seed, self._frozen())
        #: A step that waits for a challenger's model, and until when.
        self._promoting: tuple[LoggedStep, float] | None = None
        self._forgetting: tuple[Position, float] | None = None
        for step in self.book.after(saved.position.batch):
            if step.done is None and step.kind == "switch":
                self.book.drop(step)  # it was not made: the checkpoint comes first
            elif step.done is None and step.kind in PROMOTIONS:
                self._promoting = step, time.monotonic() + _HANDOVER_S
            elif step.done is None:
                self._finish(step, self._take(step))
            else:
                self._again(step)

    def _again(self, step: LoggedStep) -> None:
        """Take a recorded step again; its delta is published where it is missing."""
        self._beat()
        if step.switched:
            where = self.checkpoints.path(step.number)
            raise CheckpointError(f"step {step.number} switched to another model, whose checkpoint {where} is missing.")
        outcome = self.replay.perform(step, self.book.retried_by(step))
        if outcome.digest != step.digest:
            self._alarm(
                "replay",
                f"step {step.number} has other bytes than when it was first taken; the surroundings differ in "
                f"{differences(self._before, self._around)}. Replicas load the next checkpoint.",
            )
            self.book.finish(step, step.status, outcome.digest, {}, step.totals, step.reason)
            self._must_save = True
        if step.number not in self.feed or outcome.digest != step.digest:
            self._publish(step, outcome)

    def _frozen(self) -> Any:
        base = self.book.bases()[-1]
        if not self.settings.frozen or not self.settings.negatives or base not in self.checkpoints.numbers():
            return None
        saved = self.checkpoints.load(base)
        return None if saved.position.version == COLD else saved.model.updater

    # One step.

    def step(self) -> bool:
        """Take the next step, if anything waits."""
        if self._promoting is not None:
            return self._promoted(*self._promoting)
        if self.halted():
            return False
        done = self.position.offset
        most = self.settings.batch_most
        events = self.log.tail(done, most if not self._small else max(most // _SMALLER, 1))
        if events:
            self._live("events", events[0].offset, cut(events, self.settings.user_most), {})
            return True
        control = self.log.control_after(done)
        if control is None:
            return False
        if control.kind in PROMOTIONS:
            about = {"challenger": control.body.get("challenger", FORMER)}
            step = self._planned(control.kind, control.offset, control.offset, about)
            self._promoting = step, time.monotonic() + _HANDOVER_S
            return self._promoted(*self._promoting)
        about = {"batch": control.body.get("batch")} if control.kind == "retry" else {}
        self._live(control.kind, control.offset, control.offset, about)
        return True

    def _live(self, kind: StepKind, first: int, last: int, about: Mapping[str, Any]) -> None:
        step = self._planned(kind, first, last, about)
        self._finish(step, self._take(step))

    def _planned(self, kind: StepKind, first: int, last: int, about: Mapping[str, Any]) -> LoggedStep:
        """The boundary of the next step, which is written before anything is touched."""
        number = self.position.batch + 1
        step = LoggedStep(number, kind, first, last, self._epoch, "planned", planned=time.time(), about=about)
        self._insist(lambda: self.book.plan(step))
        return step

    def _take(self, step: LoggedStep) -> tuple[LoggedStep, StepOutcome, Mapping[str, Any]]:
        """Do a step for the first time: rank its events, learn them, and quarantine it where that goes wrong."""
        started = time.perf_counter()
        counts: Mapping[str, Any] = {}
        retried, reason, broken = self.book.retried_by(step), step.reason, False
        if step.status == "planned":
            try:
                if step.kind == "events":
                    counts = self.quality.measure(self.replay.model, self.replay.events(step.first, step.last))
                ranked = time.perf_counter()
                outcome = self.replay.perform(step, retried)
                if step.kind == "events":
                    outcome = replace(outcome, about={**outcome.about, **norms(self.replay.model.updater)})
                reason = self._guard.judge(outcome.about)
                broken = reason is not None
            except LearningError as error:
                reason = str(error)
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
                reason, broken = f"learning failed with {error!r}", True
                logger.exception("step %d", step.number)
        else:
            reason = reason or "quarantined"
        if reason is not None:
            step = replace(step, status="quarantined", reason=reason)
            self._insist(lambda: self.book.quarantine(step, str(reason)))
            self._alarm("quarantined", f"batch {step.number} was quarantined: {reason}")
            if broken:
                self._rebuild(step.number - 1)
            ranked, outcome = time.perf_counter(), self.replay.perform(step, retried)
        ended = time.perf_counter()
        ms = {"predict_ms": 1e3 * (ranked - started), "learn_ms": 1e3 * (ended - ranked)}
        return step, replace(outcome, about={**outcome.about, **ms, **(self.quality.hits if counts else {})}), counts

    def _finish(self, step: LoggedStep, taken: tuple[LoggedStep, StepOutcome, Mapping[str, Any]]) -> None:
        """Record the outcome of a step, and only then publish it."""
        step, outcome, counts = taken
        self._totals = added(self._totals, counts)
        status = "quarantined" if step.status == "quarantined" else "learned"
        self._insist(
            lambda: self.book.finish(step, status, outcome.digest, outcome.about, self._totals, step.reason)  # type: ignore[arg-type]
        )
        self._insist(lambda: self._publish(step, outcome))
        if step.kind == "forget":
            self._must_save = True
            self._fitter.cancel()  # it has read who is forgotten
        if step.kind == "events":
            self._in_a_row = [*self._in_a_row, step.last] if status == "quarantined" else []
            self._small = max(self._small - (status == "learned"), 0)

    def _publish(self, step: LoggedStep, outcome: StepOutcome) -> None:
        kind, offset = "switch" if outcome.about.get("switched") else step.kind, self.position.offset
        self.feed.publish(Published(step.number, offset, kind, outcome.digest, outcome.content, outcome.arrived))

    def _rebuild(self, number: int) -> None:
        """Be where the model was after a step: load a checkpoint and take the steps behind it again."""
        if self._saver.busy:
            self._saved(wait=True)
        saved = self.checkpoints.newest(number)
        if saved is None:
            raise CheckpointError(f"there is no checkpoint of step {number} or before in {self.checkpoints.folder}.")
        self.replay = ReplayState(saved.model, saved.position, self.log, unlearned(self.log, self.book))
        for step in self.book.after(saved.position.batch):
            if step.number > number:
                break
            self._again(step)

    def halted(self) -> bool:
        """Whether learning waits because too many batches in a row were quarantined.

        It goes on by a control `resume`, or by itself after `resume_s` with small batches and a guard that knows only
        them. Forgetting and promotions do not wait for that: up to such a control each batch is judged by itself.
        """
        most, now = self.settings.stop_after, time.monotonic()
        if not most or len(self._in_a_row) < most:
            return False
        if any(self.log.control_after(self.position.offset, kind) is not None for kind in ("forget", *PROMOTIONS)):
            return False
        self._halted_at = self._halted_at or now
        resumed = self.log.control_after(self._in_a_row[-1], "resume") is not None
        if resumed or now - self._halted_at >= self.settings.resume_s:
            self._in_a_row, self._halted_at = [], None
            if not resumed:
                self._guard, self._small = Guard(self.settings.guard), ENOUGH
                logger.warning("learning goes on by itself, in batches of a %dth of the size", _SMALLER)
            self._alarm("halted", None)
            return False
        self._alarm(
            "halted",
            f"{most} batches in a row are quarantined, so learning waits for {self.settings.resume_s:.0f} s and then "
            "goes on in small batches; look at them (GET /v1/batches), or POST /v1/resume.",
        )
        return True

    # Another model.

    def consider_fitting(self) -> None:
        """Make a model from the log where one is due: a cold start has enough events, or somebody is unlearned."""
        fitter, book = self._fitter, self.book
        fitter.consider(self.replay, self._version, self.log, book, self.extra.get(START))
        fitted = fitter.result()
        self._alarm("fit", fitter.problem)
        if fitted is None:
            return
        self.switch(*caught_up(fitted, fitter.offset, fitter.version, self.log, book, fitter.without))
        if fitter.without:
            book.state(unlearned=fitter.unlearns)
            self._begin_at(self.position)  # what is older has learned from them
        fitter.cancel()

    def switch(self, replay: ReplayState, extra: Mapping[str, Any], step: LoggedStep | None = None) -> None:
        """Go on with another model that knows all that this one does; its checkpoint is what replicas load."""
        before = self.position
        step = step or self._planned("switch", before.offset + 1, before.offset, {})
        content = state_digest(replay.model).encode()
        digest, offset = chained(before.digest, content), max(step.last, before.offset)
        replay.position = replace(replay.position, batch=step.number, offset=offset, digest=digest)
        if self._saver.busy:
            self._saved(wait=True)
        self._insist(self.book.sync)
        if step.kind in PROMOTIONS:
            self._keep_former(replay.position)
        self.checkpoints.write(replay.model, replay.position, self.log.log_id, extra)
        self.replay, self.extra, self._version = replay, extra, replay.position.version
        about = {"version": self._version, "recommender": replay.model.updater.recommender.name, "switched": True}
        outcome = StepOutcome(content, digest, about)
        self._finish(step, (step, outcome, {}))
        self.book.state(bases=json.dumps([*self.book.bases(), step.number]))
        self._guard, self._in_a_row = Guard(self.settings.guard), []
        self.quality.frozen = copy.deepcopy(replay.model).updater if self.settings.frozen else None
        self._saved_at, self._saved_offset = time.monotonic(), offset

    def _promoted(self, step: LoggedStep, until: float) -> bool:
        """Switch to a challenger's model once it was handed over as of the step before; learning waits for that.

        Where none comes in time, or a model cannot be saved, the step changes nothing, and an alarm says why.
        """
        name = str(step.about.get("challenger"))
        try:
            saved, why = handed_over(self.settings.folder, name, step.number - 1), None
        except CheckpointError as error:
            saved, why = None, str(error)
        if saved is None and why is None:
            if time.monotonic() < until:
                return False
            why = f"it handed over no model within {_HANDOVER_S:.0f} s: does it run, and has it caught up?"
        elif saved is not None:
            kinds = [(getattr(saved.model, side).kind, getattr(self.replay.model, side).kind) for side in BOOKS]
            if any(None not in both and both[0] != both[1] for both in kinds):
                saved, why = None, "its ids are of another kind than those of the model that is served"
        self._promoting = None
        if saved is not None:
            self._fitter.cancel()
            saved.model.warm_up()
            extra = {name: value for name, value in saved.extra.items() if name not in OF_CHALLENGERS}
            replay = ReplayState(saved.model, saved.position, self.log, unlearned(self.log, self.book))
            try:
                self.switch(replay, extra, step)
                logger.warning("challenger %s is served from offset %d on", name, step.last)
            except CheckpointError as error:
                why = str(error)
        self._alarm("promote", None if why is None else f"challenger {name} was not promoted: {why}")
        if why is not None:
            outcome = self.replay.perform(step)
            self._finish(step, (step, replace(outcome, about={"why": why}), {}))
        return True

    def _keep_former(self, position: Position) -> None:
        """Save the model that was served until now: it goes on learning as a challenger, for a rollback."""
        without = named(unlearned(self.log, self.book))
        extra = {**self.extra, "totals": {}, "without": without, "followed": position.digest.hex()}
        kept = replace(self.position, batch=position.batch, offset=position.offset)
        Checkpoints(home(self.settings.folder, FORMER)).write(self.replay.model, kept, self.log.log_id, extra)

    # Checkpoints.

    def save(self, *, wait: bool = False) -> None:
        """Write a checkpoint of where the model stands, beside learning or before going on."""
        if self._saver.busy:
            self._saved(wait=True)
        self._insist(self.book.sync)  # a checkpoint never knows of a step that a power cut can take
        self._saver.begin(self.replay.model, self.position, self.log.log_id, self.extra, wait=wait)
        self._saved_at, self._saved_offset, self._must_save = time.monotonic(), self.position.offset, False
        if wait:
            self._saved(wait=True)

    def _saved(self, *, wait: bool = False) -> None:
        try:
            position = self._saver.result(wait=wait)
        except CheckpointError as error:
            self._alarm("checkpoint", str(error))
            self._must_save = True
            return
        if position is None:
            return
        self._alarm("checkpoint", None)
        self._insist(lambda: self.book.thin(time.time() - self.settings.quality_s))
        if any(step.last <= position.offset for step in self._forgets()):
            # Everything older holds the forgotten user: replays begin here from now on.
            self._begin_at(position)
            self.feed.drop(up_to=position.batch)
            if self.quality.frozen is not None:
                self.quality.frozen = copy.deepcopy(self.replay.model).updater
            self._forgetting = position, time.monotonic() + _FORGET_S
            self._forgotten()
        elif self.log.wanted() > self.book.begin() and not self._fitter.busy:
            # The log is to lose events that older checkpoints would be replayed with: replays begin here.
            self._begin_at(position)
        else:
            self.checkpoints.prune(set(self.book.bases()))
        self._insist(lambda: self.book.drop_before(self.book.bases()[0], self.log.first()))

    def _forgotten(self) -> None:
        """Note that people are in no checkpoint any more, once challengers have saved past them, too."""
        if self._forgetting is None:
            return
        position, until = self._forgetting
        steps = [step for step in self._forgets() if step.last <= position.offset]
        patient = time.monotonic() < until
        if not steps or forgotten_by_challengers(self.settings.folder, steps[-1].number, patient=patient):
            self._forgetting = None
            if steps:
                self.book.state(forgotten=steps[-1].last)
                self.book.sync()

    def _begin_at(self, position: Position) -> None:
        """Have replays begin at a checkpoint, and delete older ones."""
        self.book.state(bases=json.dumps([position.batch]), begin=position.offset)
        self.book.sync()
        self.checkpoints.prune({position.batch}, before=position.batch)

    def _forgets(self) -> list[LoggedStep]:
        """Steps that forgot somebody who may still be in older checkpoints."""
        return self.book.of_kind("forget", self.book.forgotten())

    def _due(self) -> bool:
        new = self.position.offset - self._saved_offset
        late = time.monotonic() - self._saved_at >= self.settings.checkpoint_s
        return self._must_save or new >= self.settings.checkpoint_events or (new > 0 and late)

    def _idle_work(self) -> bool:
        """Whether there is something to do although nothing was posted."""
        waits = self._fitter.busy or self._promoting is not None
        return self._saver.ready or (self._due() and not self._saver.busy) or waits

    # Running.

    def run(self, stop: threading.Event, *, last_seconds: float = 10.0) -> None:
        """Go on until stopped; then take what waits, for a while, and save."""
        self._stopping = stop.is_set
        last = 0.0
        while not stop.is_set():
            wait = last + self.settings.batch_every_ms / 1000 - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            last = time.monotonic()
            self._beat()
            if not self.step():
                time.sleep(_POLL)
                end = last + _LOOK
                while not (stop.is_set() or self.log.changed() or self._idle_work() or time.monotonic() > end):
                    time.sleep(_POLL)
            self.consider_fitting()
            self._watch.look(self.position, self._totals, Promise.of(self.extra))
            self._forgotten()
            if self._saver.ready:
                self._saved()
            elif self._due() and not self._saver.busy:
                self.save()
        end = time.monotonic() + last_seconds
        while time.monotonic() < end and self.step():
            pass
        if self.position.offset > self._saved_offset or self._must_save:
            self.save(wait=True)
        elif self._saver.busy:
            self._saved(wait=True)

    def _insist(self, write: Callable[[], Any]) -> None:
        """Write, waiting for room where the disk is full."""
        until_there_is_room(self.settings.folder, write, self._stopping)


def run_learner(settings: ServeSettings, stop: threading.Event | None = None) -> None:
    """Learn until `stop` is set (default: until the process is asked to end): then learn what waits and save.

    Waits for the process that writes the log to make it.
    """
    from melon.kernels.threads import using_threads

    stop = stop or until_signalled()
    _await(place_of(settings), stop)
    if stop.is_set():
        return
    with using_threads(settings.threads):
        while not stop.is_set():
            try:
                _learn_in_turn(settings, stop)
            except (HeldError, StorageError) as problem:
                if place_of(settings).url is None:
                    raise
                logger.warning("learning ends, and waits for its turn: %s", problem)
                stop.wait(0.5)


def _learn_in_turn(settings: ServeSettings, stop: threading.Event) -> None:
    """Wait for the right to learn, and learn until the process is stopped or the right or the database is lost."""
    with Standby(settings) as standby:
        standby.wait(stop)
        if stop.is_set():
            standby.held.close()
            return
        learner = Learner(settings, standby)
    with learner:
        began.set()
        logger.info("learning from batch %d, offset %d", learner.position.batch, learner.position.offset)
        learner.run(stop)


class Standby(Closing):
    """A learner that waits for its turn: it takes the steps that another has recorded, so that it can go on at once.

    Where the log is in a folder, its turn is now. What it holds goes to the learner that is made of it.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._settings, self._place = settings, place_of(settings)
        self.held = Held(settings.folder, "learner")
        self.lease: Lease | None = None
        self._replay: ReplayState | None = None
        self._saved: SavedModel | None = None
        self._log: LogReader | None = None

    @property
    def saved(self) -> SavedModel | None:
        """The model as far as it has come, if it has begun."""
        if self._saved is None or self._replay is None:
            return None
        return replace(self._saved, model=self._replay.model, position=self._replay.position)

    def wait(self, stop: threading.Event) -> None:
        """Wait for the right to learn, and follow who has it."""
        while self._place.url is not None and not stop.is_set():
            self.held.beat()
            try:
                self.lease = self._place.lease("learner")
            except HeldError as held:
                if self._log is None:
                    logger.info("%s This one stands by.", held)
                    self._log = LogReader(self._place)
                self._follow(self._log)
                stop.wait(_STAND_BY)
            except StorageError as problem:
                logger.warning("%s", problem)
                stop.wait(1.0)
            else:
                return

    def _follow(self, log: LogReader) -> None:
        try:
            with StepReader(self._place) as steps:
                if self._replay is None:
                    self._saved = Checkpoints(self._place).newest()
                    if self._saved is None:
                        return
                    self._saved.model.warm_up()
                    self._replay = ReplayState(self._saved.model, self._saved.position, log, unlearned(log, steps))
                for step, outcome in self._replay.follow(steps):
                    if step.kind == "switch" or outcome.digest != step.digest:
                        self._replay = None  # the next checkpoint leads past it
                        return
        except MelonError as problem:
            logger.info("standing by: %s", problem)
            self._replay = None

    def close(self) -> None:
        """Close what it reads; what the learner has taken stays open."""
        if self._log is not None:
            self._log.close()


def _await(place: Place, stop: threading.Event) -> None:
    """Wait until there is a log: the process that takes events makes it."""
    warn = time.monotonic() + 5.0
    while not stop.is_set():
        try:
            with Reader(place, EVENTS) as reader:
                if reader.has("meta"):
                    return
        except LogError:
            if time.monotonic() > warn:
                logger.info("waiting for a log in %s; the process that takes events makes it", place)
                warn += 60.0
        stop.wait(0.05)
