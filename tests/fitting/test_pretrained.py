"""A log that is observed beside pre-training: the same state, its errors, and an end where nobody wants it."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from melon.data.synthetic import synthetic_stream
from melon.fitting.auto import SETTINGS
from melon.fitting.plan import Plan
from melon.fitting.pretrained import refit
from melon.learning import pretrain
from melon.learning.pretrain import Pretraining
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR

LOG = synthetic_stream("flip", n_users=30, n_items=40, n_events=3_000, seed=1)
SMALL = {"dim": 4, "slots": 8, "head_units": 4, **SETTINGS}


def plan(**more: Any) -> Plan:
    return Plan(recommender="blend", strategy="default", recommender_settings={**SMALL, **more})


@pytest.mark.parametrize("observed_at_once", [64, 5_000])
def test_it_gives_the_same_state(monkeypatch: pytest.MonkeyPatch, observed_at_once: int) -> None:
    states = []
    for helpers in (0, 1):
        recommender, history = refit(plan(), LOG, {"epochs": 2}, once=True, helpers=helpers).after(LOG)
        tables = {name: table.everything() for name, table in recommender.tables.items()}
        states.append({**recommender.streaming_state(), **tables, **history.state()})
        monkeypatch.setattr(pretrain, "_OBSERVED_AT_ONCE", observed_at_once)
        monkeypatch.setattr(pretrain, "_MOST_OBSERVED_AT_ONCE", observed_at_once)
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert np.array_equal(array, states[1][name]), name


def test_only_what_has_nothing_in_common_is_observed_beside() -> None:
    assert plan().build().observes_apart
    assert BPR().observes_apart

    class Other(Blend):
        name = "other"

        def observe(self, *given: Any) -> None:
            super().observe(*given)

    assert not Other(SMALL).observes_apart


def test_its_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Blend, "observe", broken)
    with pytest.raises(MemoryError, match="no room"):
        refit(plan(), LOG, {"epochs": 1}, once=True, helpers=1)


def test_it_is_given_up_where_training_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, observed = threading.Event(), list[int]()

    def slow(*_: Any) -> None:
        observed.append(1)
        begun.set()
        time.sleep(0.05)

    def stopped(_: Pretraining) -> float:
        begun.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "_OBSERVED_AT_ONCE", 10)
    monkeypatch.setattr(Blend, "observe", slow)
    monkeypatch.setattr(Pretraining, "epoch", stopped)
    with pytest.raises(KeyboardInterrupt):
        refit(plan(), LOG, {"epochs": 3}, once=True, helpers=1)
    for thread in threading.enumerate():
        if thread.name.startswith("melon-observing"):
            thread.join(30)
            assert not thread.is_alive()
    assert len(observed) < len(LOG) // 10
