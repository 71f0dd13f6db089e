"""Top-k lists against a slow twin that sorts everything: exact, ties to the lower column, seen items left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.errors import LearningError
from melon.models.catalogue import Within, best
from melon.stream.history import History


def sorted_columns(line: np.ndarray) -> list[int]:
    """All columns by falling score, ties by column."""
    return sorted(range(len(line)), key=lambda column: (-line[column], column))


@given(
    seed=st.integers(0, 10_000),
    lines=st.integers(1, 4),
    width=st.one_of(st.integers(1, 40), st.integers(300, 1_500)),
    k=st.integers(1, 50),
    levels=st.sampled_from([1, 2, 5, 1_000_000]),
)
def test_best_equals_a_full_sort(seed: int, lines: int, width: int, k: int, levels: int) -> None:
    # Few levels mean many ties, at the boundary of the list too.
    scores = np.random.default_rng(seed).integers(0, levels, (lines, width)).astype(np.float32)
    for line, (columns, values) in enumerate(best(scores, k)):
        expected = sorted_columns(scores[line])[:k]
        assert columns.tolist() == expected
        assert values.tolist() == scores[line][expected].tolist()


@given(
    seed=st.integers(0, 10_000),
    width=st.one_of(st.integers(2, 40), st.integers(300, 900)),
    k=st.integers(1, 20),
    share=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    levels=st.sampled_from([2, 1_000_000]),
)
def test_best_unseen_equals_a_full_sort_without_the_seen(
    seed: int, width: int, k: int, share: float, levels: int
) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, levels, (3, width)).astype(np.float32)
    users = np.array([4, 0, 2])
    history, taken = History(), {user: set() for user in users.tolist()}
    for user in (4, 2):  # user 0 has had nothing, user 4 the best ones, some of them twice
        order = sorted_columns(scores[0]) if user == 4 else generator.permutation(width).tolist()
        items = np.array(order[: int(share * width)], dtype=np.int64)
        items = np.concatenate([items, items[:3]])
        history.append(np.full(len(items), user), items)
        taken[user] = set(items.tolist())
    found = best(scores, k, Within(history.seen), users)
    for line, (user, (columns, values)) in enumerate(zip(users.tolist(), found, strict=True)):
        expected = [column for column in sorted_columns(scores[line]) if column not in taken[user]][:k]
        assert columns.tolist() == expected
        assert values.tolist() == scores[line][expected].tolist()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("width", [5, 3_000])
def test_a_score_that_is_not_finite_is_an_error(wrong: float, width: int) -> None:
    scores = np.zeros((2, width))
    scores[1, 3] = wrong
    with pytest.raises(LearningError, match="not finite"):
        best(scores, 2)
