"""Pieces of a record: metrics with and without repeats, timings, and the curve batch by batch."""

from __future__ import annotations

import numpy as np

from melon.evaluation.prequential import Point, Tally
from melon.evaluation.ranking import metrics
from melon.types import Flags, Floats, Plain

WARM_UP_BATCHES = 10


def summary(tally: Tally, repeats: Flags, *, full: bool, keyed: bool = False) -> Plain:
    """Metrics with and without repeats, and over the whole catalogue; `keyed` gives the record's own layout."""
    without = metrics(tally.rank[~repeats])
    everything: Floats | None = tally.full_rank
    ranked = metrics(everything) if full and everything is not None else None
    if keyed:
        return {"metrics": metrics(tally.rank), "without_repeats": without, "full_ranking": ranked}
    return {**metrics(tally.rank), "without_repeats": without, "full_ranking": ranked}


def step_size(ours: Tally, default: Tally) -> Plain:
    """How far a batch moved the rows it touched (mean ‖Δ‖), and how that compares with the tuned Default."""
    moved, plain = (
        float(np.mean([p.moved for p in tally.points])) if tally.points else 0.0 for tally in (ours, default)
    )
    return {"moved": moved, "default": plain, "relative": moved / plain if plain else None}


def timing(milliseconds: list[float]) -> Plain:
    """Median, mean and 95th percentile, after the first batches have warmed the machine up."""
    taken = milliseconds[WARM_UP_BATCHES:] if len(milliseconds) > 2 * WARM_UP_BATCHES else milliseconds
    if not taken:
        return {}
    return {
        "median": float(np.median(taken)),
        "mean": float(np.mean(taken)),
        "p95": float(np.percentile(taken, 95)),
        "batches": len(taken),
    }


def batch_record(number: int, point: Point) -> Plain:
    """One line of the curve."""
    found = metrics(point.ranks.rank)
    n = point.stop - point.start
    mean_loss = point.loss / max(len(point.ranks), 1)
    return {
        "t": number,
        "n": n,
        "HR@5": found.get("HR@5"),
        "NDCG@10": found.get("NDCG@10"),
        "loss": mean_loss,
        "update_ms": point.update_ms,
    }
