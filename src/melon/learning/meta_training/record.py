"""A meta-training stream as recorded arrays: everything that does not depend on the rates that meta-train on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from melon.errors import LearningError
from melon.kernels.meta_training import ABSENT, UNPREDICTED
from melon.learning.step import Offers
from melon.strategies.melon.rates import HALF_LIVES, batch_facts
from melon.stream.batch import Batch
from melon.stream.candidates import Candidates
from melon.types import Flags, Floats, Ints, SmallInts

if TYPE_CHECKING:
    from melon.learning.updater import Updater


@dataclass(frozen=True)
class Draw:
    """One draw of training negatives: items n × (1 + negatives), and facts of what each interaction touches."""

    items: Ints
    facts: Floats


@dataclass(frozen=True)
class RecordedStream:
    """Batches in compact rows; `user_rows` and `item_rows` say which stored rows these are.

    Batch t ends at interaction `ends[t]` and begins at the moment `now[t]`. `known` users had a row when they were
    predicted. A candidate is ABSENT where its item had none, and a line that cannot be predicted is UNPREDICTED.
    `touched` is when each item was last touched before the stream or, if it first appears in the stream, when it does.
    """

    ends: Ints
    now: Ints
    users: Ints
    known: Flags
    candidates: SmallInts
    draws: tuple[Draw, ...]
    user_rows: Ints
    item_rows: Ints
    touched: Ints
    seed: int = 0

    @property
    def predicted(self) -> int:
        """How many interactions are predicted."""
        return int((self.candidates[:, 0] > UNPREDICTED).sum())

    def among(self, number: int, most: int) -> Ints:
        """The columns of candidates that pass `number` predicts among: the item taken, and `most` of the others."""
        draw = np.random.default_rng([self.seed, number])
        return np.append(0, np.sort(draw.permutation(self.candidates.shape[1] - 1)[:most] + 1))


def record(updater: Updater, batches: Sequence[Batch], candidates: Candidates, draws: int) -> RecordedStream:
    """Walk through batches behind the updater's history without learning anything: newcomers get rows, no more."""
    walk = _Walk(updater, draws)
    for batch in batches:
        named = candidates.draw(batch.first_event, batch.first_event + len(batch))
        walk.take(batch, np.where(named.usable[:, None], named.items, UNPREDICTED))
    recorded = walk.recorded()
    if not recorded.predicted:
        raise LearningError(
            "no interaction of the stream can be predicted: beside each there are too few items that its user "
            "has not had. Use a stream with more items, or no meta-training (passes = 0)."
        )
    return recorded


class _Walk:
    def __init__(self, updater: Updater, draws: int) -> None:
        self._updater, self._draws = updater, draws
        self._offers = Offers(updater.recommender, updater.strategy, updater.history, updater.seed)
        self._ends, self._now = list[int](), list[int]()
        self._sizes: dict[str, list[int]] = {"user": [], "item": []}  # rows when each batch begins
        self._users, self._candidates = list[Ints](), list[Ints]()
        self._items: list[list[Ints]] = [[] for _ in range(draws)]
        self._met: list[list[tuple[Ints, Ints]]] = [[] for _ in range(draws)]

    def take(self, batch: Batch, candidates: Ints) -> None:
        """Go past one batch."""
        updater, history = self._updater, self._updater.history
        self._now.append(updater.moment().now)
        for role, sizes in self._sizes.items():
            sizes.append(updater.recommender.rows_of(role))
        updater.make_rows(batch)
        for draw in range(self._draws):
            offered = self._offers.of(batch.in_epoch(draw))
            assert offered is not None
            items = offered.items
            self._items[draw].append(items)
            self._met[draw].append((history.of_users.met(batch.users), history.of_items.met(items)))
        self._users.append(batch.users)
        self._candidates.append(candidates)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(batch))
        history.append(batch.users, batch.items)

    def recorded(self) -> RecordedStream:
        """Everything in compact rows."""
        all_users, candidates = np.concatenate(self._users), np.concatenate(self._candidates)
        lengths = np.diff(self._ends, prepend=0)
        candidates[candidates >= np.repeat(self._sizes["item"], lengths)[:, None]] = ABSENT
        drawn = [np.concatenate(items) for items in self._items]
        user_rows, users = np.unique(all_users, return_inverse=True)
        item_rows = np.unique(np.concatenate([*(items.reshape(-1) for items in drawn), candidates[candidates >= 0]]))
        places = np.where(candidates >= 0, np.searchsorted(item_rows, candidates), candidates)
        touched = self._touched("user", user_rows), self._touched("item", item_rows)
        draws = tuple(
            self._draw(users, np.searchsorted(item_rows, items), met, touched[0].copy(), touched[1].copy())
            for items, met in zip(drawn, self._met, strict=True)
        )
        return RecordedStream(
            np.array(self._ends),
            np.array(self._now),
            users,
            all_users < np.repeat(self._sizes["user"], lengths),
            places.astype(np.int32),
            draws,
            user_rows,
            item_rows,
            touched[1],
            self._updater.seed,
        )

    def _touched(self, role: str, rows: Ints) -> Ints:
        """When rows were last touched; those that first appear in the stream, when they do."""
        sizes = self._sizes[role]
        moments: Ints = np.array(self._now)[np.maximum(np.searchsorted(sizes, rows, side="right") - 1, 0)]
        table = next((table for table in self._updater.recommender.tables.values() if table.spec.role == role), None)
        if table is not None:
            known = rows < sizes[0]
            moments[known] = table.view().touched[rows[known]]
        return moments

    def _draw(self, users: Ints, items: Ints, met: list[tuple[Ints, Ints]], last_users: Ints, last_items: Ints) -> Draw:
        """Facts of every touch, as they are before its batch."""
        half_lives, first, facts = np.array(HALF_LIVES), 0, list[Floats]()
        counts, counted = np.zeros((len(last_items), len(HALF_LIVES))), np.zeros(len(last_items), dtype=np.int64)
        for now, last, met_by in zip(self._now, self._ends, met, strict=True):
            own, touched = users[first:last], items[first:last]
            idle = np.maximum(now - last_users[own], 0), np.maximum(now - last_items[touched], 0)
            recent = counts[touched] * np.exp2((counted[touched] - first)[..., None] / half_lives)
            facts.append(batch_facts(own, touched, met_by, idle, recent))
            taken, times = np.unique(touched[:, 0], return_counts=True)
            counts[taken] = counts[taken] * np.exp2((counted[taken] - first)[:, None] / half_lives) + times[:, None]
            counted[taken] = first
            last_users[own], last_items[touched] = now, now
            first = last
        return Draw(items, np.concatenate(facts))
