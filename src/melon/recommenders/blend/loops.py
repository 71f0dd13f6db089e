"""The head over candidates, compiled by numba: pair by pair, with nothing of size pairs × inputs ever stored."""

from __future__ import annotations

import math

import numba
import numpy as np

from melon.recommenders.blend.features import PAIR_FEATURES, Columns
from melon.recommenders.blend.inputs import INPUTS, KnownPairs

#: With the length of a tuple, known to the compiler, which unrolls the loop over inputs.
_INPUTS, _PAIR = len(INPUTS), len(PAIR_FEATURES)
_NOTHING = np.float32(0)
_FAST = {"reassoc", "nsz", "arcp", "contract"}


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST, inline="always")
def _write(known: KnownPairs, n: int, c: int, out: Columns, row: int) -> None:
    """The inputs of one pair, in the order of INPUTS."""
    at, wide, active = known.places[n, c], known.columns.shape[1], known.active[n]
    repeated = 2 + wide + _PAIR
    out[row, 0], out[row, 1] = known.dots[n, c], known.bias[at]
    for f in range(wide):
        out[row, 2 + f] = known.columns[at, f]
    for kind in range(len(known.divided_by)):  # most pairs have no neighbours in common, and log(1 + 0) is 0
        met, divisor = known.sums[kind, n, c], known.divisors[at, known.divided_by[kind]]
        place = 2 + wide + kind if kind < _PAIR else _INPUTS + kind - _PAIR
        out[row, place] = math.log1p(met / divisor) if met != 0 else 0.0
    out[row, repeated] = out[row, 0] * active
    for f in range(known.by_activity.size):
        out[row, repeated + 1 + f] = out[row, 2 + known.by_activity[f]] * active


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def inputs(known: KnownPairs, out: Columns) -> None:
    """Inputs of lines of candidates, one pair after the other."""
    lines, width = known.places.shape
    for n in range(lines):
        for c in range(width):
            _write(known, n, c, out, n * width + c)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def scores(
    known: KnownPairs,
    trust: float,
    linear: Columns,
    hidden: Columns,
    shift: Columns,
    output: Columns,
    out: Columns,
) -> None:
    """Scores of lines of candidates.

    The head's weights are those of unscaled inputs in the order of INPUTS, the hidden ones inputs × units.
    """
    (lines, width), units = known.places.shape, output.size
    inputs = _INPUTS + len(known.divided_by) - _PAIR
    said, deep = np.empty((1, inputs), dtype=out.dtype), np.empty(units, dtype=out.dtype)
    for n in range(lines):
        for c in range(width):
            _write(known, n, c, said, 0)
            score = trust * (said[0, 0] + said[0, 1])
            for f in range(inputs):
                score += said[0, f] * linear[f]
            for unit in range(units):
                reached = shift[unit]
                for f in range(inputs):
                    reached += said[0, f] * hidden[f, unit]
                deep[unit] = reached
            for unit in range(units):
                score += (_NOTHING if deep[unit] < 0 else deep[unit]) * output[unit]  # a NaN stays one
            out[n, c] = score
