"""What compiled meta-training reads and writes: a stream in compact rows, rates, and what is recorded on the way."""

from __future__ import annotations

import math
from typing import NamedTuple

from melon.kernels.melon.rates import LINE, MODEL, SLOPES, Line, Numbers, RateModel, RateSlopes
from melon.kernels.types import (
    DOUBLE,
    DOUBLES,
    FLAGS,
    INT_TABLE,
    INTS,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SINGLES,
    SMALL_INT_TABLE,
    Fields,
    Signature,
)
from melon.types import Flags, Floats, Ints, SmallInts

#: In the place of a candidate: an item without a row, and an item taken that is not predicted.
ABSENT, UNPREDICTED = -1, -2
LN2 = math.log(2.0)


class MetaTrainingStream(NamedTuple):
    """A meta-training stream in compact rows: n interactions with their items (the one taken first) and candidates.

    Batch t ends at interaction `ends[t]` and begins at the moment `now[t]`; the distinct rows that it touches are
    `user_rows` and `item_rows` up to `user_ends[t]` and `item_ends[t]`, and `user_at` and `items_at` are places among
    those. `known` users had a row when they were predicted. A candidate without a row is -1; without an item taken (-2)
    the interaction is not predicted. `facts` (n × slots × facts) are what rates know of each touch.
    """

    ends: Ints
    now: Ints
    users: Ints
    known: Flags
    items: Ints
    candidates: SmallInts
    user_rows: Ints
    user_ends: Ints
    user_at: Ints
    item_rows: Ints
    item_ends: Ints
    items_at: Ints
    facts: Numbers


class MetaTrainingRows(NamedTuple):
    """Compact rows: of users, of items, the items' biases, and when each item was last touched."""

    users: Numbers
    items: Numbers
    bias: Numbers
    touched: Ints


class MetaTrainingStep(NamedTuple):
    """How steps are made: rates, room for one interaction, what is lost of each table at a touch (users, items,
    biases), and halvings per unit of idle time (items, biases).
    """

    model: RateModel
    line: Line
    decay: Numbers
    halvings: Floats


class Tape(NamedTuple):
    """What a way forward records: touched rows before they changed, and dot products of candidates."""

    users: Numbers
    items: Numbers
    bias: Numbers
    idle: Ints
    dots: Numbers  # n × candidates


class Slopes(NamedTuple):
    """∂J by φ of the rates, by what tables lose at a touch, by log half-lives, and by log τ."""

    rates: RateSlopes
    decay: Floats
    half_lives: Floats
    temperature: Floats


_STREAM: Fields = Fields(
    MetaTrainingStream,
    (INTS, INTS, INTS, FLAGS, INT_TABLE, SMALL_INT_TABLE, INTS, INTS, INTS, INTS, INTS, INT_TABLE, SINGLE_CUBE),
)
_ROWS: Fields = Fields(MetaTrainingRows, (SINGLE_TABLE, SINGLE_TABLE, SINGLES, INTS))
_ARGUMENTS: Signature = (
    _STREAM,
    _ROWS,
    Fields(MetaTrainingStep, (MODEL, LINE, SINGLES, DOUBLES)),
    Fields(Tape, (SINGLE_TABLE, SINGLE_TABLE, SINGLES, INTS, SINGLE_TABLE)),
    DOUBLE,
)
SIGNATURES: dict[str, Signature] = {
    "forward": _ARGUMENTS,
    "backward": (*_ARGUMENTS, _ROWS, Fields(Slopes, (SLOPES, DOUBLES, DOUBLES, DOUBLES))),
}
