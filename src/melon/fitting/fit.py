"""One path to a model: choose settings on the selection window, pre-train again on the whole past, meta-train, deploy.

`fit` takes it to the end for `Melon.fit` and `melon pretrain`. An evaluated cell takes the same steps, with the test
part sealed and with baselines beside the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from melon.data.interactions import Interactions
from melon.errors import DataError, StoppedError
from melon.fitting.plan import Plan, StrategyChoice, name_of, search_space
from melon.fitting.pretrained import MetaParameters, PretrainedState, deploy, refit
from melon.fitting.selection import Selection
from melon.kernels.threads import using_threads
from melon.learning.model import LiveModel
from melon.learning.pretrain import PretrainSettings, most_epochs
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.progress import Progress, Stop
from melon.strategies.base import Strategy
from melon.stream.split import DEFAULT_SPLIT, Parts
from melon.types import Plain

#: The name of pre-training among the choices of a model.
PRETRAINING = "pre-training"
_Result = TypeVar("_Result")


class Memo:
    """The results of steps by name, in memory; a bench keeps them in files too.

    A name begins with the kind of its result: `choice`, `state` (a pre-trained recommender) or `meta-training`.
    """

    def __init__(self) -> None:
        self._results: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], _Result]) -> _Result:
        """A result, made the first time only."""
        if name not in self._results:
            self._results[name] = make()
        result: _Result = self._results[name]
        return result


class Fitting:
    """The steps from a log to a model, each of them done once.

    Settings are chosen on the window of `log`; the recommender is trained on `past` and deployed behind it. `notes`
    says what people should know of the choice: why there was none, or that time ran out. With `deploys_once` nothing is
    kept in memory for a second deployment. `workers` processes try settings side by side, which changes no result.
    Where the last pre-training was cut short, `epochs` says how many there were.
    """

    def __init__(
        self,
        log: Interactions,
        parts: Parts,
        past: Interactions,
        plan: Plan,
        progress: Progress | None = None,
        memo: Memo | None = None,
        *,
        deploys_once: bool = False,
        stop: Stop | None = None,
        workers: int = 1,
    ) -> None:
        self.plan, self.past, self.parts, self._deploys_once = plan, past, parts, deploys_once
        self._memo, self.stop = memo or Memo(), stop or Stop()
        self.selection = Selection(log, parts, plan, progress, self.stop, workers)
        self.notes: list[str] = []
        self.epochs: int | None = None
        self._stopped_early, self._helpers = False, workers - 1

    @property
    def progress(self) -> Progress:
        """Where the steps report."""
        return self.selection.progress

    @property
    def unchosen(self) -> str | None:
        """Why nothing is chosen on the selection window; None where it is."""
        if not self.plan.budget:
            return "the budget is 0, so no settings were tried: defaults are used"
        if self._observes_alone:
            return f"recommender {self.plan.recommender_name!r} learns without gradients, so no settings were tried"
        if self.plan.epochs == 0:
            return "the recommender is not pre-trained (epochs = 0), so no settings were tried: defaults are used"
        if self._stopped_early:
            return "choosing was stopped before anything was judged: defaults are used"
        if not self.selection.possible:
            return "these interactions are too few for a selection window, so no settings were tried: defaults are used"
        return None

    @property
    def _observes_alone(self) -> bool:
        """Whether the recommender has no table that pre-training or a strategy could update."""
        return not self.plan.build().specs

    def choose(self, beside: Sequence[str] = ()) -> Plain:
        """Settings of pre-training, of strategies to compare with, and of the plan's own, by name."""
        strategies: dict[str, tuple[StrategyChoice, Plain]] = {
            name: (name, self.plan.fixed_half_life(name)) for name in beside
        }
        strategies[self.plan.strategy_name] = self.plan.strategy, self.plan.fixed()
        pretraining = self._pretraining()
        if pretraining is None:
            self._tell(self.unchosen or "")
            strategy = self.plan.make_strategy(self.plan.fixed())
            if not self._meta_trains_unchosen(strategy):
                self._tell_untrained(strategy)
            epochs = most_epochs(len(self.past)) if self.plan.epochs is None else self.plan.epochs
            epochs = 0 if self._observes_alone else epochs
            decided = {"pretrain": {"epochs": epochs, **self.plan.pretrain_settings}}
            decided |= {name: fixed for name, (_, fixed) in strategies.items()}
            return {name: without_trials(settings) for name, settings in decided.items()}
        choices: Plain = {"pretrain": pretraining}
        choices |= {name: self._choice(strategy, fixed) for name, (strategy, fixed) in strategies.items()}
        if not search_space(self.plan.strategy, self.plan.fixed()).axes:
            self._tell(
                f"strategy {self.plan.strategy_name!r} declares no search space, so its settings were not tried: "
                "defaults are used"
            )
        if self.stop.pressed:
            self._tell("choosing was stopped: the best settings so far were taken")
        elif self.selection.time_is_up:
            self._tell(f"the time limit of {self.plan.minutes:g} minutes cut the choice: the best so far was taken")
        return choices

    def _pretraining(self) -> Plain | None:
        """The choice of pre-training, if there is one."""
        if self.unchosen is not None:
            return None
        try:
            return self.window()[0]
        except StoppedError:
            self._stopped_early = True
            return None

    def window(self) -> tuple[Plain, PretrainedState]:
        """The choice of pre-training, and the recommender that it gave on the log before the window."""

        def pretraining() -> Plain:
            self.progress.stage("choosing pre-training settings on the selection window")
            choice, state = self.selection.pretraining()
            self._memo.once("state/window", lambda: state)
            return choice.plain()

        choice = self._memo.once("choice/pretrain", pretraining)
        return choice, self._memo.once("state/window", lambda: self._trained_before_window(choice["settings"]))

    def window_again(self) -> PretrainedState | None:
        """The recommender on which strategies are judged, where it is not the one from before the window."""
        if not self.selection.judges_again:
            return None
        settings = self.window()[0]["settings"]
        return self._memo.once("state/window-again", lambda: self.selection.trained_again(settings))

    def pretrained(self, choices: Plain) -> PretrainedState:
        """The recommender, trained on the whole past with the settings that were chosen."""

        def train() -> PretrainedState:
            self.progress.stage(f"pre-training {self.plan.recommender_name} on {len(self.past):,} interactions")
            settings = choices["pretrain"]["settings"]
            return refit(
                self.plan,
                self.past,
                settings,
                partial(self._epoch, settings.get("epochs") or most_epochs(len(self.past))),
                observed={},
                once=self._deploys_once,
                helpers=self._helpers,
                goes_on=self._cut_short,
            )

        return self._memo.once("state/refitted", train)

    def meta_train(self, strategy: StrategyChoice, choices: Plain) -> MetaParameters:
        """What a learned strategy, and the head of a recommender, take along from the whole selection window."""

        def train() -> MetaParameters:
            learner = self.plan.make_strategy(choices[name]["settings"], strategy)
            learns = learner.looks_ahead or learner.stream_trained or isinstance(self.plan.build(), Blend)
            unchosen = self.unchosen is not None
            if not learns or (unchosen and not self._meta_trains_unchosen(learner)):
                return {}
            self.progress.stage(f"meta-training {name} on the selection window")
            if unchosen:
                start = self._trained_before_window(choices["pretrain"]["settings"])
                return self.selection.train_meta_model(learner, start, self.parts.train_stop)
            pretraining, start = self.window()
            return self.selection.train_meta_model(learner, start, self.parts.train_stop, pretraining["settings"])

        name = name_of(strategy)
        return self._memo.once(f"meta-training/{name}", train)

    def _meta_trains_unchosen(self, strategy: Strategy) -> bool:
        """Whether a strategy meta-trains with default settings: without it, it would be the plain step of 'default'."""
        chosen_by_nobody = not self.plan.budget and self.plan.epochs != 0 and not self._observes_alone
        return chosen_by_nobody and strategy.stream_trained and self.selection.possible

    def deployed(
        self, strategy: Strategy, state: PretrainedState, meta_training: MetaParameters | None = None
    ) -> Updater:
        """An updater behind the whole past."""
        return deploy(strategy, state, self.past, meta_training)

    def _trained_before_window(self, settings: Plain) -> PretrainedState:
        """The same recommender once more, where its choice was kept and its file was lost."""
        return refit(self.plan, self.selection.before_window, settings, self.progress.tick, observed={})

    def _epoch(self, epochs: int, text: str) -> None:
        self.progress.share(None, epochs)
        self.progress.tick(text)

    def _cut_short(self, done: int, epochs: int) -> bool:
        if not self.stop.press():
            return False
        self.epochs = done
        self._tell(f"pre-training was stopped after {done} of {epochs} epochs: the model is deployed as it is")
        return True

    def _choice(self, strategy: StrategyChoice, fixed: Plain) -> Plain:
        def choose() -> Plain:
            self.progress.stage(f"choosing settings of {name_of(strategy)}")
            return self.selection.strategy(strategy, self.window()[1], fixed, self.window_again).plain()

        return self._memo.once(f"choice/{name_of(strategy)}", choose)

    def _tell_untrained(self, strategy: Strategy) -> None:
        """Say what a learned strategy is without its meta-training."""
        if strategy.stream_trained:
            instead = "it takes the plain steps of 'default'"
        elif strategy.looks_ahead:
            instead = "it starts untrained and learns on the stream alone"
        else:
            return
        self._tell(f"strategy {strategy.name!r} was not meta-trained, which needs a selection window: {instead}")

    def _tell(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.progress.notice(text)


@dataclass(frozen=True)
class Fitted:
    """A model, the settings it was made with by name, and what people should know of how they were chosen."""

    model: LiveModel
    choices: dict[str, Plain]
    notes: tuple[str, ...]
    #: The score on the selection window with which the strategy's settings were chosen; None where none were.
    score: float | None = None


def fit(
    log: Interactions,
    plan: Plan,
    progress: Progress | None = None,
    on_choice: Callable[[dict[str, Plain]], None] = lambda _: None,
    *,
    workers: int = 1,
) -> Fitted:
    """A model from the whole log. `on_choice` gets the choices as soon as they are made, before the long training.

    `workers` processes try settings side by side. Ctrl-C while settings are tried takes the best so far, and in the
    last pre-training the epochs that are done; a second one ends it.
    """
    if log.n_items < 2:
        raise DataError(
            f"fit needs interactions with at least two items to compare, and these {len(log)} have one "
            f"({log.item_ids[0]!r}); give more, or start cold with partial_fit."
        )
    protocol = replace(plan.protocol, negatives=min(plan.protocol.negatives, _spare_items(log)))
    with using_threads(plan.threads):
        plan = replace(plan, protocol=protocol)
        options: Plain = {"deploys_once": True, "stop": Stop(goes_on=True), "workers": workers}
        fitting = Fitting(log, _all_but_validation(log), log, plan, progress, **options)
        choices = fitting.choose()
        settings = choices[plan.strategy_name]["settings"]
        pretraining = PretrainSettings.parse(choices["pretrain"]["settings"], "pre-training").plain()
        on_choice({PRETRAINING: pretraining, plan.strategy_name: dict(settings)})
        updater = _deployed(fitting, choices)
        model = LiveModel(updater)
        model.adopt(log)
    if fitting.epochs is not None:
        pretraining["epochs"] = fitting.epochs
    settings_by_name = {PRETRAINING: pretraining, plan.strategy_name: updater.strategy.settings.plain()}
    return Fitted(model, settings_by_name, tuple(fitting.notes), choices[plan.strategy_name]["score"])


def without_trials(settings: Plain) -> Plain:
    """A choice that was settled without a trial, as a record holds it."""
    return {"settings": settings, "score": None, "trials": []}


def _deployed(fitting: Fitting, choices: Plain) -> Updater:
    """The plan's strategy behind the past.

    Meta-training on the window and pre-training on the whole past need nothing of each other.
    """
    strategy = fitting.plan.make_strategy(choices[fitting.plan.strategy_name]["settings"])

    def meta_train() -> MetaParameters:
        return fitting.meta_train(fitting.plan.strategy, choices)

    running = fitting.selection.workers.begin(meta_train)
    try:
        state = fitting.pretrained(choices)
        meta_training = running.result()
    finally:
        running.cancel()
    return fitting.deployed(strategy, state, meta_training)


def _all_but_validation(log: Interactions) -> Parts:
    """The log as a training part and the short validation part behind it; there is no test part."""
    n, (training, validation, _) = len(log), DEFAULT_SPLIT
    return Parts(n - max(1, round(n * validation / (training + validation))), n, n)


def _spare_items(log: Interactions) -> int:
    """How many items nine users in ten have not had: no more than that can stand beside each positive."""
    return log.n_items - 1 - int(np.quantile(np.diff(log.taken.starts), 0.9))
