"""What a service tells of itself: metrics by Prometheus' conventions, and the quality of a window with intervals."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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

from melon.evaluation.ranking import METRICS
from melon.service.learner.quality import (
    MODELS,
    PARTS,
    TRACKS,
    added,
    between,
    difference,
    mean_interval,
    shares,
)
from melon.service.log.base import Appended, LoggedStep, Position

disable_created_metrics()  # type: ignore[no-untyped-call]
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
FRESHNESS_BOUNDS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0, 15.0, 60.0)


class ServiceMetrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self, tenant: str = "") -> None:
        registry = self.registry = _LabelledRegistry(tenant)
        self.events = Counter("melon_events", "Events posted, by what became of them.", ["outcome"], registry=registry)
        self.lag = Gauge("melon_lag_events", "Offsets that are synced and not yet in this model.", registry=registry)
        self.freshness = Histogram(
            "melon_freshness_seconds", "From acknowledged to known here.", buckets=FRESHNESS_BOUNDS, registry=registry
        )
        self.commit_seconds = Histogram(
            "melon_commit_seconds", "From posted to synced.", buckets=LATENCY_BOUNDS, registry=registry
        )
        self.request_seconds = Histogram(
            "melon_request_seconds",
            "Requests by route and status.",
            ["route", "code"],
            buckets=LATENCY_BOUNDS,
            registry=registry,
        )
        self.sources = Counter("melon_source", "Lists, by what they were made from.", ["source"], registry=registry)
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

    def applied(self, position: Position, ages: list[float], log_offset: int) -> None:
        for age in ages:
            self.freshness.observe(age)
        self.lag.set(max(log_offset - position.offset, 0))

    def text(self, families: Mapping[str, MetricFamily]) -> bytes:
        """All metrics in Prometheus' text format, with values that were just read."""
        self.watched.families = families
        return generate_latest(self.registry)


class _LabelledRegistry(CollectorRegistry):
    """Metrics with the name of the tenant whose they are, if there are tenants."""

    def __init__(self, tenant: str) -> None:
        super().__init__()
        self._tenant = tenant

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            if self._tenant:
                family.samples = [one._replace(labels={**one.labels, "tenant": self._tenant}) for one in family.samples]
            yield family


def counted(counter: Counter) -> float:
    """A counter, summed over its labels."""
    return sum(sample.value for family in counter.collect() for sample in family.samples)


def buckets(histogram: Histogram, bounds: Sequence[float], *, route: str = "") -> tuple[float, ...]:
    """Cumulative counts of a histogram by bound, over all labels (or routes that begin so); the last is everything."""
    totals = dict.fromkeys([*bounds, math.inf], 0.0)
    for sample in (sample for family in histogram.collect() for sample in family.samples):
        if sample.name.endswith("_bucket") and sample.labels.get("route", "").startswith(route):
            totals[float(sample.labels["le"])] += sample.value
    return tuple(totals.values())


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


_LABELS = ("model", "part", "metric")


def quality_between(first: LoggedStep | None, last: LoggedStep | None) -> dict[str, Any]:
    """Hit rates and gains of every model between two steps, on the same events."""
    counts = {} if last is None else between(last.totals, {} if first is None else first.totals)
    events = max(counts.get("events", 0), 1)
    lists, ranked = counts.get("lists", {}), sum(part["ranked"] for part in counts.get("served", {}).values())
    sampled = lists.get("all", {}).get("served", {}).get("ranked", 0)
    return {
        "models": {name: told(counts[name]) for name in MODELS if name in counts},
        "lists": {
            "sampled": round(sampled / max(ranked, 1), 5),
            **{track: {name: _shares(one) for name, one in lists.get(track, {}).items()} for track in TRACKS},
        },
        "events": counts.get("events", 0),
        "cold_events": round(counts.get("cold", 0) / events, 4),
        "unranked": counts.get("unranked", 0),
    }


def quality_counters(last: LoggedStep | None) -> dict[str, MetricFamily]:
    """The counters themselves, for Prometheus."""
    totals = {} if last is None else last.totals
    families: dict[str, MetricFamily] = {
        "melon_ranked_total": ("Events ranked before they were learned.", _LABELS[:2], []),
        "melon_quality_total": ("Sum of a metric over ranked events; divide it by melon_ranked_total.", _LABELS, []),
    }
    for model in MODELS:
        for part in PARTS:
            for name, value in totals.get(model, {}).get(part, {}).items():
                if name == "ranked":
                    families["melon_ranked_total"][2].append(((model, part), value))
                elif name in METRICS:
                    families["melon_quality_total"][2].append(((model, part, name), value))
    return families


def told(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of one model from its counters by part, and of each part."""
    whole: dict[str, Any] = {}
    for name in PARTS:
        whole = added(whole, parts.get(name, {}))
    return {**_shares(whole), "parts": {name: _shares(parts[name]) for name in PARTS if name in parts}}


def _shares(counts: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {name: round(value, 5) for name, value in shares(counts).items()}
    answer["ranked"] = counts.get("ranked", 0)
    for name, key in (("HR@10", "interval"), ("NDCG@10", "ndcg_interval")):
        if name in answer and (ends := mean_interval(counts, name)) is not None:
            answer[key] = [round(end, 5) for end in ends]
    if "won@10" in counts and (ahead := difference(counts)) is not None:
        answer["served_ahead"] = {"HR@10": round(ahead[0], 5), "interval": [round(end, 5) for end in ahead[1:]]}
    return answer
