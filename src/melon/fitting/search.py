"""A deterministic search over a declared space: its start points first, then neighbours of the best trial so far.

There is no other search (research/decisions, 12). Trials that are clearly behind are stopped (`Curve.hopeless`)."""

from __future__ import annotations

import math
import multiprocessing as mp
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import numpy as np

from melon.errors import MelonError
from melon.registry import Space
from melon.types import Floats, Plain

#: A trial is stopped early where it is this many standard errors behind the best, after this many batches and this
#: share of all.
_ERRORS, _FEWEST_BATCHES, _LEAST_SHARE = 3.0, 10, 0.25


@dataclass
class Curve:
    """Batch by batch through the judged part: interactions with a rank, and the sum of what they are judged by."""

    ranked: list[int] = field(default_factory=list)
    gained: list[float] = field(default_factory=list)

    def add(self, values: Floats) -> None:
        """One more batch: the value of each of its interactions."""
        self.ranked.append(len(values))
        self.gained.append(float(values.sum()))

    def score(self) -> float:
        """The running score."""
        return sum(self.gained) / max(sum(self.ranked), 1)

    def behind(self, best: Curve) -> tuple[float, float]:
        """How far it lies behind another on the batches it has seen, and the standard error of that.

        Both met the same candidates, so the difference is taken batch by batch.
        """
        n = np.array(self.ranked, dtype=np.float64)
        difference = np.array(best.gained[: len(n)]) - np.array(self.gained)
        total = max(float(n.sum()), 1.0)
        mean = float(difference.sum()) / total
        spread = float(np.square(difference - mean * n).sum()) * len(n) / max(len(n) - 1, 1)
        return mean, math.sqrt(spread) / total

    def hopeless(self, best: Curve) -> bool:
        """Whether it is so far behind the best that the rest is not worth its time."""
        seen = len(self.ranked)
        if seen < max(_FEWEST_BATCHES, _LEAST_SHARE * len(best.ranked)):
            return False
        mean, error = self.behind(best)
        return mean > max(_ERRORS * error, 0.0)


@dataclass(frozen=True)
class Trial:
    """One point of a space and the score it got; a point that broke, or that was stopped early, has none."""

    settings: Plain
    score: float | None
    problem: str | None = None
    curve: Curve | None = field(default=None, compare=False)
    gives: Any = field(default=None, compare=False, repr=False)


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
    """Proposes points of a space one by one; what it proposes depends on the reported trials alone.

    Axes in `fixed` are not searched.
    """

    def __init__(self, space: Space, fixed: Mapping[str, Any] | None = None) -> None:
        self.fixed = dict(fixed or {})
        self.axes = {name: values for name, values in space.axes.items() if name not in self.fixed}
        self.trials: list[Trial] = []
        points = [{name: start.get(name, values[0]) for name, values in self.axes.items()} for start in space.starts]
        self.starts = tuple(point for place, point in enumerate(points) if point not in points[:place])

    def ask(self) -> Plain | None:
        """The next point: a start that was not tried, else one beside the best trial, then beside the second best, and
        so on; None where the whole space was tried.
        """
        tried = [{name: trial.settings[name] for name in self.axes} for trial in self.trials]
        ranked = sorted(self.trials, key=lambda trial: -_worth(trial))
        beside = (point for trial in ranked for point in neighbours(trial.settings, self.axes))
        return next((point for point in chain(self.starts, beside) if point not in tried), None)

    def tell(self, trial: Trial) -> None:
        """Take a trial into account; its settings are a point that was asked for, with what is fixed."""
        self.trials.append(trial)

    def choice(self) -> Choice:
        """The best trial so far; a tie keeps the earlier one. Without a trial, the first start point."""
        best = self.best()
        settings = {**self.starts[0], **self.fixed} if best is None else best.settings
        score = None if best is None else best.score
        return Choice(settings, score, tuple(self.trials), edges(self.axes, settings))

    def best(self) -> Trial | None:
        """The best trial so far, which may be one that broke."""
        return max(self.trials, key=_worth, default=None)

    def opponent(self, point: Plain) -> Curve | None:
        """The trial that a point has to keep up with: the best so far, or none for a start point."""
        best = self.best()
        return None if best is None or point in self.starts else best.curve

    def looked_ahead(self, count: int) -> list[Plain]:
        """The next points as they will be asked for if none of them is better than the best so far."""
        ahead = Search(Space(self.axes, self.starts))
        ahead.trials = list(self.trials)
        points: list[Plain] = []
        while len(points) < count and (point := ahead.ask()) is not None:
            points.append(point)
            ahead.tell(Trial(point, None))
        return points


