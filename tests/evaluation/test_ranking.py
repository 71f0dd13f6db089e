"""Ranks and metrics: nothing flatters, whatever the scores are."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from melon.errors import LearningError
from melon.evaluation.lists import better_and_equal
from melon.evaluation.ranking import LIST_METRICS, metrics, rank_first, selection_score
from melon.stream.pairs import SeenPairs, pair_keys

Scores = npt.NDArray[Any]
# Few levels, so that ties are the rule; the two zeros are equal and must tie.
LEVELS = st.sampled_from([-1.5, -0.0, 0.0, 0.25, 3.0])


def possible_ranks(first: float, others: list[float]) -> list[int]:
    """Where the first one may stand among the others when ties are broken in every way: sorted, then looked up."""
    standing = sorted([(-first, 1), *((-other, 0) for other in others)])
    best = next(place for place, (score, _) in enumerate(standing, start=1) if score == -first)
    worst = max(place for place, (score, _) in enumerate(standing, start=1) if score == -first)
    return list(range(best, worst + 1))


@pytest.mark.parametrize("constant", [0.0, -3.0, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_constant_ranks_in_the_middle(constant: float, dtype: type) -> None:
    ranks = rank_first(np.full((7, 100), constant, dtype=dtype), "a test")
    assert ranks.rank.tolist() == [50.5] * 7
    assert ranks.ties.tolist() == [99] * 7
    assert set(metrics(ranks.rank).values()) == {0.0}


def test_one_better_negative_is_rank_two() -> None:
    scores = np.zeros((1, 100))
    scores[0, 0] = 1.0
    assert rank_first(scores, "a test").rank.tolist() == [1.0]
    scores[0, 57] = 2.0
    assert rank_first(scores, "a test").rank.tolist() == [2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 3])
def test_what_is_no_number_is_an_error_that_names_the_batch(bad: float, column: int) -> None:
    scores = np.zeros((5, 10), dtype=np.float32)
    scores[2, column] = bad
    message = f"{bad} in the batch of events 7 to 11 .interaction 2, candidate {column}."
    with pytest.raises(LearningError, match=message):
        rank_first(scores, "the batch of events 7 to 11")
    with pytest.raises(LearningError, match=f"{bad} in the batch of events 7 to 11 .line 2, item {column}."):
        better_and_equal(scores, np.arange(5), np.ones(5, dtype=np.int64), SeenPairs(), "the batch of events 7 to 11")


def test_no_events_have_no_ranks_and_no_metrics() -> None:
    assert len(rank_first(np.empty((0, 100)), "a test")) == 0
    assert metrics(np.empty(0)) == {}
    assert selection_score(np.empty(0)) == 0.0


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(2, 12)), elements=LEVELS))
def test_the_rank_is_the_mean_over_all_ways_to_break_ties(scores: Scores) -> None:
    ranks = rank_first(scores, "a test")
    for line, rank, ties in zip(scores.tolist(), ranks.rank.tolist(), ranks.ties.tolist(), strict=True):
        possible = possible_ranks(line[0], line[1:])
        assert rank == np.mean(possible)
        assert ties == len(possible) - 1


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(2, 10)), elements=LEVELS),
    st.data(),
)
def test_ranks_among_all_agree_with_a_slow_sort(scores: Scores, data: st.DataObject) -> None:
    lines, items = scores.shape
    cells = st.tuples(st.integers(0, lines - 1), st.integers(0, items - 1))
    positives = np.array([data.draw(st.integers(0, items - 1)) for _ in range(lines)])
    hidden = data.draw(st.lists(cells, max_size=12))  # now and then the positive itself: a repeat
    seen = SeenPairs()
    seen.add(pair_keys(*(np.array(side, dtype=np.int64) for side in zip(*hidden, strict=True)))) if hidden else None
    counts = better_and_equal(scores, np.arange(lines), positives, seen, "a test")
    for line in range(lines):
        own = int(positives[line])
        for first, left_out in ((0, []), (2, hidden)):
            others = [scores[line, i] for i in range(items) if i != own and (line, i) not in left_out]
            possible = possible_ranks(scores[line, own], others)
            better, equal = counts[line, first : first + 2].tolist()
            assert 1 + better + equal / 2 == np.mean(possible)
            assert equal == len(possible) - 1


def test_list_metrics_have_the_reciprocal_rank_too() -> None:
    found = metrics(np.array([1.0, 4.0, 11.0, np.inf]), LIST_METRICS)
    assert found["MRR@5"] == found["MRR@10"] == pytest.approx((1 + 1 / 4) / 4)
    assert found["MRR@20"] == pytest.approx((1 + 1 / 4 + 1 / 11) / 4)
    assert found["NDCG@20"] < 1


def test_metrics_by_hand() -> None:
    found = metrics(np.array([1.0, 2.0, 5.5, 10.0, 21.0]))
    assert found["HR@5"] == pytest.approx(2 / 5)
    assert found["HR@10"] == pytest.approx(4 / 5)
    assert found["HR@20"] == pytest.approx(4 / 5)
    two = 1 + 1 / np.log2(3)
    assert found["NDCG@5"] == pytest.approx(two / 5)
    assert found["NDCG@10"] == pytest.approx((two + 1 / np.log2(6.5) + 1 / np.log2(11)) / 5)
    assert found["NDCG@20"] == found["NDCG@10"]
    assert selection_score(np.array([1.0, 2.0, 5.5, 10.0, 21.0])) == found["HR@5"] + found["NDCG@10"]


def test_means_are_taken_in_double_precision() -> None:
    rank = np.ones(70_001)
    rank[-1] = 100.0
    assert metrics(rank)["HR@5"] == 70_000 / 70_001
    assert all(type(value) is float for value in metrics(rank).values())


def test_a_random_ranker_gets_the_known_values() -> None:
    scores = np.random.default_rng(5).random((40_000, 100))
    found = metrics(rank_first(scores, "a test").rank)
    known = {"HR@5": 0.05, "HR@10": 0.1, "HR@20": 0.2, "NDCG@5": 0.0295, "NDCG@10": 0.0454, "NDCG@20": 0.0704}
    assert found == {name: pytest.approx(value, abs=0.006) for name, value in known.items()}
