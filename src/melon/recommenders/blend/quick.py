"""Which implementation puts the head over candidates: loops compiled by numba, or PyTorch (MELON_KERNEL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from melon.data.interactions import Ints
from melon.recommenders.blend.features import ITEM_FEATURES, PAIR_FEATURES, Columns
from melon.recommenders.blend.head import BlendHead
from melon.recommenders.blend.inputs import BY_ACTIVITY, INPUTS
from melon.recommenders.evidence import Values
from melon.recommenders.streaming.counts import Floats
from melon.recommenders.streaming.slots import Sums
from melon.stream.kernels import loaded, may_compile

_LOOPS = "melon.recommenders.blend.loops"
_BY_ACTIVITY = np.array(BY_ACTIVITY)


@dataclass(frozen=True)
class KnownPairs:
    """What is known of candidates n × c: of pairs, of distinct items (named by `places`), and of users."""

    places: Ints
    dots: Tensor
    bias: Tensor
    columns: Columns
    divisors: Columns
    sums: Sums
    active: Floats

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """As the loops take them."""
        bias, active = self.bias.contiguous().numpy(), self.active.astype(np.float32)
        return self.places, self.dots.numpy(), bias, self.columns, self.divisors, self.sums, active, _BY_ACTIVITY


def compiles(like: Tensor) -> bool:
    """Whether compiled loops can be had for such numbers."""
    return like.dtype == torch.float32 and like.device.type == "cpu" and may_compile() and loaded(_LOOPS) is not None


def quick_inputs(known: KnownPairs) -> Tensor:
    """The head's inputs of candidates, where `compiles` says so: as PyTorch puts them together, to rounding."""
    loops = loaded(_LOOPS)
    assert loops is not None
    out = known.dots.new_empty((*known.places.shape, len(INPUTS)))
    loops.inputs(*known.arrays(), out.view(-1, len(INPUTS)).numpy())
    return out


def quick_scores(head: BlendHead, values: Values, known: KnownPairs) -> Tensor:
    """The scores of candidates, where `compiles` says so: as the head gives them, to rounding."""
    loops = loaded(_LOOPS)
    assert loops is not None
    linear, hidden, shift, output = head.folded(values)
    weights = (each.contiguous().numpy() for each in (linear, hidden.T, shift, output))
    out = torch.empty_like(known.dots)
    loops.scores(*known.arrays(), head.trust, *weights, out.numpy())
    return out.sub_(linear @ head.centre)


def warm_up() -> None:
    """Have the loops compiled, by asking them for next to nothing."""
    loops = loaded(_LOOPS)
    if loops is None:
        return
    shapes = ((1, 1), (1,), (1, len(ITEM_FEATURES)), (1, 2), (len(INPUTS), 1))
    pair, flat, columns, divisors, hidden = (np.ones(shape, dtype=np.float32) for shape in shapes)
    sums, places = np.ones((len(PAIR_FEATURES), 1, 1)), np.zeros((1, 1), dtype=np.int64)
    known = (places, pair, flat, columns, divisors, sums, flat, _BY_ACTIVITY)
    loops.inputs(*known, hidden.T.copy())
    loops.scores(*known, 1.0, hidden[:, 0].copy(), hidden, flat, flat, pair.copy())
