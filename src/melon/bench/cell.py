"""Run one cell: choose on the selection window, refit, stream through validation into test, report beside baselines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from melon.bench.config import CellConfig
from melon.bench.rate_capture import RatesKeeper, Watched
from melon.bench.record import Recorded
from melon.bench.work import PlainKeeper, PracticeKeeper, StateKeeper, TallyKeeper, Work
from melon.data.interactions import Interactions
from melon.errors import StreamError
from melon.evaluation.predictors import Frozen, Popularity, Predictor, Retrained
from melon.evaluation.prequential import Tally, prequential
from melon.evaluation.rivals import RIVALS, UNCHOSEN, make_rival
from melon.explain.matrix import BatchRates
from melon.fitting.pretrained import Practice, PretrainedState, RecommenderPlan, deploy, refit
from melon.fitting.selection import Protocol, Selection
from melon.learning.pretrain import MOST_EPOCHS, PretrainSettings, most_epochs, stamp_last_touches
from melon.learning.updater import Updater
from melon.progress import Progress
from melon.recommenders.heads import HeadedRecommender
from melon.strategies.base import Strategy
from melon.strategies.learned import LearnedStrategy
from melon.strategies.registry import STRATEGIES
from melon.stream.batch import batch_of
from melon.stream.candidates import Candidates, require_enough_items
from melon.stream.draws import Draws
from melon.stream.sealed import SealedStream
from melon.stream.split import batches, split
from melon.types import Plain


@dataclass(frozen=True)
class CellResult:
    """The record of DESIGN.md, the rank of every evaluated event under every method, and rates if they were asked."""

    record: Plain
    ranks: dict[str, np.ndarray[Any, Any]]
    rates: BatchRates | None = None


class Cell:
    """One recommender, one strategy, one stream, one seed; baselines run beside it on the same candidates.

    With `rates`, the strategy's learning rates for the last full batch of the test part are kept too.
    """

    def __init__(
        self,
        log: Interactions,
        config: CellConfig,
        listener: Progress | None = None,
        work: Work | None = None,
        *,
        rates: bool = False,
    ) -> None:
        self.config, self.listener, self._work = config, listener or Progress(), work or Work()
        self._watches = rates
        self.parts = split(log, config.split, align_ties=config.align_ties)
        self._sealed = SealedStream(log, self.parts)
        self._protocol = Protocol(
            config.seed, config.batch_size, config.candidates, config.negatives, config.align_ties
        )
        self._plan = RecommenderPlan(
            config.recommender, config.recommender_settings, config.pretrain_settings, config.epochs, config.device
        )
        self.selection = Selection(
            self._sealed.before_test, self.parts, self._protocol, self.listener.note, config.minutes
        )
        self._states = StateKeeper(partial(PretrainedState, self._plan, config.seed))
        self._require_two_sides(self._sealed.training)
        # Names and values are checked before hours are spent.
        require_enough_items(self._sealed.before_test.n_items, config.negatives)
        PretrainSettings.parse(config.pretrain_settings, "pre-training")
        recommender = self._plan.build(config.seed)
        Updater(recommender, self._strategy(config.strategy, config.fixed))

    def run(self, path: str = "") -> CellResult:
        """Choose, refit, stream, report."""
        torch.set_num_threads(self.config.threads)
        choices = self.choose()
        began = time.perf_counter()
        state = self._work.once("refitted", self._states, lambda: self._refit(choices["pretrain"]["settings"]))
        pretrain_s = time.perf_counter() - began
        practice = {
            name: self._work.once(
                f"practice/{name}",
                PracticeKeeper(),
                lambda name=name: self._practise(name, choices[name]["settings"]),  # type: ignore[misc]
            )
            for name in dict.fromkeys(("default", self.config.strategy))
        }
        log = self._sealed.open(choices)
        candidates = Candidates(log, mode=self.config.candidates, seed=self.config.seed, count=self.config.negatives)
        tallies = {
            name: self._work.once(
                f"stream/{self._label(name)}",
                TallyKeeper(),
                lambda name=name, make=make: self._stream(name, make(), log, candidates),  # type: ignore[misc]
            )
            for name, make in self._predictors(choices, state, practice, log).items()
        }
        found = Recorded(self.config, path, log, self.parts, choices, tallies, pretrain_s)
        rates = self._work.known(f"rates/{self._label('strategy')}", RatesKeeper())
        return CellResult(found.record(), found.ranks(), rates)

    def choose(self) -> Plain:
        """Everything that is chosen, from data before the test part alone."""
        config, plain = self.config, PlainKeeper()
        selection = self.selection
        if not selection.possible:
            return self._defaults()
        chosen, before_window = self.window()
        choices: Plain = {"pretrain": chosen}
        for name, fixed in {"default": config.fixed_fading("default"), config.strategy: config.fixed}.items():

            def settings(name: str = name, fixed: Plain = fixed) -> Plain:
                self.listener.stage(f"choosing settings of {name}")
                again = self._again(chosen["settings"])
                return selection.strategy(name, before_window, config.budget, fixed, config.seed, again).plain()

            choices[name] = self._work.once(f"choice/{name}", plain, settings)

        def half_life() -> Plain:
            self.listener.stage("choosing the half-life of recent popularity")
            return selection.popularity(config.budget).plain()

        choices["recent_popularity"] = self._work.once("choice/recent_popularity", plain, half_life)

        def mixtures() -> Plain:
            self.listener.stage("choosing half-lives and weights of simple rivals")
            return {name: choice.plain() for name, choice in selection.rivals(before_window).items()}

        return choices | self._work.once("choice/rivals", plain, mixtures)

    def window(self) -> tuple[Plain, PretrainedState]:
        """How to pre-train, as chosen on the selection window, and the recommender it gave on what precedes that."""
        start: list[PretrainedState] = []

        def pretraining() -> Plain:
            self.listener.stage("choosing pre-training settings on the selection window")
            choice, state = self.selection.pretraining(self._plan, self.config.budget)
            start.append(self._work.once("window", self._states, lambda: state))
            return choice.plain()

        choice = self._work.once("choice/pretrain", PlainKeeper(), pretraining)
        return choice, start[0] if start else self._work.once("window", self._states, _never)

    def window_again(self, settings: Plain) -> PretrainedState | None:
        """The recommender on which strategies are judged, pre-trained with these settings; None where it is the one
        from before the window.
        """
        again = self._again(settings)
        return None if again is None else again()

    def _again(self, settings: Plain) -> Callable[[], PretrainedState] | None:
        if not self.selection.judges_again(self._plan):
            return None
        train = partial(self.selection.trained_again, self._plan, settings)
        return partial(self._work.once, "window-again", self._states, train)

    def _practise(self, name: str, settings: Plain) -> Practice:
        """What a learned strategy, and the head of a recommender, take along from the whole selection window."""
        strategy = self._strategy(name, settings)
        headed = isinstance(self._plan.build(self.config.seed), HeadedRecommender)
        if not (self.selection.possible and (headed or isinstance(strategy, LearnedStrategy))):
            return {}
        self.listener.stage(f"{name} practises on the selection window")
        start = self._work.once("window", self._states, _never)
        return self.selection.train_meta_model(strategy, start, self.parts.train_stop)

    def _refit(self, settings: Plain) -> PretrainedState:
        training = self._sealed.training
        self.listener.stage(f"pre-training {self.config.recommender} on {len(training):,} interactions")
        return refit(self._plan, training, settings, self.config.seed, self.listener.tick)

    def _label(self, name: str) -> str:
        """Under which name a predictor is shown and its work is shared."""
        own = "-own" if self.config.pretrain == "own" else ""
        return f"{self.config.strategy}{own}" if name == "strategy" else name

    def _defaults(self) -> Plain:
        """Where the stream is too short to choose anything."""
        self.listener.note("the stream is too short for a selection window: defaults are used")
        epochs = min(self.config.epochs or MOST_EPOCHS, most_epochs(len(self._sealed.training)))
        settings: Plain = {"pretrain": {"epochs": epochs, **self.config.pretrain_settings}, "default": {}}
        settings |= {self.config.strategy: self.config.fixed, "recent_popularity": {"half_life": 3_000}}
        settings |= {name: {"kind": kinds[0], **UNCHOSEN} for name, kinds in RIVALS.items()}
        return {name: {"settings": chosen, "score": None, "trials": []} for name, chosen in settings.items()}

    def _predictors(
        self, choices: Plain, state: PretrainedState, practice: dict[str, Practice], log: Interactions
    ) -> dict[str, Callable[[], Predictor]]:
        """The baselines and the strategy, each made when its turn comes."""
        config, training, past_items = self.config, self._sealed.training, self._sealed.training.items
        half_life = choices["recent_popularity"]["settings"]["half_life"]
        settings = choices[config.strategy]["settings"]
        made: dict[str, Callable[[], Predictor]] = {
            "frozen": lambda: Frozen(self._updater("default", {}, state, log)),
            "popularity": lambda: Popularity(float("inf"), past_items),
            "recent_popularity": lambda: Popularity(half_life, past_items),
            **{
                name: lambda name=name: make_rival(  # type: ignore[misc]
                    name, choices[name]["settings"], training, Frozen(self._updater("default", {}, state, log))
                )
                for name in RIVALS
            },
            "default": lambda: self._updater(
                "default", choices["default"]["settings"], state, log, practice["default"]
            ),
            "strategy": lambda: self._updater(config.strategy, settings, state, log, practice[config.strategy]),
        }
        every = config.retrain_every
        if every is not None:
            retrained = partial(self._from_scratch, choices, practice["default"], log)
            made["retrained"] = lambda: Retrained(retrained, self.parts.train_stop, every)
        if config.pretrain == "own":
            made["strategy"] = lambda: self._trained_by_itself(settings, log)
        return made

    def _from_scratch(self, choices: Plain, practice: Practice, log: Interactions, stop: int) -> Updater:
        """A model trained on the first events of the log as the deployed one was on the training part."""
        past = log.head(stop)
        state = refit(self._plan, past, choices["pretrain"]["settings"], self.config.seed, self.listener.tick)
        return deploy(self._strategy("default", {}), state, past, self.config.seed, practice)

    def _updater(
        self, name: str, settings: Plain, state: PretrainedState, log: Interactions, practice: Practice | None = None
    ) -> Updater:
        past = log.head(self.parts.train_stop)
        return deploy(self._strategy(name, settings), state, past, self.config.seed, practice)

    def _trained_by_itself(self, settings: Plain, log: Interactions) -> Updater:
        """`own`: the strategy pre-trains its recommender from scratch on shuffled chunks (METHODS.md 3.0.6)."""
        config, stop = self.config, self.parts.train_stop
        untrained = PretrainedState.of(self._plan, config.seed, self._plan.build(config.seed))
        updater = self._updater(config.strategy, settings, untrained, log)
        if updater.recommender.rows_of("item"):  # the strategy has a way of its own, and has gone it
            return updater
        epochs = config.epochs or 20
        self.listener.stage(f"{config.strategy} pre-trains its own {config.recommender} for {epochs} epochs")
        chunks = list(batches(0, stop, config.batch_size))
        for epoch in range(epochs):
            losses = []
            for chunk in Draws(config.seed, "chunks").generator(epoch).permutation(len(chunks)):
                losses.append(updater.rehearse(batch_of(log, *chunks[chunk]).in_epoch(epoch)))
            self.listener.tick(f"epoch {epoch + 1} of {epochs}, loss {np.mean(losses):.4f}")
        stamp_last_touches(updater.recommender, self._sealed.training, updater.fading_clock)
        return updater

    def _strategy(self, name: str, settings: Plain) -> Strategy:
        made: Strategy = STRATEGIES[name].load()(settings, seed=self.config.seed)
        return made

    def _stream(self, name: str, predictor: Predictor, log: Interactions, candidates: Candidates) -> Tally:
        self.listener.stage(f"streaming {self._label(name)}")
        tally, hits, seen = Tally(), 0.0, 0
        watched = None
        if self._watches and name == "strategy" and isinstance(predictor, Updater):
            predictor = watched = Watched(predictor, self._last_full_batch(log))
        total = self.parts.stop - self.parts.train_stop
        for first, last in (
            (self.parts.train_stop, self.parts.validation_stop),
            (self.parts.validation_stop, self.parts.stop),
        ):
            points = prequential(
                predictor,
                log,
                candidates,
                first,
                last,
                batch_size=self.config.batch_size,
                align_ties=self.config.align_ties,
                full_ranking=self.config.full_ranking and first == self.parts.validation_stop,
            )
            for point in map(watched.timed, points) if watched else points:
                if first == self.parts.validation_stop:
                    tally.add(point)
                    hits += float((point.ranks.rank <= 5).sum())
                    seen += len(point.ranks)
                self.listener.batch(point.stop - self.parts.train_stop, total, hits / seen if seen else None)
        found = watched.found if watched is not None else None
        if found is not None:
            self._work.once(f"rates/{self._label(name)}", RatesKeeper(), lambda: found)
        return tally

    def _last_full_batch(self, log: Interactions) -> int:
        """The event at which it starts; the longest one where none is full."""
        size, times = self.config.batch_size, log.times if self.config.align_ties else None
        test = batches(self.parts.validation_stop, self.parts.stop, size, times)
        return max(test, key=lambda batch: (min(batch[1] - batch[0], size), batch[0]))[0]

    @staticmethod
    def _require_two_sides(training: Interactions) -> None:
        for side, count in (("user", training.n_users), ("item", training.n_items)):
            if count < 2:
                raise StreamError(
                    f"the training part has {count} {side}; an evaluation needs at least two to tell anything apart."
                )


def _never() -> PretrainedState:
    raise StreamError("the kept work of this run is incomplete; run it again without --resume.")
