"""`batches.db` and `deltas.db`: what the learner did with the log, and what it published. The learner alone writes."""

from __future__ import annotations

from pathlib import Path

from melon.service.log.base import Published, Step


class StepReader:
    """What the learner has recorded, read-only; not shared between threads."""

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def changed(self) -> bool:
        """Whether anything was recorded since the last call."""
        raise NotImplementedError

    def last(self) -> Step | None:
        """The last step that is done: learned or set aside."""
        raise NotImplementedError

    def step(self, number: int) -> Step | None:
        """One step."""
        raise NotImplementedError

    def since(self, moment: float) -> Step | None:
        """The last step that was done by a moment (seconds): its totals begin a window."""
        raise NotImplementedError

    def set_aside(self, most: int = 100) -> list[Step]:
        """The newest batches that were set aside and not learned since."""
        raise NotImplementedError

    def alarms(self) -> list[str]:
        """What an operator should know now, in words."""
        raise NotImplementedError


class DeltaReader:
    """The feed of deltas, read-only; not shared between threads."""

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def changed(self) -> bool:
        """Whether anything was published since the last call."""
        raise NotImplementedError

    def after(self, number: int, most: int = 64) -> list[Published]:
        """Deltas behind a step, in order; the first is number + 1, or there is a gap."""
        raise NotImplementedError
