"""The head over candidates, compiled by numba: pair by pair, with nothing of size pairs × inputs ever stored."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from melon.kernels.generator import inlined
from melon.kernels.types import (
    DOUBLE,
    DOUBLE_CUBE,
    INT_TABLE,
    INTS,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SINGLES,
    Fields,
    Signature,
)
from melon.types import Floats, Ints, Singles

#: How many inputs the head has without transitions, and how many of them come from sums over pairs. Constants, so that
#: the compiler unrolls the loops over them.
INPUTS, PAIR_SUMS = 17, 3
_NOTHING = np.float32(0)


class KnownPairs(NamedTuple):
    """What is known of candidates n × c before it is put together as inputs.

    `places` are theirs among distinct items, to which `bias`, `columns` and `divisors` belong; `dots` and `sums` are of
    pairs, `active` of users. `by_activity` are the columns that are repeated times the user's activity,
    `besides` are inputs as they stand, and `divided_by` says which of its divisors each kind of sum belongs to.
    """

    places: Ints
    dots: Singles
    bias: Singles
    columns: Singles
    divisors: Singles
    sums: Floats
    active: Singles
    by_activity: Ints
    besides: Singles
    divided_by: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many inputs each pair has."""
        return INPUTS + len(self.divided_by) - PAIR_SUMS + int(self.besides.shape[2])


_OF_ITEMS: tuple[str, ...] = (SINGLES, SINGLE_TABLE, SINGLE_TABLE)
_FIELDS: tuple[str, ...] = (INT_TABLE, SINGLE_TABLE, *_OF_ITEMS, DOUBLE_CUBE, SINGLES, INTS, SINGLE_CUBE)
_HEAD: Signature = (DOUBLE, SINGLES, SINGLE_TABLE, SINGLES, SINGLES, SINGLE_TABLE)
_KNOWN: Fields = Fields(KnownPairs, (*_FIELDS, f"UniTuple(int64, {PAIR_SUMS})"))
_KNOWN_MORE: Fields = Fields(KnownPairs, (*_FIELDS, f"UniTuple(int64, {PAIR_SUMS + 2})"))

SIGNATURES: dict[str, Signature] = {"inputs": (_KNOWN, SINGLE_TABLE), "scores": (_KNOWN, *_HEAD)}
WITH_TRANSITIONS: dict[str, Signature] = {"inputs": (_KNOWN_MORE, SINGLE_TABLE), "scores": (_KNOWN_MORE, *_HEAD)}


@inlined
def _write(known: KnownPairs, n: int, c: int, out: Singles, row: int) -> None:
    """The inputs of one pair, in the order of INPUTS."""
    at, wide, active = known.places[n, c], known.columns.shape[1], known.active[n]
    repeated, more = 2 + wide + PAIR_SUMS, INPUTS + len(known.divided_by) - PAIR_SUMS
    out[row, 0], out[row, 1] = known.dots[n, c], known.bias[at]
    for f in range(wide):
        out[row, 2 + f] = known.columns[at, f]
    for kind in range(len(known.divided_by)):  # most pairs have no neighbours in common, and log(1 + 0) is 0
        met, divisor = known.sums[kind, n, c], known.divisors[at, known.divided_by[kind]]
        place = 2 + wide + kind if kind < PAIR_SUMS else INPUTS + kind - PAIR_SUMS
        out[row, place] = math.log1p(met / divisor) if met != 0 else 0.0
    out[row, repeated] = out[row, 0] * active
    for f in range(known.by_activity.size):
        out[row, repeated + 1 + f] = out[row, 2 + known.by_activity[f]] * active
    for f in range(known.besides.shape[2]):
        out[row, more + f] = known.besides[n, c, f]


def inputs(known: KnownPairs, out: Singles) -> None:
    """Inputs of lines of candidates, one pair after the other."""
    lines, width = known.places.shape
    for n in range(lines):
        for c in range(width):
            _write(known, n, c, out, n * width + c)


def scores(
    known: KnownPairs,
    trust: float,
    linear: Singles,
    hidden: Singles,
    shift: Singles,
    output: Singles,
    out: Singles,
) -> None:
    """Scores of lines of candidates.

    The head's weights are those of unscaled inputs in the order of INPUTS, the hidden ones inputs × units.
    """
    (lines, width), units = known.places.shape, output.size
    inputs, more = INPUTS + len(known.divided_by) - PAIR_SUMS, known.besides.shape[2]
    said, deep = np.empty((1, inputs + more), dtype=out.dtype), np.empty(units, dtype=out.dtype)
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
            for f in range(inputs, inputs + more):
                score += said[0, f] * linear[f]
            for f in range(inputs, inputs + more):
                for unit in range(units):
                    deep[unit] += said[0, f] * hidden[f, unit]
            for unit in range(units):
                score += (_NOTHING if deep[unit] < 0 else deep[unit]) * output[unit]  # a NaN stays one
            out[n, c] = score
