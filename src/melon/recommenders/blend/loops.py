"""The head over candidates, compiled by numba: pair by pair, with nothing of size pairs × inputs ever stored."""

from __future__ import annotations

import math

import numba
import numpy as np

from melon.data.interactions import Ints
from melon.recommenders.blend.features import PAIR_FEATURES, Columns
from melon.recommenders.blend.inputs import INPUTS
from melon.recommenders.streaming.slots import Sums

#: Known to the compiler, which unrolls the loop over inputs.
_INPUTS, _PAIR = len(INPUTS), len(PAIR_FEATURES)
_NOTHING = np.float32(0)
_FAST = {"reassoc", "nsz", "arcp", "contract"}


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST, inline="always")
def _write(
    n: int,
    c: int,
    places: Ints,
    dots: Columns,
    bias: Columns,
    columns: Columns,
    divisors: Columns,
    sums: Sums,
    active: Columns,
    by_activity: Ints,
    out: Columns,
    row: int,
) -> None:
    """The inputs of one pair, in the order of INPUTS."""
    at, wide = places[n, c], columns.shape[1]
    repeated = 2 + wide + _PAIR
    out[row, 0], out[row, 1] = dots[n, c], bias[at]
    for f in range(wide):
        out[row, 2 + f] = columns[at, f]
    for kind in range(_PAIR):  # most pairs have no neighbours in common, and log(1 + 0) is 0
        met = sums[kind, n, c]
        out[row, 2 + wide + kind] = math.log1p(met / divisors[at, 1 if kind == 2 else 0]) if met != 0 else 0.0
    out[row, repeated] = out[row, 0] * active[n]
    for f in range(by_activity.size):
        out[row, repeated + 1 + f] = out[row, 2 + by_activity[f]] * active[n]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def inputs(
    places: Ints,
    dots: Columns,
    bias: Columns,
    columns: Columns,
    divisors: Columns,
    sums: Sums,
    active: Columns,
    by_activity: Ints,
    out: Columns,
) -> None:
    """Inputs of lines of candidates, by the places of their items among distinct ones; one pair after the other.

    `dots` and `sums` are of pairs; `bias`, `columns` and `divisors` of distinct items; `active` of lines.
    """
    lines, width = places.shape
    for n in range(lines):
        for c in range(width):
            row = n * width + c
            _write(n, c, places, dots, bias, columns, divisors, sums, active, by_activity, out, row)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
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
    """Scores of lines of candidates, of whom the same is known as for `inputs`.

    The head's weights are those of unscaled inputs in the order of INPUTS, the hidden ones inputs × units.
    """
    units = output.size
    said, deep = np.empty((1, _INPUTS), dtype=out.dtype), np.empty(units, dtype=out.dtype)
    for n in range(places.shape[0]):
        for c in range(places.shape[1]):
            _write(n, c, places, dots, bias, columns, divisors, sums, active, by_activity, said, 0)
            score = trust * (said[0, 0] + said[0, 1])
            for f in range(_INPUTS):
                score += said[0, f] * linear[f]
            for unit in range(units):
                reached = shift[unit]
                for f in range(_INPUTS):
                    reached += said[0, f] * hidden[f, unit]
                deep[unit] = reached
            for unit in range(units):
                score += (_NOTHING if deep[unit] < 0 else deep[unit]) * output[unit]  # a NaN stays one
            out[n, c] = score
