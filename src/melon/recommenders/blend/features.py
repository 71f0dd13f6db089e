"""The inputs of a blend's head: features of (user, item) pairs from streaming state, beside what the rows say.

Streaming state knows how popular an item is now, and how similar it is to the user's last items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from melon.kernels import policy
from melon.kernels.lessons import ALWAYS, GAIN, LAST, RECENT, SHRINK, SHRINK_RECENT
from melon.kernels.lists import Weights
from melon.recommenders.streaming.counts import ItemCounts
from melon.recommenders.streaming.neighbours import ItemNeighbours, scratch
from melon.recommenders.streaming.profiles import MATCHES, Profiles
from melon.recommenders.streaming.slots import EMPTY, Sums
from melon.recommenders.streaming.tastes import LOOKS, Tastes
from melon.stream.history import History
from melon.stream.saved import Saved, part_of, require
from melon.tables import Moment, Table
from melon.types import Arrays, Floats, Ints, Singles, SmallInts

#: Decayed counts that the head sees, in interactions; the last two serve the neighbours.
HALF_LIVES = (100.0, 300.0, 1_000.0, 5_000.0, 20_000.0, 100_000.0)
ITEM_FEATURES = ("count_100", "count_300", "count_1k", "count_5k", "count_20k", "count_100k", "idle", "age")
#: Features of pairs, and which of the two divisors that `of_items` gives belongs to each.
PAIR_FEATURES = {"neighbours": 0, "neighbours_by_lag": 0, "neighbours_recent": 1}
#: Where they are asked for: how often the item came right after the user's last one.
TRANSITIONS = {"transitions": 0, "transitions_recent": 1}
STREAMED = (*ITEM_FEATURES, *PAIR_FEATURES)
#: Streaming features that are worth more, or less, for a user of whom much is known.
ACTIVE_ITEM, ACTIVE_PAIR = ("count_300", "count_5k"), ("neighbours",)
BY_ACTIVITY = [STREAMED.index(name) for name in (*ACTIVE_ITEM, *ACTIVE_PAIR)]
INPUTS = ("dot", "bias", *STREAMED, "active_dot", *(f"active_{name}" for name in (*ACTIVE_ITEM, *ACTIVE_PAIR)))
#: Where transitions are asked for, they come last.
INPUTS_WITH_TRANSITIONS = (*INPUTS, *TRANSITIONS)
#: Parts of the blend that can be left out, and their inputs; what the rows say stands beside the head, too.
PARTS = {
    "personal": ("dot", "bias", "active_dot"),
    "popularity": (*ITEM_FEATURES, *(f"active_{name}" for name in ACTIVE_ITEM)),
    "neighbours": (*PAIR_FEATURES, *(f"active_{name}" for name in ACTIVE_PAIR)),
    "activity": tuple(name for name in INPUTS if name.startswith("active_")),
}
_LEANINGS = (*(f"taste_{name}" for name in LOOKS), *(f"suits_{name}" for name in LOOKS))
#: Groups of inputs that can be asked for, after transitions and in this order: how a pair goes together in the rows of
#: implicit ALS; what the user tends to take, by itself and times the candidate's own; that and when the user was there.
MORE = {"profiles": MATCHES, "leanings": _LEANINGS, "tastes": (*_LEANINGS, "days", "events", "known")}
_LOOKS: Ints = np.array([ITEM_FEATURES.index(name) for name in LOOKS])
InputColumns = npt.NDArray[np.floating[Any]]
#: How many followers each item remembers.
_FOLLOWERS = 64


@dataclass(frozen=True)
class Named:
    """Items in any shape, each distinct one once, and where in that list each stands.

    Candidates of a batch name most items several times; each is looked at once.
    """

    items: Ints
    distinct: Ints
    places: Ints

    @classmethod
    def of(cls, items: Ints) -> Named:
        """Found without sorting."""
        flat = items.reshape(-1)
        numbers, slots = np.arange(len(flat)), scratch(int(flat.max(initial=0)) + 1)
        slots[flat] = numbers  # of several, the last one stays
        distinct = flat[slots[flat] == numbers]
        slots[distinct] = np.arange(len(distinct))
        places = slots[flat].astype(np.int64).reshape(items.shape)
        slots[distinct] = EMPTY
        return cls(items, distinct, places)


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
    ) -> None:
        self._dtype, self._seed = np.dtype(dtype), seed
        self.counts = ItemCounts([*HALF_LIVES, float("inf")])
        self.neighbours = ItemNeighbours(slots=slots)
        self.followers = ItemNeighbours(slots=_FOLLOWERS, reach=1, both_ways=False) if transitions else None
        self.profiles = Profiles(seed=seed, dtype=dtype) if "profiles" in more else None
        self.tastes = Tastes(dtype=dtype) if "tastes" in more or "leanings" in more else None
        self._gaps = "tastes" in more
        self._no_followers = ItemNeighbours(slots=1)
        self._item_at: SmallInts = np.zeros(0, dtype=np.int32)  # a number for each item, for compiled loops

    @property
    def divided_by(self) -> tuple[int, ...]:
        """Which divisor belongs to each feature of pairs."""
        return tuple((PAIR_FEATURES if self.followers is None else PAIR_FEATURES | TRANSITIONS).values())

    @property
    def more(self) -> tuple[str, ...]:
        """The names of what `of_both` gives."""
        return (*(() if self.profiles is None else MATCHES), *(() if self.tastes is None else self._leanings))

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
        self.neighbours.observe(users, items, past.of_users)
        if self.followers is not None:
            self.followers.observe(users, items, past.of_users)
        self.counts.observe(items)

    def undo_point(self, users: Ints, items: Ints, past: History) -> Callable[[], None]:
        """A function that takes back the next `observe` of these interactions."""
        parts = [self.neighbours] if self.followers is None else [self.neighbours, self.followers]
        undo_parts = [part.undo_point(users, items, past.of_users) for part in parts] + [self.counts.undo_point(items)]
        undo_parts += [] if self.profiles is None else [self.profiles.undo_point(users, items)]
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
        """The same for items 0 … n_items-1, features × items, to float32's rounding; returns divisors × items."""
        counts, first, last, rates, events = self.counts.storage
        by_kind = torch.empty((len(rates), n_items), dtype=torch.float32, device="cpu")
        out = torch.from_numpy(columns)
        loops.counted(counts, first, last, events, by_kind.numpy(), columns[ALWAYS:])
        decays = torch.from_numpy((-rates[:ALWAYS, None]).astype(np.float32))
        torch.mul(out[ALWAYS], decays, out=out[:ALWAYS]).exp2_().mul_(by_kind[:ALWAYS])
        divided = torch.stack([by_kind[ALWAYS] + SHRINK, out[RECENT] + SHRINK_RECENT]).sqrt_()
        out.log1p_()
        return divided.numpy()

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
        if self.profiles is not None:
            self.profiles.match(users, lines, past, given, width)
        if self.tastes is not None:
            about = self.tastes.read(users, time, self.counts.events, gaps=self._gaps)
            suits, first = policy.load("profiles"), width + len(more) - len(self._leanings)
            assert suits is not None
            suits.suit_lines(INPUTS.index(ITEM_FEATURES[0]), _LOOKS, about, self.tastes.usual, first, given)
        return out

    def of_both(self, users: Ints, named: Named, columns: InputColumns, past: History, time: int) -> InputColumns:
        """What is asked for besides: n × c × `more`; `columns` are the features of the distinct items."""
        out = np.empty((*named.items.shape, len(self.more)), dtype=self._dtype)
        if self.profiles is not None:
            self.profiles.match(users, named.items, past, out)
        if self.tastes is not None:
            about = self.tastes.read(users, time, self.counts.events, gaps=self._gaps)
            first = len(self.more) - len(self._leanings)
            _suit(named.places, columns, about, self.tastes.usual, first, out)
        return out

    def folded(self, head: Weights, user: Ints, time: int) -> Weights:
        """A head over one user's leanings as one without these inputs: they are linear in the items' own features."""
        if self.tastes is None:
            return head
        width, first = len(LOOKS), head.linear.size - len(self._leanings)
        known = self.tastes.read(user, time, self.counts.events, gaps=self._gaps)[0]
        columns, usual = INPUTS.index(ITEM_FEATURES[0]) + _LOOKS, self.tastes.usual

        def fold(weights: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], Floats]:
            own, rest = weights[..., first:].astype(np.float64), weights[..., :first].copy()
            suits = own[..., width : 2 * width] * known[:width]
            rest[..., columns] += suits.astype(np.float32)
            same = own[..., :width] @ known[:width] + own[..., 2 * width :] @ known[width:] - suits @ usual
            return rest, same

        (linear, same), (hidden, shift) = fold(head.linear), fold(head.hidden)
        constant, shift = np.float32(float(head.constant) - float(same)), head.shift + shift
        return Weights(head.trust, constant, linear, hidden, shift.astype(np.float32), head.output)

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
        if self.tastes is not None:
            parts["tastes"] = self.tastes.state()
        return {f"{part}.{name}": array for part, state in parts.items() for name, array in state.items()}

    def restore(self, state: Saved) -> None:
        """Become what `state` described."""
        counts = ItemCounts.from_state(part_of(state, "counts"))
        neighbours = ItemNeighbours.from_state(part_of(state, "neighbours"))
        followers = None if self.followers is None else ItemNeighbours.from_state(part_of(state, "followers"))
        require(np.array_equal(counts.rates, self.counts.rates), "counts have other half-lives than this blend's")
        for saved, own in ((neighbours, self.neighbours), (followers, self.followers)):
            if saved is not None and own is not None:
                require(saved.form == own.form, "neighbours were counted with other settings than this blend's")
                require(saved.events == counts.events, "neighbours and counts are of different moments")
        profiles = None if self.profiles is None else Profiles(seed=self._seed, dtype=self._dtype)
        tastes = None if self.tastes is None else Tastes(dtype=self._dtype)
        if profiles is not None:
            profiles.restore(part_of(state, "profiles"), counts.events)
        if tastes is not None:
            tastes.restore(part_of(state, "tastes"))
        self.counts, self.neighbours, self.followers = counts, neighbours, followers
        self.profiles, self.tastes = profiles, tastes


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


def activity(users: Ints, past: History) -> Floats:
    """How active each user has been: −1 for nobody, 0 after some fifty interactions (docs/methods.md 8.5)."""
    active: Floats = np.log1p(past.of_users.met(users)) / 4 - 1
    return active


def inputs_of(dot: Tensor, bias: Tensor, features: Tensor) -> Tensor:
    """Inputs in the order of INPUTS, then those asked for besides; the last of the features is the user's activity."""
    streamed, active = features[..., : len(STREAMED)], features[..., -1:]
    besides = features[..., len(STREAMED) : -1]
    personal, by_activity = torch.stack([dot, bias], -1), streamed[..., BY_ACTIVITY] * active
    return torch.cat([personal, streamed, dot.unsqueeze(-1) * active, by_activity, besides], -1)


def personal_score(inputs: Tensor) -> Tensor:
    """What the rows say by themselves."""
    return inputs[..., 0] + inputs[..., 1]
