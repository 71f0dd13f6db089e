"""What a long run reports while it works: one vocabulary for fitting, evaluating, benching and tuning.

Code that works calls these methods and prints nothing; `melon.terminal` has the subclasses that show them to people.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

#: Without their wrappers, which look each handler up in an enumeration and take longer than the calls themselves.
_get_handler = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_set_handler = getattr(signal.signal, "__wrapped__", signal.signal)


class Progress:
    """Ignores every report; a subclass shows those that it cares about.

    One model reports stages, notes, ticks and batches. A run of many jobs reports its jobs and their outcomes; what a
    job and an outcome are is the run's own business.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what is shown."""

    def stage(self, name: str) -> None:
        """A new stage begins."""

    def note(self, text: str) -> None:
        """Something worth a line happened inside a stage."""

    def notice(self, text: str) -> None:
        """Something that people should know when the run is over: a line that stays."""
        self.note(text)

    def tick(self, text: str) -> None:
        """One of many small steps of a stage is done."""

    def share(self, done: int | None, total: int) -> None:
        """So much of the stage is done: a number of steps, or one step more."""

    def batch(self, done: int, total: int, hit_rate: float | None) -> None:
        """A batch of the stream was evaluated: events so far, events in all, and HR@5 (None: nothing ranked yet)."""

    def jobs(self, jobs: Sequence[Any], ended: Mapping[str, Any], workers: int) -> None:
        """All jobs of a run, the outcomes that it starts with by key, and how many jobs run at a time."""

    def started(self, job: Any) -> None:
        """A job runs."""

    def ended(self, outcome: Any) -> None:
        """A job has ended."""

    def waiting(self) -> None:
        """About a second has passed without an outcome."""


class Reported(Progress):
    """Shows what another one shows, and calls `report` with each line."""

    def __init__(self, shown: Progress, report: Callable[[str], None]) -> None:
        self._shown, self._report = shown, report

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, trace)

    def stage(self, name: str) -> None:
        self._shown.stage(name)
        self._report(name)

    def note(self, text: str) -> None:
        self._shown.note(text)
        self._report(text)

    def notice(self, text: str) -> None:
        self._shown.notice(text)
        self._report(text)

    def tick(self, text: str) -> None:
        self._shown.tick(text)
        self._report(text)

    def share(self, done: int | None, total: int) -> None:
        self._shown.share(done, total)


class Stop:
    """Remembers that people have stopped a fit once; the second time ends it. Elsewhere, stopping ends at once."""

    def __init__(self, *, goes_on: bool = False) -> None:
        self.pressed, self._goes_on = False, goes_on

    def press(self) -> bool:
        """Whether to go on with what there is."""
        first, self.pressed = self._goes_on and not self.pressed, True
        return first


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done, so that a batch is learned whole or not at all."""
    before = _get_handler(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[tuple[int, Any]] = []
    _set_handler(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        _set_handler(signal.SIGINT, before)
    for number, frame in waiting[:1]:
        before(number, frame)
