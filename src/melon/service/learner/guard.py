"""What is watched while learning goes on: how far batches move rows, lag and quality; alarms for operators."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from melon.learning.updater import Updater
from melon.service.config import ServeSettings
from melon.service.learner.quality import SAMPLED, TRACKS, added, between, difference, mean_interval
from melon.service.log.base import LoggedStep, LogId, Position, StoredEvent
from melon.service.log.events import LogReader
from melon.service.log.steps import StepBook
from melon.types import AnyArray

logger = logging.getLogger("melon.service")

#: The median is that of the last batches, this many, once there are enough of them.
REMEMBERED, ENOUGH = 101, 20
#: What is compared, by its name in a step's `about`.
MEASURED = {
    "moved": "the distance by which it moved rows",
    "head": "the norm of the shared parameters after it",
    "memory": "the norm of the meta-parameters after it",
}


class Guard:
    """Compares how far a batch moved rows, and the size of head and meta-parameters after it, with running medians."""

    def __init__(self, times: float, past: Iterable[Mapping[str, Any]] = ()) -> None:
        self._times = times
        self._usual: dict[str, deque[float]] = {name: deque(maxlen=REMEMBERED) for name in MEASURED}
        for about in past:
            self._remember(about)

    def judge(self, about: Mapping[str, Any]) -> str | None:
        """Why a batch should be quarantined; None, and it is remembered, where nothing speaks against it."""
        for name, what in MEASURED.items():
            value, known = about.get(name), self._usual[name]
            if value is None or not self._times or len(known) < ENOUGH or not (usual := median(known)) > 0:
                continue
            if not value <= self._times * usual:
                return f"{what} is {value:.4g}, more than {self._times:g} times the usual {usual:.4g}"
        self._remember(about)
        return None

    def _remember(self, about: Mapping[str, Any]) -> None:
        for name, known in self._usual.items():
            if about.get(name) is not None:
                known.append(about[name])


def norms(updater: Updater) -> dict[str, float | None]:
    """How large the recommender's shared parameters and the strategy's meta-parameters are."""
    tables = updater.recommender.tables.values()
    shared = [table.everything() for table in tables if table.spec.role == "shared"]
    memory = [one for one in updater.strategy.memory().values() if np.issubdtype(one.dtype, np.floating)]
    return {"head": _norm(shared), "memory": _norm(memory)}


def _norm(arrays: Sequence[AnyArray]) -> float | None:
    return math.sqrt(sum(float(np.square(one, dtype=np.float64).sum()) for one in arrays)) if arrays else None


#: What to do about an alarm, by its name.
REMEDIES = {
    "kernels": "Wait a minute or two: kernels are compiled once per machine, and no event is lost meanwhile.",
    "replay": "Nothing now. Keep the versions of torch, numba and melon, and the threads, the same between two starts.",
    "quarantined": "Look at its events (GET /v1/batches). Retry it when the cause is removed, or leave it.",
    "halted": "Look at the quarantined batches and what was posted, then resume learning (POST /v1/resume), or wait.",
    "fit": "Read the fit's message in the service's log. The served model stays, and the fit is repeated.",
    "promote": "See whether the challenger runs and has caught up (GET /v1/status), then promote it again.",
    "checkpoint": "Make room on the disk and check the folder's rights; `melon doctor --data FOLDER` says more.",
    "lag": "If it shrinks, wait. If it grows, give the learner a core of its own or post more events in one request.",
    "promise": "See what changed in the traffic since the model was fitted; fit it again, or promote a challenger.",
    "unknown": "Check what is posted: a new catalogue, ids in another form, robots? New ids are learned as they come.",
    "quality popular": "Find out what changed in the traffic; then fit a new model on the log and deploy it.",
    "quality frozen": "Learning makes it worse: deploy with a smaller learning rate, or fit a new model on the log.",
    "learner": "The supervisor restarts it; if it does not, the service's log says why it ended.",
    "log": "Do what the text says (room on the disk, files put back); posts are refused until then; lists go on.",
    "clock": "Look at the machine's time service (timedatectl). Nothing expires or is stamped ahead meanwhile.",
    "erasure": "Make room on the disk: the log is rewritten once, and needs its own size for that.",
    "damage": "Stop the service and restore a backup: melon restore BACKUP FOLDER --replace.",
    "load": "Read the text. The next checkpoint is tried then; `melon log verify FOLDER` names what is damaged.",
    "api kernels": "Wait a minute or two: lists are of popular items until kernels are compiled, once per machine.",
    "api lag": "See whether the learner runs and catches up (the alarms `learner` and `lag`).",
}


class Alarms:
    """What operators should know now, by name; `write` is given name and text of each whenever they change."""

    def __init__(self, write: Callable[[dict[str, str]], None]) -> None:
        self._write = write
        self._texts: dict[str, str] = {}

    def __call__(self, name: str, text: str | None) -> None:
        """Say something, or that it is over."""
        if self._texts.get(name) == text:
            return
        self._texts.pop(name, None)
        if text is not None:
            self._texts[name] = text
            logger.warning("%s", text)
        self._write(dict(self._texts))


def cut(events: Sequence[StoredEvent], user_most: int) -> int:
    """The offset at which a batch ends: of the last event, or before a user has more than `user_most` events in it.

    A batch in which one user stands again and again would move that user's row, and the guard, by a long way.
    """
    counts = Counter[LogId]()
    for before, event in zip((None, *events), events, strict=False):
        counts[event.user] += 1
        if before is not None and counts[event.user] > user_most:
            return before.offset
    return events[-1].offset


def quarantined_in_a_row(newest: list[LoggedStep]) -> list[int]:
    """Where the batches end that were quarantined since the last one that was learned, from the newest steps."""
    batches = [step for step in newest if step.kind == "events"]
    return [step.last for step in itertools.takewhile(lambda step: step.status == "quarantined", batches)][::-1]


SIMPLE_BASELINES = {"popular": "recent popularity", "frozen": "the model as it was deployed"}
#: Seconds between two looks at quality.
_JUDGED_S = 60.0


#: Unknown ids are compared with those of this many seconds before; so many times as many, and standard errors more.
_DAY_S, _JUMP, _JUMP_Z = 86_400.0, 2.0, 4.0
#: An alarm is raised where live quality is surely below this share of what the selection window had.
_KEPT = 0.9


class Promise(NamedTuple):
    """The score with which a model's settings were chosen, on its selection window; how depends on the model.

    `by_lists`: NDCG@10 of whole lists, the mean of those of all items and of first-time pairs. Otherwise HR@5 + NDCG@10
    among 99 other items.
    """

    score: float
    by_lists: bool

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Promise | None:
        """What came with a model; None where nothing was chosen."""
        about = extra.get("estimator") or {}
        score = about.get("window_score")
        return cls(score, about.get("strategy") == "auto") if isinstance(score, float) else None

    def broken(self, counts: Mapping[str, Any], least: int) -> str | None:
        """Whether live quality is surely lower, in words."""
        parts: Mapping[str, Any] = {}
        for one in counts.get("served", {}).values():
            parts = added(parts, one)
        lists = [counts.get("lists", {}).get(track, {}).get("served", {}) for track in TRACKS]
        measured = [(one, "NDCG@10", 0.5) for one in lists] if self.by_lists else []
        measured = measured or [(parts, "HR@5", 1.0), (parts, "NDCG@10", 1.0)]
        ends = [mean_interval(one, name) for one, name, _ in measured]
        ranked = min(one.get("ranked", 0) for one, _, _ in measured)
        if None in ends or ranked < (least // SAMPLED if self.by_lists else least):
            return None
        most = sum(weight * end[1] for end, (_, _, weight) in zip(ends, measured, strict=True) if end is not None)
        if most >= _KEPT * self.score:
            return None
        what = "NDCG@10 of whole lists" if self.by_lists else "HR@5 + NDCG@10"
        return f"{what} is at most {most:.3f} on {ranked} events; the selection window had {self.score:.3f}"


def unknown_ids(now: Mapping[str, Any], before: Mapping[str, Any], least: int) -> str | None:
    """Whether the share of events with an id that nobody knew has jumped, in words."""
    n, m = now.get("events", 0), before.get("events", 0)
    for name, what in (("cold", "items"), ("newcomers", "users")):
        one, other = now.get(name, 0), before.get(name, 0)
        if min(n, m) < least or one / n <= _JUMP * other / m:
            continue
        share = (one + other) / (n + m)
        if one / n - other / m > _JUMP_Z * math.sqrt(share * (1 - share) * (1 / n + 1 / m)):
            return f"{100 * one / n:.1f} % of the last events have unknown {what}; before, {100 * other / m:.1f} %"
    return None


class Watch:
    """Looks at lag and quality, and raises alarms."""

    def __init__(
        self,
        settings: ServeSettings,
        log: LogReader,
        book: StepBook,
        alarm: Alarms,
    ) -> None:
        self._settings, self._log, self._book, self._alarm = settings, log, book, alarm
        self._looked = self._judged = 0.0

    def look(self, position: Position, totals: Mapping[str, Any], promise: Promise | None = None) -> None:
        """Once a second: say so where the learner is too far behind; once a minute, where a baseline is better."""
        now = time.monotonic()
        if now < self._looked + 1.0:
            return
        self._looked, lag = now, self._log.last()[0] - position.offset
        late = f"the learner is {lag} entries of the log behind; answers lag until it has caught up"
        self._alarm("lag", late if lag > self._settings.max_lag else None)
        if now >= self._judged + _JUDGED_S:
            self._judged = now
            self.quality(totals, promise)

    def quality(self, totals: Mapping[str, Any], promise: Promise | None = None) -> None:
        """Say so where the served model, on the events of the last hour, is worse than a baseline or than it was when
        its settings were chosen, or where many more ids are unknown than on the day before.
        """
        now, given = time.time(), self._settings
        before, earlier = (self._book.since(now - back) for back in (given.quality_s, given.quality_s + _DAY_S))
        counts = between(totals, before.totals if before else {})
        past = between(before.totals, earlier.totals if earlier else {}) if before else {}
        self._alarm("promise", None if promise is None else promise.broken(counts, given.quality_events))
        self._alarm("unknown", unknown_ids(counts, past, given.quality_events))
        for baseline, what in SIMPLE_BASELINES.items():
            organic, text = counts.get(baseline, {}).get("organic", {}), None
            ahead = difference(organic) if organic.get("ranked", 0) >= self._settings.quality_events else None
            if ahead is not None and ahead[2] < 0:
                mean, low, high = ahead
                text = (
                    f"the served model is worse than {what}: HR@10 {mean:+.3f} ({low:+.3f} to {high:+.3f}) on "
                    f"{organic['ranked']} organic events; look at GET /v1/quality"
                )
            self._alarm(f"quality {baseline}", text)
