"""Reading `events.db`: any process, any number of readers, none of which ever writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from melon.service.log.base import Control, LogId, Stored


class LogReader:
    """A read-only view of a log; not shared between threads. Everything it shows is committed."""

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    @property
    def log_id(self) -> str:
        """What the log is called."""
        raise NotImplementedError

    def last(self) -> tuple[int, int]:
        """The last offset, and how many events there are."""
        raise NotImplementedError

    def changed(self) -> bool:
        """Whether anything was committed since the last call; costs microseconds."""
        raise NotImplementedError

    def tail(self, after: int, most: int) -> list[Stored]:
        """Up to `most` events behind an offset, none of them behind the next control."""
        raise NotImplementedError

    def control_after(self, after: int) -> Control | None:
        """The first control behind an offset."""
        raise NotImplementedError

    def between(self, first: int, last: int) -> Iterator[Stored | Control]:
        """Everything from one offset to another, in order."""
        raise NotImplementedError

    def of_user(self, user: LogId, most: int, before: int | None = None) -> list[Stored]:
        """A user's last events, newest first."""
        raise NotImplementedError

    def hidden(self) -> Iterator[tuple[LogId, LogId]]:
        """All (user, item) that events hide."""
        raise NotImplementedError

    def facts(self, after: int = 0) -> Iterator[tuple[LogId, int, Mapping[str, Any] | None]]:
        """Item, version and facts of everything that changed behind a version of the facts, in order of version."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the file."""
        raise NotImplementedError
