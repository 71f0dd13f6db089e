"""The undo journal: blocks in blocks, places that are written several times, and rows that grow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.journal import GrowingRows, RowPart, keep, note, recording, undoable

WRITES = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6), max_size=6)


def write(rows: GrowingRows, writes: list[list[int]]) -> None:
    for number, places in enumerate(writes, start=1):
        rows.touch(np.array(places))
        for array in rows.arrays:
            array[places] = number


@given(WRITES, WRITES, WRITES)
def test_rows_are_as_they_were(past: list[list[int]], good: list[list[int]], bad: list[list[int]]) -> None:
    rows = GrowingRows(spare=1, first=RowPart(np.int32, (2,), -1), second=RowPart(np.float64))
    write(rows, past)
    before = {name: array.tobytes() for name, array in rows.state().items()}
    with undoable(always=True):
        write(rows, good)
        after = rows.state()
        with undoable(always=True):
            write(rows, bad)
        assert all(np.array_equal(array, after[name]) for name, array in rows.state().items())
        with undoable():
            write(rows, bad)  # stays, and is taken back with the outer block
    assert {name: array.tobytes() for name, array in rows.state().items()} == before
    assert (rows.arrays[0][rows.rows :] == -1).all()
    assert len(rows.arrays[0]) > rows.rows


def test_of_several_writes_to_a_place_the_first_counts() -> None:
    rows = GrowingRows(numbers=RowPart(np.int64, (3,)))
    rows.grow(2)
    with undoable(always=True):
        places = np.array([1, 0, 1, 1]), np.array([2, 0, 2, 2])
        rows.overwrites(places, [np.array([0, 0, 5, 6])])
        rows.arrays[0][places] = 9
    assert not rows.arrays[0].any()


def test_attributes_and_calls_come_back_in_reverse_order() -> None:
    class Owner:
        count, numbers = 1, np.zeros(2)

    owner, calls = Owner(), list[str]()

    def fail() -> None:
        with undoable():
            assert recording()
            note(lambda: calls.append(f"first, {recording()}"))
            keep(owner, "count", "numbers")
            note(lambda: calls.append(f"second, {owner.count}"))
            owner.count, owner.numbers[0] = 2, 7
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert calls == ["second, 2", "first, False"]
    assert (owner.count, owner.numbers.tolist()) == (1, [0, 0])
    assert not recording()
    note(calls.clear)  # no journal is open: nothing is noted
    assert calls
