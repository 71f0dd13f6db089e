"""The selection window (docs/methods.md 5.7): the one place where anything is learned or chosen ahead of the test part.

A recommender trained on what precedes the window streams through it; settings are compared on the last 40 % of the
window and the validation part. The functions here are given the log up to the end of validation and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Any

from melon.data.interactions import Interactions
from melon.errors import LearningError, StreamError
from melon.evaluation.predictors import Predictor, RowsAlone
from melon.evaluation.prequential import Point, Tally, prequential
from melon.evaluation.ranking import selection_score
from melon.fitting.plan import Plan, StrategyChoice, name_of, search_space
from melon.fitting.pretrained import Observed, Practice, PretrainedState, deploy, refit
from melon.fitting.search import Choice, Trial, search
from melon.learning.practice.loop import practice_candidates, practise_through
from melon.learning.pretrain import PRETRAIN_SPACE, Pretraining, PretrainSettings, most_epochs, stamp_last_touches
from melon.learning.updater import Updater
from melon.progress import Progress
from melon.registry import Space
from melon.strategies.base import Strategy
from melon.strategies.learned import LearnedStrategy
from melon.strategies.melon.linear import LinearStrategy
from melon.stream.batch import batch_of
from melon.stream.candidates import Candidates
from melon.stream.split import Parts, batches
from melon.types import Plain

#: Fewer judged events than this say nothing; defaults are used instead.
FEWEST_JUDGED = 50
#: Pre-training is judged this often on its way to the last epoch, and stopped after this many checks without progress.
_CHECKS, _PATIENCE = 10, 3
_PRETRAIN_TRIALS = 3
#: Plain steps under which a pre-trained recommender is judged, a gentle and a usual one: the better counts.
_JUDGE_STEPS = (0.1, 0.3)


class Selection:
    """Chooses on the window of one log, which must end before the test part begins.

    Once the plan's minutes have passed, choices that are still open are made from the trials so far, or from one trial
    each; `time_is_up` says so.
    """

    def __init__(self, log: Interactions, parts: Parts, plan: Plan, progress: Progress | None = None) -> None:
        if len(log) != parts.validation_stop:
            raise StreamError(
                f"a choice may see {parts.validation_stop} interactions, the log up to the test part, not {len(log)}."
            )
        self.log, self.parts, self.plan, self.protocol = log, parts, plan, plan.protocol
        self.progress = progress or Progress()
        self.before_window, self.before_judged = log.head(parts.window_start), log.head(parts.judged_from)
        judged = parts.validation_stop - parts.judged_from
        pool = int(log.items_born[parts.judged_from]) if self.protocol.candidates == "born" else log.n_items
        self.possible = (
            judged >= FEWEST_JUDGED and self.before_window.n_items > 1 and pool > self.protocol.negatives >= 1
        )
        self._candidates: Candidates | None = None
        self._observed: Observed = {}
        self._began, self.time_is_up = time.monotonic(), False

    def pretraining(self) -> tuple[Choice, PretrainedState]:
        """Settings and epochs for pre-training, and the recommender that they gave on the log before the window."""
        plan, progress = self.plan, self.progress
        best: dict[str, Any] = {"score": float("-inf")}

        def judge(point: Plain) -> Trial:
            settings = PretrainSettings.parse(point, "pre-training")
            training = Pretraining(plan.build(), self.before_window, settings, seed=plan.seed)
            try:
                score, epochs = self._train_while_it_helps(training, best)
            except LearningError as problem:
                progress.note(f"pre-training {words(point)}: {problem}")
                return Trial(point, None, str(problem))
            progress.note(f"pre-training {words(point)}: {score:.4f} after {epochs} epochs")
            return Trial({**point, "epochs": epochs}, score)

        budget = min(plan.budget, _PRETRAIN_TRIALS)
        chosen = search(PRETRAIN_SPACE, budget, judge, dict(plan.pretrain_settings), self.enough)
        if chosen.score is None:
            raise LearningError(f"no pre-training came through. The first trial: {chosen.trials[0].problem}")
        return chosen, best["state"]

    @property
    def judges_again(self) -> bool:
        """Whether strategies are judged on a recommender that was trained again.

        They practise on the one from before the window, and are deployed on another. Where weights are shared by all
        users and items, what was learned on the one may not suit the other (ADR 9), and the window has to show it.
        """
        recommender = self.plan.build()
        return any(spec.role == "shared" and recommender.learns(spec) for spec in recommender.declare())

    def trained_again(self, settings: Plain) -> PretrainedState:
        """The recommender trained on the whole log before the judged part."""
        self.progress.note(
            f"training {self.plan.recommender_name} again, on the {len(self.before_judged):,} events before the "
            "judged part"
        )
        return refit(self.plan, self.before_judged, settings, observed={})

    def strategy(
        self,
        strategy: StrategyChoice,
        start: PretrainedState,
        fixed: Plain,
        again: Callable[[], PretrainedState | None] = lambda: None,
    ) -> Choice:
        """Settings of a strategy, each trial streaming through the window from the same recommender.

        Where `again` gives one that was trained again, trials stream through the judged part alone. Where everything is
        fixed there is nothing to compare, and no trial is made.
        """
        space, name = self.space(strategy, fixed), name_of(strategy)
        if space.axes.keys() <= fixed.keys():
            return Choice(dict(fixed), None, (), ())
        later = again()

        def judge(point: Plain) -> Trial:
            try:
                score = self.judged(self.at_window(strategy, point, start, later))
            except LearningError as problem:
                self.progress.note(f"{name} {words(point)}: {problem}")
                return Trial(point, None, str(problem))
            self.progress.note(f"{name} {words(point)}: {score:.4f}")
            return Trial(point, score)

        return search(space, self.plan.budget, judge, fixed, self.enough)

    def at_window(
        self, strategy: StrategyChoice, settings: Plain, start: PretrainedState, again: PretrainedState | None = None
    ) -> Updater:
        """A strategy after its practice on the part that is not judged, deployed where the window begins; or, on a
        recommender that was trained `again`, where the judged part begins.
        """
        learner = self.plan.make_strategy(settings, strategy)
        practice = self.train_meta_model(learner, start, stop=self.parts.judged_from)
        if again is not None:
            return deploy(learner, again, self.before_judged, practice)
        return deploy(learner, start, self.before_window, practice)

    def space(self, strategy: StrategyChoice, fixed: Plain) -> Space:
        """The declared space; where fading is open, the search starts from a middling and from a short half-life."""
        space = search_space(strategy, fixed)
        if len(space.axes.get("fading", ())) < 2 or "fading" in fixed:
            return space
        seconds = (int(self.log.times[-1]) - int(self.log.times[0])) / max(len(self.log), 1)
        unit = max(seconds, 1e-9) if fixed.get("fading_clock") == "seconds" else 1.0
        values = tuple(None if value is None else value * unit for value in space.axes["fading"])
        middling, short = values[len(values) // 2], values[-2]
        starts = [{**start, "fading": middling} for start in space.starts]
        # Fast streams want it several steps away from slow ones: more than a small budget would walk.
        starts.insert(1, {**space.starts[0], "fading": short})
        return Space({**space.axes, "fading": values}, tuple(starts))

    def train_meta_model(self, strategy: Strategy, start: PretrainedState, stop: int) -> Practice:
        """Let a learned strategy practise on the window up to `stop`: several passes in time order, each from a
        recommender and a history from before the window (docs/methods.md 8.2). Others have nothing to practise.
        """
        practice: Practice = {}
        if isinstance(strategy, LinearStrategy):
            updater = self._before_window(strategy, start, practice)
            past, size = self.log.head(stop), self.protocol.batch_size
            ahead = [batch_of(past, *bounds) for bounds in batches(self.parts.window_start, stop, size)]
            practise_through(updater, ahead, practice_candidates(past, self.protocol.seed, self.protocol.negatives))
            practice = updater.practice()
        passes = strategy.settings.passes if isinstance(strategy, LearnedStrategy) else 0
        for number in range(passes):
            updater = self._before_window(strategy, start, practice)
            for first, last in batches(self.parts.window_start, stop, self.protocol.batch_size):
                updater.learn(batch_of(self.log, first, last).in_epoch(number), teach_head=False)
            practice = updater.practice()
        return practice | self._practise_head(strategy, start, stop, practice)

    def _practise_head(self, strategy: Strategy, start: PretrainedState, stop: int, practice: Practice) -> Practice:
        """Train a recommender's head out of sample (docs/methods.md 8.5): rows that know nothing of the window stream
        through it under the strategy, and the head learns from what was recorded on the way, in several passes.
        """
        if not start.headed:
            return {}
        updater, lessons = self._before_window(deepcopy(strategy), start, practice), []
        for first, last in batches(self.parts.window_start, stop, self.protocol.batch_size):
            batch = batch_of(self.log, first, last)
            lessons.append(updater.lesson(batch))
            updater.learn(batch, teach_head=False)
        return updater.practise_head([lesson for lesson in lessons if lesson is not None])

    def _before_window(self, strategy: Strategy, start: PretrainedState, practice: Practice) -> Updater:
        recommender, history = start.after(self.before_window)
        updater = Updater(recommender, strategy, history, seed=self.protocol.seed)
        updater.take_over(practice)
        stamp_last_touches(updater.recommender, self.before_window, updater.fading_clock)
        return updater

    def _train_while_it_helps(self, training: Pretraining, best: dict[str, Any]) -> tuple[float, int]:
        top, top_epoch, stale = float("-inf"), 0, 0
        for epochs in self._checks(training.settings):
            try:
                for _ in training.run(epochs):
                    pass
                state = PretrainedState.of(self.plan, training.recommender, self._observed)
                score = self._judge_pretrained(state)
            except LearningError:
                if top == float("-inf"):
                    raise
                break  # the epochs before it left the finite numbers still count
            stale = stale + 1 if score <= top else 0
            if score > top:
                top, top_epoch = score, epochs
            if score > best["score"]:
                best.update(score=score, state=state)
            if stale >= _PATIENCE or self.enough():
                break
        return top, top_epoch

    def enough(self) -> bool:
        """Whether the time for choosing is over; reported once."""
        minutes = self.plan.minutes
        if minutes is None or time.monotonic() - self._began < 60 * minutes:
            return False
        if not self.time_is_up:
            self.time_is_up = True
            self.progress.note(f"{minutes:g} minutes of choosing are over: the best settings so far are taken")
        return True

    def _checks(self, settings: PretrainSettings) -> list[int]:
        """The numbers of epochs after which a pre-training is judged; a number that is decided is the only one."""
        if settings.epochs is not None:
            return [settings.epochs]
        cap = self.plan.epochs or most_epochs(len(self.before_window))
        every = max(cap // _CHECKS, 1)
        return [*range(every, cap, every), cap]

    def _judge_pretrained(self, state: PretrainedState) -> float:
        """How well the recommender streams through the window under a plain step: the use it is meant for."""
        scores, problem = [], None
        for lr in _JUDGE_STEPS:
            strategy = self.plan.make_strategy({"optimizer": "sgd", "reduction": "sum", "lr": lr}, "default")
            try:
                scores.append(self.judged(RowsAlone(deploy(strategy, state, self.before_window))))
            except LearningError as broke:
                problem = broke
        if not scores and problem is not None:
            raise problem
        return max(scores)

    def judged(self, predictor: Predictor) -> float:
        """Through the window and validation; the score of what is judged."""
        tally = Tally()
        for point in self.through(predictor):
            if point.start >= self.parts.judged_from:
                tally.add(point)
        return selection_score(tally.rank)

    def through(self, predictor: Predictor) -> Iterator[Point]:
        """Every batch of the window and of validation; those from `judged_from` on are judged.

        An updater whose history reaches into the window starts where its history ends.
        """
        parts = self.parts
        behind = predictor.history.events if isinstance(predictor, Updater) else 0
        for first, last in pairwise((parts.window_start, parts.judged_from, parts.train_stop, parts.validation_stop)):
            if first >= behind:
                yield from self._points(predictor, first, last)

    def _points(self, predictor: Predictor, first: int, last: int) -> Iterator[Point]:
        if self._candidates is None:
            protocol = self.protocol
            self._candidates = Candidates(
                self.log, mode=protocol.candidates, seed=protocol.seed, count=protocol.negatives
            )
        return prequential(
            predictor,
            self.log,
            self._candidates,
            first,
            last,
            batch_size=self.protocol.batch_size,
            align_ties=self.protocol.align_ties,
        )


def words(point: Plain) -> str:
    """Settings in a line."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in point.items()
    )
