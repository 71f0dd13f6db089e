"""Evaluation by lists: where the item taken stands in the list of all known items that `recommend` would show.

Two tracks: `all` events with nothing filtered, and `first_time` pairs with the items filtered that the user has had. A
rank counts better scores among all items that may be listed, and half of the equal ones: as in the service, those that
two different users had before the batch, or the user alone. An item that may not be listed is a miss; where lists have
two stages, so is one outside the shortlist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.evaluation.ranking import LIST_METRICS, metrics
from melon.kernels import policy
from melon.models.catalogue import ALL, Best, Catalogue, Within, best
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.stream.pairs import SeenPairs, pair_keys
from melon.stream.proven import ITEM_USERS, ProvenItems
from melon.types import Flags, Floats, Ints, Plain, Scores, SmallInts

Track = Literal["all", "first_time"]
TRACKS: tuple[Track, ...] = get_args(Track)
#: How long the lists are that coverage, Gini and similarity are about, and how deep two-stage lists are looked into.
LENGTH, DEPTH = 10, 20
#: Scores that are held at a time: 32 MB.
_SCORES_AT_ONCE = 1 << 23
_NOBODY = -1


@dataclass(frozen=True)
class TrackLists:
    """The lists of one track in one batch: the rank of each event's item, and the first ten items of its list.

    A rank is infinite for a miss, and NaN for an event that is not of this track or was not listed.
    """

    rank: Floats
    listed: SmallInts


@dataclass(frozen=True)
class BatchLists:
    """Both tracks of one batch, how many items were known when it began, and which events' items could be listed."""

    known: int
    listable: Flags
    tracks: Mapping[Track, TrackLists]


