"""What the learner can be set to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from melon.fitting.values import BUDGET


@dataclass(frozen=True)
class LearnerSettings:
    """How one learner works.

    Args:
        folder: where the log, the batches, the deltas and the checkpoints are.
        model: the model to start from; None starts cold. Later starts go on from the newest checkpoint.
        batch_most: at most this many events are learned in one batch.
        batch_every: two batches are cut at least this many seconds apart.
        checkpoint_seconds: a checkpoint is written after so long …
        checkpoint_events: … or after this many events, whichever comes first.
        keep_deltas_seconds: deltas are kept for so long …
        keep_deltas_bytes: … and no more than this of them.
        negatives: items beside each one taken when quality is measured; 0 measures nothing.
        frozen: whether the model as it was deployed is measured too; it takes its memory once more.
        guard: a batch that moves rows more than this many times their running median is set aside.
        quality_seconds: an alarm says so where a rival was better on the organic events of this many seconds …
        quality_events: … if there were at least this many.
        fallback: whether lists come from such a rival until the served model is better again.
        stop_after: this many batches set aside in a row stop the learning.
        max_lag: an alarm says so where the learner is more entries of the log behind.
        fit_after: a service that started cold fits a model on its own log after this many events; 0 never does.
        fit_minutes: how long that fit may choose settings.
        fit_budget: how many settings that fit tries for each choice.
        max_pairs: pairs of user and item that a new service remembers as seen, at most; 0: as the model has it.
        threads: threads of the arithmetic; part of what makes a replay exact.
        seed: the root of everything random.
    """

    folder: Path
    model: Path | None = None
    batch_most: int = 256
    batch_every: float = 0.02
    checkpoint_seconds: float = 60.0
    checkpoint_events: int = 50_000
    keep_deltas_seconds: float = 600.0
    keep_deltas_bytes: int = 256 << 20
    negatives: int = 99
    frozen: bool = True
    guard: float = 20.0
    quality_seconds: float = 3600.0
    quality_events: int = 1_000
    fallback: bool = False
    stop_after: int = 10
    max_lag: int = 20_000
    fit_after: int = 20_000
    fit_minutes: float = 10.0
    fit_budget: int = BUDGET
    max_pairs: int = 0
    threads: int = 1
    seed: int = 0
