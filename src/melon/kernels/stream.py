"""Kernels of a stream: the set of pairs seen, rings of partners, and draws of negatives and candidates."""

from __future__ import annotations

import numpy as np

from melon.kernels.types import (
    FLAG,
    FLAG_TABLE,
    FLAGS,
    INT,
    INT_TABLE,
    INTS,
    SMALL_INT_TABLE,
    SMALL_INTS,
    WORD,
    Signature,
)
from melon.types import Flags, Ints, SmallInts

#: All pairs seen (`SeenPairs.storage`): slots and bits of the latest, and each user's items of the past.
_SEEN: Signature = (INTS, INT, INTS, SMALL_INTS)

SIGNATURES: dict[str, Signature] = {
    "remember": (SMALL_INT_TABLE, INTS, INTS, INTS),
    "find": (INTS, INT, INTS, INTS),
    "place": (*_SEEN, INTS),
    "contains": (*_SEEN, INTS, FLAGS),
    "append": (SMALL_INT_TABLE, INTS, SMALL_INT_TABLE, INTS, *_SEEN, INTS, INTS),
    "negatives": (*_SEEN, WORD, INT, INT, INTS, INTS, INT_TABLE),
    "head_lines": (*_SEEN, WORD, INT, INTS, INT, INTS, INTS, INTS, INTS, INT_TABLE, FLAG_TABLE),
    "candidates": (*_SEEN, INTS, FLAG, WORD, INT, INT, INTS, INTS, INTS, INTS, INT_TABLE, FLAGS),
}

_GOLDEN, _STRIDE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_U1, _U27, _U30, _U31, _U32, _U64 = (np.uint64(n) for n in (1, 27, 30, 31, 32, 64))
_PLACE, _LOW = np.uint64(63), np.int64(0xFFFFFFFF)
_EMPTY, _NOBODY = np.int64(-1), np.int64(-1)


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


def _slot(slots: Ints, shift: np.uint64, key: np.int64) -> np.int64:
    """Where a key is, or the free slot where it would be."""
    mask = slots.size - 1
    slot = np.int64((np.uint64(key) * _GOLDEN) >> shift)
    while slots[slot] != key and slots[slot] != _EMPTY:
        slot = (slot + 1) & mask
    return slot


