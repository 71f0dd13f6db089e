"""The search: near the best of smooth toys within its budget, and never over it."""

from collections.abc import Callable
from itertools import product

import pytest

from melon.fitting.search import Curve, Search, Trial, Workers, search
from melon.models.registry import RECOMMENDERS
from melon.registry import Space
from melon.strategies.registry import STRATEGIES
from melon.types import Plain

LINE = Space({"x": tuple(range(12))}, ({"x": 3},))
PLANE = Space({"x": tuple(range(9)), "y": tuple(range(9))}, ({"x": 4, "y": 4},))


def judged(worth: Callable[..., float | None]) -> tuple[Callable[[Plain, Curve | None], Trial], list[Plain]]:
    """A judge that scores by a formula, and the list of what it was asked."""
    asked: list[Plain] = []

    def judge(point: Plain, _: Curve | None) -> Trial:
        asked.append(point)
        return Trial(point, worth(**point))

    return judge, asked


@pytest.mark.parametrize("peak", [(1, 7), (4, 4), (6, 3), (8, 8)])
def test_the_top_of_a_hill_on_a_plane_is_found_without_trying_everything(peak: tuple[int, int]) -> None:
    judge, asked = judged(lambda x, y: -((x - peak[0]) ** 2) - (y - peak[1]) ** 2)
    found = search(PLANE, 30, judge)
    assert found.settings == {"x": peak[0], "y": peak[1]}
    assert len(asked) <= 30  # of 81
    assert found.at_edge == (("x", "y") if peak == (8, 8) else ())


@pytest.mark.parametrize("budget", [1, 2, 5, 8, 12, 40])
def test_the_whole_budget_is_used_and_no_more(budget: int) -> None:
    for worth in (lambda x: x, lambda x: 0.0, lambda x: None, lambda x: -((x - 7) ** 2)):
        judge, asked = judged(worth)
        found = search(LINE, budget, judge)
        assert len(asked) == len(found.trials) == min(budget, 12)
        assert len({point["x"] for point in asked}) == len(asked)


def test_no_trial_but_the_first_begins_once_there_is_enough() -> None:
    for most in (0, 1, 4):
        judge, asked = judged(lambda x: x)
        search(LINE, 8, judge, enough=lambda asked=asked, most=most: len(asked) >= most)  # type: ignore[misc]
        assert len(asked) == max(most, 1)


def test_every_start_is_tried_first() -> None:
    for entry in (*STRATEGIES, *RECOMMENDERS):
        judge, asked = judged(lambda **_: 0.0)
        search(entry.space, len(entry.space.starts), judge)
        for point, start in zip(asked, entry.space.starts, strict=True):
            assert start.items() <= point.items()


def test_what_is_fixed_is_not_searched_but_told() -> None:
    judge, asked = judged(lambda x, y, z: -abs(x - 6))
    found = search(PLANE, 50, judge, {"y": 77, "z": "kept"})
    assert {(point["y"], point["z"]) for point in asked} == {(77, "kept")}
    assert sorted(point["x"] for point in asked) == list(range(9))
    assert found.settings == {"x": 6, "y": 77, "z": "kept"}
    assert found.at_edge == ()


def test_an_axis_of_one_value_is_told_and_has_no_edge() -> None:
    judge, asked = judged(lambda x, only: float(x))
    found = search(Space({"only": (5,), "x": (0, 1, 2)}), 9, judge)
    assert [point["only"] for point in asked] == [5, 5, 5]
    assert found.at_edge == ("x",)


def test_yes_and_no_have_no_edge() -> None:
    found = search(Space({"sure": (False, True)}), 9, lambda point, _: Trial(point, float(point["sure"])))
    assert found.settings == {"sure": True}
    assert found.at_edge == ()


def test_a_broken_trial_never_wins() -> None:
    judge, asked = judged(lambda x: None if x > 3 else -5.0 + x)
    found = search(LINE, 12, judge)
    assert found.settings == {"x": 3}
    assert len(asked) == 12
    judge, _ = judged(lambda x: None)
    assert search(LINE, 3, judge).score is None


def test_a_tie_keeps_the_earlier_point() -> None:
    judge, asked = judged(lambda x: 1.0)
    assert search(LINE, 12, judge).settings == asked[0] == {"x": 3}


def test_the_whole_grid_is_reached_from_anywhere() -> None:
    judge, asked = judged(lambda x, y: 0.0)
    search(PLANE, 1_000, judge)
    assert {(point["x"], point["y"]) for point in asked} == set(product(range(9), range(9)))


def test_what_is_fixed_is_no_axis_and_starts_that_become_alike_are_one() -> None:
    space = Space({"x": tuple(range(9)), "y": tuple(range(9))}, ({"x": 4, "y": 4}, {"x": 0, "y": 0}, {"x": 8, "y": 8}))
    walk = Search(space, {"x": 3, "z": 1})
    assert walk.axes == {"y": tuple(range(9))}
    assert walk.starts == ({"y": 4}, {"y": 0}, {"y": 8})
    assert Search(space, {"x": 3, "y": 1}).starts == ({},)


def wavy(x: int, y: int) -> float:
    return float((x * 7 + y * 5) % 11) - abs(x - 6)


@pytest.mark.parametrize("budget", [1, 4, 17])
def test_trials_are_the_same_for_any_number_of_workers(budget: int) -> None:
    """Processes that run ahead of the walk, and are dropped where it turns."""

    def judge(point: Plain, opponent: Curve | None) -> Trial:
        curve = Curve([1], [wavy(**point)])
        behind = opponent is not None and opponent.gained[0] - curve.gained[0] > 4
        return Trial(point, None, "behind") if behind else Trial(point, curve.gained[0], curve=curve)

    wanted = search(PLANE, budget, judge)
    assert budget < 17 or any(trial.problem for trial in wanted.trials)
    for count in (2, 3):
        assert search(PLANE, budget, judge, workers=Workers(count)) == wanted


@pytest.mark.parametrize("count", [1, 2])
def test_who_stops_a_search_gets_the_best_so_far_or_the_interruption(count: int) -> None:
    def interrupted(trial: Trial, budget: int) -> None:
        if trial.settings["x"] == 5:
            raise KeyboardInterrupt

    judge, _ = judged(lambda x: 1.0 * x)
    found = search(LINE, 9, judge, workers=Workers(count), on_trial=interrupted, goes_on=lambda: True)
    assert (found.settings, len(found.trials)) == ({"x": 5}, 3)
    with pytest.raises(KeyboardInterrupt):
        search(LINE, 9, judge, workers=Workers(count), on_trial=interrupted)


def test_nothing_tried_is_the_first_start_point() -> None:
    assert Search(PLANE, {"z": 1}).choice().settings == {"x": 4, "y": 4, "z": 1}