class Lister:
    """Ranks the batches of a recorded stream by lists, from an event on; it sees each batch once, in order.

    With a `share` below 1 only some events are listed, the same ones for every method. An item is listed once
    `item_users` different users have had it.
    """

    def __init__(self, log: Interactions, start: int, share: float = 1.0, item_users: int = ITEM_USERS) -> None:
        past = log.head(start)
        self._history, self._share, self._proven = History(), share, ProvenItems(item_users)
        self._history.expect(past)
        self._history.append(past.users, past.items)

    def rank(self, catalogue: Callable[[int, int], Catalogue], batch: Batch, known: int, place: str) -> BatchLists:
        """Rank a batch that has yet to be learned, among items 0 … known-1."""
        ranks: dict[Track, Floats] = {track: np.full(len(batch), np.nan) for track in TRACKS}
        listed = {track: np.full((len(batch), LENGTH), _NOBODY, dtype=np.int32) for track in TRACKS}
        lines = np.flatnonzero(chosen_events(batch.events, self._share))
        first = ~self._history.seen.contains(pair_keys(batch.users, batch.items))
        listable = batch.items < known
        if known and len(lines):
            scorer, at_once = catalogue(known, int(batch.times[0])), max(_SCORES_AT_ONCE // known, 1)
            for start in range(0, len(lines), at_once):
                some = lines[start : start + at_once]
                scores = None if scorer.two_stage else _scores(scorer, batch.users[some])
                for of_lines, allowed in self._allowed(batch.users[some], known):
                    places = some[of_lines]
                    if len(allowed):
                        listable[places] &= allowed[np.minimum(batch.items[places], known - 1)]
                    part = scorer if scores is None else scores[of_lines]
                    self._rank_lines(part, batch, places, allowed, ranks, listed, place)
        for track in TRACKS:
            ranks[track][lines[~listable[lines]]] = np.inf
        ranks["first_time"][~first], listed["first_time"][~first] = np.nan, _NOBODY
        self._history.append(batch.users, batch.items)
        tracks = {track: TrackLists(ranks[track], listed[track]) for track in TRACKS}
        return BatchLists(known, listable, tracks)

    def _allowed(self, users: Ints, known: int) -> Iterator[tuple[Ints, Flags]]:
        """Lines that may list the same items, and these; none: all. Users with items of their own stand alone."""
        flags = self._proven.flags(self._history, known)
        if flags is None:
            yield np.arange(len(users)), ALL
            return
        own = [self._proven.own(self._history, user) for user in users.tolist()]
        yield np.array([line for line, rows in enumerate(own) if not len(rows)], dtype=np.int64), flags
        for line, rows in enumerate(own):
            if len(rows):
                allowed = flags.copy()
                allowed[rows] = True
                yield np.array([line]), allowed

    def _rank_lines(
        self,
        scored: Catalogue | Scores,
        batch: Batch,
        lines: Ints,
        allowed: Flags,
        ranks: Mapping[Track, Floats],
        listed: Mapping[Track, SmallInts],
        place: str,
    ) -> None:
        """Ranks of some lines by their scores, or by two-stage lists; without those of items that may not be listed."""
        users, targets, seen = batch.users[lines], batch.items[lines], self._history.seen
        within: dict[Track, Within] = {"all": Within(None, allowed), "first_time": Within(seen, allowed)}
        if isinstance(scored, Catalogue):
            for track, limits in within.items():
                lists = scored.best(users, DEPTH, limits)
                ranks[track][lines] = [_place(*each, item) for each, item in zip(lists, targets.tolist(), strict=True)]
                _write(listed[track], lines, lists)
            return
        targets = np.minimum(targets, scored.shape[1] - 1)
        counts = better_and_equal(scored, users, targets, seen, place, allowed)
        for number, (track, limits) in enumerate(within.items()):
            ranks[track][lines] = 1.0 + counts[:, 2 * number] + counts[:, 2 * number + 1] / 2
            _write(listed[track], lines, best(scored, LENGTH, limits, users))


def _scores(scorer: Catalogue, users: Ints) -> Scores:
    """A line for each of some users, who may stand there several times; each user is scored once."""
    distinct, lines = np.unique(users, return_inverse=True)
    return scorer.scores(distinct)[lines] if len(distinct) < len(users) else scorer.scores(users)


def better_and_equal(
    scores: Scores, users: Ints, targets: Ints, seen: SeenPairs, place: str, allowed: Flags = ALL
) -> Ints:
    """How many other items score higher than each line's target and how many the same; of all `allowed` items, then of
    those that the user has not had: n × 4.
    """
    counts = np.empty((len(scores), 4), dtype=np.int64)
    scores, users = np.ascontiguousarray(scores), np.ascontiguousarray(users)
    broken = policy.load("lists").count_better(scores, users, allowed, seen.storage, targets, counts)
    if broken >= 0:
        column = int(np.argmin(np.isfinite(scores[broken])))
        raise LearningError(
            f"a score is {scores[broken, column]} in {place} (line {broken}, item {column}); the model has left the "
            "finite numbers. Try a smaller learning rate."
        )
    return counts


def list_summary(batches: Sequence[BatchLists], users: Ints, track: Track) -> Plain:
    """Metrics of one track over a run of batches, and what its lists are like; empty where nothing was listed.

    `users` are those of the events, batch after batch. `new` counts misses on items that could not be listed yet.
    `coverage` is the share of known items that stand in some list, `gini` how unequal their numbers of lists are, and
    `similarity` the mean Jaccard index of the lists of two users that follow each other.
    """
    rank = np.concatenate([lists.tracks[track].rank for lists in batches]) if batches else np.empty(0)
    judged = ~np.isnan(rank)
    if not judged.any():
        return {}
    listable = np.concatenate([lists.listable for lists in batches])
    listed = np.concatenate([lists.tracks[track].listed for lists in batches])[judged]
    times = np.bincount(listed[listed >= 0], minlength=batches[-1].known)
    return {
        **metrics(rank[judged], LIST_METRICS),
        "events": int(judged.sum()),
        "new": int((~listable[judged]).sum()),
        "coverage": float((times > 0).mean()) if len(times) else 0.0,
        "gini": gini(times),
        "similarity": similarity(listed, users[judged]),
    }


def gini(times: Ints) -> float:
    """The Gini coefficient of how often each item is listed: 0 where all are listed alike, near 1 where a few are."""
    ordered, total = np.sort(times), int(times.sum())
    if not total:
        return 0.0
    places = np.arange(1, len(ordered) + 1)
    return float((2 * (places * ordered).sum() / total - len(ordered) - 1) / len(ordered))


def similarity(listed: SmallInts, users: Ints) -> float:
    """The mean Jaccard index of each list with the next one, where that is another user's; lists are padded with -1."""
    apart = np.flatnonzero(users[1:] != users[:-1])
    if not len(apart):
        return 0.0
    shared, one, other = np.zeros(len(apart)), listed[apart], listed[apart + 1]
    for column in range(one.shape[1]):
        shared += ((other == one[:, column : column + 1]) & (other >= 0)).sum(1)
    either = (one >= 0).sum(1) + (other >= 0).sum(1) - shared
    return float(np.mean(shared / np.maximum(either, 1)))


def chosen_events(events: Ints, share: float) -> Flags:
    """Which events are listed: a function of their numbers alone."""
    if share >= 1:
        return np.ones(len(events), dtype=np.bool_)
    chosen: Flags = (events * 2_654_435_761) % (1 << 32) < share * (1 << 32)
    return chosen


def _place(rows: Ints, scores: Scores, item: int) -> float:
    """The mid rank of an item in a list; infinite where it does not stand there."""
    at = np.flatnonzero(rows == item)
    if not len(at):
        return np.inf
    own = scores[at[0]]
    return 1.0 + float((scores > own).sum()) + (float((scores == own).sum()) - 1) / 2


def _write(listed: SmallInts, lines: Ints, lists: Sequence[Best]) -> None:
    for line, (rows, _) in zip(lines.tolist(), lists, strict=True):
        listed[line, : min(len(rows), LENGTH)] = rows[:LENGTH]


def list_summaries(batches: Sequence[BatchLists], users: Ints) -> dict[str, Any] | None:
    """`list_summary` of both tracks; None where nothing was listed."""
    return {track: list_summary(batches, users, track) for track in TRACKS} if batches else None
