"""What an API process did over the last week: its counters, sampled, from which rates and quantiles are made."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from melon.service.backend import Backend
from melon.service.log.base import Position, Published
from melon.service.metrics import FRESHNESS_BOUNDS, LATENCY_BOUNDS, buckets, counted

#: Seconds between two samples. Those of the last two hours are kept, and one in sixty of the last week.
SAMPLE_S, _RECENT, _EACH, _WEEK = 5.0, 1_440, 60, 2_016
#: Batches whose way from arrival to served is remembered.
_BATCHES = 200


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """Counters at one moment. A histogram is a tuple of cumulative counts, one for each bound."""

    time: float
    posted: float
    lists: float
    list_seconds: tuple[float, ...]
    freshness: tuple[float, ...]
    lag: int


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """When a batch was known to this process, and when its events had arrived on average."""

    number: int
    arrived: float
    applied: float


class Activity:
    """Samples of one process. `running` takes them; before the first one there is nothing to tell."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._recent: deque[ActivitySample] = deque(maxlen=_RECENT)
        self._older: deque[ActivitySample] = deque(maxlen=_WEEK)
        self.batches: deque[AppliedBatch] = deque(maxlen=_BATCHES)
        backend.replica.when_applied(self._applied)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take a sample every few seconds."""

        async def go_on() -> None:
            for number in itertools.count():
                self.keep(self.sample(time.time()), older=number % _EACH == 0)
                await asyncio.sleep(SAMPLE_S)

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            task.cancel()

    def sample(self, now: float) -> ActivitySample:
        """Read the counters."""
        metrics, replica = self._backend.metrics, self._backend.replica
        known = replica.position.offset if replica.ready else 0
        return ActivitySample(
            now,
            counted(metrics.events),
            counted(metrics.sources),
            buckets(metrics.request_seconds, LATENCY_BOUNDS, route="/v1/recommendations"),
            buckets(metrics.freshness, FRESHNESS_BOUNDS),
            max(self._backend.log.offset - known, 0),
        )

    def keep(self, sample: ActivitySample, *, older: bool) -> None:
        """Remember a sample; where `older` is set, for a week."""
        self._recent.append(sample)
        if older:
            self._older.append(sample)

    def at(self, moments: Sequence[float], newest: ActivitySample) -> list[ActivitySample | None]:
        """The last sample by each moment (in order of time); None where there was none yet."""
        recent = [*self._recent, newest]
        samples = [*(one for one in self._older if one.time < recent[0].time), *recent]
        times = [sample.time for sample in samples]
        places = [bisect.bisect_right(times, moment) - 1 for moment in moments]
        return [samples[place] if place >= 0 else None for place in places]

    def _applied(self, published: Published, position: Position) -> None:
        """Called in the replica's thread after each delta."""
        if published.arrived:
            arrived = sum(published.arrived) / len(published.arrived)
            self.batches.append(AppliedBatch(position.batch, arrived, time.time()))


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """A quantile of a histogram with cumulative counts, linear within a bucket; None where nothing was counted."""
    total = counts[-1] if counts else 0
    if total <= 0:
        return None
    place = next(n for n, count in enumerate(counts) if count >= share * total)
    if place >= len(bounds):
        return bounds[-1]  # beyond the last bound: at least that
    below, low = (counts[place - 1], bounds[place - 1]) if place else (0.0, 0.0)
    return low + (bounds[place] - low) * (share * total - below) / max(counts[place] - below, 1e-9)


def more(later: Sequence[float], earlier: Sequence[float] | None) -> list[float]:
    """What a histogram counted between two samples."""
    return [one - (earlier[n] if earlier else 0.0) for n, one in enumerate(later)]


def apart(cumulative: Sequence[float]) -> list[float]:
    """The count of each bucket alone."""
    return [later - earlier for earlier, later in itertools.pairwise([0.0, *cumulative])]
