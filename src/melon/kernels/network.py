"""NCF's pre-training in compiled loops: many batches in one call (docs/methods.md 2.2, 8.5).

Half of the ReLU units are off for an item, so products with a layer's values, or with what comes back to it, take the
units that are on, by the bits of a mask; gradients of weights take the items for which a unit was on. The first layer
is linear in [user ; item]: its user half is computed once for each interaction.

Suites put this behind `pretrain`, whose functions it uses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from melon.kernels.lanes import LANES, added, loaded, lowest, masked, nothing, open_lanes, plus, stored
from melon.kernels.pretrain import _begin, _move, _product, _slopes
from melon.kernels.types import (
    INT,
    INT_TABLE,
    INTS,
    SINGLE,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SINGLES,
    SMALL_INTS,
    WORD_CUBE,
    WORD_TABLE,
    WORDS,
    Fields,
    Signature,
)
from melon.types import Ints, Singles, SmallInts, Words

#: Items that go through the network at a time: as many as a mask has bits.
LINES = LANES
_F0, _F1 = np.float32(0), np.float32(1)
_NO_BIT, _BIT = np.uint64(0), np.uint64(1)


class Network(NamedTuple):
    """Rows of users and items; and weights, in `panels` × units × inputs, filled up with zeros to multiples of 64.

    The first panel is the user's half of the first layer, the second the item's half, and then the other layers.
    `forward` holds the same as inputs × units. `tiles` says how many times 64 inputs each layer has, and at the end how
    many times 64 units the last one. The visits are zeros, which stay.
    """

    user_gmf: Singles
    item_gmf: Singles
    user_mlp: Singles
    item_mlp: Singles
    item_bias: Singles
    product: Singles
    output: Singles
    panels: Singles
    forward: Singles
    tiles: Ints
    user_visits: SmallInts
    item_visits: SmallInts


class Gradients(NamedTuple):
    """What a batch gives: slopes by each score, steps of rows, and sums for the shared weights, which begin at zero."""

    slopes: Singles
    to_user_gmf: Singles
    to_user_mlp: Singles
    to_item_mlp: Singles
    product: Singles
    output: Singles
    panels: Singles


class Room(NamedTuple):
    """Where LINES items lie on their way through the network: for each layer values and the mask of units that are on;
    `below` and `delta` are what comes back to two neighbouring layers."""

    users: Singles
    items: Singles
    user_part: Singles
    values: Singles
    delta: Singles
    below: Singles
    masks: Words
    user_masks: Words
    all_on: Words
    columns: Words


_NETWORK: Fields = Fields(Network, (*[SINGLE_TABLE] * 7, *[SINGLE_CUBE] * 2, INTS, *[SMALL_INTS] * 2))
_GRADIENTS: Fields = Fields(Gradients, (*[SINGLE_TABLE] * 4, SINGLES, SINGLE_TABLE, SINGLE_CUBE))
_ROOM: Fields = Fields(
    Room, (*[SINGLE_TABLE] * 3, SINGLE_CUBE, *[SINGLE_TABLE] * 2, WORD_CUBE, *[WORD_TABLE] * 2, WORDS)
)
SIGNATURES: dict[str, Signature] = {
    "network_batches": (INTS, INT_TABLE, INT, SINGLE, SINGLE, SINGLE, _NETWORK, _GRADIENTS, _ROOM),
}


def _dense(rows: Singles, count: int, inputs: int, weights: Singles, tiles: int, out: Singles) -> None:
    """out[n] += rows[n] · weights; four lines at a time, of which the last ones may be left over from before."""
    for n in range(0, count, 4):
        for tile in range(tiles):
            a, b = loaded(out, n, tile), loaded(out, n + 1, tile)
            c, d = loaded(out, n + 2, tile), loaded(out, n + 3, tile)
            for k in range(inputs):
                a, b = plus(a, rows, n, k, weights, k, tile), plus(b, rows, n + 1, k, weights, k, tile)
                c, d = plus(c, rows, n + 2, k, weights, k, tile), plus(d, rows, n + 3, k, weights, k, tile)
            stored(a, out, n, tile)
            stored(b, out, n + 1, tile)
            stored(c, out, n + 2, tile)
            stored(d, out, n + 3, tile)


def _upward(
    count: int, masks: Words, values: Singles, inputs: int, weights: Singles, tiles: int, out_masks: Words, out: Singles
) -> None:
    """A layer's values, and which of them are on; `inputs` and `tiles` are the numbers of tiles below and here."""
    for n in range(count):
        for tile in range(tiles):
            total = nothing()
            for word in range(inputs):
                mask = masks[n, word]
                while mask != _NO_BIT:
                    k = LANES * word + lowest(mask)
                    mask &= mask - _BIT
                    total = plus(total, values, n, k, weights, k, tile)
            out_masks[n, tile] = open_lanes(total)
            stored(masked(total, out_masks[n, tile]), out, n, tile)


