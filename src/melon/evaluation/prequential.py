"""The prequential loop (docs/methods.md 5.2): each batch is predicted first, then learned; a generator of points."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from melon.data.interactions import Interactions
from melon.evaluation.lists import BatchLists, Lister, Track
from melon.evaluation.predictors import Predictor
from melon.evaluation.ranking import Ranks, rank_first, require_finite
from melon.stream.batch import batch_of
from melon.stream.candidates import Candidates, CandidateSet
from melon.stream.split import BATCH_SIZE, batches
from melon.types import Flags, Floats, Ints, Scores

_NO_SCORES: Scores = np.empty((0, 1))


@dataclass(frozen=True)
class Point:
    """What one batch showed: ranks of its usable events, and what it cost."""

    start: int
    stop: int
    usable: Flags
    ranks: Ranks
    lists: BatchLists | None
    score_ms: float
    update_ms: float
    moved: float

    @property
    def events(self) -> Ints:
        """Numbers of the events that have a rank."""
        return np.arange(self.start, self.stop)[self.usable]


def prequential(
    predictor: Predictor,
    log: Interactions,
    candidates: Candidates | None,
    start: int,
    stop: int,
    *,
    batch_size: int = BATCH_SIZE,
    lister: Lister | None = None,
) -> Iterator[Point]:
    """Predict, then learn, events start … stop-1 batch by batch. The predictor has seen everything before `start`.

    With a `lister`, which has seen as much, the item taken is ranked by lists too. Without candidates, nothing is
    ranked among samples.
    """
    for first, last, offered in drawn_ahead(candidates, batches(start, stop, batch_size)):
        batch = batch_of(log, first, last)
        place = f"the batch of events {first} to {last - 1}"
        now, usable = int(batch.times[0]), np.zeros(last - first, dtype=np.bool_)
        began, scores = time.perf_counter(), _NO_SCORES
        if offered is not None:
            scores, usable = predictor.score(batch.users, offered.items, now), offered.usable
        score_ms = (time.perf_counter() - began) * 1e3
        require_finite(scores, place)
        scores = scores if offered is None else scores[usable]
        lists = None
        if lister is not None:
            lists = lister.rank(predictor.catalogue, batch, int(log.known_items[first]), place)
        began = time.perf_counter()
        predictor.learn(batch)
        update_ms = (time.perf_counter() - began) * 1e3
        yield Point(
            first,
            last,
            usable,
            rank_first(scores, place),
            lists,
            score_ms,
            update_ms,
            predictor.moved,
        )


def drawn_ahead(
    candidates: Candidates | None, ranges: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, CandidateSet | None]]:
    """Batches with their candidates, drawn in another thread while the batch before is learned; or alone.

    Candidates are a function of the recorded stream and the seed alone, so nothing depends on when they are drawn.
    """
    if candidates is None:
        yield from ((first, last, None) for first, last in ranges)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="melon-candidates") as drawer:
        waiting: tuple[int, int, Future[CandidateSet]] | None = None
        for first, last in ranges:
            coming = (first, last, drawer.submit(candidates.draw, first, last))
            if waiting is not None:
                yield waiting[0], waiting[1], waiting[2].result()
            waiting = coming
        if waiting is not None:
            yield waiting[0], waiting[1], waiting[2].result()


@dataclass
class Tally:
    """Points added up: every rank kept, with its event number."""

    points: list[Point] = field(default_factory=list)

    def add(self, point: Point) -> Point:
        """Take one point in."""
        self.points.append(point)
        return point

    @property
    def events(self) -> Ints:
        """Event numbers with a rank, in order."""
        return np.concatenate([point.events for point in self.points]) if self.points else np.empty(0, dtype=np.int64)

    @property
    def rank(self) -> Floats:
        """The rank of each of them."""
        return np.concatenate([point.ranks.rank for point in self.points]) if self.points else np.empty(0)

    @property
    def ties(self) -> Ints:
        """How many candidates tied with each."""
        parts = [point.ranks.ties for point in self.points]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    @property
    def lists(self) -> list[BatchLists]:
        """Lists of all batches, where they were asked for."""
        return [point.lists for point in self.points if point.lists is not None]

    def list_rank(self, track: Track) -> Floats | None:
        """The rank by lists of every event, whether it has a sampled rank or not; None where none was made."""
        return np.concatenate([lists.tracks[track].rank for lists in self.lists]) if self.lists else None

    @property
    def left_out(self) -> int:
        """Events without a rank."""
        return sum(int((~point.usable).sum()) for point in self.points)
