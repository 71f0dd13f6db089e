"""Hand-made records for the report: every rank is chosen, so every answer is known."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from melon.fitting.config import CellConfig
from melon.lab.comparisons import Bench, MethodComparison, read_bench

Ranks = Sequence[float]
BASELINES = ("frozen", "popularity", "recent_popularity", "default")


def write_run(
    folder: Path,
    strategy: str = "melon",
    rank: Ranks = (1, 2, 3, 30),
    *,
    seed: int = 0,
    stream: str = "toy",
    recommender: str = "bpr",
    baselines: Mapping[str, Ranks] | None = None,
    users: Sequence[int] | None = None,
    repeat: Sequence[bool] | None = None,
    cold: Sequence[bool] | None = None,
    batch: int = 2,
    update_ms: float = 10.0,
    full: Mapping[str, float] | None = None,
    trials: Mapping[str, int] | None = None,
    **asked: Any,
) -> Path:
    """One record with its ranks. The test part are the last events of a stream of a thousand; baselines never hit.

    `trials` are the settings tried for methods by name.
    """
    n = len(rank)
    others = {name: list((baselines or {}).get(name, [50.0] * n)) for name in BASELINES}
    if strategy == "default":
        others["default"] = list(rank)
    config = CellConfig(**{"strategy": strategy, "seed": seed, "recommender": recommender, **asked})
    sizes = [min(batch, n - start) for start in range(0, n, batch)]
    record = {
        "dataset": {
            "path": stream,
            "sha256": f"{stream}{'0' * 20}",
            "users": 10,
            "items": 20,
            "interactions": 1_000,
            "split": list(config.split),
        },
        "recommender": recommender,
        "strategy": strategy,
        "preset": config.preset,
        "pretrain": config.pretrain,
        "seed": seed,
        "version": "0.0.test",
        "config": {
            "asked": config.plain(),
            "chosen": {
                "pretrain": {"settings": {"epochs": 3}, "at_edge": []},
                "default": {"settings": {"lr": 0.3}, "at_edge": []},
                strategy: {"settings": {"lr": 0.3, "wide": None}, "at_edge": ["lr"]},
                "recent_popularity": {"settings": {"half_life": 1_000}, "at_edge": []},
            },
        },
        "protocol": {"candidates": config.candidates, "negatives": 99, "threads": 1, "batch_size": batch},
        "metrics": {"HR@5": 0.0},
        "lists": None if full is None else {"all": full, "first_time": full},
        "baselines": {name: {"lists": None if full is None else {"all": full}} for name in BASELINES},
        "left_out": 0,
        "cold": {"users": 0.25},
        "step": {"moved": 1.0, "default": 2.0, "relative": 0.5},
        "update_ms": {"median": update_ms, "mean": update_ms, "p95": update_ms, "batches": len(sizes)},
        "batches": [{"t": t, "n": size} for t, size in enumerate(sizes)],
        "seconds": 3_600.0,
    }
    for name, count in (trials or {}).items():
        record["config"]["chosen"][name]["trials"] = [{}] * count  # type: ignore[index]
    path = folder / f"{stream}-{recommender}-{seed}-{strategy}.json"
    folder.mkdir(parents=True, exist_ok=True)
    ranks = {
        "event": np.arange(1_000 - n, 1_000),
        "user": np.array(users if users is not None else range(n)),
        "item": np.arange(n),
        "repeat": np.array(repeat if repeat is not None else [False] * n),
        "cold": np.array(cold if cold is not None else [False] * n),
        "rank": np.array(rank, dtype=np.float64),
        **{f"rank_{name}": np.array(values, dtype=np.float64) for name, values in others.items()},
    }
    record["ranks"] = path.with_suffix(".ranks.parquet").name
    pl.DataFrame(ranks).write_parquet(folder / str(record["ranks"]))
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def comparison_of(folder: Path) -> MethodComparison:
    """The only comparison of a folder."""
    (comparison,) = read_bench([folder]).comparisons
    return comparison


def bench_of(folder: Path) -> Bench:
    return read_bench([folder])


def ranks_with(hits: int, of: int) -> list[float]:
    """So many hits first, and misses after them."""
    return [1.0] * hits + [50.0] * (of - hits)
