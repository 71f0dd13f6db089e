"""Which implementation puts the head over candidates: loops compiled by numba, or PyTorch (MELON_KERNEL)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from melon.data.interactions import Ints
from melon.recommenders.blend.features import Columns
from melon.recommenders.blend.head import BlendHead
from melon.recommenders.blend.inputs import BY_ACTIVITY, INPUTS
from melon.recommenders.evidence import Values
from melon.recommenders.streaming.counts import Floats
from melon.recommenders.streaming.slots import Sums
from melon.stream.kernels import loaded, may_compile

_LOOPS = "melon.recommenders.blend.loops"
_BY_ACTIVITY = np.array(BY_ACTIVITY)


@dataclass(frozen=True)
class Offered:
    """What is known of candidates n × c: of pairs, of distinct items (named by `places`), and of users."""

    places: Ints
    dots: Tensor
    bias: Tensor
    columns: Columns
    divisors: Columns
    sums: Sums
    active: Floats


def compiles(like: Tensor) -> bool:
    """Whether compiled loops can be had for such numbers."""
    return like.dtype == torch.float32 and like.device.type == "cpu" and may_compile() and loaded(_LOOPS) is not None


def quick_scores(head: BlendHead, values: Values, offered: Offered) -> Tensor:
    """The scores of candidates, where `compiles` says so: as the head gives them, to rounding."""
    loops = loaded(_LOOPS)
    assert loops is not None
    linear, hidden, shift, output = head.folded(values)
    out = torch.empty_like(offered.dots)
    loops.scores(
        offered.places,
        offered.dots.numpy(),
        offered.bias.contiguous().numpy(),
        offered.columns,
        offered.divisors,
        offered.sums,
        offered.active.astype(np.float32),
        _BY_ACTIVITY,
        head.trust,
        *(each.contiguous().numpy() for each in (linear, hidden.T, shift, output)),
        out.numpy(),
    )
    return out.sub_(linear @ head.centre)


def warm_up() -> None:
    """Have the loops compiled, by asking them for next to nothing."""
    loops = loaded(_LOOPS)
    if loops is None:
        return
    ones = [np.ones(shape, dtype=np.float32) for shape in ((1, 1), (1,), (1, 8), (1, 2), (len(INPUTS), 1))]
    pair, flat, columns, divisors, hidden = ones
    linear, sums, places = hidden[:, 0].copy(), np.ones((3, 1, 1)), np.zeros((1, 1), dtype=np.int64)
    known = (places, pair, flat, columns, divisors, sums, flat, _BY_ACTIVITY)
    loops.scores(*known, 1.0, linear, hidden, flat, flat, pair.copy())
