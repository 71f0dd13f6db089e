"""What compiled meta-training reads and writes: a stream in compact rows, rates, and what is recorded on the way."""

from __future__ import annotations

import math
from typing import NamedTuple

from melon.kernels.melon.rates import Line, RateModel, RateSlopes
from melon.kernels.types import IntTable, NumberCube, Numbers, NumberTable, SmallIntTable
from melon.types import Flags, Floats, Ints

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
    items: IntTable
    candidates: SmallIntTable
    user_rows: Ints
    user_ends: Ints
    user_at: Ints
    item_rows: Ints
    item_ends: Ints
    items_at: IntTable
    facts: NumberCube


class MetaTrainingRows(NamedTuple):
    """Compact rows: of users, of items, the items' biases, and when each item was last touched."""

    users: NumberTable
    items: NumberTable
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

    users: NumberTable
    items: NumberTable
    bias: Numbers
    idle: Ints
    dots: NumberTable  # n × candidates


class Slopes(NamedTuple):
    """∂J by φ of the rates, by what tables lose at a touch, by log half-lives, and by log τ."""

    rates: RateSlopes
    decay: Floats
    half_lives: Floats
    temperature: Floats
