"""The head over candidates, compiled by numba: pair by pair, with nothing of size pairs × inputs ever stored."""

from __future__ import annotations

import math

import numba
import numpy as np

from melon.data.interactions import Ints
from melon.recommenders.blend.features import Columns
from melon.recommenders.blend.inputs import INPUTS
from melon.recommenders.streaming.slots import Sums

#: Known to the compiler, which unrolls the loop over inputs.
_INPUTS = len(INPUTS)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nsz", "arcp", "contract"})
def scores(
    places: Ints,
    dots: Columns,
    bias: Columns,
    columns: Columns,
    divisors: Columns,
    sums: Sums,
    active: Columns,
    by_activity: Ints,
    trust: float,
    linear: Columns,
    hidden: Columns,
    shift: Columns,
    output: Columns,
    out: Columns,
) -> None:
    """Scores of lines of candidates, by the places of their items among distinct ones.

    `dots` and `sums` are of pairs; `bias`, `columns` and `divisors` of distinct items; `active` of lines. The head's
    weights are those of unscaled inputs in the order of INPUTS, the hidden ones inputs × units.
    """
    wide, units = columns.shape[1], output.size
    inputs, deep = np.empty(_INPUTS, dtype=out.dtype), np.empty(units, dtype=out.dtype)
    repeated = 2 + wide + 3
    for n in range(places.shape[0]):
        for c in range(places.shape[1]):
            at = places[n, c]
            inputs[0], inputs[1] = dots[n, c], bias[at]
            for f in range(wide):
                inputs[2 + f] = columns[at, f]
            for kind in range(3):  # most pairs have no neighbours in common, and log(1 + 0) is 0
                met = sums[kind, n, c]
                inputs[2 + wide + kind] = math.log1p(met / divisors[at, 1 if kind == 2 else 0]) if met != 0 else 0.0
            inputs[repeated] = inputs[0] * active[n]
            for f in range(by_activity.size):
                inputs[repeated + 1 + f] = inputs[2 + by_activity[f]] * active[n]
            score = trust * (inputs[0] + inputs[1])
            for f in range(_INPUTS):
                score += inputs[f] * linear[f]
            for unit in range(units):
                reached = shift[unit]
                for f in range(_INPUTS):
                    reached += inputs[f] * hidden[f, unit]
                deep[unit] = reached
            for unit in range(units):
                score += max(deep[unit], np.float32(0)) * output[unit]
            out[n, c] = score