def _taken(starts: Ints, past: SmallInts, user: np.int64, item: np.int64) -> bool:
    """Whether an item is among the sorted ones of a user."""
    if user + 1 >= starts.size:
        return False
    low, end = starts[user], starts[user + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if past[middle] < item:
            low = middle + 1
        else:
            high = middle
    return bool(low < end and past[low] == item)


def remember(ring: SmallInts, met: Ints, rows: Ints, partners: Ints) -> None:
    """Let each row meet its partner, in order."""
    for n in range(rows.size):
        row = rows[n]
        ring[row, met[row] % ring.shape[1]] = partners[n]
        met[row] += 1


def find(slots: Ints, bits: int, keys: Ints, places: Ints) -> None:
    """The slot of each key, or -1."""
    shift = _U64 - np.uint64(bits)
    for n in range(keys.size):
        slot = _slot(slots, shift, keys[n])
        places[n] = slot if slots[slot] == keys[n] else _EMPTY


def place(slots: Ints, bits: int, starts: Ints, past: SmallInts, keys: Ints) -> int:
    """Put keys in that are not among the sorted ones; returns how many were not there."""
    shift, new = _U64 - np.uint64(bits), 0
    for n in range(keys.size):
        slot = _slot(slots, shift, keys[n])
        if slots[slot] != keys[n] and not _taken(starts, past, keys[n] >> 32, keys[n] & _LOW):
            slots[slot] = keys[n]
            new += 1
    return new


def contains(slots: Ints, bits: int, starts: Ints, past: SmallInts, keys: Ints, held: Flags) -> None:
    """Whether each key is among the pairs seen."""
    shift = _U64 - np.uint64(bits)
    for n in range(keys.size):
        held[n] = slots[_slot(slots, shift, keys[n])] == keys[n] or _taken(starts, past, keys[n] >> 32, keys[n] & _LOW)


def append(
    of_users: SmallInts, users_met: Ints, of_items: SmallInts, items_met: Ints, slots: Ints, bits: int,
    starts: Ints, past: SmallInts, users: Ints, items: Ints,
) -> int:  # fmt: skip
    """Let users and items meet, in order; returns how many pairs are new."""
    shift, new = _U64 - np.uint64(bits), 0
    for n in range(users.size):
        key = (users[n] << 32) | items[n]
        slot = _slot(slots, shift, key)
        if slots[slot] != key and not _taken(starts, past, users[n], items[n]):
            slots[slot] = key
            new += 1
    remember(of_users, users_met, users, items)
    remember(of_items, items_met, items, users)
    return new


def negatives(
    slots: Ints, bits: int, starts: Ints, past: SmallInts, root: np.uint64, pool: int, tries: int, users: Ints,
    keys: Ints, lines: Ints,
) -> int:  # fmt: skip
    """Fill lines, which begin with the item taken, with draws that are neither it nor among the pairs.

    Each place takes the first good one of its own draws, or -1; returns how many got none.
    """
    shift, missing = _U64 - np.uint64(bits), 0
    for n in range(users.size):
        rooted, own, user = _rooted(root, keys[n]), lines[n, 0], users[n] << 32
        for place in range(1, lines.shape[1]):
            lines[n, place] = _EMPTY
            first = (place - 1) << 16
            for attempt in range(tries):
                item = _below(_word(rooted, first + attempt), pool)
                if item == own or slots[_slot(slots, shift, user | item)] == user | item:
                    continue
                if not _taken(starts, past, users[n], item):
                    lines[n, place] = item
                    break
            missing += lines[n, place] == _EMPTY
    return missing


def head_lines(
    slots: Ints, bits: int, starts: Ints, past: SmallInts, root: np.uint64, pool: int, items_met: Ints, known: int,
    users: Ints, items: Ints, events: Ints, taken: Ints, lines: Ints, allowed: Flags,
) -> int:  # fmt: skip
    """Lines of draws beside each item that was taken before; returns how many there are.

    `taken` gets their places in the batch, and `allowed` says which draws are not the user's own.
    """
    shift, count = _U64 - np.uint64(bits), 0
    for n in range(users.size):
        if items[n] >= known or items_met[items[n]] == 0:
            continue
        rooted, user = _rooted(root, events[n]), users[n] << 32
        taken[count], lines[count, 0], allowed[count, 0] = n, items[n], True
        for place in range(1, lines.shape[1]):  # many slots at once: each waits for memory, and they can wait together
            item = _below(_word(rooted, place - 1), pool)
            lines[count, place] = item
            allowed[count, place] = slots[np.int64((np.uint64(user | item) * _GOLDEN) >> shift)] == _EMPTY
        for place in range(1, lines.shape[1]):
            item = lines[count, place]
            seen = not allowed[count, place] and slots[_slot(slots, shift, user | item)] == user | item
            seen = seen or _taken(starts, past, users[n], item)
            allowed[count, place] = item != items[n] and not seen
        count += 1
    return count


def candidates(
    slots: Ints, bits: int, starts: Ints, past: SmallInts, since: Ints, ever: bool, root: np.uint64, pool: int,
    tries: int, lines: Ints, events: Ints, users: Ints, items: Ints, negatives: Ints, short: Flags,
) -> None:  # fmt: skip
    """Fill lines with distinct draws that their users had not taken; says which lines are short of some.

    `since` holds the event from which each slot's pair counts as taken; with `ever`, all count. Those of the past do.
    """
    count, shift = negatives.shape[1], _U64 - np.uint64(bits)
    size = 4
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
                met[step] = slots[np.int64((np.uint64(user | drawn[step]) * _GOLDEN) >> shift)]
            for step in range(some):
                item = drawn[step]
                if held == count or item == own:
                    continue
                if met[step] != _EMPTY:
                    slot = _slot(slots, shift, user | item)
                    if slots[slot] != _EMPTY and (ever or since[slot] < event):
                        continue
                if _taken(starts, past, users[n], item):
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
