"""Sizes of a tile and where everything lies in it; the generator replaces WIDTH (always a multiple of BLOCK · PAIRED).

A tile is TILE pairs as a structure of arrays in one flat array: row r of it is scratch[r · STRIDE : r · STRIDE + TILE].
"""

from __future__ import annotations

WIDTH = 20  # units of each hidden layer

TILE = 256  # pairs in a tile
LANES = 2  # parts of a tile that share each weight they meet
PART = TILE // LANES
STRIDE = TILE + 16  # away from powers of two, whose rows would fight for the same lines of the cache
BLOCK = 5  # units of a layer that are worked on at a time,
PAIRED = 2  # and those they meet in an outer product

THETA = 0
SCALE = STRIDE
SIGN = STRIDE * 2
APPLIED = STRIDE * 3
KEPT = STRIDE * 4
RATE = STRIDE * 5
FORGET = STRIDE * 6
GAMMA = STRIDE * 7
LOWER = STRIDE * 8
UPPER = LOWER + STRIDE * WIDTH
SCRATCH = UPPER + STRIDE * WIDTH

# Weights and their gradients are one flat array each: role.1's columns for scale, sign and θ, then the rest.
SECOND = 3 * WIDTH
BIAS = SECOND + WIDTH * WIDTH
HEAD = BIAS + WIDTH
WEIGHTS = HEAD + 2 * WIDTH

FEW = 8  # lines with fewer entries are loaded pair by pair
