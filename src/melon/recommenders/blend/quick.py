"""Which implementation puts the head over candidates: loops compiled by numba, or PyTorch (MELON_KERNEL)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from melon.kernels.policy import loaded, may_compile
from melon.recommenders.blend.features import ITEM_FEATURES, PAIR_FEATURES
from melon.recommenders.blend.head import BlendHead
from melon.recommenders.blend.inputs import BY_ACTIVITY, INPUTS, KnownPairs
from melon.recommenders.evidence import Values

_LOOPS = "melon.recommenders.blend.loops"


def compiles(like: Tensor) -> bool:
    """Whether compiled loops can be had for such numbers."""
    return like.dtype == torch.float32 and like.device.type == "cpu" and may_compile() and loaded(_LOOPS) is not None


def quick_inputs(known: KnownPairs) -> Tensor:
    """The head's inputs of candidates, where `compiles` says so: as PyTorch puts them together, to rounding."""
    loops = loaded(_LOOPS)
    assert loops is not None
    out = torch.empty((*known.places.shape, known.width), dtype=torch.float32, device="cpu")
    loops.inputs(known, out.view(-1, known.width).numpy())
    return out


def quick_scores(head: BlendHead, values: Values, known: KnownPairs) -> Tensor:
    """The scores of candidates, where `compiles` says so: as the head gives them, to rounding."""
    loops = loaded(_LOOPS)
    assert loops is not None
    linear, hidden, shift, output = head.folded(values)
    weights = (each.contiguous().numpy() for each in (linear, hidden.T, shift, output))
    out = torch.empty(known.places.shape, dtype=torch.float32, device="cpu")
    loops.scores(known, head.trust, *weights, out.numpy())
    return out.sub_(linear @ head.centre)


def warm_up() -> None:
    """Have the loops compiled, by asking them for next to nothing."""
    loops = loaded(_LOOPS)
    if loops is None:
        return
    shapes = ((1, 1), (1,), (1, len(ITEM_FEATURES)), (1, 2), (len(INPUTS), 1))
    pair, flat, columns, divisors, hidden = (np.ones(shape, dtype=np.float32) for shape in shapes)
    sums, places = np.ones((len(PAIR_FEATURES), 1, 1)), np.zeros((1, 1), dtype=np.int64)
    by_activity, divided_by = np.array(BY_ACTIVITY), tuple(PAIR_FEATURES.values())
    known = KnownPairs(places, pair, flat, columns, divisors, sums, flat, by_activity, divided_by)
    loops.inputs(known, hidden.T.copy())
    loops.scores(known, 1.0, hidden[:, 0].copy(), hidden, flat, flat, pair.copy())
