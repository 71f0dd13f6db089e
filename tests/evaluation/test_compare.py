"""Comparisons: intervals that cover, clusters that count once, and Holm's correction."""

import numpy as np
import pytest

from melon.errors import StreamError
from melon.evaluation.compare import Comparison, Sides, compare, compare_mean, conclusions, holm


def test_equal_methods_do_not_differ() -> None:
    values = [np.random.default_rng(0).random(200) for _ in range(3)]
    users = np.arange(200) % 40
    found = compare(values, values, users, users)
    assert found.difference == 0
    assert found.by_user == (0, 0)
    assert found.p_value == 1
    assert conclusions({"same": found}, 0.001) == {"same": "no significant loss"}
    assert not holm({"same": found})["same"]


def test_a_clear_lead_is_found() -> None:
    rng = np.random.default_rng(1)
    theirs = [(rng.random(2_000) < 0.4).astype(float) for _ in range(3)]
    ours = [np.maximum(each, rng.random(2_000) < 0.2) for each in theirs]
    users = rng.integers(300, size=2_000)
    found = compare(ours, theirs, users, rng.integers(100, size=2_000))
    assert found.by_user[0] > 0
    assert found.by_item[0] > 0
    assert found.seed_error is not None
    assert found.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert holm({"ours": found}) == {"ours": True}


def test_one_hot_user_is_one_fact() -> None:
    """A thousand wins of one user beside a few losses of others do not make an interval above zero."""
    ours = np.r_[np.ones(1_000), np.zeros(40)]
    theirs = np.r_[np.zeros(1_000), np.ones(40)]
    users = np.r_[np.zeros(1_000, dtype=int), np.arange(1, 41)]
    clustered = compare([ours], [theirs], users, users)
    assert clustered.by_user[0] < 0 < clustered.difference
    alone = compare([ours], [theirs], np.arange(1_040), np.arange(1_040))
    assert alone.by_user[0] > 0
    assert clustered.seed_error is None


def test_intervals_cover() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for trial in range(60):
        users = np.repeat(np.arange(60), 5)
        taste = np.repeat(rng.normal(0, 0.3, 60), 5)
        values = 0.1 + taste + rng.normal(0, 0.3, 300)
        low, high = compare([values], [np.zeros(300)], users, users, seed=trial).by_user
        covered += low <= 0.1 <= high
    assert covered >= 51  # 57 expected; 51 or fewer has a chance of about one in a thousand


def test_holm_stops_at_the_first_that_fails() -> None:
    def of(p: float) -> Comparison:
        return Comparison(0.1, (0.05, 0.15), (0.05, 0.15), None, p)

    assert holm({"a": of(0.001), "b": of(0.03), "c": of(0.04)}) == {"a": True, "b": False, "c": False}
    assert holm({"a": of(0.001), "b": of(0.02), "c": of(0.04)}) == {"a": True, "b": True, "c": True}


def test_other_events_are_refused() -> None:
    with pytest.raises(StreamError, match="same events"):
        compare([np.zeros(3)], [np.zeros(4)], np.zeros(3, dtype=int), np.zeros(3, dtype=int))


def test_on_the_mean_each_stream_counts_alike_and_intervals_narrow() -> None:
    rng = np.random.default_rng(3)

    def stream(events: int, lead: float) -> Sides:
        theirs = [(rng.random(events) < 0.4).astype(float) for _ in range(2)]
        ours = [np.maximum(each, rng.random(events) < lead) for each in theirs]
        return Sides(ours, theirs, rng.integers(events // 5, size=events), rng.integers(50, size=events))

    short, long = stream(400, 0.3), stream(4_000, 0.0)
    found = compare_mean([short, long])
    assert found.difference == pytest.approx((short.per_seed.mean() + long.per_seed.mean()) / 2)
    alone = compare_mean([short])
    assert alone == compare(short.ours, short.theirs, short.users, short.items)
    assert found.by_user[1] - found.by_user[0] < alone.by_user[1] - alone.by_user[0]
    assert found.by_user[0] > 0


def test_a_mean_over_nothing_or_over_other_seeds_is_refused() -> None:
    one, two = (Sides([np.ones(5)] * n, [np.zeros(5)] * n, np.arange(5), np.arange(5)) for n in (1, 2))
    for streams in ([], [one, two]):
        with pytest.raises(StreamError, match="over streams"):
            compare_mean(streams)


@pytest.mark.parametrize(
    ("interval", "p_value", "conclusion"),
    [
        ((0.001, 0.02), 0.001, "better"),
        ((0.001, 0.02), 0.2, "no significant loss"),
        ((-0.01, 0.03), 0.4, "no significant loss"),
        ((-0.014, -0.009), 0.001, "worse within the margin"),
        ((-0.04, -0.02), 0.001, "worse"),
        ((-0.04, 0.01), 0.3, "no significant difference"),
    ],
)
def test_a_conclusion_cannot_be_misread(interval: tuple[float, float], p_value: float, conclusion: str) -> None:
    """An interval that lies wholly below 0 is never called no loss, however wide the margin is."""
    found = Comparison(sum(interval) / 2, interval, interval, None, p_value)
    assert conclusions({"one": found}, 0.015) == {"one": conclusion}
    assert found.turned().by_user == (-interval[1], -interval[0])
