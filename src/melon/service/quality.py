"""Quality of a window as people read it: hit rates with intervals, for the served model and its rivals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from melon.service.learner.quality import MODELS, PARTS, added, between, difference, shares
from melon.service.log.base import LoggedStep
from melon.service.metrics import MetricFamily

_LABELS = ("model", "part", "k")
_Z = 1.96


def quality_between(first: LoggedStep | None, last: LoggedStep | None) -> dict[str, Any]:
    """Hit rates and gains of every model between two steps, on the same events."""
    counts = {} if last is None else between(last.totals, {} if first is None else first.totals)
    events = max(counts.get("events", 0), 1)
    full, ranked = counts.get("full", {}), sum(part["ranked"] for part in counts.get("served", {}).values())
    return {
        "models": {name: _told(counts[name]) for name in MODELS if name in counts},
        "full_rank": {"sampled": round(full.get("ranked", 0) / max(ranked, 1), 5), **_shares(full)},
        "events": counts.get("events", 0),
        "cold_events": round(counts.get("cold", 0) / events, 4),
        "unranked": counts.get("unranked", 0),
    }


def quality_counters(last: LoggedStep | None) -> dict[str, MetricFamily]:
    """The counters themselves, for Prometheus."""
    totals = {} if last is None else last.totals
    families: dict[str, MetricFamily] = {
        "melon_ranked_total": ("Events ranked before they were learned.", _LABELS[:2], []),
        "melon_hits_total": ("Events ranked among the first k.", _LABELS, []),
        "melon_gain_total": ("Discounted gains of events among the first k.", _LABELS, []),
        "melon_cold_total": ("Events on items that were not born yet.", (), [((), totals.get("cold", 0))]),
    }
    for model in MODELS:
        for part in PARTS:
            for name, value in totals.get(model, {}).get(part, {}).items():
                kind, _, cut = name.partition("@")
                if kind in ("won", "lost"):
                    continue
                labels = (model, part, cut) if cut else (model, part)
                families[f"melon_{kind}_total"][2].append((labels, value))
    return families


def _told(parts: Mapping[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for counts in parts.values():
        whole = added(whole, counts)
    return {**_shares(whole), "parts": {name: _shares(counts) for name, counts in parts.items()}}


def _shares(counts: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {name: round(value, 5) for name, value in shares(counts).items()}
    answer["ranked"] = counts.get("ranked", 0)
    if "HR@10" in answer:
        answer["interval"] = wilson(counts["hits@10"], counts["ranked"])
    if "won@10" in counts and (ahead := difference(counts)) is not None:
        answer["served_ahead"] = {"HR@10": round(ahead[0], 5), "interval": [round(end, 5) for end in ahead[1:]]}
    return answer


def wilson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, square = hits / of, _Z * _Z
    centre, spread = share + square / (2 * of), _Z * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return round((centre - spread) / (1 + square / of), 5), round((centre + spread) / (1 + square / of), 5)
