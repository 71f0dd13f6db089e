"""Practice on the selection window (docs/methods.md 8.2, 8.5): what learned strategies and heads are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy

from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.fitting.plan import EvaluationProtocol
from melon.fitting.pretrained import Practice, PretrainedState
from melon.learning.practice.loop import practice_candidates, practise_through
from melon.learning.pretrain import stamp_last_touches
from melon.learning.updater import Updater
from melon.recommenders.blend.head import Lesson
from melon.strategies.base import Strategy
from melon.strategies.learned import LearnedStrategy
from melon.strategies.practised import LinearStrategy
from melon.strategies.unrolled import UnrolledStrategy
from melon.stream.batch import batch_of
from melon.stream.split import batches
from melon.types import Plain


class WindowPractice:
    """Streams through the window of a log, which begins at `start`, behind the `past` before it.

    The head of a recommender practises on `earlier` windows, too, where they are asked for (ADR 22).
    """

    def __init__(
        self,
        log: Interactions,
        start: int,
        past: Interactions,
        protocol: EvaluationProtocol,
        earlier: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._log, self._start, self._past, self._protocol, self._earlier = log, start, past, protocol, earlier

    def of(self, strategy: Strategy, start: PretrainedState, stop: int, pretraining: Plain | None = None) -> Practice:
        """What a strategy and a head learn on the window up to `stop`, and the head on earlier ones: for these, rows
        are trained with settings of `pretraining`, if they are given.
        """
        practice = self.of_strategy(strategy, start, stop)
        return practice | self.of_head(strategy, start, stop, practice, pretraining)

    def of_strategy(self, strategy: Strategy, start: PretrainedState, stop: int) -> Practice:
        """Let a learned strategy practise on the window up to `stop`: several passes in time order, each from a
        recommender and a history from before the window (docs/methods.md 8.2). Others have nothing to practise.
        """
        practice: Practice = {}
        if isinstance(strategy, LinearStrategy | UnrolledStrategy):
            updater = self._before_window(strategy, start, practice)
            past, size = self._log.head(stop), self._protocol.batch_size
            coming = [batch_of(past, *bounds) for bounds in batches(self._start, stop, size)]
            practise_through(updater, coming, practice_candidates(past, self._protocol.seed, self._protocol.negatives))
            practice = updater.practice()
        passes = strategy.settings.passes if isinstance(strategy, LearnedStrategy) and strategy.looks_ahead else 0
        for number in range(passes):
            updater = self._before_window(strategy, start, practice)
            for first, last in batches(self._start, stop, self._protocol.batch_size):
                updater.learn(batch_of(self._log, first, last).in_epoch(number), teach_head=False)
            practice = updater.practice()
        return practice

    def of_head(
        self,
        strategy: Strategy,
        start: PretrainedState,
        stop: int,
        practice: Practice,
        pretraining: Plain | None = None,
    ) -> Practice:
        """Train a recommender's head out of sample (docs/methods.md 8.5): rows that know nothing of the window stream
        through it under the strategy, and the head learns from what was recorded on the way, in several passes.
        """
        if not start.headed:
            return {}
        earlier = [] if pretraining is None else self._earlier_lessons(strategy, start, practice, pretraining)
        updater, lessons = self.recorded(deepcopy(strategy), start, stop, practice)
        return updater.practise_head(earlier + lessons)

    def _earlier_lessons(
        self, strategy: Strategy, start: PretrainedState, practice: Practice, pretraining: Plain
    ) -> list[Lesson]:
        """Lessons of the windows before this one, each with rows that were trained on what precedes it.

        A window that cannot be practised on is left out: these are lessons beside those of the selection window.
        """
        lessons: list[Lesson] = []
        for first, stop in self._earlier:
            past = self._log.head(first)
            if past.n_items < 2:
                continue
            window = WindowPractice(self._log, first, past, self._protocol)
            with suppress(LearningError):  # settings suit the whole log, and this is a shorter one
                rows = start.trained_on(past, pretraining)
                lessons += window.recorded(deepcopy(strategy), rows, stop, practice)[1]
        return lessons

    def recorded(
        self, strategy: Strategy, start: PretrainedState, stop: int, practice: Practice
    ) -> tuple[Updater, list[Lesson]]:
        """Rows that have streamed through the window up to `stop`, and the lessons that the head had on the way."""
        updater, lessons = self._before_window(strategy, start, practice), []
        for first, last in batches(self._start, stop, self._protocol.batch_size):
            batch = batch_of(self._log, first, last)
            lessons.append(updater.lesson(batch))
            updater.learn(batch, teach_head=False)
        return updater, [lesson for lesson in lessons if lesson is not None]

    def _before_window(self, strategy: Strategy, start: PretrainedState, practice: Practice) -> Updater:
        recommender, history = start.after(self._past)
        updater = Updater(recommender, strategy, history, seed=self._protocol.seed)
        updater.take_over(practice)
        stamp_last_touches(updater.recommender, self._past, updater.fading_clock)
        return updater
