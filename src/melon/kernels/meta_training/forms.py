"""What compiled meta-training reads and writes: a stream in compact rows, rates, and what is recorded on the way."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from melon.kernels.types import (
    DOUBLE,
    DOUBLE_TABLE,
    DOUBLES,
    FLAGS,
    INT_TABLE,
    INTS,
    SINGLE_TABLE,
    SINGLES,
    SMALL_INT_TABLE,
    Fields,
    Signature,
)
from melon.types import Flags, Floats, Ints, SmallInts

#: In the precision of the rows.
Numbers: TypeAlias = npt.NDArray[np.floating]

#: No logarithm of a rate is larger than this, and losses are read from here on.
MOST_LOG_RATE, LEAST_LOSS = 3.0, 1e-8
#: In the place of a candidate: an item without a row, and an item taken that is not predicted.
ABSENT, UNPREDICTED = -1, -2
LN2 = math.log(2.0)


class MetaTrainingStream(NamedTuple):
    """A meta-training stream in compact rows: n interactions with their items (the one taken first) and candidates.

    Batch t ends at interaction `ends[t]` and begins at the moment `now[t]`; the distinct rows that it touches are
    `user_rows` and `item_rows` up to `user_ends[t]` and `item_ends[t]`, and `user_at` and `items_at` are places among
    those. `known` users had a row when they were predicted. A candidate without a row is -1; without an item taken (-2)
    the interaction is not predicted. `roles` says for each column of rates which spline belongs to it.
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
    roles: Ints


class MetaTrainingRows(NamedTuple):
    """Compact rows: of users, of items, the items' biases, and when each item was last touched."""

    users: Numbers
    items: Numbers
    bias: Numbers
    touched: Ints


class MetaTrainingRates(NamedTuple):
    """Steps: log rates of each interaction's columns before splines, splines (roles × knots), what is lost of
    each table at a touch (users, items, biases), and halvings per unit of idle time (items, biases).

    `slopes` are those of the splines between knots, and 0 outside: roles × (knots + 1).
    """

    base: Numbers
    knots: Floats
    splines: Floats
    slopes: Floats
    decay: Numbers
    halvings: Floats


class Tape(NamedTuple):
    """What a way forward records: touched rows before they changed, and what each interaction saw."""

    users: Numbers
    items: Numbers
    bias: Numbers
    idle: Ints
    logs: Numbers  # log rates, n × columns
    pull: Numbers  # how much each negative counts, n × negatives
    loss: Numbers
    dots: Numbers  # of candidates, n × candidates


class Slopes(NamedTuple):
    """∂J by log rates (n × columns), by what tables lose at a touch, by log half-lives, and by log τ."""

    logs: Floats
    decay: Floats
    half_lives: Floats
    temperature: Floats


_COURSE: Fields = Fields(
    MetaTrainingStream,
    (INTS, INTS, INTS, FLAGS, INT_TABLE, SMALL_INT_TABLE, INTS, INTS, INTS, INTS, INTS, INT_TABLE, INTS),
)
_SLOPES: Fields = Fields(Slopes, (DOUBLE_TABLE, DOUBLES, DOUBLES, DOUBLES))
_ROWS: Fields = Fields(MetaTrainingRows, (SINGLE_TABLE, SINGLE_TABLE, SINGLES, INTS))
_ARGUMENTS: Signature = (
    _COURSE,
    _ROWS,
    Fields(MetaTrainingRates, (SINGLE_TABLE, DOUBLES, DOUBLE_TABLE, DOUBLE_TABLE, SINGLES, DOUBLES)),
    Fields(Tape, (SINGLE_TABLE, SINGLE_TABLE, SINGLES, INTS, SINGLE_TABLE, SINGLE_TABLE, SINGLES, SINGLE_TABLE)),
    DOUBLE,
)
SIGNATURES: dict[str, Signature] = {"forward": _ARGUMENTS, "backward": (*_ARGUMENTS, _ROWS, _SLOPES)}