def _downward(
    count: int, masks: Words, delta: Singles, units: int, weights: Singles, tiles: int, below: Words, first: int,
    out: Singles,
) -> None:  # fmt: skip
    """What comes back through a layer's weights, from `first` on, to what is on `below`.

    `units` and `tiles` are the numbers of tiles here and below.
    """
    for n in range(count):
        for tile in range(tiles):
            total = nothing()
            for word in range(units):
                mask = masks[n, word]
                while mask != _NO_BIT:
                    k = LANES * word + lowest(mask)
                    mask &= mask - _BIT
                    total = plus(total, delta, n, k, weights, k, tile)
            stored(masked(total, below[n, tile]), out, first + n, tile)


def _gradient(
    count: int, masks: Words, columns: Words, delta: Singles, units: int, values: Singles, tiles: int, out: Singles
) -> None:
    """Add the gradient of a layer's weights: for each unit, what comes back to it times the values below."""
    for word in range(units):
        for bit in range(LANES):
            columns[bit] = _NO_BIT
        for n in range(count):
            mask = masks[n, word]
            for bit in range(LANES):
                columns[bit] |= ((mask >> np.uint64(bit)) & _BIT) << np.uint64(n)
        for bit in range(LANES):
            unit = LANES * word + bit
            for tile in range(tiles):
                mask, total = columns[bit], loaded(out, unit, tile)
                while mask != _NO_BIT:
                    n = lowest(mask)
                    mask &= mask - _BIT
                    total = plus(total, delta, n, unit, values, n, tile)
                stored(total, out, unit, tile)


def _gathered(table: Singles, rows: Ints, out: Singles) -> None:
    for n in range(rows.size):
        row, line = table[rows[n]], out[n]
        for d in range(row.size):
            line[d] = row[d]


