"""NCF's pre-training in compiled loops: many batches in one call (docs/methods.md 2.2, 8.5).

A batch is cut into SHARES, which several threads take in turn. Each share adds up its own gradients of shared weights,
and these are added in order, so the result does not depend on who took what. The first layer is linear in
[user ; item]: its user half is computed once for each interaction.

Suites put this behind `pretrain` and `products`, whose functions it uses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from melon.kernels.lanes import (
    LANES,
    added,
    counted,
    loaded,
    made_way,
    masked,
    open_lanes,
    put,
    replaced,
    scaled,
    seen,
    stored,
)
from melon.kernels.pretrain import _slopes
from melon.kernels.products import dense, dot, downward, gathered, gradient, moved_row, multiplied, upward
from melon.kernels.types import (
    DOUBLES,
    INT,
    INT_TABLE,
    INTS,
    SINGLE,
    SINGLE_CUBE,
    SINGLE_TABLE,
    SMALL_INTS,
    WORD_CUBE,
    WORD_TABLE,
    WORDS,
    Fields,
    Signature,
)
from melon.types import Floats, Ints, Singles, SmallInts, Words

#: Items that go through the network at a time: as many as a mask has bits.
LINES = LANES
#: Parts of a batch, and so the most threads that have work.
SHARES = 2
#: Where `turns` says which share is next, up to which one they may be taken, and how many are done: all counted from
#: the first batch of a call, and each in a line of the cache of its own.
NEXT, LIMIT, DONE, TURNS = 0, 8, 16, 24
#: How often a thread looks for work before it makes way for others.
PATIENCE = 1_000
_F0, _F1 = np.float32(0), np.float32(1)


class Network(NamedTuple):
    """Rows of users and items, and weights as panels of units × inputs, filled up with zeros to multiples of 64.

    The first panel is the user's half of the first layer, the second the item's half, and then come the other layers;
    `forward` holds the same as inputs × units. `tiles` are the widths of rows and layers in 64s. The visits are zeros,
    which stay.
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
    """What a batch gives: slopes by each score and steps of rows; and of each share losses and sums of gradients.

    `panels` holds those of all shares one after another. The sums are zeros between batches.
    """

    slopes: Singles
    to_user_gmf: Singles
    to_user_mlp: Singles
    to_item_mlp: Singles
    losses: Floats
    product: Singles
    output: Singles
    panels: Singles


class Room(NamedTuple):
    """Where a thread has the items that are on their way through the network.

    For each layer values and the mask of units that are on; `delta` and `below` are what comes back to two layers.
    """

    users: Singles
    items: Singles
    user_part: Singles
    delta: Singles
    below: Singles
    own: Singles
    weighted: Singles
    values: Singles
    masks: Words
    user_masks: Words
    all_on: Words
    columns: Words


_NETWORK: Fields = Fields(Network, (*[SINGLE_TABLE] * 7, *[SINGLE_CUBE] * 2, INTS, *[SMALL_INTS] * 2))
_GRADIENTS: Fields = Fields(Gradients, (*[SINGLE_TABLE] * 4, DOUBLES, *[SINGLE_TABLE] * 2, SINGLE_CUBE))
_ROOM: Fields = Fields(Room, (*[SINGLE_TABLE] * 7, SINGLE_CUBE, WORD_CUBE, *[WORD_TABLE] * 2, WORDS))
SIGNATURES: dict[str, Signature] = {
    "network_batches": (INTS, INT_TABLE, INT, *[SINGLE] * 3, _NETWORK, _GRADIENTS, _ROOM, INTS),
    "network_help": (INTS, INT_TABLE, INT, _NETWORK, _GRADIENTS, _ROOM, INTS),
}


