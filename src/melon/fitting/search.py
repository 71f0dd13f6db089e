"""A small deterministic search over a declared space: start points first, then neighbours of the best so far."""

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


def search(
    space: Space,
    budget: int,
    judge: Callable[[Plain], Trial],
    fixed: Plain | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> Choice:
    """Spend at most `budget` trials, and none but the first once there is `enough`.

    Axes in `fixed` are not searched; a tie keeps the earlier point.
    """
    fixed = fixed or {}
    axes = {name: values for name, values in space.axes.items() if name not in fixed}
    trials: list[Trial] = []
    tried: list[Plain] = []
    for point in _points(space, axes, tried, trials):
        if len(trials) >= max(budget, 1) or (trials and enough()):
            break
        tried.append(point)
        trials.append(judge({**point, **fixed}))
    best = _best(trials)
    return Choice(best.settings, best.score, tuple(trials), edges(axes, best.settings))


def edges(axes: Mapping[str, tuple[Any, ...]], settings: Plain) -> tuple[str, ...]:
    """Axes of numbers on whose edge a point lies: a wider grid might do better there."""
    return tuple(
        name for name, values in axes.items() if _is_ordered(values) and settings[name] in (values[0], values[-1])
    )


def _points(space: Space, axes: dict[str, tuple[Any, ...]], tried: list[Plain], trials: list[Trial]) -> Iterator[Plain]:
    """New points: the starts, then what lies beside the best trial, then beside the second best, and so on."""
    for start in space.starts:
        point = {name: start.get(name, values[0]) for name, values in axes.items()}
        if point not in tried:
            yield point
    while True:
        ranked = sorted(trials, key=lambda trial: -_worth(trial))
        around = (point for trial in ranked for point in neighbours(trial.settings, axes))
        fresh = next((point for point in around if point not in tried), None)
        if fresh is None:
            return
        yield fresh


def neighbours(settings: Plain, axes: Mapping[str, tuple[Any, ...]]) -> Iterator[Plain]:
    """One step up and down each axis, in the order the axes were declared."""
    centre = {name: settings[name] for name in axes}
    for name, values in axes.items():
        here = values.index(centre[name])
        for there in (here + 1, here - 1):
            if 0 <= there < len(values):
                yield {**centre, name: values[there]}


def _best(trials: list[Trial]) -> Trial:
    return max(trials, key=_worth)


def _worth(trial: Trial) -> float:
    return float("-inf") if trial.score is None else trial.score


def _is_ordered(values: tuple[Any, ...]) -> bool:
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return len(values) > 1 and len(numbers) == len(values)
