"""What the tests of experiments share: a small stream, a small cell, and how two records are compared."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.experiments.config import CellConfig

TIMINGS = ("update_ms", "score_ms", "pretrain_s", "peak_rss_mb")
MakeConfig = Callable[..., CellConfig]


@pytest.fixture(scope="session")
def flips() -> Interactions:
    return synthetic_stream("flip", n_users=30, n_items=40, n_events=1_000, seed=2)


@pytest.fixture(scope="session")
def small() -> MakeConfig:
    def config(**more: Any) -> CellConfig:
        given: dict[str, Any] = {
            "split": (0.7, 0.05, 0.25),
            "epochs": 2,
            "budget": 2,
            "negatives": 15,
            "batch_size": 64,
            "recommender_settings": {"dim": 6},
        }
        return CellConfig(**{**given, **more})

    return config


@pytest.fixture(scope="session")
def timeless() -> Callable[[dict[str, Any]], str]:
    """A record as text, without what depends on the machine."""

    def strip(record: dict[str, Any]) -> str:
        kept = copy.deepcopy({key: value for key, value in record.items() if key not in TIMINGS})
        for batch in kept["batches"]:
            del batch["update_ms"]
        return json.dumps(kept, sort_keys=True, allow_nan=False)

    return strip
