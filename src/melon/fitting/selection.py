"""The selection window (docs/methods.md 5.7): the one place where anything is learned or chosen ahead of the test part.

A recommender trained on what precedes the window streams through it; settings are compared on the last 40 % of the
window and the validation part. The functions here are given the log up to the end of validation and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from melon.data.interactions import Interactions
from melon.errors import LearningError, StoppedError, StreamError, has_torch
from melon.evaluation.lists import TRACKS, Lister
from melon.evaluation.predictors import Predictor, RowsAlone
from melon.evaluation.prequential import Point, Tally, prequential
from melon.evaluation.ranking import gains, hits, selection_score
from melon.fitting.auto import RECOMMENDER
from melon.fitting.meta_training import WindowMetaTraining
from melon.fitting.plan import Plan, StrategyChoice, name_of, search_space
from melon.fitting.pretrained import LogStates, MetaParameters, PretrainedState, deploy, refit
from melon.fitting.search import Choice, Curve, Search, Trial, Workers, search, words
from melon.learning.pretrain import PRETRAIN_SPACE, Pretraining, PretrainSettings, most_epochs
from melon.learning.updater import Updater
from melon.progress import Progress, Stop
from melon.registry import Space
from melon.strategies.base import Strategy
from melon.stream.batch import Batch, batch_of
from melon.stream.candidates import Candidates
from melon.stream.split import Parts, batches
from melon.types import Floats, Plain

#: Trials of longer logs take too much memory to run side by side.
_SIDE_BY_SIDE = 20_000_000
#: Fewer judged events than this say nothing; defaults are used instead.
FEWEST_JUDGED = 50
#: Pre-training is judged this often on its way to the last epoch, and stopped after this many checks without progress.
_CHECKS, _PATIENCE = 10, 3
_PRETRAIN_TRIALS = 3
#: Plain steps under which a pre-trained recommender is judged, a gentle and a usual one: the better counts.
_JUDGE_STEPS = (0.1, 0.3)
#: Choices by lists look at as many events of the judged part as this many scores allow, between a least and a most.
LISTED_SCORES, FEWEST_LISTED, MOST_LISTED = 2e7, 1_000, 2_000


class Selection:
    """Chooses on the window of one log, which must end before the test part begins.

    Once the plan's minutes have passed, choices that are still open are made from the trials so far, or from one trial
    each; `time_is_up` says so.
    """

    def __init__(
        self,
        log: Interactions,
        parts: Parts,
        plan: Plan,
        progress: Progress | None = None,
        stop: Stop | None = None,
        workers: int = 1,
    ) -> None:
        if len(log) != parts.validation_stop:
            raise StreamError(
                f"a choice may see {parts.validation_stop} interactions, the log up to the test part, not {len(log)}."
            )
        self.log, self.parts, self.plan, self.protocol = log, parts, plan, plan.protocol
        self.progress, self.stop = progress or Progress(), stop or Stop()
        one_by_one = plan.threads > 1 or len(log) > _SIDE_BY_SIDE
        self.workers = Workers(1 if one_by_one else workers, self._go_quiet)
        self.before_window, self.before_judged = log.head(parts.window_start), log.head(parts.judged_from)
        judged = parts.validation_stop - parts.judged_from
        pool = int(log.known_items[parts.judged_from]) if self.protocol.candidates == "known" else log.n_items
        self.possible = (
            judged >= FEWEST_JUDGED and self.before_window.n_items > 1 and pool > self.protocol.negatives >= 1
        )
        self._candidates: Candidates | None = None
        self._meta_training = WindowMetaTraining(
            log, parts.window_start, self.before_window, plan.protocol, parts.earlier_windows
        )
        self._observed: LogStates = {}
        self._began, self.time_is_up = time.monotonic(), False

    def pretraining(self) -> tuple[Choice, PretrainedState]:
        """Settings and epochs for pre-training, and the recommender that they gave on the log before the window."""
        plan, states = self.plan, dict[str, PretrainedState]()

        def judge(point: Plain, _: Curve | None) -> Trial:
            settings = PretrainSettings.parse(point, "pre-training")
            training = Pretraining(plan.build(), self.before_window, settings, seed=plan.seed)
            try:
                score, epochs, state = self._train_while_it_helps(training)
            except LearningError as problem:
                return Trial(point, None, str(problem))
            return Trial({**point, "epochs": epochs}, score, gives=state.tables)

        def keep(trial: Trial, budget: int) -> None:
            after = "" if trial.score is None else f" after {trial.settings['epochs']} epochs"
            self._report("pre-training", trial, budget, after)
            if trial.score is not None and all(trial.score > each for each in scores):
                states["best"] = PretrainedState(plan, trial.gives, self._observed)
            scores.append(trial.score or float("-inf"))

        scores: list[float] = []
        chosen = self._searched(PRETRAIN_SPACE, min(plan.budget, _PRETRAIN_TRIALS), judge, plan.pretrain_settings, keep)
        if not chosen.trials:
            raise StoppedError("stopped before the first pre-training was judged.")
        if chosen.score is None:
            raise LearningError(f"all pre-trainings failed. The first trial: {chosen.trials[0].problem}")
        return chosen, states["best"]

    @property
    def judges_again(self) -> bool:
        """Whether strategies are judged on a recommender that was trained again.

        They are meta-trained on the one from before the window, and deployed on another. Where all users share
        weights, what was learned on the one may not suit the other (docs/decisions.md 9): the window shows it.
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
        if self.stop.pressed:
            return Search(space, fixed).choice()
        with ExitStack() as shared:
            try:
                later = again()
                self._prepare(start)
                shared.enter_context(self._sharing(strategy, start, later, fixed))
            except KeyboardInterrupt:
                if not self._goes_on():
                    raise
                return Search(space, fixed).choice()

            def judge(point: Plain, opponent: Curve | None) -> Trial:
                try:
                    return self.raced(point, self.at_window(strategy, point, start, later), opponent)
                except LearningError as problem:
                    return Trial(point, None, str(problem))

            return self.searched(name, space, judge, fixed)

    def _sharing(
        self, strategy: StrategyChoice, start: PretrainedState, again: PretrainedState | None, fixed: Plain
    ) -> AbstractContextManager[None]:
        """What trials share, where a head is trained on recordings of the window: under the first point to be tried."""
        if not start.headed or again is not None:
            return nullcontext()
        learner = self.plan.make_strategy({**self.space(strategy, fixed).starts[0], **fixed}, strategy)
        return self._meta_training.sharing(learner, start, self.parts.judged_from)

    def searched(
        self,
        name: str,
        space: Space,
        judge: Callable[[Plain, Curve | None], Trial],
        fixed: Mapping[str, Any] | None = None,
    ) -> Choice:
        """The best of the plan's budget of points, each judged by a stream through the window."""
        return self._searched(space, self.plan.budget, judge, fixed or {}, partial(self._report, name))

    def _searched(
        self,
        space: Space,
        budget: int,
        judge: Callable[[Plain, Curve | None], Trial],
        fixed: Mapping[str, Any],
        on_trial: Callable[[Trial, int], None],
    ) -> Choice:
        self._prepare()
        self.progress.share(0, budget)
        how: Plain = {"workers": self.workers, "on_trial": on_trial, "goes_on": self._goes_on}
        return search(space, budget, judge, fixed, self.enough, **how)

    def _report(self, name: str, trial: Trial, budget: int, after: str = "") -> None:
        settings = {key: value for key, value in trial.settings.items() if not after or key != "epochs"}
        metric = "NDCG@10 of lists" if self.protocol.by_lists and not after else "HR@5 + NDCG@10"
        outcome = trial.problem if trial.score is None else f"{metric} {trial.score:.4f}{after}"
        self.progress.share(None, budget)
        self.progress.note(f"{name} {words(settings)}: {outcome}")

    def _go_quiet(self) -> None:
        """In a process beside the first one, which reports."""
        self.progress = Progress()

    def _goes_on(self) -> bool:
        if not self.stop.press():
            return False
        self.progress.notice("stopped choosing: continuing with the best settings so far; stop again to end")
        return True

    def _prepare(self, start: PretrainedState | None = None) -> None:
        """Compute what trials share before they begin side by side."""
        if self._candidates is None:
            protocol = self.protocol
            self._candidates = Candidates(
                self.log, mode=protocol.candidates, seed=protocol.seed, count=protocol.negatives
            )
        if start is not None:
            start.after(self.before_window)

    def at_window(
        self, strategy: StrategyChoice, settings: Plain, start: PretrainedState, again: PretrainedState | None = None
    ) -> Updater:
        """A strategy after its meta-training on the part that is not judged, deployed where the window begins; or, on a
        recommender that was trained `again`, where the judged part begins.

        Where the head is trained by itself, its rows have streamed up to the judged part already, and the head has only
        to make its own steps over the examples that were recorded: the same as streaming through that part once more.
        """
        learner, stop = self.plan.make_strategy(settings, strategy), self.parts.judged_from
        meta_training = self._meta_training.of_strategy(learner, start, stop)
        if again is not None:
            meta_training |= self._meta_training.of_head(learner, start, stop, meta_training)
            return deploy(learner, again, self.before_judged, meta_training)
        if start.headed:
            updater, head_batches = self._meta_training.recorded(learner, start, stop, meta_training)
            updater.take_over(self._meta_training.trained_head(updater, head_batches))
            for head_examples in head_batches:
                updater.teach_head(head_examples)
            return updater
        return deploy(learner, start, self.before_window, meta_training)

    def space(self, strategy: StrategyChoice, fixed: Plain) -> Space:
        """The declared space; where time decay is open, it starts from a middling and a short half-life.

        Rows of the blend take plain steps: Adam on rows was chosen on no recorded stream. It needs PyTorch, too.
        """
        space = search_space(strategy, fixed)
        if "adam_lazy" in space.axes.get("optimizer", ()) and (self.plan.recommender == RECOMMENDER or not has_torch()):
            if self.plan.recommender != RECOMMENDER:
                self.progress.note(f"Adam is not tried for {strategy}: it needs the extra 'torch'")
            space = space.without("optimizer", "adam_lazy")
        if len(space.axes.get("half_life", ())) < 2 or "half_life" in fixed:
            return space
        values = space.axes["half_life"]
        middling, short = values[len(values) // 2], values[-2]
        starts = [{**start, "half_life": middling} for start in space.starts]
        # Fast streams want it several steps away from slow ones: more than a small budget would walk.
        starts.insert(1, {**space.starts[0], "half_life": short})
        return Space(space.axes, tuple(starts))

    def train_meta_model(
        self, strategy: Strategy, start: PretrainedState, stop: int, pretraining: Plain | None = None
    ) -> MetaParameters:
        """What a learned strategy and a head learn on the window up to `stop` (`WindowMetaTraining.of`)."""
        return self._meta_training.of(strategy, start, stop, pretraining)

    def _train_while_it_helps(self, training: Pretraining) -> tuple[float, int, PretrainedState]:
        top, top_epoch, stale, best = float("-inf"), 0, 0, None
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
                top, top_epoch, best = score, epochs, state
            if stale >= _PATIENCE or self.enough():
                break
        assert best is not None
        return top, top_epoch, best

    def enough(self) -> bool:
        """Whether the time for choosing is over; reported once."""
        minutes = self.plan.minutes
        if self.stop.pressed:
            return True
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
                updater = deploy(strategy, state, self.before_window, rows_alone=True)
                scores.append(self.judged(RowsAlone(updater)))
            except LearningError as broke:
                problem = broke
        if not scores and problem is not None:
            raise problem
        return max(scores)

    def judged(self, predictor: Predictor) -> float:
        """Through the window and validation; the score of what is judged."""
        tally = Tally()
        for point in self.through(predictor):
            tally.add(point)
        return selection_score(tally.rank)

    def raced(self, point: Plain, predictor: Predictor, opponent: Curve | None) -> Trial:
        """The same as a trial, which is given up where it is clearly behind another one."""
        curve = Curve()
        for at in self.through(predictor, by_lists=self.protocol.by_lists):
            curve.add(self._values(at))
            if opponent is not None and curve.hopeless(opponent):
                share = f"{len(curve.ranked)} of {len(opponent.ranked)} batches"
                return Trial(point, None, f"stopped early, {curve.behind(opponent)[0]:.4f} behind after {share}")
        return Trial(point, curve.score(), curve=curve)

    def _values(self, point: Point) -> Floats:
        """What each interaction of a batch counts: HR@5 + NDCG@10 among sampled candidates; by lists, NDCG@10 of all
        events and of first-time pairs, so that the mean over the judged part is the mean of both tracks.
        """
        if point.lists is None:
            rank = point.ranks.rank
            return hits(rank) + gains(rank)
        everything, first = (point.lists.tracks[track].rank for track in TRACKS)
        listed = ~np.isnan(everything)
        both = gains(everything[listed]) + gains(first[listed]) / self._first_time_share
        return both / 2

    @cached_property
    def _first_time_share(self) -> float:
        """The share of first-time pairs in the judged part."""
        return max(1 - float(self.log.repeats[self.parts.judged_from :].mean()), 1 / len(self.log))

    def through(self, predictor: Predictor, *, by_lists: bool = False) -> Iterator[Point]:
        """Learn the window up to the judged part, then predict and learn each batch of that part and of validation.

        An updater whose history reaches into the window starts where its history ends.
        """
        parts = self.parts
        behind = predictor.history.events if isinstance(predictor, Updater) else 0
        if behind <= parts.window_start:
            for first, last in self._batches(parts.window_start, parts.judged_from):
                predictor.learn(batch_of(self.log, first, last))
        judged = parts.validation_stop - parts.judged_from
        listed = float(np.clip(LISTED_SCORES / max(self.log.n_items, 1), FEWEST_LISTED, MOST_LISTED))
        lister = Lister(self.log, parts.judged_from, listed / judged) if by_lists else None
        for first, last in pairwise((parts.judged_from, parts.train_stop, parts.validation_stop)):
            yield from self._points(predictor, first, last, lister)

    def window_batches(self) -> Iterator[Batch]:
        """The batches of the window and of validation, in order; none straddles the beginning of the judged part."""
        parts = self.parts
        for begins, ends in pairwise((parts.window_start, parts.judged_from, parts.train_stop, parts.validation_stop)):
            for first, last in self._batches(begins, ends):
                yield batch_of(self.log, first, last)

    def _batches(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        return batches(first, last, self.protocol.batch_size)

    def _points(self, predictor: Predictor, first: int, last: int, lister: Lister | None) -> Iterator[Point]:
        self._prepare()
        candidates = self._candidates if lister is None else None
        size = self.protocol.batch_size
        return prequential(predictor, self.log, candidates, first, last, batch_size=size, lister=lister)
