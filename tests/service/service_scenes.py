"""What tests of the service share: small models on disk, streams of events, a learner without pauses, clean replays."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from melon.fitting.auto import SETTINGS
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.service.config import ServeSettings
from melon.service.learner.loop import Learner
from melon.service.learner.replay_state import ReplayState, unlearned
from melon.service.log.base import Event
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.events import LogReader
from melon.service.log.steps import StepReader
from melon.strategies.registry import STRATEGIES

PAIRINGS: dict[str, tuple[type, dict[str, Any], str, dict[str, Any]]] = {
    "bpr default": (BPR, {"dim": 6}, "default", {"half_life": 200.0}),
    "bpr melon": (BPR, {"dim": 6}, "melon", {"half_life": 200.0}),
    "blend default": (
        Blend,
        {"dim": 6, "slots": 8, "head_units": 4, "head_rest": 60, **SETTINGS},
        "default",
        {"half_life": 300.0},
    ),
    "blend in two stages": (
        Blend,
        {"dim": 6, "slots": 8, "head_units": 4, "head_rest": 60, "lists": "two_stage", **SETTINGS},
        "default",
        {"half_life": 300.0},
    ),
}
LOG = ServeSettings(reserve_bytes=0)


def stream(count: int, seed: int = 3, start: int = 0) -> list[Event]:
    """Events of a growing crowd on growing shelves."""
    rng = np.random.default_rng(seed)
    reach = np.linspace(8, 60, count)
    users, items = rng.random(count) * reach, rng.random(count) ** 2 * reach * 2
    times = 1_000 + start + np.cumsum(rng.integers(0, 9, count))
    return [
        Event(f"u{int(users[n])}", f"i{int(items[n])}", int(times[n]), event_id=f"{seed}/{start + n}")
        for n in range(count)
    ]


def saved_model(folder: Path, pairing: str = "bpr default", events: int = 150) -> Path:
    """A model that has learned a little, on disk."""
    recommender, options, strategy, settings = PAIRINGS[pairing]
    model = LiveModel(Updater(recommender(options), STRATEGIES[strategy].make(settings)))
    past = stream(events, seed=11)
    model.learn_events([e.user for e in past], [e.item for e in past], [int(e.time or 0) for e in past], batch_size=32)
    model.save(folder, {})
    return folder


def settings(folder: Path, model: Path | None, **more: Any) -> ServeSettings:
    given: dict[str, Any] = {"batch_most": 40, "batch_every_ms": 0.0, "negatives": 15, "fit_after": 0}
    return ServeSettings(data=folder, model=model, **{**given, **more})


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def learn_all(learner: Learner) -> None:
    while learner.step():
        pass


def clean_replay(folder: Path) -> tuple[LiveModel, bytes]:
    """The model that the base checkpoint, the log and the recorded steps give, and the digest chain."""
    checkpoints = Checkpoints(folder)
    with LogReader(folder) as log, StepReader(folder) as steps:
        saved = checkpoints.load(steps.bases()[-1])
        replay = ReplayState(saved.model, saved.position, log, unlearned(log, steps))
        for step, outcome in replay.follow(steps):
            assert outcome.digest == step.digest, f"step {step.number}"
    return replay.model, replay.position.digest
