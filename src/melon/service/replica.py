"""A replica: a copy of the model that follows the learner's deltas and answers bit for bit as the learner would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from melon.learning.model import LiveModel
from melon.service.log.base import Position, Published


class Replica:
    """The model as an API process has it. `start` follows in a thread; answers are read inside `reading`."""

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def load(self, timeout: float = 60.0) -> None:
        """Load the newest checkpoint, waiting for the learner to write the first one."""
        raise NotImplementedError

    def start(self) -> None:
        """Follow the feed in a thread of its own."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop following."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether there is a model to answer from."""
        raise NotImplementedError

    @property
    def position(self) -> Position:
        """Where the model stands."""
        raise NotImplementedError

    @property
    def reloads(self) -> dict[str, int]:
        """How often a checkpoint had to be loaded, by reason: start, gap, digest, switch."""
        raise NotImplementedError

    @contextmanager
    def reading(self) -> Iterator[tuple[LiveModel, Position]]:
        """The model and where it stands; no delta is applied inside the block, so keep it short."""
        raise NotImplementedError
        yield

    def wait_for(self, offset: int, timeout: float) -> bool:
        """Wait until the model knows an offset; False where it does not in time."""
        raise NotImplementedError

    def when_applied(self, call: Callable[[Published, Position], None]) -> None:
        """Have a function called after each delta, in the replica's thread."""
        raise NotImplementedError
