"""Jobs on streams, and the loop that keeps an executor's workers busy with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from melon.bench.work import Work
from melon.data.interactions import Interactions

Ended = TypeVar("Ended")
Ended_co = TypeVar("Ended_co", covariant=True)
_PATIENCE = 1.0  # seconds between two calls of `waiting`


class Job(Protocol[Ended_co]):
    """Something to run on a stream that the executor knows by its name.

    Jobs of one group share the work of the one that lays their foundation, and start after it.
    """

    @property
    def key(self) -> str:
        """A name that no other job has."""

    @property
    def group(self) -> str:
        """The name of the work that it shares."""

    @property
    def stream(self) -> str:
        """The name of the stream."""

    @property
    def lays_foundation(self) -> bool:
        """Whether it makes what others of its group start from."""

    @property
    def keeps_work(self) -> bool:
        """Whether what it has done so far is kept, so that it can go on after its worker died."""

    def run(self, log: Interactions, work: Work) -> Ended_co:
        """Run in this process; an expected problem becomes an outcome."""

    def lost(self, problem: str) -> Ended_co:
        """The outcome where its worker died."""


class Executor(ABC, Generic[Ended]):
    """Runs jobs somewhere. What a foundation made stays with the executor and is given to the jobs that follow.

    Leaving its block ends what is running.
    """

    workers: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @abstractmethod
    def submit(self, job: Job[Ended]) -> None:
        """Start a job, or queue it."""

    @abstractmethod
    def outcome(self, patience: float) -> Ended | None:
        """The outcome of the next job that has ended, or None after `patience` seconds."""

    @abstractmethod
    def stop(self) -> None:
        """End what is running."""


def drive(
    executor: Executor[Ended],
    supply: Callable[[], Job[Ended] | None],
    waiting: Callable[[], None],
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[Ended]:
    """A job for every worker as long as there is one; outcomes come as jobs end.

    `waiting` is called about once a second. Where there is `enough`, what is still running is given up.
    """
    running = 0
    while not enough():
        while running < executor.workers and (job := supply()) is not None:
            executor.submit(job)
            running += 1
        if not running:
            return
        ended = executor.outcome(_PATIENCE)
        if ended is None:
            waiting()
            continue
        running -= 1
        yield ended


def drive_all(executor: Executor[Ended], jobs: Iterable[Job[Ended]], waiting: Callable[[], None]) -> Iterator[Ended]:
    """The same for jobs that wait for nothing."""
    left = iter(jobs)
    return drive(executor, lambda: next(left, None), waiting)


def work_of(folder: Path, job: Job[Ended]) -> Work:
    """Where a job finds the work of its foundation, and keeps its own if that is worth keeping."""
    shared = folder / job.group
    if job.lays_foundation:
        return Work(shared)
    return Work(folder / job.key if job.keeps_work else None, base=shared)
