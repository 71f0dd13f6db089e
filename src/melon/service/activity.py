"""What an API process did over the last day: its counters, sampled, from which rates and quantiles are made."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Histogram

from melon.service.backend import Backend
from melon.service.log.base import Position, Published

#: Seconds between two samples, and how many are kept: a day.
SAMPLE_S, _KEPT = 5.0, 17_280
#: Batches whose way from arrival to served is remembered.
_BATCHES = 200


@dataclass(frozen=True, slots=True)
class Sample:
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
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self.batches: deque[AppliedBatch] = deque(maxlen=_BATCHES)
        self.list_bounds = _bounds(backend.metrics.request_seconds.labels("/v1/recommendations/{user}", "200"))
        self.freshness_bounds = _bounds(backend.metrics.freshness)
        backend.replica.when_applied(self._applied)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take a sample every few seconds."""

        async def go_on() -> None:
            while True:
                self.sample(time.time())
                await asyncio.sleep(SAMPLE_S)

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            task.cancel()

    def sample(self, now: float) -> Sample:
        """Read the counters."""
        metrics, replica = self._backend.metrics, self._backend.replica
        known = replica.position.offset if replica.ready else 0
        sample = Sample(
            now,
            sum(_counts(metrics.events, "melon_events_total").values()),
            sum(_counts(metrics.sources, "melon_source_total").values()),
            _buckets(metrics.request_seconds, "melon_request_seconds_bucket", self.list_bounds, "/v1/recommendations"),
            _buckets(metrics.freshness, "melon_freshness_seconds_bucket", self.freshness_bounds),
            max(self._backend.log.offset - known, 0),
        )
        self._samples.append(sample)
        return sample

    def at(self, moments: Sequence[float]) -> list[Sample | None]:
        """The last sample by each moment (in order of time); None where there was none yet."""
        samples = list(self._samples)
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


def _bounds(histogram: Histogram) -> tuple[float, ...]:
    bounds = [
        float(sample.labels["le"])
        for metric in histogram.collect()
        for sample in metric.samples
        if sample.name.endswith("_bucket")
    ]
    return tuple(bound for bound in bounds if bound != float("inf"))


def _counts(metric: Any, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in metric.collect()
        for sample in family.samples
        if sample.name == name
    }


def _buckets(metric: Any, name: str, bounds: Sequence[float], route: str = "") -> tuple[float, ...]:
    """Cumulative counts by bound, over all labels; the last one counts everything."""
    totals = dict.fromkeys([*bounds, float("inf")], 0.0)
    for family in metric.collect():
        for sample in family.samples:
            if sample.name == name and sample.labels.get("route", "").startswith(route):
                totals[float(sample.labels["le"])] += sample.value
    return tuple(totals.values())
