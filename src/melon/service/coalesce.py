"""Requests that wait together are scored together, in one thread beside the HTTP loop, which never blocks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from melon.errors import ServiceError
from melon.learning.model import LiveModel
from melon.service.answers import AnsweredList, ListMaker, Query
from melon.service.log.base import Position
from melon.service.replica import Replica

#: Lists made between two deltas; a delta waits for these few at most.
AT_ONCE = 16
#: Lists of one request for many users that are made in one turn, and turns of others after which it has its own.
IN_A_TURN, PASSED_BY = 4, 4
#: Costly work takes at most half of the time within so many seconds of a usual list.
_LATELY_S = 1.0

Look = Callable[[LiveModel, Position], Any]


@dataclass(eq=False)
class _ScoringRequest:
    """A request for lists, or one look at the model, and whom to tell. `left` of it wait to be taken.

    What is costly is made in small parts, while nothing usual waits: many lists, long ones, looks.
    """

    future: asyncio.Future[Any]
    queries: Sequence[Query] = ()
    look: Look | None = None
    results: list[AnsweredList] = field(default_factory=list)
    left: int = 1

    def __post_init__(self) -> None:
        self.costly = self.look is not None or self.left > IN_A_TURN or self.queries[0].takes_long


class Coalescer:
    """A queue and the scoring thread. Whatever waits when the thread is free is taken together."""

    def __init__(self, replica: Replica, maker: ListMaker, most_waiting: int) -> None:
        self._replica, self._maker, self._most_waiting = replica, maker, most_waiting
        self._jobs: deque[_ScoringRequest] = deque()
        self._waiting = self._costly = self._passed_by = 0
        self._free = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what waits is answered."""
        with self._free:
            self._stopped = True
            self._free.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        return self._waiting

    async def lists(self, queries: Sequence[Query]) -> list[AnsweredList]:
        """A list for each query, in order."""
        job = _ScoringRequest(self._future(), queries=queries, left=len(queries))
        return await self._submit(job)  # type: ignore[no-any-return]

    async def look(self, look: Look) -> Any:
        """What a function sees in the model; it is called in the scoring thread, between two products."""
        return await self._submit(_ScoringRequest(self._future(), look=look))

    @staticmethod
    def _future() -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def _submit(self, job: _ScoringRequest) -> Any:
        with self._free:
            waiting = self._costly if job.costly else self._waiting - self._costly
            if self._stopped or waiting + job.left > max(self._most_waiting, job.left):
                raise ServiceError(
                    503, "busy", f"{self._waiting} lists wait already.", hint="Try again shortly.", retry_after=1
                )
            self._jobs.append(job)
            self._count(job, job.left)
            self._free.notify()
        try:
            return await job.future
        except asyncio.CancelledError:
            # Requests whose client has gone leave the queue.
            with self._free:
                self._withdraw(job)
            raise

    def _withdraw(self, job: _ScoringRequest) -> None:
        """Take what is left of a job out of the queue."""
        if job in self._jobs:
            self._jobs.remove(job)
            self._count(job, -job.left)

    def _count(self, job: _ScoringRequest, lists: int) -> None:
        """Lists that wait: costly ones are counted apart, so that they keep out only each other."""
        self._waiting += lists
        self._costly += lists if job.costly else 0

    def _run(self) -> None:
        usual_at = rests_until = -_LATELY_S
        while True:
            with self._free:
                while not self._jobs and not self._stopped:
                    self._free.wait()
                if not self._jobs:
                    return
                pause = rests_until - time.monotonic()
                if pause > 0 and not self._stopped and all(job.costly for job in self._jobs):
                    self._free.wait(pause)
                    continue
                turns = self._next_turns()
            started = time.monotonic()
            self._work(turns)
            ended = time.monotonic()
            if not turns[0][0].costly:
                usual_at = ended
            elif ended < usual_at + _LATELY_S:
                rests_until = ended + (ended - started)  # what answers others needs the interpreter, too

    def _next_turns(self) -> list[tuple[_ScoringRequest, Sequence[Query]]]:
        """What is made now: usual lists together, up to AT_ONCE; where none waits, and each few turns, a part of one
        costly request, alone, so that others wait for no more than that.
        """
        costly = [job for job in self._jobs if job.costly]
        usual = len(self._jobs) - len(costly)
        if costly and (not usual or self._passed_by >= PASSED_BY):
            self._passed_by, (job, *_) = 0, costly
            self._jobs.remove(job)
            start = len(job.queries) - job.left
            part = job.queries[start:][: 1 if job.look is not None or job.queries[start].takes_long else IN_A_TURN]
            job.left -= max(len(part), 1)
            if job.left > 0:
                self._jobs.append(job)
            return [(job, part)]
        self._passed_by += bool(costly)
        turns: list[tuple[_ScoringRequest, Sequence[Query]]] = []
        left = AT_ONCE
        for job in [job for job in self._jobs if not job.costly]:
            if left < job.left:
                break
            self._jobs.remove(job)
            left, job.left = left - job.left, 0
            turns.append((job, job.queries))
        return turns

    def _account(self, turns: list[tuple[_ScoringRequest, Sequence[Query]]], failed: set[int]) -> None:
        """Count what was taken, and take out what is left of jobs that failed."""
        with self._free:
            for job, part in turns:
                self._count(job, -max(len(part), 1))
            for job in [job for job in self._jobs if id(job) in failed]:
                self._withdraw(job)

    def _work(self, turns: list[tuple[_ScoringRequest, Sequence[Query]]]) -> None:
        lists = [query for _, part in turns for query in part]
        done: list[tuple[_ScoringRequest, Any, BaseException | None]] = []
        failed = set[int]()
        try:
            with self._replica.reading() as (model, position):
                for job, _ in turns:
                    if job.look is not None:
                        done.append((job, *_outcome(lambda job=job: job.look(model, position))))  # type: ignore[misc]
                answers, problem = _outcome(lambda: self._maker.make(model, position, lists, time.time()))
                results = iter(answers or ())
                for job, part in turns:
                    if job.look is not None or id(job) in failed:
                        continue
                    if problem is not None:
                        # One list that cannot be made must not spoil the others.
                        mine, trouble = _outcome(lambda part=part: self._maker.make(model, position, part, time.time()))  # type: ignore[misc]
                    else:
                        mine, trouble = [next(results) for _ in part], None
                    if trouble is not None:
                        failed.add(id(job))
                        done.append((job, None, trouble))
                        continue
                    job.results.extend(mine)
                    if len(job.results) == len(job.queries):
                        done.append((job, job.results, None))
        except BaseException as problem:
            done = [(job, None, problem) for job, _ in turns]
            failed = {id(job) for job, _ in turns}
        self._account(turns, failed)
        if done:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                done[0][0].future.get_loop().call_soon_threadsafe(_deliver, done)


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except Exception as problem:
        return None, problem


def _deliver(done: list[tuple[_ScoringRequest, Any, BaseException | None]]) -> None:
    for job, result, problem in done:
        if job.future.done():
            continue
        if problem is not None:
            job.future.set_exception(problem)
        else:
            job.future.set_result(result)
