"""A declared search space as Optuna sees it: axes of numbers are ordered, all others are plain choices."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from melon.fitting.search import neighbours
from melon.registry import Space
from melon.types import Plain

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True)
class Axes:
    """What is searched: the axes that nothing has settled, and the points from which the search starts.

    An axis of numbers (none may stand among them) becomes the number of the value on the axis, so that neighbours on a
    grid of rates are neighbours to the search too.
    """

    values: Mapping[str, tuple[Any, ...]]
    starts: tuple[Plain, ...]

    @classmethod
    def of(cls, space: Space, fixed: Mapping[str, Any]) -> Axes:
        """A declared space without what is fixed; a start that leaves an axis open begins with its first value."""
        open_axes = {name: values for name, values in space.axes.items() if name not in fixed}
        starts: list[Plain] = []
        for start in space.starts:
            point = {name: start.get(name, values[0]) for name, values in open_axes.items()}
            if point not in starts:
                starts.append(point)
        return cls(open_axes, tuple(starts))

    def distributions(self) -> dict[str, BaseDistribution]:
        """The axes in Optuna's terms."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return {
            name: IntDistribution(0, len(values) - 1) if _ordered(values) else CategoricalDistribution(values)
            for name, values in self.values.items()
        }

    def encode(self, point: Plain) -> Plain:
        """A point as parameters of a trial."""
        return {
            name: values.index(point[name]) if _ordered(values) else point[name] for name, values in self.values.items()
        }

    def decode(self, parameters: Plain) -> Plain:
        """And back."""
        return {
            name: values[parameters[name]] if _ordered(values) else parameters[name]
            for name, values in self.values.items()
        }

    def untried(self, point: Plain, tried: Sequence[Plain]) -> Plain | None:
        """The point itself, or the nearest one that was not tried; nothing where all were."""
        seen, queue = [point], deque([point])
        while queue:
            here = queue.popleft()
            if here not in tried:
                return here
            for beside in neighbours(here, self.values):
                if beside not in seen:
                    seen.append(beside)
                    queue.append(beside)
        return None


def _ordered(values: tuple[Any, ...]) -> bool:
    numbers = [value for value in values if value is not None]
    return len(numbers) > 1 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers)
