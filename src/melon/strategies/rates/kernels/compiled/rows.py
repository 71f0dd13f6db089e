"""Rows of users and items: lines × entries, tile after tile through blocks of lines.

A line's own terms are spread over its entries in the tile, so a tile may hold parts of several lines. Blocks never
depend on the number of threads; each has a gradient of its own, and these are added up in order.
"""

from __future__ import annotations

import numpy as np

from melon.strategies.rates.kernels.compiled.arithmetic import F0
from melon.strategies.rates.kernels.compiled.layout import (
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
from melon.strategies.rates.kernels.compiled.tiles import (
    added,
    fill,
    load,
    moves,
    network,
    network_back,
)
from melon.strategies.rates.kernels.compiled.types import Doubles, Floats, FloatTables


def rows_forward(
    blocks: tuple[int, int],
    per_block: int,
    entries: int,
    theta: Floats,
    old: Floats,
    applied: Floats,
    seen: Floats,
    hidden: FloatTables,
    logits: FloatTables,
    shares: FloatTables,
    w: Floats,
    out: Floats,
) -> None:
    """Moves of the lines of blocks[0] … blocks[1] − 1; `shares` holds each line's −scale · most_rate and share."""
    s = np.zeros(SCRATCH, np.float32)
    for block in range(blocks[0], blocks[1]):
        start = block * per_block * entries
        stop = min(start + per_block * entries, theta.size)
        for at in range(start, stop, TILE):
            count = min(TILE, stop - at)
            load_lines(s, at, count, entries, theta, old, applied, seen, hidden, logits, shares)
            network(s, w)
            moves(s)
            out[at : at + count] = s[RATE : RATE + count]


def rows_backward(
    blocks: tuple[int, int],
    per_block: int,
    entries: int,
    theta: Floats,
    old: Floats,
    applied: Floats,
    seen: Floats,
    hidden: FloatTables,
    logits: FloatTables,
    shares: FloatTables,
    w: Floats,
    gamma: Floats,
    to_weights: Doubles,
    to_hidden: FloatTables,
    to_logits: FloatTables,
    to_old: Floats,
) -> None:
    """Gradients of the same lines: of weights block by block, of lines' terms, and of the old values."""
    s = np.zeros(SCRATCH, np.float32)
    for block in range(blocks[0], blocks[1]):
        start = block * per_block * entries
        stop = min(start + per_block * entries, theta.size)
        for at in range(start, stop, TILE):
            count = min(TILE, stop - at)
            load_lines(s, at, count, entries, theta, old, applied, seen, hidden, logits, shares)
            load(s, GAMMA, gamma[at : at + count])
            network_back(s, w, to_weights[block])
            unload_lines(s, at, count, entries, to_hidden, to_logits)
            share_gamma(s, at, count, entries, shares, to_old)


def load_lines(
    s: Floats,
    at: int,
    count: int,
    entries: int,
    theta: Floats,
    old: Floats,
    applied: Floats,
    seen: Floats,
    hidden: FloatTables,
    logits: FloatTables,
    shares: FloatTables,
) -> None:
    """Pairs at … at + count − 1, each with its line's terms; the rest of the tile is zeros."""
    load(s, THETA, theta[at : at + count])
    load(s, SCALE, seen[at : at + count])
    load(s, APPLIED, applied[at : at + count])
    load(s, KEPT, old[at : at + count])
    if count < TILE:
        for row in range(WIDTH):
            fill(s[LOWER + row * STRIDE : LOWER + row * STRIDE + TILE], F0)
        fill(s[RATE : RATE + TILE], F0)
        fill(s[FORGET : FORGET + TILE], F0)
    if entries < FEW:
        for p in range(count):
            line = (at + p) // entries
            for j in range(WIDTH):
                s[LOWER + j * STRIDE + p] = hidden[line, j]
            s[RATE + p], s[FORGET + p] = logits[line, 0], logits[line, 1]
            s[APPLIED + p] *= shares[line, 0]
            s[KEPT + p] *= shares[line, 1]
        return
    p = 0
    while p < count:
        line = (at + p) // entries
        stop = min((line + 1) * entries - at, count)
        for j in range(WIDTH):
            fill(s[LOWER + j * STRIDE + p : LOWER + j * STRIDE + stop], hidden[line, j])
        fill(s[RATE + p : RATE + stop], logits[line, 0])
        fill(s[FORGET + p : FORGET + stop], logits[line, 1])
        s[APPLIED + p : APPLIED + stop] *= shares[line, 0]
        s[KEPT + p : KEPT + stop] *= shares[line, 1]
        p = stop


def unload_lines(s: Floats, at: int, count: int, entries: int, to_hidden: FloatTables, to_logits: FloatTables) -> None:
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


def share_gamma(s: Floats, at: int, count: int, entries: int, shares: FloatTables, to_old: Floats) -> None:
    """∂(γ · move)/∂old = −share · (1 − f) · γ."""
    for p in range(count):
        to_old[at + p] = s[GAMMA + p] * shares[(at + p) // entries, 1]
