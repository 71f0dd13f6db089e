"""What is looked at while learning goes on: lag, loss, and whether a rival is better than the served model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from melon.service.learner.guard import Alarms
from melon.service.learner.quality import between, difference
from melon.service.learner.settings import LearnerSettings
from melon.service.log.base import Position
from melon.service.log.reader import LogReader
from melon.service.log.steps import StepBook

RIVALS = {"popular": "recent popularity", "frozen": "the model as it was deployed"}
#: Seconds between two looks at quality; decisions to fall back that are remembered.
_JUDGED_S, _DECISIONS = 60.0, 100

#: HR@10 of the served model less a rival's, and the two ends of its 95 % interval.
Ahead = tuple[float, float, float]


class Watch:
    """Looks at lag, loss and quality, and raises alarms. `insist` writes, waiting for room where the disk is full.

    With `fallback`, lists come from a rival that is better than the served model. Which, and from which step on, is
    recorded before that step is published, so an answer still follows from its batch number.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        log: LogReader,
        book: StepBook,
        alarm: Alarms,
        insist: Callable[[Callable[[], Any]], None],
    ) -> None:
        self._settings, self._log, self._book, self._alarm, self._insist = settings, log, book, alarm, insist
        self._looked = self._judged = 0.0
        self._rising = 0

    def loss(self, *, rose: bool | None) -> None:
        """Say so where learning made the loss of its own events higher three times running."""
        if rose is None:
            return
        self._rising = self._rising + 1 if rose else 0
        text = (
            "three times running, events have a higher loss after they were learned than before: a step (lr) too large?"
        )
        self._alarm("loss", text if self._rising >= 3 else None)

    def look(self, position: Position, totals: Mapping[str, Any]) -> None:
        """Once a second: say so where the learner is too far behind; once a minute, where a rival is better."""
        now = time.monotonic()
        if now < self._looked + 1.0:
            return
        self._looked, lag = now, self._log.last()[0] - position.offset
        late = f"the learner is {lag} entries of the log behind; answers lag until it has caught up"
        self._alarm("lag", late if lag > self._settings.max_lag else None)
        if now >= self._judged + _JUDGED_S:
            self._judged = now
            self.quality(totals, position.batch)

    def quality(self, totals: Mapping[str, Any], batch: int) -> None:
        """Say so where a rival is better than the served model on the organic events of the last hour."""
        before = self._book.since(time.time() - self._settings.quality_seconds)
        counts, known = between(totals, before.totals if before else {}), dict[str, Ahead]()
        for rival, what in RIVALS.items():
            organic, text = counts.get(rival, {}).get("organic", {}), None
            ahead = difference(organic) if organic.get("ranked", 0) >= self._settings.quality_events else None
            if ahead is not None:
                known[rival] = ahead
            if ahead is not None and ahead[2] < 0:
                mean, low, high = ahead
                text = (
                    f"the served model is worse than {what}: HR@10 {mean:+.3f} ({low:+.3f} to {high:+.3f}) on "
                    f"{organic['ranked']} organic events; look at GET /v1/quality"
                )
            self._alarm(f"quality {rival}", text)
        if self._settings.fallback:
            self.fall_back(fallback_to(self.fallback, known), batch)

    @property
    def fallback(self) -> str | None:
        """The rival that lists come from now."""
        decisions = self._book.fallbacks()
        return decisions[-1][1] if decisions else None

    def fall_back(self, rival: str | None, batch: int) -> None:
        """Have lists come from a rival from the step behind `batch` on; None: from the served model."""
        if rival != self.fallback:
            decisions = [*self._book.fallbacks(), (batch + 1, rival)][-_DECISIONS:]
            self._insist(lambda: self._book.state(fallbacks=json.dumps(decisions)))
        text = None if rival is None else f"lists come from {RIVALS[rival]} until the served model is better again"
        self._alarm("fallback", text)


def fallback_to(now: str | None, ahead: Mapping[str, Ahead]) -> str | None:
    """The rival to serve from, given the one that is served from now and how far the model is ahead of each.

    A rival is taken where the whole interval is below zero (the better one of two), and left where the interval has
    turned: it is above zero. In between, or where too few events were ranked, nothing changes.
    """
    better = {rival: mean for rival, (mean, _, high) in ahead.items() if high < 0}
    if better:
        return min(better, key=lambda rival: better[rival])
    turned = now is not None and now in ahead and ahead[now][1] > 0
    return None if turned else now
