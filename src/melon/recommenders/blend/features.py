"""What streaming state says of (user, item) pairs: features that a blend's head sees beside what the rows say.

Streaming state knows how popular an item is now, and how similar it is to the user's last items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from melon.kernels import policy
from melon.kernels.lessons import ALWAYS, GAIN, LAST, MET, RECENT, SHRINK, SHRINK_RECENT
from melon.kernels.lists import Remembered
from melon.recommenders.blend.inputs import (
    HALF_LIVES,
    INPUTS,
    INPUTS_WITH_TRANSITIONS,
    ITEM_FEATURES,
    MORE,
    PAIR_FEATURES,
    TRANSITIONS,
    Named,
)
from melon.recommenders.streaming.counts import ItemCounts
from melon.recommenders.streaming.likeness import likeness
from melon.recommenders.streaming.neighbours import ItemNeighbours, scratch
from melon.recommenders.streaming.profiles import MATCHES, Profiles, ProfileSides, Takers
from melon.recommenders.streaming.slots import Sums
from melon.recommenders.streaming.tastes import LOOKS, Tastes
from melon.stream.history import History
from melon.stream.saved import SavedArrays, part_of, require
from melon.tables import Moment, Table
from melon.types import Arrays, Floats, Ints, Singles, SmallInts

_LOOKS: Ints = np.array([ITEM_FEATURES.index(name) for name in LOOKS])
#: The inputs that leanings belong to.
LOOKED_AT: Ints = INPUTS.index(ITEM_FEATURES[0]) + _LOOKS
_NO_FOLLOWERS = Remembered(np.empty((0, 0), np.int32), np.empty((0, 0), np.float32), np.empty((0, 0), np.float32), 0.0)
InputColumns = npt.NDArray[np.floating[Any]]
#: How many followers each item remembers.
_FOLLOWERS = 64


class StreamFeatures:
    """Counts and neighbours that observe the same stream, read as features of pairs; what is asked for besides, too."""

    def __init__(
        self,
        slots: int,
        dtype: npt.DTypeLike = np.float64,
        *,
        transitions: bool = False,
        more: Sequence[str] = (),
        seed: int = 0,
        own_rows: Callable[[], ProfileSides] | None = None,
    ) -> None:
        """`own_rows` gives the blend's own rows of users and items, where something is asked for that needs them."""
        self._dtype, self._seed, self._own_rows = np.dtype(dtype), seed, own_rows
        self.counts = ItemCounts([*HALF_LIVES, float("inf")])
        self.neighbours = ItemNeighbours(slots=slots)
        self.followers = ItemNeighbours(slots=_FOLLOWERS, reach=1, both_ways=False) if transitions else None
        self.profiles = Profiles(seed=seed, dtype=dtype) if "profiles" in more else None
        self.own_takers = Takers(self._rows_of_blend()[0].shape[1], dtype) if "own_profiles" in more else None
        self.tastes = Tastes(dtype=dtype) if "tastes" in more or "leanings" in more else None
        self._gaps, self.likeness = "tastes" in more, "likeness" in more
        self._no_followers = ItemNeighbours(slots=1)
        self._item_at: SmallInts = np.zeros(0, dtype=np.int32)  # a number for each item, for compiled loops

    @property
    def divided_by(self) -> tuple[int, ...]:
        """Which divisor belongs to each feature of pairs."""
        return tuple((PAIR_FEATURES if self.followers is None else PAIR_FEATURES | TRANSITIONS).values())

    @property
    def width(self) -> int:
        """How many inputs belong to rows, items and meetings, without those times the user's activity."""
        return MET + len(self.divided_by)

    @property
    def more(self) -> tuple[str, ...]:
        """The names of what `of_both` gives."""
        return (*self.of_pairs_besides, *(() if self.tastes is None else self._leanings))

    @property
    def of_pairs_besides(self) -> tuple[str, ...]:
        """Those among them that belong to pairs and come first; the others are linear in the items' own features."""
        inputs = {
            "profiles": self.profiles is not None,
            "own_profiles": self.own_takers is not None,
            "likeness": self.likeness,
        }
        return tuple(name for group, there in inputs.items() if there for name in MORE[group])

    def spaces(self) -> list[tuple[Takers, ProfileSides]]:
        """Takers of items, and the rows by which they are compared, for each kind of rows that is asked for."""
        spaces = [] if self.profiles is None else [(self.profiles.takers, self.profiles.sides)]
        return spaces if self.own_takers is None else [*spaces, (self.own_takers, self._rows_of_blend())]

    def _rows_of_blend(self) -> ProfileSides:
        assert self._own_rows is not None
        return self._own_rows()

    @property
    def _leanings(self) -> tuple[str, ...]:
        return MORE["tastes" if self._gaps else "leanings"]

    def fit(self, users: Ints, items: Ints) -> None:
        """Make room for a whole log before it is observed, and solve rows for it where rows are asked for."""
        for part in (self.neighbours, self.followers):
            if part is not None:
                part.reserve(int(items.max(initial=-1)) + 1)
        if self.profiles is not None:
            self.profiles.fit(users, items)

    def observe(self, users: Ints, items: Ints, times: Ints, past: History) -> None:
        """Count a batch; `past` is what came before it."""
        if self.tastes is not None:
            self.tastes.observe(users, items, times, self.counts)
        if self.profiles is not None:
            self.profiles.observe(users, items, past)
        if self.own_takers is not None:
            self.own_takers.observe(users, items, past, self._rows_of_blend()[0])
        self.neighbours.observe(users, items, past.of_users)
        if self.followers is not None:
            self.followers.observe(users, items, past.of_users)
        self.counts.observe(items)

    def undo_point(self, users: Ints, items: Ints, past: History) -> Callable[[], None]:
        """A function that takes back the next `observe` of these interactions."""
        parts = [self.neighbours] if self.followers is None else [self.neighbours, self.followers]
        undo_parts = [part.undo_point(users, items, past.of_users) for part in parts] + [self.counts.undo_point(items)]
        undo_parts += [] if self.profiles is None else [self.profiles.undo_point(users, items)]
        undo_parts += [] if self.own_takers is None else [self.own_takers.undo_point(items)]
        undo_parts += [] if self.tastes is None else [self.tastes.undo_point(users)]

        def undo() -> None:
            for undo_part in undo_parts:
                undo_part()

        return undo

    def of_items(self, items: Ints) -> tuple[InputColumns, InputColumns]:
        """Features of some items (n × ITEM_FEATURES), and what their neighbours are divided by (n × 2)."""
        counts = self.counts.read(items)
        columns = np.empty((len(items), len(ITEM_FEATURES)), dtype=self._dtype)
        columns[:, :ALWAYS] = counts[:, :ALWAYS]
        columns[:, ALWAYS] = self.counts.idle(items)
        columns[:, ALWAYS + 1] = self.counts.age(items)
        divisors = np.sqrt(counts[:, [ALWAYS, RECENT]] + (SHRINK, SHRINK_RECENT)).astype(self._dtype)
        return _log1p(columns), np.ascontiguousarray(divisors)  # one item is stored by rows, many by columns

    def of_all(self, loops: policy.Loops, n_items: int, columns: Singles) -> Singles:
        """The same for items 0 … n_items-1, features × items, to float32's rounding; returns all and recent counts."""
        by_kind = torch.from_numpy(self.counts.by_kind(loops, n_items, columns[ALWAYS:]))[:, :n_items]
        out, decays = (
            torch.from_numpy(columns),
            torch.from_numpy((-self.counts.rates[:ALWAYS, None]).astype(np.float32)),
        )
        torch.mul(out[ALWAYS], decays, out=out[:ALWAYS]).exp2_().mul_(by_kind[:ALWAYS])
        both = np.stack([by_kind[ALWAYS].numpy(), columns[RECENT]])
        out.log1p_()
        return both

    def met(self, users: Ints, items: Ints, past: History) -> Sums:
        """How often each of the items n × c met the user's last ones, three ways (`ItemNeighbours.add_up`).

        And how often it followed the last one, where that is counted: two ways, plain and decayed.
        """
        lasts, weights = self.last_items(users, past)
        sums = self.neighbours.add_up(lasts, weights, items)
        if self.followers is None:
            return sums
        followed = self.followers.add_up(lasts[:, :1], weights[:, :1], items)
        return np.concatenate([sums, followed[[0, 2]]])

    def last_items(self, users: Ints, past: History) -> tuple[Ints, Floats]:
        """The last items of each user, newest first, and what a meeting with each of them weighs."""
        lasts = past.of_users.recent(users, LAST).partners
        return lasts, GAIN / np.sqrt(self.counts.totals(np.maximum(lasts, 0)) + SHRINK)

    def of_pairs(self, users: Ints, items: Ints, divisors: InputColumns, past: History) -> InputColumns:
        """Features of pairs n × c: similarity to the user's last items, the newest counting most, plain and decayed."""
        sums = self.met(users, items, past)
        columns = np.empty((*items.shape, len(sums)), dtype=self._dtype)
        for number, divisor in enumerate(self.divided_by):
            np.divide(sums[number], divisors[..., divisor], out=columns[..., number], casting="same_kind")
        return _log1p(columns)

    def inputs(
        self,
        loops: policy.Loops,
        tables: Sequence[Table],
        users: Ints,
        lines: Ints,
        past: History,
        time: int,
        at: Moment,
    ) -> Tensor:
        """All inputs of lines of items n × c in compiled passes, in the order of `Blend.inputs`.

        Tables are the users' vectors, the items' vectors and the items' biases.
        """
        size = max(int(lines.max(initial=-1)) + 1, self.neighbours.rows)
        if len(self._item_at) < size:
            self._item_at = np.zeros(2 * size, dtype=np.int32)
        width, more = len(INPUTS if self.followers is None else INPUTS_WITH_TRANSITIONS), self.more
        out = torch.empty((*lines.shape, width + len(more)), dtype=torch.float32, device="cpu")
        followers = self._no_followers if self.followers is None else self.followers
        state = *past.of_users.storage, past.of_users.rows, *self.counts.storage
        slots = *self.neighbours.storage, *followers.storage
        known = at.now, tables[0].rows, tables[1].rows
        rows = (part for table in tables for part in table.arrays(at))
        given, room = out.numpy(), (self._item_at, scratch(size), width - len(INPUTS))
        loops.inputs(users, lines, *state, *slots, *known, *rows, *room, given)
        self.compare(users, lines, past, width, given)
        about = self.leanings(users, time)
        if about is not None and self.tastes is not None:
            suits, first = policy.load("profiles"), width + len(more) - len(self._leanings)
            assert suits is not None
            suits.suit_lines(INPUTS.index(ITEM_FEATURES[0]), _LOOKS, about, self.tastes.usual, first, given)
        return out

    def of_both(self, users: Ints, named: Named, columns: InputColumns, past: History, time: int) -> InputColumns:
        """What is asked for besides: n × c × `more`; `columns` are the features of the distinct items."""
        out = np.empty((*named.items.shape, len(self.more)), dtype=self._dtype)
        self.compare(users, named.items, past, 0, out)
        about = self.leanings(users, time)
        if about is not None and self.tastes is not None:
            first = len(self.more) - len(self._leanings)
            _suit(named.places, columns, about, self.tastes.usual, first, out)
        return out

    def leanings(self, users: Ints, time: int) -> Floats | None:
        """What users tend to take, where that is asked for: n × 4, with gaps n × 7."""
        return None if self.tastes is None else self.tastes.read(users, time, self.counts.events, gaps=self._gaps)

    def remembered(self) -> tuple[Remembered, Remembered]:
        """Neighbours and followers of items for compiled loops; do not keep them when more is observed."""
        followed = _NO_FOLLOWERS if self.followers is None else self.followers.remembered()
        return self.neighbours.remembered(), followed

    def compare(
        self, users: Ints, items: Ints, past: History, first: int, out: InputColumns, *, seen: bool = True
    ) -> None:
        """Write `of_pairs_besides` of candidates n × c, from input `first` on; without `seen` no user has had them."""
        for takers, sides in self.spaces():
            takers.match(sides, users, items, past, out, first, seen=seen)
            first += len(MATCHES)
        if self.likeness:
            rows = self._rows_of_blend()[1]
            likeness(users, items, past, rows, len(rows), first, out)

    def prepare(self, loops: policy.Loops, n_items: int, past: History) -> list[Singles]:
        """Factors of all items for `compare_all`, for each kind of rows that is asked for."""
        of_als = None if self.profiles is None else self.profiles.takers  # whose rows change where items are taken
        return [
            takers.prepare(loops, sides, n_items, past, only_taken=takers is of_als) for takers, sides in self.spaces()
        ]

    def compare_all(
        self, loops: policy.Loops, user: Ints, factors: Sequence[Singles], past: History, out: Singles, *, seen: bool
    ) -> None:
        """`of_pairs_besides` of one user and all items in order, n_items × inputs; `prepare` gave `factors`.

        Without `seen`, items that the user has had may get any numbers.
        """
        first = 0
        for (takers, sides), prepared in zip(self.spaces(), factors, strict=True):
            part = out if out.shape[1] == len(MATCHES) else np.empty((len(out), len(MATCHES)), dtype=np.float32)
            takers.match_all(loops, sides, user, prepared, past, part, seen=seen)
            if part is not out:
                out[:, first : first + len(MATCHES)] = part
            first += len(MATCHES)
        if self.likeness:
            everything, rows = np.arange(len(out))[None, :], self._rows_of_blend()[1]
            likeness(user, everything, past, rows, min(len(rows), len(out)), first, out[None])

    def forget_user(self, user: int) -> None:
        """Take out what is known of a user."""
        for part in (self.profiles, self.tastes):
            if part is not None:
                part.forget_user(user)

    def similarities(self, items: Ints) -> Floats:
        """How like each other item is each of the given ones, by shared users; items × all that were counted."""
        ids, counts, _ = self.neighbours.of(items)
        everything = np.arange(self.neighbours.rows)
        totals = np.sqrt(self.counts.totals(everything) + SHRINK)
        table = np.zeros((len(items), len(everything) + 1))
        np.put_along_axis(table, np.where(ids < 0, len(everything), ids), counts, axis=1)
        alike: Floats = table[:, :-1] / totals / totals[np.minimum(items, len(everything) - 1)][:, None]
        return alike

    def state(self) -> Arrays:
        """Everything that was counted."""
        parts = {"counts": self.counts.state(), "neighbours": self.neighbours.state()}
        if self.followers is not None:
            parts["followers"] = self.followers.state()
        if self.profiles is not None:
            parts["profiles"] = self.profiles.state()
        if self.own_takers is not None:
            parts["own"] = self.own_takers.state()
        if self.tastes is not None:
            parts["tastes"] = self.tastes.state()
        return {f"{part}.{name}": array for part, state in parts.items() for name, array in state.items()}

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described."""
        counts = ItemCounts.from_state(part_of(state, "counts"))
        neighbours = ItemNeighbours.from_state(part_of(state, "neighbours"))
        followers = None if self.followers is None else ItemNeighbours.from_state(part_of(state, "followers"))
        require(np.array_equal(counts.rates, self.counts.rates), "counts have other half-lives than this blend's")
        for saved, present in ((neighbours, self.neighbours), (followers, self.followers)):
            if saved is not None and present is not None:
                require(saved.form == present.form, "neighbours were counted with other settings than this blend's")
                require(saved.events == counts.events, "neighbours and counts are of different moments")
        profiles = None if self.profiles is None else Profiles(seed=self._seed, dtype=self._dtype)
        takers = None if self.own_takers is None else Takers(self.own_takers.dim, self._dtype)
        tastes = None if self.tastes is None else Tastes(dtype=self._dtype)
        if profiles is not None:
            profiles.restore(part_of(state, "profiles"), counts.events)
        if takers is not None:
            takers.restore(part_of(state, "own"), counts.events)
        if tastes is not None:
            tastes.restore(part_of(state, "tastes"))
        self.counts, self.neighbours, self.followers = counts, neighbours, followers
        self.profiles, self.own_takers, self.tastes = profiles, takers, tastes


def _suit(places: Ints, columns: InputColumns, about: Floats, usual: Floats, first: int, out: InputColumns) -> None:
    """Write users' tastes from input `first` on (`melon.kernels.profiles.suit`)."""
    loops = policy.load("profiles", like=torch.from_numpy(columns))
    if loops is not None:
        loops.suit(places, columns, _LOOKS, about, usual, first, out)
        return
    width, own, of_user = len(LOOKS), out[..., first:], about[:, None, :]
    own[..., :width], own[..., 2 * width :] = of_user[..., :width], of_user[..., width:]
    own[..., width : 2 * width] = (columns[:, _LOOKS] - usual)[places] * of_user[..., :width]


def _log1p(columns: InputColumns) -> InputColumns:
    """In place, by PyTorch, whose logarithm is vectorised."""
    torch.from_numpy(columns).log1p_()
    return columns
