"""Kernels of a stream: the set of pairs seen, rings of partners, and draws of negatives and candidates.

They stand behind `seen`, whose functions they use.
"""

from __future__ import annotations

import numpy as np

from melon.kernels.seen import _EMPTY, _GOLDEN, _LOW, PairsSeen, _first_slot, _holds, _slot, _taken
from melon.kernels.types import FlagTable, IntTable, SmallIntTable
from melon.types import Flags, Ints

_STRIDE = np.uint64(0xD1B54A32D192ED03)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_U1, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (1, 27, 30, 31, 32))


def _mix(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> _U30)) * _MIX_1
    word = (word ^ (word >> _U27)) * _MIX_2
    return word ^ (word >> _U31)


def _rooted(root: np.uint64, key: np.int64) -> np.uint64:
    return _mix(np.uint64(key) * _GOLDEN + root)


def _word(rooted: np.uint64, counter: int) -> np.uint64:
    return _mix(rooted + (np.uint64(counter) + _U1) * _STRIDE)


def _below(word: np.uint64, bound: int) -> np.int64:
    return np.int64((word >> _U32) * np.uint64(bound) >> _U32)


def remember(ring: SmallIntTable, met: Ints, rows: Ints, partners: Ints) -> None:
    """Let each row meet its partner, in order."""
    for n in range(rows.size):
        row = rows[n]
        ring[row, met[row] % ring.shape[1]] = partners[n]
        met[row] += 1


def find(seen: PairsSeen, keys: Ints, places: Ints) -> None:
    """The slot of each key, or -1."""
    for n in range(keys.size):
        slot = _slot(seen, keys[n])
        places[n] = slot if seen.slots[slot] == keys[n] else _EMPTY


def place(seen: PairsSeen, keys: Ints) -> int:
    """Put keys in that are not among the sorted ones; returns how many were not there."""
    new = 0
    for n in range(keys.size):
        slot = _slot(seen, keys[n])
        if seen.slots[slot] != keys[n] and not _taken(seen, keys[n] >> 32, keys[n] & _LOW):
            seen.slots[slot] = keys[n]
            new += 1
    return new


def contains(seen: PairsSeen, keys: Ints, held: Flags) -> None:
    """Whether each key is among the pairs seen."""
    for n in range(keys.size):
        held[n] = _holds(seen, keys[n] >> 32, keys[n] & _LOW)


def append(
    of_users: SmallIntTable, users_met: Ints, of_items: SmallIntTable, items_met: Ints, seen: PairsSeen, users: Ints,
    items: Ints,
) -> int:  # fmt: skip
    """Let users and items meet, in order; returns how many pairs are new."""
    new = 0
    for n in range(users.size):
        key = (users[n] << 32) | items[n]
        slot = _slot(seen, key)
        if seen.slots[slot] != key and not _taken(seen, users[n], items[n]):
            seen.slots[slot] = key
            new += 1
    remember(of_users, users_met, users, items)
    remember(of_items, items_met, items, users)
    return new


def negatives(seen: PairsSeen, root: np.uint64, pool: int, tries: int, users: Ints, keys: Ints, lines: IntTable) -> int:
    """Fill lines, which begin with the item taken, with draws that are neither it nor among the pairs.

    Each place takes the first good one of its own draws, or -1; returns how many got none.
    """
    missing = 0
    for n in range(users.size):
        rooted, own = _rooted(root, keys[n]), lines[n, 0]
        for place in range(1, lines.shape[1]):
            lines[n, place] = _EMPTY
            first = (place - 1) << 16
            for attempt in range(tries):
                item = _below(_word(rooted, first + attempt), pool)
                if item != own and not _holds(seen, users[n], item):
                    lines[n, place] = item
                    break
            missing += lines[n, place] == _EMPTY
    return missing


def head_lines(
    seen: PairsSeen, root: np.uint64, pool: int, items_met: Ints, known: int, users: Ints, items: Ints, events: Ints,
    taken: Ints, lines: IntTable, allowed: FlagTable,
) -> int:  # fmt: skip
    """Lines of draws beside each item that was taken before; returns how many there are.

    `taken` gets their places in the batch, and `allowed` says which draws are not the user's own.
    """
    count = 0
    for n in range(users.size):
        if items[n] >= known or items_met[items[n]] == 0:
            continue
        rooted, user = _rooted(root, events[n]), users[n] << 32
        taken[count], lines[count, 0], allowed[count, 0] = n, items[n], True
        for place in range(1, lines.shape[1]):  # many slots at once: each waits for memory, and they can wait together
            item = _below(_word(rooted, place - 1), pool)
            lines[count, place] = item
            allowed[count, place] = seen.slots[_first_slot(seen, user | item)] == _EMPTY
        for place in range(1, lines.shape[1]):
            item = lines[count, place]
            held = not allowed[count, place] and seen.slots[_slot(seen, user | item)] == user | item
            held = held or _taken(seen, users[n], item)
            allowed[count, place] = item != items[n] and not held
        count += 1
    return count


def candidates(
    seen: PairsSeen, since: Ints, ever: bool, root: np.uint64, pool: int, tries: int, lines: Ints, events: Ints,
    users: Ints, items: Ints, negatives: IntTable, short: Flags,
) -> None:  # fmt: skip
    """Fill lines with distinct draws that their users had not taken; says which lines are short of some.

    `since` holds the event from which each slot's pair counts as taken; with `ever`, all count. Those of the past do.
    """
    count, size = negatives.shape[1], 4
    while size < 4 * count:
        size *= 2
    offered, marks = np.zeros(size, np.int64), np.zeros(size, np.int64)  # what a line holds: a small set of its own
    ahead = count + count // 16 + 4
    drawn, met = np.empty(ahead, np.int64), np.empty(ahead, np.int64)
    for at in range(lines.size):
        n = lines[at]
        rooted, held, user, own, event = _rooted(root, events[n]), 0, users[n] << 32, items[n], events[n]
        for start in range(0, tries, ahead):
            some = min(ahead, tries - start)
            for step in range(some):  # look up many slots at once: each waits for memory, and they can wait together
                drawn[step] = _below(_word(rooted, start + step), pool)
                met[step] = seen.slots[_first_slot(seen, user | drawn[step])]
            for step in range(some):
                item = drawn[step]
                if held == count or item == own:
                    continue
                if met[step] != _EMPTY:
                    slot = _slot(seen, user | item)
                    if seen.slots[slot] != _EMPTY and (ever or since[slot] < event):
                        continue
                if _taken(seen, users[n], item):
                    continue
                mark = np.int64((np.uint64(item) * _GOLDEN) >> _U32) & (size - 1)
                while marks[mark] == at + 1 and offered[mark] != item:
                    mark = (mark + 1) & (size - 1)
                if marks[mark] != at + 1:
                    marks[mark], offered[mark] = at + 1, item
                    negatives[n, held] = item
                    held += 1
            if held == count:
                break
        short[at] = held < count