def _forward(users: Ints, items: Ints, net: Network, room: Room) -> None:
    """The values of all layers for the items of some interactions, and which of their units are on."""
    width, count, tiles, values, masks = items.shape[1], items.size, net.tiles, room.values, room.masks
    _gathered(net.user_mlp, users, room.users)
    _gathered(net.item_mlp, items.reshape(-1), room.items)
    inputs, part, first = net.user_mlp.shape[1], room.user_part, values[0]
    part[: users.size] = _F0
    _dense(room.users, users.size, inputs, net.forward[0], tiles[1], part)
    for n in range(count):
        for tile in range(tiles[1]):
            stored(loaded(part, n // width, tile), first, n, tile)
    _dense(room.items, count, inputs, net.forward[1], tiles[1], first)
    for n in range(count):
        for tile in range(tiles[1]):
            total = loaded(first, n, tile)
            masks[0, n, tile] = open_lanes(total)
            stored(masked(total, masks[0, n, tile]), first, n, tile)
    for at in range(1, tiles.size - 1):
        below = masks[at - 1], values[at - 1], tiles[at]
        _upward(count, *below, net.forward[at + 1], tiles[at + 1], masks[at], values[at])


def _scored(users: Ints, items: Ints, start: int, net: Network, given: Gradients, room: Room) -> float:
    """Losses, added up, and what they give to the product part and to the top layer (`room.delta`)."""
    width, total, last = items.shape[1], 0.0, net.tiles.size - 2
    top, masks, tiles = room.values[last], room.masks[last], net.tiles[-1]
    product, output = net.product[0], net.output[0]
    own, scores = np.empty(product.size, np.float32), np.empty(width, np.float32)
    weighted = np.empty(product.size, np.float32)
    for n in range(users.size):
        vector, slopes, to_user = net.user_gmf[users[n]], given.slopes[start + n], given.to_user_gmf[start + n]
        for d in range(own.size):
            own[d] = vector[d] * product[d]
        for c in range(width):
            item = items[n, c]
            scores[c] = _product(own, net.item_gmf[item]) + _product(output, top[n * width + c])
            scores[c] += net.item_bias[item, 0]
        total += _slopes(scores, slopes)
        _begin(weighted, slopes[0], net.item_gmf[items[n, 0]])
        for c in range(1, width):
            _move(weighted, _F1, -slopes[c], net.item_gmf[items[n, c]])
        for d in range(own.size):
            to_user[d] = weighted[d] * product[d]
            given.product[d] += weighted[d] * vector[d]
        for c in range(width):
            line = n * width + c
            for tile in range(tiles):
                stored(plus(loaded(given.output, 0, tile), given.slopes, start + n, c, top, line, tile), given.output, 0, tile)
                back = plus(nothing(), given.slopes, start + n, c, net.output, 0, tile)
                stored(masked(back, masks[line, tile]), room.delta, line, tile)
    return total


def _backward(users: Ints, items: Ints, start: int, net: Network, given: Gradients, room: Room) -> None:
    """From the top layer down: gradients of weights, and steps of the rows of users and items."""
    width, count, tiles, columns = items.shape[1], items.size, net.tiles, room.columns
    delta, below = room.delta, room.below
    for at in range(tiles.size - 2, 0, -1):
        masks, units, inputs = room.masks[at], tiles[at + 1], tiles[at]
        _gradient(count, masks, columns, delta, units, room.values[at - 1], inputs, given.panels[at + 1])
        _downward(count, masks, delta, units, net.panels[at + 1], inputs, room.masks[at - 1], 0, below)
        delta, below = below, delta
    masks, units, inputs = room.masks[0], tiles[1], tiles[0]
    _gradient(count, masks, columns, delta, units, room.items, inputs, given.panels[1])
    _downward(count, masks, delta, units, net.panels[1], inputs, room.all_on, start * width, given.to_item_mlp)
    summed, on = room.user_part, room.user_masks
    for n in range(users.size):
        for tile in range(units):
            total, on[n, tile] = loaded(delta, n * width, tile), masks[n * width, tile]
            for c in range(1, width):
                total = added(total, loaded(delta, n * width + c, tile))
                on[n, tile] |= masks[n * width + c, tile]
            stored(total, summed, n, tile)
    _gradient(users.size, on, columns, summed, units, room.users, inputs, given.panels[0])
    _downward(users.size, on, summed, units, net.panels[0], inputs, room.all_on, start, given.to_user_mlp)


def _moved_rows(users: Ints, items: Ints, lr: np.float32, l2: np.float32, net: Network, given: Gradients) -> None:
    """Write the rows of users and items after a batch, as `pairwise_batches` does."""
    width, own, product = items.shape[1], np.empty(net.user_gmf.shape[1], np.float32), net.product[0]
    user_visits, item_visits = net.user_visits, net.item_visits
    for n in range(users.size):
        user_visits[users[n]] += 1
        for c in range(width):
            item_visits[items[n, c]] += 1
    for n in range(users.size):
        vector = net.user_gmf[users[n]]
        for d in range(own.size):
            own[d] = vector[d] * product[d]
        for c in range(width):
            item = items[n, c]
            left, slope = _F1 - np.float32(item_visits[item]) * lr * l2, lr * given.slopes[n, c]
            item_visits[item] = 0
            _move(net.item_gmf[item], left, slope, own)
            _move(net.item_mlp[item], left, lr, given.to_item_mlp[n * width + c])
            net.item_bias[item, 0] = left * net.item_bias[item, 0] - slope
    for n in range(users.size):
        user = users[n]
        left = _F1 - np.float32(user_visits[user]) * lr * l2
        user_visits[user] = 0
        _move(net.user_gmf[user], left, lr, given.to_user_gmf[n])
        _move(net.user_mlp[user], left, lr, given.to_user_mlp[n])


def _moved(weights: Singles, rate: np.float32, gradient: Singles) -> None:
    for n in range(weights.size):
        weights[n] -= rate * gradient[n]
        gradient[n] = _F0


def _turned(panel: Singles, out: Singles) -> None:
    for k in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[k, j] = panel[j, k]


def network_batches(
    users: Ints, items: Ints, batch: int, lr: np.float32, l2: np.float32, shared_lr: np.float32, net: Network,
    given: Gradients, room: Room,
) -> float:  # fmt: skip
    """Learn interactions in batches, each from the rows as they are at its start; returns the sum of losses."""
    total, at_once = 0.0, LINES // items.shape[1]
    for first in range(0, users.size, batch):
        size = min(batch, users.size - first)
        named, offered = users[first : first + size], items[first : first + size]
        for start in range(0, size, at_once):
            some, theirs = named[start : start + at_once], offered[start : start + at_once]
            _forward(some, theirs, net, room)
            total += _scored(some, theirs, start, net, given, room)
            _backward(some, theirs, start, net, given, room)
        _moved_rows(named, offered, lr, l2, net, given)
        rate = shared_lr / np.float32(size)
        _moved(net.product[0], rate, given.product)
        _moved(net.output[0], rate, given.output[0])
        _moved(net.panels.reshape(-1), rate, given.panels.reshape(-1))
        for panel in range(net.panels.shape[0]):
            _turned(net.panels[panel], net.forward[panel])
    return total
