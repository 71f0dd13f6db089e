"""A deterministic search over a declared space: its start points first, then neighbours of the best trial so far.

There is no other search (ADR 12). A fit takes it one trial at a time; a tuning takes rounds of several, which can run
side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from melon.registry import Space
from melon.types import Plain


@dataclass(frozen=True)
class Trial:
    """One point of a space and the score it got; a point that broke has none."""

    settings: Plain
    score: float | None
    problem: str | None = None


@dataclass(frozen=True)
class Choice:
    """The best of the trials, and the axes on whose edge it lies (a wider grid might do better there)."""

    settings: Plain
    score: float | None
    trials: tuple[Trial, ...]
    at_edge: tuple[str, ...]

    def plain(self) -> Plain:
        """JSON-ready."""
        trials = [{"settings": t.settings, "score": t.score, "problem": t.problem} for t in self.trials]
        return {"settings": self.settings, "score": self.score, "at_edge": list(self.at_edge), "trials": trials}


class Search:
    """Proposes points of a space round by round; what it proposes depends on the trials it was told alone.

    A round has `together` points at most. Axes in `fixed` are not searched.
    """

    def __init__(self, space: Space, fixed: Mapping[str, Any] | None = None, together: int = 1) -> None:
        self.fixed, self.together = dict(fixed or {}), together
        self.axes = {name: values for name, values in space.axes.items() if name not in self.fixed}
        self.trials: list[Trial] = []
        points = [{name: start.get(name, values[0]) for name, values in self.axes.items()} for start in space.starts]
        self.starts = tuple(point for place, point in enumerate(points) if point not in points[:place])

    def ask(self) -> list[Plain]:
        """The next round: start points that were not tried, else new points beside the best trial, then beside the
        second best, and so on; nothing where the whole space was tried.
        """
        tried = [{name: trial.settings[name] for name in self.axes} for trial in self.trials]
        points = [point for point in self.starts if point not in tried][: self.together]
        if points:
            return points
        ranked = sorted(self.trials, key=lambda trial: -_worth(trial))
        for point in (point for trial in ranked for point in neighbours(trial.settings, self.axes)):
            if point not in tried and point not in points:
                points.append(point)
            if len(points) == self.together:
                break
        return points

    def tell(self, trial: Trial) -> None:
        """Take a trial into account; its settings are a point that was asked for, with what is fixed."""
        self.trials.append(trial)

    def choice(self) -> Choice:
        """The best trial so far; a tie keeps the earlier one."""
        best = max(self.trials, key=_worth)
        return Choice(best.settings, best.score, tuple(self.trials), edges(self.axes, best.settings))


def search(
    space: Space,
    budget: int,
    judge: Callable[[Plain], Trial],
    fixed: Mapping[str, Any] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> Choice:
    """Spend at most `budget` trials, and none but the first once there is `enough`."""
    walk = Search(space, fixed)
    while points := walk.ask():
        if len(walk.trials) >= max(budget, 1) or (walk.trials and enough()):
            break
        walk.tell(judge({**points[0], **walk.fixed}))
    return walk.choice()


def edges(axes: Mapping[str, tuple[Any, ...]], settings: Plain) -> tuple[str, ...]:
    """Axes of numbers on whose edge a point lies: a wider grid might do better there."""
    return tuple(
        name for name, values in axes.items() if _is_ordered(values) and settings[name] in (values[0], values[-1])
    )


def neighbours(settings: Plain, axes: Mapping[str, tuple[Any, ...]]) -> Iterator[Plain]:
    """One step up and down each axis, in the order the axes were declared."""
    centre = {name: settings[name] for name in axes}
    for name, values in axes.items():
        place = values.index(centre[name])
        for beside in (place + 1, place - 1):
            if 0 <= beside < len(values):
                yield {**centre, name: values[beside]}


def _worth(trial: Trial) -> float:
    return float("-inf") if trial.score is None else trial.score


def _is_ordered(values: tuple[Any, ...]) -> bool:
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return len(values) > 1 and len(numbers) == len(values)
