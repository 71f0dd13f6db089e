"""Rows of users and items: lines × entries, tile after tile through blocks of lines.

A line is one unit on one row. Its entries come straight from the row's values and from where its gradient stands, and
its unit's terms are spread over them in the tile, so a tile may hold parts of several lines. Blocks never depend on the
number of threads; what several lines add to one row, unit or weight is added up afterwards, in order.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.arithmetic import F0, F1
from melon.kernels.melon.layout import (
    APPLIED,
    FEW,
    FORGET,
    GAMMA,
    KEPT,
    LOWER,
    RATE,
    SCALE,
    SCRATCH,
    STRIDE,
    THETA,
    TILE,
    WIDTH,
)
from melon.kernels.melon.tiles import (
    added,
    fill,
    moves,
    network,
    network_back,
)
from melon.kernels.types import DOUBLE_TABLE, INT, INTS, RANGE, SINGLE_TABLE, SINGLES, Signature
from melon.types import Floats, Ints, Singles

_LINES: Signature = (RANGE, INT, INTS, INTS, INTS, *[SINGLE_TABLE] * 6, SINGLES)
SIGNATURES: dict[str, Signature] = {
    "rows_forward": (*_LINES, SINGLES),
    "rows_backward": (*_LINES, SINGLE_TABLE, DOUBLE_TABLE, SINGLE_TABLE, SINGLE_TABLE, SINGLES),
    "fold": (SINGLE_TABLE, INTS, SINGLE_TABLE),
}


def rows_forward(
    blocks: tuple[int, int],
    per_block: int,
    row: Ints,
    unit: Ints,
    source: Ints,
    values: Singles,
    applied: Singles,
    seen: Singles,
    hidden: Singles,
    logits: Singles,
    shares: Singles,
    w: Singles,
    out: Singles,
) -> None:
    """Moves of the lines of blocks[0] … blocks[1] − 1.

    Line t is unit[t] on row[t], its gradient stands at source[t]; `shares` holds −scale · most_rate and share of rows.
    """
    s, entries = np.zeros(SCRATCH, np.float32), values.shape[1]
    for block in range(blocks[0], blocks[1]):
        start = block * per_block * entries
        stop = min(start + per_block * entries, row.size * entries)
        for at in range(start, stop, TILE):
            count = min(TILE, stop - at)
            load_lines(s, at, count, row, unit, source, values, applied, seen, hidden, logits, shares)
            network(s, w)
            moves(s)
            out[at : at + count] = s[RATE : RATE + count]


def rows_backward(
    blocks: tuple[int, int],
    per_block: int,
    row: Ints,
    unit: Ints,
    source: Ints,
    values: Singles,
    applied: Singles,
    seen: Singles,
    hidden: Singles,
    logits: Singles,
    shares: Singles,
    w: Singles,
    gamma: Singles,
    to_weights: Floats,
    to_hidden: Singles,
    to_logits: Singles,
    to_old: Singles,
) -> None:
    """Gradients of the same lines: of weights block by block, of each line's terms, and of the old values.

    `to_old` stays untouched where it is empty.
    """
    s, entries = np.zeros(SCRATCH, np.float32), values.shape[1]
    for block in range(blocks[0], blocks[1]):
        start = block * per_block * entries
        stop = min(start + per_block * entries, row.size * entries)
        for at in range(start, stop, TILE):
            count = min(TILE, stop - at)
            load_lines(s, at, count, row, unit, source, values, applied, seen, hidden, logits, shares)
            load_gamma(s, at, count, row, gamma)
            network_back(s, w, to_weights[block])
            unload_lines(s, at, count, entries, to_hidden, to_logits)
            if to_old.size:
                share_gamma(s, at, count, entries, row, shares, to_old)


def load_lines(
    s: Singles,
    at: int,
    count: int,
    row: Ints,
    unit: Ints,
    source: Ints,
    values: Singles,
    applied: Singles,
    seen: Singles,
    hidden: Singles,
    logits: Singles,
    shares: Singles,
) -> None:
    """Pairs at … at + count − 1, each with its line's terms; the rest of the tile is zeros."""
    entries = values.shape[1]
    if count < TILE:
        for part in range(SCRATCH // STRIDE):
            fill(s[part * STRIDE + count : part * STRIDE + TILE], F0)
    if entries < FEW:
        for p in range(count):
            line, entry = (at + p) // entries, (at + p) % entries
            r, x, g = row[line], unit[line], source[line]
            for j in range(WIDTH):
                s[LOWER + j * STRIDE + p] = hidden[x, j]
            s[RATE + p], s[FORGET + p] = logits[x, 0], logits[x, 1]
            s[THETA + p] = values[r, entry]
            s[SCALE + p] = seen[g, entry]
            s[APPLIED + p] = applied[g, entry] * shares[r, 0]
            s[KEPT + p] = values[r, entry] * shares[r, 1]
        return
    p = 0
    while p < count:
        line = (at + p) // entries
        stop = min((line + 1) * entries - at, count)
        first = at + p - line * entries
        last = first + stop - p
        r, x, g = row[line], unit[line], source[line]
        for j in range(WIDTH):
            fill(s[LOWER + j * STRIDE + p : LOWER + j * STRIDE + stop], hidden[x, j])
        fill(s[RATE + p : RATE + stop], logits[x, 0])
        fill(s[FORGET + p : FORGET + stop], logits[x, 1])
        scaled(s[THETA + p : THETA + stop], values[r, first:last], F1)
        scaled(s[KEPT + p : KEPT + stop], values[r, first:last], shares[r, 1])
        scaled(s[SCALE + p : SCALE + stop], seen[g, first:last], F1)
        scaled(s[APPLIED + p : APPLIED + stop], applied[g, first:last], shares[r, 0])
        p = stop


def load_gamma(s: Singles, at: int, count: int, row: Ints, gamma: Singles) -> None:
    """Each pair's γ, which is that of its row."""
    entries = gamma.shape[1]
    if entries < FEW:
        for p in range(count):
            s[GAMMA + p] = gamma[row[(at + p) // entries], (at + p) % entries]
        return
    p = 0
    while p < count:
        line = (at + p) // entries
        stop = min((line + 1) * entries - at, count)
        first = at + p - line * entries
        scaled(s[GAMMA + p : GAMMA + stop], gamma[row[line], first : first + stop - p], F1)
        p = stop


def unload_lines(s: Singles, at: int, count: int, entries: int, to_hidden: Singles, to_logits: Singles) -> None:
    """Add the slopes of a tile's pairs to those of their lines."""
    if entries < FEW:
        for p in range(count):
            line = (at + p) // entries
            for j in range(WIDTH):
                to_hidden[line, j] += s[LOWER + j * STRIDE + p]
            to_logits[line, 0] += s[RATE + p]
            to_logits[line, 1] += s[FORGET + p]
        return
    p = 0
    while p < count:
        line = (at + p) // entries
        stop = min((line + 1) * entries - at, count)
        for j in range(WIDTH):
            to_hidden[line, j] += added(s[LOWER + j * STRIDE + p : LOWER + j * STRIDE + stop])
        to_logits[line, 0] += added(s[RATE + p : RATE + stop])
        to_logits[line, 1] += added(s[FORGET + p : FORGET + stop])
        p = stop


def share_gamma(s: Singles, at: int, count: int, entries: int, row: Ints, shares: Singles, to_old: Singles) -> None:
    """∂(γ · move)/∂old = −share · (1 − f) · γ."""
    for p in range(count):
        to_old[at + p] = s[GAMMA + p] * shares[row[(at + p) // entries], 1]


def fold(lines: Singles, places: Ints, out: Singles) -> None:
    """Add each line to its place, in order."""
    for line in range(lines.shape[0]):
        target, source = out[places[line]], lines[line]
        for entry in range(target.size):
            target[entry] += source[entry]


def scaled(out: Singles, values: Singles, factor: np.float32) -> None:
    """out = factor · values."""
    for t in range(out.size):
        out[t] = values[t] * factor
