"""Metrics of an API process by Prometheus' conventions: counters and histograms, any window can be made from them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from melon.service.log.base import Appended, Position

disable_created_metrics()  # type: ignore[no-untyped-call]
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_SLOW = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0, 15.0, 60.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServiceMetrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.events = Counter("melon_events", "Events posted, by what became of them.", ["outcome"], registry=registry)
        self.model_offset = Gauge(
            "melon_model_offset",
            "The last offset that the model knows.",
            ["process"],
            registry=registry,
        )
        self.lag = Gauge("melon_lag_events", "Offsets that are synced and not yet in this model.", registry=registry)
        self.freshness = Histogram(
            "melon_freshness_seconds", "From acknowledged to known here.", buckets=_SLOW, registry=registry
        )
        self.commit_seconds = Histogram(
            "melon_commit_seconds", "From posted to synced.", buckets=_FAST, registry=registry
        )
        self.commit_events = Histogram("melon_commit_events", "Events in a post.", buckets=_SIZES, registry=registry)
        self.request_seconds = Histogram(
            "melon_request_seconds",
            "Requests by route and status.",
            ["route", "code"],
            buckets=_FAST,
            registry=registry,
        )
        self.score_seconds = Histogram(
            "melon_score_seconds", "Scoring of what waited together.", buckets=_FAST, registry=registry
        )
        self.coalesced = Histogram(
            "melon_coalesced_users", "Lists that were made together.", buckets=_SIZES, registry=registry
        )
        self.sources = Counter("melon_source", "Lists, by what they were made from.", ["source"], registry=registry)
        self.batch_events = Histogram("melon_batch_events", "Events in a batch.", buckets=_SIZES, registry=registry)
        self.refused = Counter("melon_refused", "Requests refused, by code.", ["code"], registry=registry)
        self.watched = Watched()
        registry.register(self.watched)
        ProcessCollector(registry=registry)

    def committed(self, appended: Appended, seconds: float) -> None:
        outcomes = {
            "accepted": appended.accepted,
            "duplicate": appended.duplicates,
            "conflicting": appended.conflicting,
        }
        for outcome, count in outcomes.items():
            if count:
                self.events.labels(outcome).inc(count)
        self.commit_seconds.observe(seconds)
        self.commit_events.observe(sum(outcomes.values()))

    def scored(self, users: int, seconds: float) -> None:
        self.score_seconds.observe(seconds)
        self.coalesced.observe(users)

    def applied(self, position: Position, ages: list[float], log_offset: int) -> None:
        for age in ages:
            self.freshness.observe(age)
        self.model_offset.labels("api").set(position.offset)
        self.lag.set(max(log_offset - position.offset, 0))
        if ages:
            self.batch_events.observe(len(ages))

    def text(self, families: Mapping[str, MetricFamily]) -> bytes:
        """All metrics in Prometheus' text format, with values that were just read."""
        self.watched.families = families
        return generate_latest(self.registry)


#: About a metric, the names of its labels, and a value for each set of labels.
MetricFamily = tuple[str, tuple[str, ...], list[tuple[tuple[object, ...], float]]]


class Watched(Collector):
    """Values that are read when somebody asks: counters of the learner, rows, disk."""

    def __init__(self) -> None:
        self.families: Mapping[str, MetricFamily] = {}

    def collect(self) -> Iterator[Metric]:
        for name, (about, labels, samples) in self.families.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name.removesuffix("_total"), about, labels=labels)
            for values, number in samples:
                family.add_metric([str(one) for one in values], number)
            yield family


def disk_free(folder: Path) -> int:
    """Bytes that are free where the log is."""
    return shutil.disk_usage(folder if folder.exists() else os.curdir).free
