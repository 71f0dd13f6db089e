"""The head's inputs: what rows say of a pair, what streaming state says, and some of both times the user's activity."""

from __future__ import annotations

import torch
from torch import Tensor

from melon.recommenders.blend.features import ITEM_FEATURES, PAIR_FEATURES, TRANSITIONS

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


def inputs_of(dot: Tensor, bias: Tensor, features: Tensor) -> Tensor:
    """Inputs in the order of INPUTS; the last of the features is the user's activity."""
    streamed, active = features[..., : len(STREAMED)], features[..., -1:]
    transitions = features[..., len(STREAMED) : -1]
    personal, by_activity = torch.stack([dot, bias], -1), streamed[..., BY_ACTIVITY] * active
    return torch.cat([personal, streamed, dot.unsqueeze(-1) * active, by_activity, transitions], -1)


def personal_score(inputs: Tensor) -> Tensor:
    """What the rows say by themselves."""
    return inputs[..., 0] + inputs[..., 1]
