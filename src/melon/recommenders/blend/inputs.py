"""The inputs of a blend's head by name, in their order, and how they are put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from melon.recommenders.streaming.likeness import LIKENESS
from melon.recommenders.streaming.neighbours import scratch
from melon.recommenders.streaming.profiles import MATCHES
from melon.recommenders.streaming.slots import EMPTY
from melon.recommenders.streaming.tastes import LOOKS
from melon.stream.history import History
from melon.types import Floats, Ints

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
#: implicit ALS, and in the blend's own; how like the user's last items the candidate is in the latter; what the user
#: tends to take, by itself and times the candidate's own; that and when the user was there.
MORE = {
    "profiles": MATCHES,
    "own_profiles": tuple(f"own_{name}" for name in MATCHES),
    "likeness": LIKENESS,
    "leanings": _LEANINGS,
    "tastes": (*_LEANINGS, "days", "events", "known"),
}


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