def search(
    space: Space,
    budget: int,
    judge: Callable[[Plain, Curve | None], Trial],
    fixed: Mapping[str, Any] | None = None,
    enough: Callable[[], bool] = lambda: False,
    *,
    workers: Workers | None = None,
    on_trial: Callable[[Trial, int], None] = lambda _trial, _budget: None,
    goes_on: Callable[[], bool] = lambda: False,
) -> Choice:
    """Spend at most `budget` trials, and none but the first once there is `enough`.

    `judge` gets a point and the curve that it has to keep up with. Workers that are free begin the points that come
    next if the present ones are no better than the best so far; if one is, what they began is dropped. So the trials
    are the same for any number of workers. Where people stop it and `goes_on` says so, the trials so far have to do.
    """
    walk, workers, budget = Search(space, fixed), workers or Workers(), max(budget, 1)
    begun: dict[str, tuple[Pending[Trial], Plain, Curve | None]] = {}
    try:
        while (asked := walk.ask()) is not None:
            if len(walk.trials) >= budget or (walk.trials and enough()):
                break
            for point in walk.looked_ahead(min(workers.count, budget - len(walk.trials))):
                if repr(point) not in begun:
                    opponent = walk.opponent(point)
                    work = workers.begin(partial(judge, {**point, **walk.fixed}, opponent))
                    begun[repr(point)] = work, point, opponent
            trial = begun.pop(repr(asked))[0].result()
            walk.tell(trial)
            on_trial(trial, budget)
            for name, (work, point, opponent) in list(begun.items()):
                if walk.opponent(point) is not opponent:
                    begun.pop(name)
                    work.cancel()
    except KeyboardInterrupt:
        if not goes_on():
            raise
    finally:
        for work, _, _ in begun.values():
            work.cancel()
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


def words(point: Plain) -> str:
    """Settings in a line; a whole number that is a float has no ".0"."""
    return ", ".join(f"{name}={_short(value)}" for name, value in point.items()) or "defaults"


def _short(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else value


def _worth(trial: Trial) -> float:
    return float("-inf") if trial.score is None else trial.score


def _is_ordered(values: tuple[Any, ...]) -> bool:
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return len(values) > 1 and len(numbers) == len(values)


_Result = TypeVar("_Result")
_GONE = 1.0  # seconds that a process may take to end


class Pending(Generic[_Result]):
    """Work that is under way in another process, or that waits until its result is wanted."""

    def __init__(self, work: Callable[[], _Result], *, elsewhere: bool, first: Callable[[], None]) -> None:
        self._work, self._process = work, None
        if not elsewhere:
            return
        self._pipe, theirs = mp.Pipe(duplex=False)
        self._process = mp.get_context("fork").Process(
            target=_run, args=(theirs, work, first), daemon=True, name="melon trial"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child needs none of their locks
            self._process.start()
        theirs.close()

    def result(self) -> _Result:
        """What the work gives, or the error that it raised, or that its process was ended from outside."""
        if self._process is None:
            return self._work()
        try:
            outcome, error = self._pipe.recv()
        except (EOFError, OSError):
            raise MelonError(
                f"a process that tried settings was killed{_by(self._process)}, most likely because memory "
                "ran out. With --threads 2 (threads=2 in Python) settings are tried one at a time."
            ) from None
        finally:
            self.cancel()
        if error is not None:
            raise error
        result: _Result = outcome
        return result

    def cancel(self) -> None:
        """End it; its result is no longer needed."""
        if self._process is None:
            return
        self._pipe.close()
        self._process.kill()
        self._process.join(_GONE)
        self._process = None


class Workers:
    """How many pieces of work run at a time; another process calls `first` before it begins."""

    def __init__(self, count: int = 1, first: Callable[[], None] = lambda: None) -> None:
        self._first = first
        self.count = count if sys.platform == "linux" and not mp.current_process().daemon else 1

    def begin(self, work: Callable[[], _Result]) -> Pending[_Result]:
        """Start a piece of work; the caller begins no more than `count` of them."""
        return Pending(work, elsewhere=self.count > 1, first=self._first)


def _by(process: mp.process.BaseProcess) -> str:
    process.join(_GONE)
    code = process.exitcode
    return f" (signal {-code})" if code is not None and code < 0 else ""


def _run(pipe: Connection, work: Callable[[], Any], first: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    first()
    outcome: tuple[Any, Exception | None]
    try:
        outcome = work(), None
    except Exception as error:
        outcome = None, error
    with suppress(BrokenPipeError, ConnectionResetError):  # the parent no longer waits for it
        pipe.send(outcome)
