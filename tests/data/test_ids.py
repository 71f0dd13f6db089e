"""Ids: rows in order of arrival, one kind of id, and a state of plain arrays."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.data.ids import IdBook, id_keys, rows_by_first_appearance
from melon.errors import DataError
from melon.learning.tensorfiles import FolderWriter, read_tensors

INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IDS = st.one_of(st.lists(INTS, min_size=1), st.lists(TEXTS, min_size=1), st.lists(st.uuids(), min_size=1))


@given(IDS, IDS)
def test_rows_are_numbered_by_arbaseline_and_lead_back(first: list[Any], then: list[Any]) -> None:
    book = IdBook("user")
    rows = book.rows(first, add=True)
    distinct = list(dict.fromkeys(first))
    assert rows.tolist() == [distinct.index(one) for one in first]
    assert book.ids(rows).tolist() == first
    assert book.rows(distinct).tolist() == list(range(len(distinct)))
    if type(then[0]) is type(first[0]):
        strangers = [one for one in then if one not in distinct]
        assert (book.rows(strangers) == -1).all()
        assert len(book) == len(distinct)
        book.rows(then, add=True)
        assert book.ids(np.arange(len(book))).tolist() == list(dict.fromkeys(first + then))
    else:
        with pytest.raises(DataError, match="another type"):
            book.rows(then, add=True)
        assert len(book) == len(distinct)


@given(st.one_of(IDS, st.just([])))
def test_the_state_is_plain_arrays_and_round_trips_through_a_file(ids: list[Any]) -> None:
    book = IdBook("item")
    book.rows(ids, add=True)
    with tempfile.TemporaryDirectory() as folder:
        writer = FolderWriter(Path(folder))
        name = writer.add(book.state())
        state = dict(read_tensors(Path(folder), name, writer.sizes))
    back = IdBook.from_state(state, "item")
    assert back.kind == book.kind
    assert len(back) == len(book)
    assert back.ids(np.arange(len(back))).tolist() == book.ids(np.arange(len(book))).tolist()
    assert back.rows(ids).tolist() == book.rows(ids).tolist()


@given(IDS)
def test_keys_are_those_of_interactions(ids: list[Any]) -> None:
    book = IdBook()
    rows = book.rows(ids, add=True)
    given_ids = np.array(ids, dtype=np.int64 if isinstance(ids[0], int) else object)
    assert book.keys(rows).tolist() == id_keys(given_ids).tolist()


@pytest.mark.parametrize(
    ("given_ids", "plain"),
    [
        (np.array([3, 1, 3], dtype=np.int32), [3, 1]),
        (np.array(["b", "a", "b"]), ["b", "a"]),
        (np.array(["b", "", "b"], dtype=object), ["b", ""]),
        ([np.int64(5), 7], [5, 7]),
        ([np.str_("x"), "y"], ["x", "y"]),
        (iter(["x", "y"]), ["x", "y"]),
    ],
)
def test_numpy_and_plain_ids_are_the_same(given_ids: Any, plain: list[Any]) -> None:
    book = IdBook()
    book.rows(given_ids, add=True)
    assert book.ids(np.arange(len(book))).tolist() == plain
    assert {type(one) for one in book.ids(np.arange(len(book))).tolist()} == {type(plain[0])}


def test_a_hundred_thousand_ids_agree_with_the_vectorised_twin() -> None:
    ids = np.random.default_rng(0).integers(0, 60_000, 100_000)
    rows, distinct = rows_by_first_appearance(ids)
    book = IdBook()
    assert np.array_equal(book.rows(ids, add=True), rows)
    assert np.array_equal(book.ids(np.arange(len(book))), distinct)


@pytest.mark.parametrize(
    ("known", "new", "said"),
    [
        ([1], ["a"], "user 'a' has another type than the others, which are integers"),
        (["a"], [1], "user 1 has another type than the others, which are texts"),
        ([uuid.UUID(int=1)], ["a"], "which are UUIDs"),
        ([], [1, "a"], "user 'a' has another type"),
        ([], [None], "user None is a NoneType; ids are integers, texts or UUIDs"),
        ([], [1.5], r"user 1\.5 is a float"),
        ([1], [True], "user True is a bool"),
        ([1], [1, None], "user None is a NoneType"),
        ([1], [2**63], "does not fit 64 bits"),
        (["a"], ["\ud800"], "not valid Unicode"),
    ],
)
def test_impossible_ids_are_named_and_nothing_is_added(known: list[Any], new: list[Any], said: str) -> None:
    book = IdBook("user")
    book.rows(known, add=True)
    with pytest.raises(DataError, match=said):
        book.rows(new, add=True)
    assert len(book) == len(known)
    assert book.kind is None or known


def test_unknown_texts_that_are_no_unicode_are_refused_too() -> None:
    book = IdBook("user")
    book.rows(["a"], add=True)
    with pytest.raises(DataError, match="half of a surrogate pair"):
        book.rows(["\ud800"])


def test_whole_floats_are_the_integers() -> None:
    book = IdBook("user")
    assert book.rows([27.0, np.float64(3)], add=True).tolist() == [0, 1]  # type: ignore[list-item]
    assert book.rows([27, 3]).tolist() == [0, 1]
    assert book.ids([0, 1]).tolist() == [27, 3]
    with pytest.raises(DataError, match="is a float"):
        book.rows([float(2**60)])  # type: ignore[list-item]


def test_a_book_can_be_cut_back() -> None:
    book = IdBook("user")
    book.rows(["a", "b", "c"], add=True)
    book.truncate(1)
    assert book.rows(["a", "b", "c"]).tolist() == [0, -1, -1]
    book.truncate(0)
    assert book.rows([5], add=True).tolist() == [0]


def test_rows_that_nobody_has() -> None:
    book = IdBook("item")
    book.rows(["a"], add=True)
    for row in (-1, 1):
        with pytest.raises(DataError, match="belongs to no item"):
            book.ids([row])
    assert book.ids([]).tolist() == []
    assert IdBook().rows([]).tolist() == []
    assert IdBook().rows(["anyone"]).tolist() == [-1]
