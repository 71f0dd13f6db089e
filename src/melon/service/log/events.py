"""The one writer of `events.db`: appends are committed together, synced, and answered after that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from melon.service.log.base import Appended, ControlKind, Event, LogId


@dataclass(frozen=True)
class LogSettings:
    """How the log is written.

    Args:
        most_waiting: so many events may wait for their commit; more are refused with `BusyError`.
        reserve: bytes that are set aside on disk, and given up when it is full, so that the learner can go on.
        keep_ids_days: how long event ids are remembered.
    """

    most_waiting: int = 50_000
    reserve: int = 16 << 20
    keep_ids_days: float = 30.0


class EventLog:
    """The log of one service, open for writing. One process at a time may hold it; a second one is refused."""

    def __init__(self, folder: Path, settings: LogSettings | None = None) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def log_id(self) -> str:
        """What this log is called in checkpoints: random, made once."""
        raise NotImplementedError

    @property
    def offset(self) -> int:
        """The last offset that is synced."""
        raise NotImplementedError

    @property
    def events(self) -> int:
        """How many events are synced."""
        raise NotImplementedError

    @property
    def writable(self) -> bool:
        """Whether the last write succeeded; after a full disk, whether there is room again."""
        raise NotImplementedError

    def submit(self, events: Sequence[Event]) -> Future[Appended]:
        """Append events in order; the future is done when they are synced.

        Fails with `BusyError` at once where too many wait, and with `DiskFullError` where there is no room; then
        nothing of the list is stored.
        """
        raise NotImplementedError

    def append(self, events: Sequence[Event], timeout: float | None = None) -> Appended:
        """The same, waiting for it."""
        return self.submit(events).result(timeout)

    def control(self, kind: ControlKind, body: Mapping[str, Any]) -> Future[int]:
        """Put a control into the stream; the future holds its offset."""
        raise NotImplementedError

    def put_facts(self, facts: Sequence[tuple[LogId, Mapping[str, Any] | None]]) -> Future[int]:
        """Store the facts of items, replacing earlier ones (None removes them); the future holds the new version."""
        raise NotImplementedError

    def close(self) -> None:
        """Commit what waits and let go of the log."""
        raise NotImplementedError