def _forward(users: Ints, items: Ints, net: Network, room: Room) -> None:
    """The values of all layers for the items of some interactions, and which of their units are on."""
    width, count, tiles, values, masks = items.shape[1], items.size, net.tiles, room.values, room.masks
    gathered(net.user_mlp, users, room.users)
    gathered(net.item_mlp, items.reshape(-1), room.items)
    inputs, part, first = net.user_mlp.shape[1], room.user_part, values[0]
    part[: users.size] = _F0
    dense(room.users, users.size, inputs, net.forward[0], tiles[1], part)
    for n in range(count):
        for tile in range(tiles[1]):
            stored(loaded(part, n // width, tile), first, n, tile)
    dense(room.items, count, inputs, net.forward[1], tiles[1], first)
    for n in range(count):
        for tile in range(tiles[1]):
            line = loaded(first, n, tile)
            masks[0, n, tile] = open_lanes(line)
            stored(masked(line, masks[0, n, tile]), first, n, tile)
    for at in range(1, tiles.size - 1):
        below, units = values[at - 1], tiles[at + 1]
        upward(count, masks[at - 1], below, tiles[at], net.forward[at + 1], units, masks[at], values[at])


def _scored(users: Ints, items: Ints, start: int, share: int, net: Network, given: Gradients, room: Room) -> float:
    """Losses, added up, and what they give to the product part and to the top layer (`room.delta`)."""
    width, total, last = items.shape[1], 0.0, net.tiles.size - 2
    top, masks, tiles = room.values[last], room.masks[last], net.tiles[-1]
    scores, own, weighted = np.empty(width, np.float32), room.own, room.weighted
    for n in range(users.size):
        user, slopes = users[n], given.slopes[start + n]
        multiplied(net.user_gmf, user, net.product, 0, own, 0)
        for c in range(width):
            item = items[n, c]
            scores[c] = dot(own, 0, net.item_gmf, item) + dot(net.output, 0, top, n * width + c)
            scores[c] += net.item_bias[item, 0]
        total += _slopes(scores, slopes)
        for c in range(width):
            moved_row(weighted, 0, _F1 if c else _F0, -slopes[c], net.item_gmf, items[n, c])
        multiplied(weighted, 0, net.product, 0, given.to_user_gmf, start + n)
        multiplied(weighted, 0, net.user_gmf, user, weighted, 0)
        moved_row(given.product, share, _F1, -_F1, weighted, 0)
        for c in range(width):
            line = n * width + c
            moved_row(given.output, share, _F1, -slopes[c], top, line)
            for tile in range(tiles):
                back = scaled(loaded(net.output, 0, tile), slopes[c])
                stored(masked(back, masks[line, tile]), room.delta, line, tile)
    return total


def _backward(users: Ints, items: Ints, start: int, share: int, net: Network, given: Gradients, room: Room) -> None:
    """From the top layer down: gradients of weights, and steps of the rows of users and items."""
    width, count, tiles, columns = items.shape[1], items.size, net.tiles, room.columns
    panels = given.panels[share * (tiles.size) : (share + 1) * tiles.size]
    delta, below = room.delta, room.below
    for at in range(tiles.size - 2, 0, -1):
        masks, units, inputs = room.masks[at], tiles[at + 1], tiles[at]
        gradient(count, masks, columns, delta, units, room.values[at - 1], inputs, panels[at + 1])
        downward(count, masks, delta, units, net.panels[at + 1], inputs, room.masks[at - 1], 0, below)
        delta, below = below, delta
    masks, units, inputs = room.masks[0], tiles[1], tiles[0]
    gradient(count, masks, columns, delta, units, room.items, inputs, panels[1])
    downward(count, masks, delta, units, net.panels[1], inputs, room.all_on, start * width, given.to_item_mlp)
    to_users, on = room.user_part, room.user_masks
    for n in range(users.size):
        for tile in range(units):
            line, on[n, tile] = loaded(delta, n * width, tile), masks[n * width, tile]
            for c in range(1, width):
                line = added(line, loaded(delta, n * width + c, tile))
                on[n, tile] |= masks[n * width + c, tile]
            stored(line, to_users, n, tile)
    gradient(users.size, on, columns, to_users, units, room.users, inputs, panels[0])
    downward(users.size, on, to_users, units, net.panels[0], inputs, room.all_on, start, given.to_user_mlp)


def _moved_rows(
    users: Ints, items: Ints, lr: np.float32, l2: np.float32, net: Network, given: Gradients, own: Singles
) -> None:
    """Write the rows of users and items after a batch, as `pairwise_batches` does."""
    width, user_visits, item_visits = items.shape[1], net.user_visits, net.item_visits
    for n in range(users.size):
        user_visits[users[n]] += 1
        for c in range(width):
            item_visits[items[n, c]] += 1
    for n in range(users.size):
        multiplied(net.user_gmf, users[n], net.product, 0, own, 0)
        for c in range(width):
            item = items[n, c]
            left, slope = _F1 - np.float32(item_visits[item]) * lr * l2, lr * given.slopes[n, c]
            item_visits[item] = 0
            moved_row(net.item_gmf, item, left, slope, own, 0)
            moved_row(net.item_mlp, item, left, lr, given.to_item_mlp, n * width + c)
            net.item_bias[item, 0] = left * net.item_bias[item, 0] - slope
    for n in range(users.size):
        user = users[n]
        left = _F1 - np.float32(user_visits[user]) * lr * l2
        user_visits[user] = 0
        moved_row(net.user_gmf, user, left, lr, given.to_user_gmf, n)
        moved_row(net.user_mlp, user, left, lr, given.to_user_mlp, n)


def _moved_weights(weights: Singles, rate: np.float32, sums: Singles) -> None:
    """Take the step that all shares give together, and begin their sums anew."""
    whole = sums[0]
    for share in range(1, SHARES):
        more = sums[share]
        for n in range(weights.size):
            whole[n] += more[n]
            more[n] = _F0
    for n in range(weights.size):
        weights[n] -= rate * whole[n]
        whole[n] = _F0


def _turned(panel: Singles, out: Singles) -> None:
    for k in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[k, j] = panel[j, k]


def _next_share(turns: Ints) -> int:
    """A share that is this thread's from now on, or -1."""
    turn = seen(turns, NEXT)
    return turn if turn < seen(turns, LIMIT) and replaced(turns, NEXT, turn, turn + 1) else -1


def _wait(waited: int) -> int:
    """For some microseconds by looking again, and then by making way."""
    if waited >= PATIENCE:
        made_way()
    return waited + 1


def _share(
    users: Ints, items: Ints, batch: int, turn: int, net: Network, given: Gradients, room: Room, turns: Ints
) -> None:
    """From the values of a share's items to its gradients."""
    share, first, at_once = turn % SHARES, turn // SHARES * batch, LINES // items.shape[1]
    size, total = min(batch, users.size - first), 0.0
    end = size * (share + 1) // SHARES
    for start in range(size * share // SHARES, end, at_once):
        here, stop = first + start, first + min(start + at_once, end)
        some, theirs = users[here:stop], items[here:stop]
        _forward(some, theirs, net, room)
        total += _scored(some, theirs, start, share, net, given, room)
        _backward(some, theirs, start, share, net, given, room)
    given.losses[share] = total
    counted(turns, DONE)


def network_batches(
    users: Ints, items: Ints, batch: int, lr: np.float32, l2: np.float32, shared_lr: np.float32, net: Network,
    given: Gradients, room: Room, turns: Ints,
) -> float:  # fmt: skip
    """Learn interactions in batches, each from the rows as they are at its start; returns the sum of losses.

    Threads in `network_help` may take shares, with a room of their own. At the end they are told to go.
    """
    total = 0.0
    for first in range(0, users.size, batch):
        shares, size = (first // batch + 1) * SHARES, min(batch, users.size - first)
        put(turns, LIMIT, shares)
        waited = 0
        while seen(turns, DONE) < shares:
            turn = _next_share(turns)
            if turn >= 0:
                _share(users, items, batch, turn, net, given, room, turns)
            else:
                waited = _wait(waited)
        for share in range(SHARES):
            total += given.losses[share]
        _moved_rows(users[first : first + size], items[first : first + size], lr, l2, net, given, room.own)
        rate = shared_lr / np.float32(size)
        _moved_weights(net.product[0], rate, given.product)
        _moved_weights(net.output[0], rate, given.output)
        _moved_weights(net.panels.reshape(-1), rate, given.panels.reshape((SHARES, -1)))
        for panel in range(net.panels.shape[0]):
            _turned(net.panels[panel], net.forward[panel])
    put(turns, LIMIT, -1)
    return total


def network_help(users: Ints, items: Ints, batch: int, net: Network, given: Gradients, room: Room, turns: Ints) -> None:
    """Take shares of batches until there are no more."""
    waited = 0
    while seen(turns, LIMIT) >= 0:
        turn = _next_share(turns)
        if turn >= 0:
            _share(users, items, batch, turn, net, given, room, turns)
            waited = 0
        else:
            waited = _wait(waited)
